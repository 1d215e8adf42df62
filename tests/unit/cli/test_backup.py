"""backup and restore: whole files only, the plan first, and nothing that was meant for another state."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat

import grpc
import pytest

from registry.cli.backup import (
    RestoredAdapter,
    RestoredQuota,
    RestorePlan,
    StoredState,
    backup_text,
    plan_restore,
    records_of,
    state_of,
)
from registry.cli.failure import CliError
from registry.model.expected_answers import Expect, ExpectedAnswer
from registry.model.records import (
    MAX_RESTORED_STEP,
    AdapterRecord,
    AdapterSpec,
    CanaryRollout,
    PoolSpec,
    SourceSpec,
    TenantRecord,
)
from registry.model.stored import Stored
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, Refusal, applied


def stored(key: str, record: Stored | bytes, etag: str = "7") -> pb.StoredRecord:
    value = record if isinstance(record, bytes) else record.to_bytes()
    return pb.StoredRecord(key=key, value=value, etag=etag)


def adapter(name: str, uri: str = "s3://b/x", generation: int = 3, **more: object) -> AdapterRecord:
    spec = AdapterSpec(source=SourceSpec(uri=uri))
    return AdapterRecord(
        name=name, pool="dev", tenant="t", generation=generation, spec=spec, updated_at="t", updated_by="b", **more
    )


POOL = stored("pools/dev", PoolSpec(name="dev", base_models=["tiny"]))
WHOLE = [stored("adapters/dev/a", adapter("a")), POOL, stored("tenants/t", TenantRecord(name="t", max_adapters=5))]


def past(name: str, generation: int, **fields: object) -> bytes:
    """A generation that is no more, as history keeps it."""
    kept = {"retired_by_request": "r", "deleted": True, **fields}
    return json.dumps(adapter(name, generation=generation).model_dump(by_alias=True) | kept).encode()


def retired(name: str, generation: int) -> pb.StoredRecord:
    return stored(f"history/dev/{name}/{generation}", past(name, generation))


def text(records: list[pb.StoredRecord]) -> bytes:
    return backup_text(records, 12, "2026-01-01T00:00:00+00:00")


def test_what_stands_under_another_key_is_no_part_of_a_backup_nor_of_a_plan(cli, admin, tmp_path):
    """R14 nack: a backup can be restored, whatever somebody put into the store by hand; the rest is all there. A state
    keeps values and etags of what cannot be read, too.
    """
    odd = stored("adapters/dev/b", adapter("a"), "9")
    admin.answers["ReadBackup"] = [pb.ReadBackupResponse(records=[odd, *WHOLE], revision=12)]
    ran = cli("backup", "b.jsonl")
    assert "left out, since they stand under another key than their own: adapters/dev/b" in ran.err
    records = records_of((tmp_path / "b.jsonl").read_bytes(), "f")[1]
    assert [one.key for one in records] == [one.key for one in WHOLE]
    plan = plan_restore(state_of([stored("adapters/dev/b", adapter("b")), POOL]), state_of([odd, POOL]))
    assert [(one.name, one.etag) for one in plan.updates] == [("b", "9")]
    keys = ["adapters/dev/torn", "history/dev/a/1", "history/dev", "pools/a/b", "pools/p", "meta/x"]
    state = state_of([stored(key, b"{", str(at)) for at, key in enumerate(keys)])
    assert (state.unreadable, [*state.etags.items()]) == (keys, [(key, str(at)) for at, key in enumerate(keys)])
    assert (state.values, state.adapters, state.history, state.pools) == (dict.fromkeys(keys, b"{"), {}, {}, {})


def spec(uri: str) -> AdapterSpec:
    return AdapterSpec(source=SourceSpec(uri=uri))


def pool(name: str, *bases: str, etag: str = "7") -> pb.StoredRecord:
    return stored(f"pools/{name}", PoolSpec(name=name, base_models=list(bases)), etag)


def tenant(name: str, quota: int | None, etag: str = "7") -> pb.StoredRecord:
    return stored(f"tenants/{name}", TenantRecord(name=name, max_adapters=quota), etag)


BACKUP = state_of(
    [
        *(pool(name, "tiny") for name in ("same", "other", "gone")),
        *map(tenant, ("same", "rises", "falls", "freed", "gone"), (5, 9, 1, None, 3)),
        *(stored("adapters/dev/b", adapter("b")), stored("adapters/dev/a", adapter("A", generation=4))),
        *(
            stored("adapters/dev/same", adapter("same")),
            stored("adapters/dev/changed", adapter("changed", "s3://b/old")),
        ),
        *map(retired, ("a", "past", "kept"), (2, 1, 1)),
    ]
)
NOW = state_of(
    [
        *(pool("same", "tiny", etag="11"), pool("other", "small", etag="12"), tenant("same", 5, "21")),
        *map(tenant, ("rises", "falls", "freed", "new"), (2, 4, 4, 4), ("22", "23", "24", "25")),
        *(stored("adapters/dev/same", adapter("same"), "31"), retired("kept", 1)),
        stored("adapters/dev/changed", adapter("Changed", "s3://b/new"), "32"),
        *(stored("adapters/dev/z", adapter("Z"), "33"), stored("adapters/dev/extra", adapter("extra"), "34")),
    ]
)


def test_the_whole_plan_of_a_restoration():
    """W4 etag, W6: each change at the etag that was found, names by their keys, and nothing that is so already."""
    pools = {name: PoolSpec(name=name, base_models=["tiny"]) for name in ("gone", "other")}
    assert plan_restore(BACKUP, NOW) == RestorePlan(
        create_pools=[pools["gone"]],
        update_pools=[(pools["other"], "12", True)],
        tenants=[
            *(RestoredQuota("rises", 2, 9, "22"), RestoredQuota("falls", 4, 1, "23")),
            *(RestoredQuota("freed", 4, None, "24"), RestoredQuota("gone", None, 3, "0")),
        ],
        histories=[("dev", "a"), ("dev", "b"), ("dev", "past")],
        creates=[RestoredAdapter("dev", name, spec("s3://b/x"), "0") for name in "Ab"],
        updates=[RestoredAdapter("dev", "Changed", spec("s3://b/old"), "32")],
        same=1,
        others=[("dev", "extra", "34"), ("dev", "Z", "33")],
        canaries=[],
        too_high=[],
    )
    torn = state_of([stored("adapters/dev/z", b"{")])
    assert plan_restore(torn, NOW).others == [
        ("dev", "Changed", "32"),
        ("dev", "extra", "34"),
        ("dev", "same", "31"),
    ], "what the backup could not read was there: to delete it would be a loss"
    for base in ("tiny", "other"):
        # R15: of which lists somebody said that they lack nothing is true of that store alone.
        vouched = PoolSpec(name="dev", base_models=[base], removals_confirmed_revision=9)
        plan = plan_restore(state_of([stored("pools/dev", vouched)]), state_of([POOL]))
        assert len(plan.update_pools) == (base != "tiny")
    quotas = [(1, 2), (2, 1), (1, None), (None, 5), (None, None), (0, 1), (3, 3)]
    rises = [RestoredQuota("t", found, wanted, "1").rises for found, wanted in quotas]
    assert rises == [True, False, True, False, True, True, False], "W5: those come before more adapters"


@pytest.mark.parametrize(
    ("of_backup", "present", "of_now", "is_restored"),
    [
        *(([1, 2], 3, [], True), ([1, 2], None, [], True), ([1, 2], 3, [1, 2], True), ([1, 2], 3, [1, 2, 3], False)),
        *(([1, 2], None, [2], False), ([1, 2], None, [1], True), ([5], 3, [4], True), ([], 3, [3], False)),
        *(([MAX_RESTORED_STEP + 1], None, [1], True), ([MAX_RESTORED_STEP + 2], None, [1], False)),
        *(([MAX_RESTORED_STEP + 2, 2], None, [1], True), ([MAX_RESTORED_STEP + 1], None, [], True)),
    ],
)
def test_history_is_restored_where_it_lacks_the_newest(of_backup, present, of_now, is_restored):
    """The generation of an adapter that comes back follows its last."""
    records = [retired("a", one) for one in of_backup]
    records += [stored("adapters/dev/a", adapter("a", generation=present))] if present else []
    plan = plan_restore(state_of(records), state_of([retired("a", one) for one in of_now]))
    assert plan.histories == ([("dev", "a")] if is_restored else [])


def test_a_backup_is_plain_ascii_whatever_it_holds_and_what_is_written_is_read():
    """So it comes whole through any program that copies text."""
    odd = {"adapters/dev/torn": b"\xff\n{", "pools/é": '{"é": "\u2028"}'.encode(), "pools/b": b"\xff\xfe"}
    values = odd | {one.key: one.value for one in WHOLE}
    whole = text([pb.StoredRecord(key=key, value=value) for key, value in values.items()])
    assert whole.isascii()
    header, *lines, end = map(json.loads, whole.splitlines())
    assert header == {"format": "loraplane-backup/1", "revision": 12, "created_at": "2026-01-01T00:00:00+00:00"}
    assert lines[2] == {"key": "pools/b", "base64": base64.b64encode(b"\xff\xfe").decode()}
    assert (end["records"], len(end["sha256"])) == (6, 64)
    revision, found = records_of(whole + b"\n\n", "f")
    assert (revision, {one.key: one.value for one in found}) == (12, values)
    assert state_of(found).unreadable == [*odd]


@pytest.fixture
def store(admin, tmp_path) -> FakeAdmin:
    """A service of the state NOW; and a backup of another."""
    names = ["pools/gone", "pools/other", "tenants/rises", "tenants/falls", "adapters/dev/b", "adapters/dev/changed"]
    saved = [pb.StoredRecord(key=name, value=BACKUP.values[name]) for name in [*names, "history/dev/past/1"]]
    (tmp_path / "b.jsonl").write_bytes(text(saved))
    now = [pb.StoredRecord(key=key, value=value, etag=NOW.etags[key]) for key, value in NOW.values.items()]
    pages = [
        pb.ReadBackupResponse(records=now[:3], revision=30, next_page_token="n"),  # noqa: S106 - of a listing
        pb.ReadBackupResponse(records=now[3:], revision=30),
    ]
    tenants = [pb.Tenant(name="falls", max_adapters=4, etag="50"), pb.Tenant(name="rises", max_adapters=9)]
    admin.answers |= {"ReadBackup": pages * 9, "ListTenants": [pb.ListTenantsResponse(tenants=tenants)]}
    return admin


def changed(admin: FakeAdmin) -> list[str]:
    return [name for name, _ in admin.requests if name not in {"ReadBackup", "ListTenants"}]


LINES = (
    "+ pool gone|~ pool other|~ tenant rises: quota 2 -> 9|~ tenant falls: quota 4 -> 1|+ history dev/b|"
    "+ history dev/past|+ adapter dev/b|~ adapter dev/Changed|- adapter dev/extra|- adapter dev/same|- adapter dev/Z"
).split("|")


def test_the_plan_is_told_whole_before_anything_is_done(cli, store):
    ran = cli("restore", "b.jsonl", "--delete-others", "--dry-run")
    assert (ran.code, ran.out.splitlines()) == (0, [*LINES, "summary: +1 ~1 -3 =0 adapters"])
    assert "left out" not in ran.err
    value = cli("-o", "json", "restore", "b.jsonl", "--delete-others", "--dry-run").json
    assert (value["plan"], value["summary"]) == (LINES, {"created": 1, "updated": 1, "deleted": 3, "unchanged": 0})
    assert value["backup"] == {"pools": 2, "tenants": 2, "adapters": 2, "earlier generations": 1, "unreadable": 0}
    left = cli("restore", "b.jsonl", "--dry-run")
    assert left.out.splitlines() == [*LINES[:-3], "summary: +1 ~1 -0 =0 adapters"]
    assert "3 adapters that the backup does not have stay; --delete-others deletes them" in left.err
    asked = cli("restore", "b.jsonl")
    assert (asked.code, asked.out.splitlines()[:2], changed(store)) == (2, LINES[:2], []), "nobody is here to agree"


def test_each_step_is_carried_out_once_and_in_order(cli, store):
    """W5: room is made before it is taken; W3: each step has an id of its own, which another run sends again; the
    longest has room for all steps. W4 etag: what was changed meanwhile ends it.
    """
    ran = cli("restore", "b.jsonl", "--delete-others", "--yes", "--request-id", "q")
    assert ran.code == 0, ran.err
    steps = [(name, one) for name, one in store.requests if name in changed(store)]
    assert [f"{name} {one.request_id.rpartition(':')[0]}" for name, one in steps] == [
        *("SetTenant q:quota", "CreatePool q:pool", "UpdatePool q:pool", "RestoreHistory q:history0"),
        *("RestoreHistory q:history0", "ApplyAdapters q:others", "ApplyAdapters q:adapters", "SetTenant q:quota"),
    ]
    raised, created, updated, live, past, others, adapters, lowered = (one for _, one in steps)
    assert raised.tenant == pb.Tenant(name="rises", max_adapters=9, etag="22")
    assert lowered.tenant == pb.Tenant(name="falls", max_adapters=1, etag="50")
    assert (created.pool.name, created.pool.etag, updated.pool.name, updated.pool.etag) == ("gone", "", "other", "12")
    assert list(updated.update_mask.paths) == ["base_models", "limits", "base", "engine", "engine_names"]
    value = BACKUP.values["adapters/dev/b"]
    assert (live.pool, live.name, live.last, list(live.generations)) == ("dev", "b", value, [])
    assert (past.pool, past.name, past.last) == ("dev", "past", b"")
    assert list(past.generations) == [BACKUP.values["history/dev/past/1"]]
    assert [(one.delete, one.etag) for one in others.changes] == [("extra", "34"), ("same", "31"), ("Z", "33")]
    sent = [(one.upsert.name, one.upsert.spec.source.uri, one.etag) for one in adapters.changes]
    assert (sent, "created  b" in ran.out) == ([("Changed", "s3://b/old", "32"), ("b", "s3://b/x", "0")], True)
    store.requests.clear()
    whole = ["restore", "b.jsonl", "--yes", "--delete-others", "--request-id", "q" * 128]
    assert cli(*whole).code == 0
    ids = [one.request_id for name, one in store.requests if name in changed(store)]
    assert (len({*ids}), max(map(len, ids)) <= 128) == (len(ids), True)
    store.requests.clear()
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH")]
    assert (cli(*whole).code, len(store.asked("ApplyAdapters"))) == (5, 1)


def test_the_same_restoration_goes_on_where_it_broke_off(cli, store):
    """W3 idempotent: with the id that its user named, also where less is to be done by now: no id is sent with two
    payloads, and what is asked for once more has the id that it had.
    """
    again = ["restore", "b.jsonl", "--yes", "--request-id", "q"]
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH")]
    assert cli(*again).code == 5
    done = [pb.StoredRecord(key="history/dev/b/3", value=past("b", 3)), *WHOLE[1:2]]
    now = [pb.StoredRecord(key=key, value=value, etag=NOW.etags[key]) for key, value in NOW.values.items()]
    store.answers["ReadBackup"] = [pb.ReadBackupResponse(records=[*now, *done], revision=40)]
    assert cli(*again).code == 5
    sent: dict[str, set[bytes]] = {}
    for name, one in store.requests:
        if name in changed(store):
            sent.setdefault(one.request_id, set()).add(one.SerializeToString(deterministic=True))
    assert [*map(len, sent.values())] == [1] * len(sent)
    assert len([one for name, one in store.requests if name == "ApplyAdapters"]) == 2


def test_an_adapter_that_is_refused_keeps_no_other_from_being_restored(cli, admin, tmp_path):
    """W6: a backup may hold what no change can make any more, as a source without a digest in a pool that asks for one
    since. All of it is told; the same command finds nothing but that to do. W5: quotas hold from then on, too.
    """
    names = [f"n{number}" for number in range(9)]
    values = [pb.StoredRecord(key=f"adapters/dev/{one}", value=adapter(one).to_bytes()) for one in names]
    (tmp_path / "b.jsonl").write_bytes(text([POOL, *values, tenant("t", 5)]))
    restored: list[str] = []

    def answer(request: pb.ApplyAdaptersRequest) -> object:
        asked = [one.upsert.name for one in request.changes]
        if not {"n1", "n6"}.isdisjoint(asked):
            return Refusal(grpc.StatusCode.FAILED_PRECONDITION, "DIGEST_REQUIRED", "give that of `loraplane digest`")
        restored.extend(asked)
        return applied(request)

    admin.answers |= {"ReadBackup": [pb.ReadBackupResponse(records=[POOL], revision=12)], "ApplyAdapters": [answer]}
    ran = cli("restore", "b.jsonl", "--yes")
    assert (ran.code, sorted(restored)) == (4, [one for one in names if one not in {"n1", "n6"}])
    assert "2 of 7 transactions were not applied" in ran.err
    asked = admin.asked("ApplyAdapters")
    assert len({one.request_id for one in asked}) == len(asked)
    assert [one.tenant.max_adapters for one in admin.asked("SetTenant")] == [5]
    admin.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH")]
    assert (cli("restore", "b.jsonl", "--yes").code, len(admin.asked("SetTenant"))) == (5, 1)


@pytest.mark.parametrize("reason", ["PERMISSION_DENIED", "UNAUTHENTICATED", "ETCD_NO_SPACE", "TOO_MANY_CALLS"])
@pytest.mark.parametrize("refused", ["ApplyAdapters", "RestoreHistory"])
def test_a_restoration_asks_no_further_where_anything_would_be_refused(cli, admin, tmp_path, refused, reason):
    """W6: of thousands each would be refused by itself; quotas that fall are left for the next run."""
    values = [pb.StoredRecord(key=f"adapters/dev/{one}", value=adapter(one).to_bytes()) for one in "abcd"]
    histories = [retired(one, 1) for one in "abcd" if refused == "RestoreHistory"]
    (tmp_path / "b.jsonl").write_bytes(text([POOL, *values, *histories, tenant("t", 5)]))
    admin.answers |= {
        "ReadBackup": [pb.ReadBackupResponse(records=[POOL], revision=12)],
        refused: [Refusal(grpc.StatusCode.FAILED_PRECONDITION, reason)],
    }
    assert cli("restore", "b.jsonl", "--yes").code == 4
    assert (len(admin.asked(refused)), admin.asked("SetTenant")) == (1, [])


def test_a_history_that_is_refused_keeps_its_adapter_alone_from_being_restored(cli, admin, tmp_path):
    """W6: without what was known of its generations, the name could have one of them again."""
    names = ["bad", "gone", "good"]
    values = [pb.StoredRecord(key=f"adapters/dev/{one}", value=adapter(one).to_bytes()) for one in ("bad", "good")]
    values += [retired(one, 1) for one in names]
    (tmp_path / "b.jsonl").write_bytes(text([POOL, *values]))

    def answer(request: pb.RestoreHistoryRequest) -> object:
        refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "a break", where="generations[0].name")
        return refusal if request.name == "bad" else pb.RestoreHistoryResponse(changed=True)

    admin.answers |= {"ReadBackup": [pb.ReadBackupResponse(records=[POOL], revision=12)], "RestoreHistory": [answer]}
    ran = cli("restore", "b.jsonl", "--yes")
    assert (ran.code, "INVALID_FIELD: history of dev/bad: generations[0].name: " in ran.err) == (4, True)
    [asked] = admin.asked("ApplyAdapters")
    assert [one.upsert.name for one in asked.changes] == ["good"]
    assert [one.name for one in admin.asked("RestoreHistory")] == ["bad", "gone", "good", "good"]
    admin.answers["RestoreHistory"] = [Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")]
    unanswered = cli("restore", "b.jsonl", "--yes", "--timeout", "0.1")
    assert (unanswered.code, len(admin.asked("ApplyAdapters"))) == (6, 1)


def sealed(*lines: object) -> bytes:
    """A file of these lines whose checksum is right."""
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return body + json.dumps({"records": len(lines) - 1, "sha256": hashlib.sha256(body).hexdigest()}).encode()


HEADER = {"format": "loraplane-backup/1", "revision": 12}
FILE = text(WHOLE)
LINES_OF_IT = FILE.splitlines(keepends=True)
NO_BACKUP = [
    *(b"", FILE[:-20], b"".join(LINES_OF_IT[:-1]), b"".join(LINES_OF_IT[:1] + LINES_OF_IT[2:])),
    text([])[:-1].replace(b'"records": 0', b'"records": 1'),
    sealed(["loraplane-backup/1"]),
    sealed({"format": "loraplane-backup/1"}),
    *(sealed(HEADER | {"revision": one}) for one in (1e400, "12")),
    *(sealed(HEADER, one) for one in ({"value": "{}"}, {"key": 7, "value": "{}"}, "value", 7)),
    *(sealed(HEADER, {"key": "pools/dev", **one}) for one in ({}, {"value": 7}, {"value": "\ud800"}, {"base64": "="})),
]


@pytest.mark.parametrize("content", NO_BACKUP, ids=range(len(NO_BACKUP)))
def test_what_is_no_whole_backup_is_refused(content):
    """X2 unbreakable: a checksum is soon made; bad input gets one clear error, never an internal one. Against a damaged
    file helps another backup, against one of another release another release.
    """
    cases = [(content, r"is no whole backup|its checksum differs", "UNREADABLE_RECORD")]
    cases += [(FILE.replace(b"s3://b/x", b"s3://b/y"), "its checksum differs", "UNREADABLE_RECORD")]
    cases += [(FILE.replace(b"loraplane-backup/1", b"loraplane-backup/9"), "loraplane-backup/9", "UNSUPPORTED")]
    for given, told, reason in cases:
        with pytest.raises(CliError, match=told) as raised:
            records_of(given, "b.jsonl")
        failure = raised.value.failure
        assert (failure.exit, failure.field, failure.reason) == (4, "b.jsonl", reason)


def test_of_canaries_what_all_others_served_is_restored():
    """W6 one-digest: their files, and what these should answer; priority and labels are of the adapter."""
    expect = {"expect": Expect(answers=[ExpectedAnswer(prompt=[1], tokens=[2])])}
    new = AdapterSpec(source=SourceSpec(uri="s3://b/new"), priority=9, labels={"team": "x"}, **expect)
    for more in ({}, {"expect": Expect(answers=[ExpectedAnswer(prompt=[3], tokens=[4])])}):
        stable = AdapterSpec(source=SourceSpec(uri="s3://b/old"), base_model="old", credentials="c", priority=1, **more)
        rollout = CanaryRollout(stable_generation=2, stable_spec=stable)
        trial = stored("adapters/dev/a", adapter("a", rollout=rollout).model_copy(update={"spec": new}))
        plan = plan_restore(state_of([trial]), StoredState())
        kept = stable.model_dump(include={"source", "base_model", "credentials", "prepare", "expect"})
        assert plan.creates[0].spec == AdapterSpec(**new.model_dump() | kept)
        again = plan_restore(state_of([trial]), state_of([trial]))
        assert (plan.canaries, again.canaries, again.same) == (["dev/a"], [], 1), "who is left on trial is told of none"
        now = state_of([stored("adapters/dev/a", adapter("a"), "9")])
        [update] = plan_restore(state_of([trial]), now).updates
        assert (update.etag, update.spec.source.uri) == ("9", "s3://b/old")


@pytest.mark.parametrize("quota", [9, None])
def test_a_quota_that_somebody_changed_meanwhile_is_not_set(cli, store, tmp_path, quota):
    """W4 etag: its counter changed since, so that it is known by its quota."""
    found = [pb.Tenant(name="falls", max_adapters=quota)] if quota else []
    store.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=found)]
    ran = cli("restore", "b.jsonl", "--yes")
    told = f"somebody set the quota of 'falls' to {quota or 0} meanwhile"
    assert (ran.code, told in ran.err, len(store.asked("SetTenant"))) == (5, True, 1)
    (tmp_path / "b.jsonl").write_bytes(text([tenant("gone", 3)]))
    assert cli("restore", "b.jsonl", "--yes").code == 0
    assert store.asked("SetTenant")[-1].tenant == pb.Tenant(name="gone", max_adapters=3), "there is none still"


@pytest.mark.parametrize(("count", "flags", "code"), [(10, [], 0), (11, [], 4), (3, ["3"], 0), (3, ["2"], 4)])
def test_as_many_as_the_limit_are_deleted_and_no_more(cli, store, count, flags, code):
    many = [stored(f"adapters/dev/n{number}", adapter(f"n{number}")) for number in range(count)]
    store.answers["ReadBackup"] = [pb.ReadBackupResponse(records=[*many, tenant("falls", 4), tenant("rises", 9)])]
    limit = [part for one in flags for part in ("--delete-limit", one)]
    ran = cli("restore", "b.jsonl", "--delete-others", "--yes", *limit)
    told = f"{count} adapters would be deleted, more than {flags[0] if flags else 10}; give --delete-limit"
    assert (ran.code, told in ran.err, changed(store) == []) == (code, bool(code), bool(code))


def test_what_cannot_be_read_is_left_out_of_a_restoration_or_replaced_whole(cli, store, tmp_path):
    """R14 nack: of what cannot be read nothing can stay, so no field is named; X3: nor history that nobody believes."""
    trial = CanaryRollout(stable_generation=2, stable_spec=spec("s3://b/old"))
    live = [stored(f"adapters/dev/{name}", adapter(name, generation=4001, rollout=trial)) for name in "cd"]
    (tmp_path / "b.jsonl").write_bytes(text([pool("other", "tiny"), stored("adapters/dev/torn", b"{"), *live]))
    now = [stored("pools/other", b"{", "12"), stored("adapters/dev/d", b"{", "9"), retired("c", 1)]
    store.answers["ReadBackup"] = [pb.ReadBackupResponse(records=now, revision=30)]
    ran = cli("restore", "b.jsonl", "--yes")
    assert (ran.code, changed(store)) == (0, ["UpdatePool", "ApplyAdapters"])
    whose = ("left out: adapters/dev/torn", "the history of dev/c is left out", "only canaries had the newest")
    assert [told in ran.err for told in whose] == [True] * 3
    [replaced], [request] = store.asked("UpdatePool"), store.asked("ApplyAdapters")
    assert (list(replaced.update_mask.paths), replaced.pool.etag) == ([], "12")
    assert sorted((one.upsert.name, one.etag) for one in request.changes) == [("c", "0"), ("d", "9")]


@pytest.mark.parametrize("flags", [("--yes",), ("--dry-run",)])
def test_what_a_later_release_wrote_and_this_one_cannot_restore_is_told(cli, store, tmp_path, flags):
    """W8: it was left out without a word, as after the way back to a release that does not know it."""
    newer = adapter("a").model_dump() | {"enabled_by": "x"}
    newer["spec"] |= {"quiet": True, "placement": {"replicas": 2, "selector": {}, "spread": "zone"}}
    other = PoolSpec(name="other", base_models=["tiny"]).model_dump(by_alias=True)
    other["limits"] |= {"max_requests": 3}
    given = [("adapters/dev/a", newer), ("adapters/dev/same", newer | {"name": "same"}), ("pools/other", other)]
    (tmp_path / "b.jsonl").write_bytes(text([stored(key, json.dumps(one).encode()) for key, one in given]))
    now = [pb.StoredRecord(key=key, value=json.dumps(one).encode(), etag="9") for key, one in given[1:2]]
    store.answers["ReadBackup"] = [pb.ReadBackupResponse(records=now, revision=30)]
    ran = cli("restore", "b.jsonl", *flags)
    told = "left out: limits.max_requests of pool other, placement.spread of dev/a, quiet of dev/a; restore with"
    assert (ran.code, told in ran.err) == (0, True), ran.err


def test_backup_writes_for_its_owner_and_over_nothing(cli, admin, store, tmp_path, monkeypatch):
    """One that broke off before does not hinder the next."""
    (tmp_path / ".c.jsonl.new").write_text("half of one")
    (tmp_path / ".c.jsonl.new").chmod(0o644)
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    ran = cli("backup", "c.jsonl")
    file = tmp_path / "c.jsonl"
    expected = "c.jsonl: revision 30, 2 pools, 5 tenants, 4 adapters, 1 earlier generations, 0 unreadable\n"
    assert (ran.code, ran.out, stat.S_IMODE(file.stat().st_mode)) == (0, expected, 0o600)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b.jsonl", "c.jsonl"]
    assert {one.key for one in records_of(file.read_bytes(), "f")[1]} == {*NOW.values}
    store.answers["ReadBackup"] = [pb.ReadBackupResponse(records=[POOL], revision=30)]
    assert cli("-o", "json", "backup", "c.jsonl", "--force").json["revision"] == 30
    assert synced[-1] == file.stat().st_size, "whole, so that no power cut leaves half of it"
    admin.requests.clear()
    (tmp_path / "link.jsonl").symlink_to("nowhere")
    for name in ("b.jsonl", "link.jsonl"):
        ran = cli("backup", name)
        assert (ran.code, f"{name} is there already" in ran.err, admin.requests) == (2, True, [])
    for flags in ([], ["--force"]):  # no file of that name, which whoever wrote `| gzip` would not find
        ran = cli("backup", "-", *flags)
        assert (ran.code, "not to standard output; name a file" in ran.err, admin.requests) == (2, True, [])
    os.mkfifo(tmp_path / "pipe")  # as what /dev/stdout leads to
    ran = cli("backup", "pipe", "--force")
    assert (ran.code, "it is a device or a pipe, which is not replaced" in ran.err) == (2, True)
    assert (tmp_path / "pipe").is_fifo()


MISPLACED: dict[str, tuple[pb.StoredRecord, str]] = {
    "an adapter of another name": (stored("adapters/dev/a", adapter("b")), "name"),
    "an adapter of another pool": (stored("adapters/ops/a", adapter("a")), "pool"),
    "a generation of another": (stored("history/dev/a/4", past("a", 5)), "generation"),
    "a generation of another name": (stored("history/dev/a/4", past("b", 4)), "name"),
    "a generation of another pool": (stored("history/dev/a/4", past("a", 4, pool="ops")), "pool"),
    "a generation with a number that is none": (stored("history/dev/a/04", past("a", 4)), "generation"),
    "a pool of another name": (stored("pools/dev", PoolSpec(name="ops", base_models=["tiny"])), "name"),
    "a tenant of another name": (stored("tenants/t", TenantRecord(name="victim", max_adapters=1)), "name"),
    "a key that stands twice": (stored("pools/first", PoolSpec(name="first", base_models=["other"])), "key"),
}


@pytest.mark.parametrize(("one", "field"), MISPLACED.values(), ids=MISPLACED)
def test_a_record_under_another_key_than_its_own_is_refused_whole(cli, admin, tmp_path, one, field):
    """X2 unbreakable: what is written by its name was shown by its key. Line and field are told, nothing is written."""
    (tmp_path / "b.jsonl").write_bytes(text([pool("first", "tiny"), one]))
    place = f"b.jsonl: line {2 if field == 'key' else 3}: {field}"
    ran = cli("-o", "json", "restore", "b.jsonl", "--yes")
    assert (ran.code, ran.error["field"], admin.requests) == (4, place, [])
