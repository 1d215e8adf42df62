"""From requests to changes, and from replies to messages: all of both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from registry.admin.rpc import decode, encode, streams
from registry.admin.rpc.encode_changes import first_id, recorded_changes
from registry.etcd3.ops import Event, KeyValue
from registry.model.audit import AuditChange, AuditRecord
from registry.model.errors import FailedPrecondition, InvalidArgument, Reason
from registry.model.messages import pool_message
from registry.model.records import (
    AdapterOutcome,
    CanaryRollout,
    ChangeReply,
    PoolSpec,
    ReplicaGroup,
    Restoration,
    RetiredRecord,
    TenantRecord,
)
from registry.model.replica_state import ReplicaState
from registry.model.status import LastKnown, Presence
from registry.rollout.expected import AbsentReplica, GroupPresence, LackingReplicas
from registry.rollout.status import ReplicaFailure, ReplicaRollout, Rollout
from registry.rollout.watching import WatchBatch
from registry.store.pages import Page
from registry.store.reader import History, ReplicaValues
from registry.transactions.builder import Settled
from registry.transactions.changes import (
    AbortRollout,
    ConfirmRemovals,
    DeletePool,
    DrainReplica,
    PromoteRollout,
    Remove,
    RepairTenant,
    RollbackAdapter,
    SetTenant,
)
from registry.transactions.decode import Present
from registry.v1 import registry_pb2 as pb
from tests.support.records import POOL, kv, record


def test_a_change_without_content_is_named_by_its_place():
    changes = [pb.AdapterChange(delete="a"), pb.AdapterChange()]
    with pytest.raises(InvalidArgument, match="an upsert, an update or a delete") as told:
        decode.apply_adapters(pb.ApplyAdaptersRequest(pool="p", changes=changes))
    assert (told.value.reason, told.value.field) == (Reason.INVALID_FIELD, "changes[1]")


def no_fingerprint(_: object) -> str:
    return "f"


@pytest.mark.parametrize("kind", ["dynamo", "vlllm"])
def test_a_pool_of_engines_that_nobody_drives_is_refused_by_name_where_it_is_set(kind):
    """What stands is shown, its other fields are changed, and it comes back from a backup."""
    made = pb.Pool(name="p", base_models=["b"], engine=kind)
    asked = pb.UpdatePoolRequest(pool=made)
    for refused in (
        lambda: decode.create_pool(pb.CreatePoolRequest(pool=made), no_fingerprint),
        lambda: decode.update_pool(asked, no_fingerprint),
    ):
        with pytest.raises(InvalidArgument, match=f"of '{kind}' is installed: use .*vllm") as found:
            refused()
        assert found.value.field == "pool.engine"
    of_backup = pb.CreatePoolRequest(pool=made, restored=True)
    assert decode.create_pool(of_backup, no_fingerprint).engine == kind
    assert decode.update_pool(pb.UpdatePoolRequest(pool=made, restored=True), no_fingerprint).engine == kind
    shown = pool_message(PoolSpec(name="p", base_models=["b"], engine="dynamo"), 3)
    masked = pb.UpdatePoolRequest(pool=shown)
    masked.update_mask.paths.append("limits")
    assert decode.update_pool(masked, no_fingerprint).name == "p"


def test_a_pool_that_does_not_exist_has_no_etag():
    """W4: who gives one means another call."""
    wanted = pb.Pool(name="p", base_models=["b"])
    assert decode.create_pool(pb.CreatePoolRequest(pool=wanted), no_fingerprint).name == "p"
    wanted.etag = "5"
    with pytest.raises(InvalidArgument) as told:
        decode.create_pool(pb.CreatePoolRequest(pool=wanted), no_fingerprint)
    assert told.value.field == "pool.etag"


REMOVAL = pb.AdapterChange(delete="a", etag="0")
OF_A = {"pool": "p", "name": "a"}


@pytest.mark.parametrize(
    ("make", "request_", "field"),
    [
        (decode.apply_adapters, pb.ApplyAdaptersRequest(pool="p", changes=[REMOVAL]), "changes[0].etag"),
        (decode.rollback_adapter, pb.RollbackAdapterRequest(**OF_A, to_generation=-1, etag="x"), "to_generation"),
        (decode.rollback_adapter, pb.RollbackAdapterRequest(**OF_A, etag="x"), "etag"),
        (decode.promote_rollout, pb.PromoteRolloutRequest(**OF_A, generation=-1, etag="x"), "generation"),
        (decode.promote_rollout, pb.PromoteRolloutRequest(**OF_A, etag="0"), "etag"),
        (decode.abort_rollout, pb.AbortRolloutRequest(**OF_A, generation=-1), "generation"),
        (decode.abort_rollout, pb.AbortRolloutRequest(**OF_A, etag="0"), "etag"),
        (decode.delete_pool, pb.DeletePoolRequest(name="p", etag="0"), "etag"),
        (decode.confirm_removals, pb.ConfirmRemovalsRequest(name="p", etag="x"), "revision"),
        (decode.confirm_removals, pb.ConfirmRemovalsRequest(name="p", revision=1, etag="0"), "etag"),
        (decode.set_tenant, pb.SetTenantRequest(tenant=pb.Tenant(name="a", etag="x")), "tenant.etag"),
    ],
)
def test_the_first_wrong_field_of_a_request_is_named(make, request_, field):
    """W4: what only makes sense on something that exists is not asked for with an etag that says there is none."""
    with pytest.raises(InvalidArgument) as told:
        make(request_)
    assert (told.value.reason, told.value.field) == (Reason.INVALID_FIELD, field)
    assert told.value.message


def test_what_is_asked_for():
    """R20: a drain is never taken for its end. Tenants are lower case; 0 or nothing is no limit and no etag."""
    asked = pb.ApplyAdaptersRequest(pool="p", changes=[pb.AdapterChange(delete="a", etag="3")])
    assert decode.apply_adapters(asked).changes == (Remove("a", 3),)
    rollback = pb.RollbackAdapterRequest(**OF_A, to_generation=2, etag="0", restored=True)
    assert decode.rollback_adapter(rollback) == RollbackAdapter("p", "a", 2, 0, restored=True)
    assert decode.promote_rollout(pb.PromoteRolloutRequest(**OF_A, generation=1)) == PromoteRollout("p", "a", 1)
    assert decode.abort_rollout(pb.AbortRolloutRequest(**OF_A, etag="7")) == AbortRollout("p", "a", 0, 7)
    confirmed = decode.confirm_removals(pb.ConfirmRemovalsRequest(name="p", revision=1, etag="2"))
    assert confirmed == ConfirmRemovals("p", 1, 2)
    assert decode.delete_pool(pb.DeletePoolRequest(name="p", etag="3")) == DeletePool("p", 3)
    assert decode.set_tenant(pb.SetTenantRequest(tenant=pb.Tenant(name="Acme"))) == SetTenant("acme", None)
    limited = pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=3, etag="0"))
    assert decode.set_tenant(limited) == SetTenant("acme", 3, 0)
    assert decode.repair_tenant(pb.RepairTenantRequest(name="Acme")) == RepairTenant("acme")
    for undrain in (True, False):
        order = pb.DrainReplicaRequest(pool="p", name="r1", undrain=undrain)
        assert decode.drain_replica(order) == DrainReplica("p", "r1", not undrain)


def outcome(kind: Any, *, etag: int | None = None, is_known: bool = True) -> AdapterOutcome:
    return AdapterOutcome(outcome=kind, name="acme/A", record=record("acme/A", 3) if is_known else None, etag=etag)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("created", pb.AdapterResult.CREATED),
        ("updated", pb.AdapterResult.UPDATED),
        ("unchanged", pb.AdapterResult.UNCHANGED),
        ("deleted", pb.AdapterResult.DELETED),
    ],
)
@pytest.mark.parametrize(("etag", "shown"), [(None, "9"), (4, "4")])
def test_what_became_of_an_adapter_is_told_with_the_etag_that_it_has(kind, told, etag, shown):
    """W4: of what was not written that of its last change."""
    reply = encode.applied(Settled(ChangeReply(adapters=[outcome(kind, etag=etag)]), 9), "p", "req")
    [one] = reply.results
    assert (one.outcome, one.adapter.name, one.adapter.generation, one.adapter.etag) == (told, "acme/A", 3, shown)
    assert (reply.revision, reply.request_id) == (9, "req")


def test_what_was_deleted_unread_is_told_by_its_name():
    [one] = encode.applied(Settled(ChangeReply(adapters=[outcome("deleted", is_known=False)]), 9), "p", "").results
    assert one.adapter == pb.Adapter(name="acme/A", pool="p")


@pytest.mark.parametrize(("etag", "shown"), [(None, "9"), (4, "4"), (0, "")])
def test_a_pool_and_a_tenant_are_told_with_the_etag_that_they_have(etag, shown):
    pool = PoolSpec(name="p", base_models=["b"])
    tenant = TenantRecord(name="acme", max_adapters=5, adapters=1)
    reply = ChangeReply(pool=pool, tenant=tenant, etag=etag)
    told_pool, told_tenant = encode.settled_pool(Settled(reply, 9)), encode.settled_tenant(Settled(reply, 9))
    assert (told_pool.name, told_pool.etag) == ("p", shown)
    assert (told_tenant.name, told_tenant.max_adapters, told_tenant.etag) == ("acme", 5, shown)
    nothing = Settled(ChangeReply(), 9)
    assert (encode.settled_pool(nothing), encode.settled_tenant(nothing)) == (pb.Pool(), pb.Tenant())


@pytest.mark.parametrize(("etag", "is_changed"), [(None, True), (4, False)])
def test_a_repair_tells_what_was_given_back(etag, is_changed):
    """W5."""
    tenant = TenantRecord(name="acme", max_adapters=5, adapters=1)
    adapters = [outcome("deleted"), outcome("deleted", is_known=False)]
    told = encode.repaired(Settled(ChangeReply(adapters=adapters, tenant=tenant, etag=etag), 9))
    assert ([one.name for one in told.retired], told.changed, told.revision) == (["acme/A"], is_changed, 9)
    assert (told.retired[0].etag, told.tenant.name) == ("", "acme")
    for kind in (pb.DrainReplicaResponse, pb.RestoreHistoryResponse):
        order: Any = encode.changed(kind, Settled(ChangeReply(etag=etag), 9))
        assert (order.changed, order.revision) == (is_changed, 9)


def test_a_backup_has_keys_without_the_prefix_of_the_service():
    page = Page(7, (KeyValue(b"/x/v1/pools/p", b"{}", 1, 5, 1), KeyValue(b"/x/v1/pools/\xff", b"", 1, 6, 1)), None)
    told = encode.backup(page, "/x/v1", "next")
    assert [(one.key, one.value, one.etag) for one in told.records] == [
        ("pools/p", b"{}", "5"),
        ("pools/\\xff", b"", "6"),
    ]
    assert (told.next_page_token, told.revision) == ("next", 7)


def test_history_has_the_present_generation_first_if_there_is_one():
    retired = RetiredRecord(**record("a", 1).model_dump(), retired_by_request="r", deleted=False)
    told = encode.history(History(Present(record("a", 2), 8), (retired,), (5,)))
    assert [(one.generation, one.etag) for one in told.generations] == [(2, "8"), (1, "")]
    assert list(told.unreadable) == [5]
    assert [one.generation for one in encode.history(History(None, (retired,), ())).generations] == [1]
    theirs = retired.model_copy(update={"restored_by": Restoration(principal="mallory", at="then")})
    mine, other = encode.history(History(None, (retired, theirs), ())).generations
    assert not mine.HasField("restored_by")
    assert other.restored_by == pb.Restoration(principal="mallory", at="then")


def test_of_what_may_be_very_many_twenty_are_named():
    """R16 bounded: how many there are is told all the same."""
    many = {f"p{number:02}": [f"r{one}" for one in range(21)] for number in range(21)}
    told = encode.unknown_pools(many)
    assert [(one.name, one.replicas, len(one.names)) for one in told] == [
        (f"p{number:02}", 21, 20) for number in range(20)
    ]
    assert list(told[0].names) == [f"r{one}" for one in range(20)]


LAST = LastKnown(engine_url="http://engine:8000", host="h", observed_revision=7, engine="vllm 0.32.0", version="0.2.0")


def test_who_is_lacking_is_told_by_name_and_by_group():
    group = ReplicaGroup(labels={"zone": "a"}, replicas=3)
    found = LackingReplicas(
        named=[AbsentReplica("r9", {"zone": "a"}, "2026-01-01T00:00:00Z", known=LAST)],
        groups=[GroupPresence(labels=group.labels, expected=3, live=2)],
    )
    told = encode.lacking(found, ())
    [missing], [standing] = told.missing, told.groups
    assert (missing.name, dict(missing.labels), missing.last_seen) == ("r9", {"zone": "a"}, "2026-01-01T00:00:00Z")
    assert (told.lacking, standing.live, standing.expected.replicas) == (1, 2, 3)
    assert dict(standing.expected.labels) == {"zone": "a"}
    known = (missing.engine_url, missing.host, missing.observed_revision, missing.engine, missing.version)
    assert known == ("http://engine:8000", "h", 7, "vllm 0.32.0", "0.2.0")
    for hosts in (("other",), None):
        [hidden] = encode.lacking(found, hosts).missing
        assert (hidden.engine_url, hidden.host) == ("", "h"), "as of one that lives"


def test_a_fault_of_ours_in_an_event_is_no_unreadable_record(monkeypatch):
    """R14 nack, R12."""

    def breaks(*_: object) -> None:
        raise KeyError("of ours")

    monkeypatch.setattr(streams, "read_adapter", breaks)
    with pytest.raises(KeyError):
        list(streams._responses(POOL, WatchBatch(7, snapshot=True, events=(Event(b"k", 5, kv("a", 5)),))))


@pytest.mark.parametrize("is_over", [True, False])
def test_a_rollout_is_told_whole(is_over):
    canary = CanaryRollout(stable_generation=1, stable_spec=record("a").spec, halted="2 of 2 refused")
    one = ReplicaRollout("r1", ReplicaState.FAILED, "BAD", "m", canary=True, generation=2, kept=1)
    found = Rollout(
        "a",
        2,
        (one,),
        done=not is_over,
        failure=ReplicaFailure.HALTED if is_over else None,
        waiting="for r2",
        canary=canary if is_over else None,
        note="n",
    )
    told = streams._rollout(found)
    [part] = told.replicas
    assert (part.replica, part.state, part.reason, part.message) == ("r1", pb.RolloutReplica.FAILED, "BAD", "m")
    assert (part.canary, part.generation, part.serving_generation) == (True, 2, 1)
    assert (told.name, told.generation, told.done, told.waiting, told.note) == ("a", 2, not is_over, "for r2", "n")
    assert told.failure == ("halted" if is_over else "")
    assert told.HasField("canary") is is_over
    assert told.canary.halted == ("2 of 2 refused" if is_over else "")


def shown(status: bytes | None, hosts: tuple[str, ...] | None) -> pb.Replica:
    presence = KeyValue(b"/replicas/p/r1", b"?", 1, 1, 1, 7)
    return encode.replica("p", ReplicaValues(presence, KeyValue(b"s", status, 1, 1, 1, 7) if status else None, hosts))


ALLOWED = ("10.0.0.0/8",)


@pytest.mark.parametrize(
    ("written", "hosts", "told", "withheld"),
    [
        (b'{"engine": {"url":"http://evil.test"} , "a": 1}', (), '{"engine": {"url":"http://evil.test"} , "a": 1}', ""),
        *(
            (
                f'{{"engine": {{"url": "{url}", "kind": "vllm"}}, "a": 1}}'.encode(),
                *(hosts, '{"engine": {"url": "", "kind": "vllm"}, "a": 1}', url.replace("\\ud800", "?")),
            )
            for url in ("http://evil.test:8000", "\\ud800", "http://10.0.0.1@evil.test")
            for hosts in (ALLOWED, None)
        ),
        (
            b'{"engine": {"url": "http://evil.test", "url": "http://10.0.0.1"}}',
            *(ALLOWED, '{"engine": {"url": "http://10.0.0.1"}}', ""),
        ),
        *(
            (written, ALLOWED, (written or b"").decode(), "")
            for written in (None, b"?", b"[]", b'{"engine": 1}', b"{}", b'{"engine": {"url": null}}')
        ),
    ],
)
def test_the_url_of_an_engine_that_is_not_allowed_is_told_apart(written, hosts, told, withheld):
    """X2: also where the pool's record cannot be read. Of a key that stands twice another reader may take the other."""
    one = shown(written, hosts)
    assert (one.status_json, one.withheld_engine_url) == (told, withheld)


@pytest.mark.parametrize(
    ("advertised", "engine_url", "withheld"),
    [("http://10.0.0.1", "http://10.0.0.1", ""), ("http://evil.test", "", "http://evil.test")],
)
def test_the_address_for_routers_is_the_one_that_counts(advertised, engine_url, withheld):
    """X2, R20: the sidecar's own way to its engine may be one that nobody else could go."""
    presence = Presence(
        pool="p", replica="r1", incarnation="i", owner="o", started_at="t", engine_url=advertised
    ).to_bytes()
    values = ReplicaValues(
        KeyValue(b"/replicas/p/r1", presence, 1, 1, 1, 7),
        KeyValue(b"s", b'{"engine": {"url": "http://127.0.0.1"}}', 1, 1, 1, 7),
        ALLOWED,
    )
    one = encode.replica("p", values)
    assert (one.engine_url, one.withheld_engine_url) == (engine_url, withheld)
    assert json.loads(one.status_json) == {"engine": {"url": ""}}


def recorded(
    before: dict[str, Any] | None, after: dict[str, Any] | None, kind: Any = "adapter", **more: Any
) -> pb.RecordedChange:
    change = AuditChange(kind=kind, name="sql", before=before, after=after)
    by = {"at": "2026-01-02T03:04:05Z", "principal": "alice", "role": "operator", "request_id": "q", "method": "M"}
    record = AuditRecord(**by, changes=[change], **more)
    (one,) = recorded_changes(record.to_bytes())
    return one


def before_of(generation: object = 1, **more: object) -> dict[str, object]:
    return {"generation": generation, "updated_at": f"{generation}", "spec": {"priority": 1}, **more}


@pytest.mark.parametrize(
    ("begin", "note"),
    [({}, "ttl: 9 s without a change"), ({"ttl_from": "use"}, "ttl: 9 s without a use or a change")],
)
def test_what_ended_by_itself_tells_without_what(begin, note):
    assert recorded(before_of(spec={"ttl_seconds": 9, **begin}), None, reason="ttl").note == note


OF_A_POOL = AuditRecord(
    at="t",
    principal="p",
    role="r",
    request_id="q",
    method="m",
    changes=[AuditChange(kind="pool", name="sql", before={"a": 1}, after={"b": 1})],
).to_bytes()
CANARIES = {"stable_generation": 1, "halted": ""}


@pytest.mark.parametrize(
    ("before", "after", "kind", "expected"),
    [
        (None, before_of(), "adapter", ("created", 1, [])),
        (before_of(3), None, "adapter", ("deleted", 3, [])),
        (
            before_of(1),
            before_of(2, spec={"priority": 2, "load": "lazy"}),
            "adapter",
            ("updated", 2, ["load", "priority"]),
        ),
        (before_of(1), before_of(1, retry={"replica": ""}), "adapter", ("updated", 1, ["retry"])),
        (before_of(2, rollout=CANARIES), before_of(2), "adapter", ("promoted", 2, [])),
        (before_of(2, rollout=CANARIES), before_of(3), "adapter", ("updated", 3, [])),
        (before_of(1), before_of(2, rollout=CANARIES), "adapter", ("updated", 2, [])),
        ({"unreadable": "?"}, before_of(1, spec=None), "adapter", ("updated", 1, ["unreadable"])),
        (before_of("?"), before_of(1.5), "adapter", ("updated", 0, [])),
        *(
            (None, before_of(found), "adapter", ("created", told, []))
            for found, told in {2**63 - 1: 2**63 - 1, 2**63: 0, -1: 0, True: 0, "1": 0}.items()
        ),
        (None, before_of(0), "adapter", ("created", 0, [])),
        ({"limits": 1}, {"limits": 2}, "pool", ("updated", 0, ["limits"])),
        (None, {"drain": True}, "replica", ("drain", 0, [])),
        ({"drain": True}, {"drain": False}, "replica", ("undrain", 0, ["drain"])),
        ({"drain": True}, None, "replica", ("undrain", 0, [])),
    ],
)
def test_who_did_what(before, after, kind, expected):
    """W7: names of fields; values of those that somebody set stand beside them. X2: a generation is one that a message
    can hold, since a record may be of somebody else's making.
    """
    one = recorded(before, after, kind)
    assert (one.action, one.generation, list(one.fields)) == expected
    assert (one.at, one.principal, one.role) == ("2026-01-02T03:04:05Z", "alice", "operator")
    assert (one.request_id, one.method, one.name) == ("q", "M", "sql")


def values_of(before: dict[str, Any], after: dict[str, Any], kind: str = "adapter") -> list[tuple[str, str, str]]:
    return [(one.path, one.before_json, one.after_json) for one in recorded(before, after, kind).values]


def test_old_and_new_stand_beside_the_names_of_fields():
    """W7: of a spec, a pool and a quota; where a value was not there, or is no more, it is empty."""
    old = {"priority": 1, "labels": {"team": "bi"}, "source": {"uri": "file:///a", "digest": None}, "same": [1]}
    new = {"priority": 2, "labels": {}, "source": {"uri": "file:///b", "digest": "d"}, "same": [1]}
    assert values_of(before_of(1, spec=old, retry=1), before_of(2, spec=new, retry=2)) == [
        ("labels.team", '"bi"', ""),
        ("priority", "1", "2"),
        ("source.digest", "", '"d"'),
        ("source.uri", '"file:///a"', '"file:///b"'),
    ]
    assert values_of({"limits": {"max_rank": 8}, "name": "p"}, {"limits": {"max_rank": 16}}, "pool") == [
        ("limits.max_rank", "8", "16")
    ]
    assert values_of({"max_adapters": 1}, {"max_adapters": 2}, "tenant") == [("max_adapters", "1", "2")]
    assert values_of({"drain": True}, {"drain": False}, "replica") == []
    assert [*recorded(None, before_of(1)).values] == []


def test_values_of_a_change_are_few_and_short():
    """R16 bounded: a page has a hundred records, and each may have a megabyte."""
    old = {f"f{number:03}": number for number in range(100)}
    new = {f"f{number:03}": -1 for number in range(100)}
    assert len(values_of(before_of(1, spec=old), before_of(2, spec=new))) == 20
    long, deep = "ä" * 5000, {"a": {"b": {"c": {"d": {"e": {"f": ["x" * 5000]}}}}}}
    text, nested = values_of(before_of(1, spec={"t": "", "u": 1}), before_of(2, spec={"t": long, "u": deep}))[:2]
    assert (text[0], json.loads(text[2])) == ("t", "ä" * 300 + "…")
    assert (nested[0], nested[1]) == ("u", "1")
    [path, _, told] = values_of(before_of(1, spec={}), before_of(2, spec={"u": deep}))[0]
    assert (path, json.loads(told)[:10], len(told) < 700) == ("u.a.b.c.d", '{"e": {"f"', True)


def test_a_halt_is_told_once_with_why():
    halted = {**CANARIES, "halted": "2 of 2 refused"}
    one = recorded(before_of(2, rollout=CANARIES), before_of(2, rollout=halted))
    assert (one.action, one.note) == ("halted", "2 of 2 refused")
    assert recorded(before_of(2, rollout=halted), before_of(2, rollout=halted)).action == "updated"


@pytest.mark.parametrize(
    "value", [b"{}", OF_A_POOL.replace(b"sql", b"\\ud800"), OF_A_POOL.replace(b'"b"', b'"\\ud800"')]
)
def test_what_cannot_be_read_is_refused(value):
    """X2: also half a character, which a message cannot hold."""
    assert [one.name for one in recorded_changes(OF_A_POOL)] == ["sql"]
    with pytest.raises(FailedPrecondition):
        list(recorded_changes(value))


def test_ids_sort_by_time():
    assert first_id("") == ""
    assert first_id("2026-01-02T05:04:05.25+02:00") == "20260102T030405.250000Z"
    for text in ("yesterday", "0001-01-01T00:00:00+14:00"):
        with pytest.raises(InvalidArgument) as refused:
            first_id(text)
        assert (refused.value.reason, refused.value.field) == (Reason.INVALID_FIELD, "since")
