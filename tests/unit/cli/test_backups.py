"""backup and restore: whole files only, the plan first, and nothing that was meant for another state."""

from __future__ import annotations

import hashlib
import json
import stat

import grpc
import pytest

from registry.cli.backup import StoredState, backup_text, plan_restore, records_of, state_of
from registry.cli.failure import CliError
from registry.model.records import (
    AdapterRecord,
    AdapterSpec,
    CanaryRollout,
    Expect,
    ExpectedAnswer,
    PoolSpec,
    SourceSpec,
    TenantRecord,
)
from registry.model.stored import Stored
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal, applied


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


def text(records: list[pb.StoredRecord]) -> bytes:
    return backup_text(records, 12, "2026-01-01T00:00:00+00:00")


def test_what_is_written_is_read():
    odd = [*WHOLE, stored("adapters/dev/torn", b"\xff\n{"), stored("pools/x", '{"é": "\u2028"}'.encode())]
    revision, found = records_of(text(odd), "f")
    assert revision == 12
    assert [(one.key, one.value) for one in found] == [(one.key, one.value) for one in odd]
    assert state_of(found).unreadable == ["adapters/dev/torn", "pools/x"]
    assert state_of([stored("meta/x", b"{}")]).unreadable == ["meta/x"]


def damaged() -> dict[str, bytes]:
    whole = text(WHOLE)
    lines = whole.splitlines(keepends=True)
    return {
        "cut off": b"".join(lines[:-1]),
        "cut within a line": whole[:-20],
        "a line less": b"".join(lines[:1] + lines[2:]),
        "a letter changed": whole.replace(b"s3://b/x", b"s3://b/y"),
        "empty": b"",
        "something else": b"apiVersion: loraplane/v1\n",
        "another form": whole.replace(b"loraplane-backup/1", b"loraplane-backup/9"),
        "no record": text([])[:-1].replace(b'"records": 0', b'"records": 1'),
    }


@pytest.mark.parametrize("what", damaged())
def test_what_is_not_whole_is_refused(what):
    with pytest.raises(CliError) as raised:
        records_of(damaged()[what], "b.jsonl")
    assert raised.value.failure.exit == 4
    assert raised.value.failure.field == "b.jsonl"


def sealed(*lines: object) -> bytes:
    """A file of these lines whose checksum is right."""
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return body + json.dumps({"records": len(lines) - 1, "sha256": hashlib.sha256(body).hexdigest()}).encode()


HEADER = {"format": "loraplane-backup/1", "revision": 12}


@pytest.mark.parametrize(
    "lines",
    [
        [["loraplane-backup/1"]],
        [{"format": "loraplane-backup/1"}],
        [HEADER | {"revision": 1e400}],
        [HEADER | {"revision": "12"}],
        [HEADER, {"value": "{}"}],
        [HEADER, {"key": 7, "value": "{}"}],
        [HEADER, {"key": "pools/dev"}],
        [HEADER, {"key": "pools/dev", "value": 7}],
        [HEADER, {"key": "pools/dev", "value": "\ud800"}],
        [HEADER, {"key": "pools/dev", "base64": "="}],
        [HEADER, "value"],
        [HEADER, 7],
    ],
)
def test_what_is_whole_and_of_no_form_of_ours_is_refused(lines):
    """X2 unbreakable: a checksum is soon made; bad input gets one clear error, never an internal one."""
    with pytest.raises(CliError) as raised:
        records_of(sealed(*lines), "b.jsonl")
    assert (raised.value.failure.exit, raised.value.failure.field) == (4, "b.jsonl")
    assert "is no whole backup" in raised.value.failure.message


def test_a_damaged_file_is_told_from_one_of_another_release():
    """What helps against the one is another backup, against the other another release."""
    with pytest.raises(CliError, match="its checksum differs") as raised:
        records_of(damaged()["a letter changed"], "b.jsonl")
    assert raised.value.failure.reason == "UNREADABLE_RECORD"
    with pytest.raises(CliError, match="loraplane-backup/9") as raised:
        records_of(damaged()["another form"], "b.jsonl")
    assert raised.value.failure.reason == "UNSUPPORTED"


def test_what_was_vouched_for_in_a_store_is_no_difference_between_pools():
    """R15: of which lists somebody said that they lack nothing is true of that store alone, and is not restored."""
    vouched = stored("pools/dev", PoolSpec(name="dev", base_models=["tiny"], removals_confirmed_revision=9))
    assert plan_restore(state_of([vouched]), state_of([POOL])).update_pools == []
    other = stored("pools/dev", PoolSpec(name="dev", base_models=["other"], removals_confirmed_revision=9))
    assert len(plan_restore(state_of([other]), state_of([POOL])).update_pools) == 1


def test_of_canaries_what_all_others_served_is_restored():
    """W6 one-digest: a version that was on trial is not given to all by a restoration."""
    rollout = CanaryRollout(stable_generation=2, stable_spec=AdapterSpec(source=SourceSpec(uri="s3://b/old")))
    trial = stored("adapters/dev/a", adapter("a", rollout=rollout))
    plan = plan_restore(state_of([trial, POOL]), state_of([POOL]))
    assert [one.spec.source.uri for one in plan.creates] == ["s3://b/old"]
    assert plan.canaries == ["dev/a"]
    assert plan_restore(state_of([trial, POOL]), state_of([trial, POOL])).same == 1
    [update] = plan_restore(
        state_of([trial, POOL]), state_of([stored("adapters/dev/a", adapter("a"), "9"), POOL])
    ).updates
    assert (update.etag, update.spec.source.uri) == ("9", "s3://b/old")


@pytest.mark.parametrize(("of_backup", "of_now"), [(True, False), (False, True)])
def test_the_spec_that_only_canaries_have_is_not_what_all_serve(of_backup, of_now):
    """W6 one-digest: where one side has it on trial and the other for all, it is restored."""
    rollout = CanaryRollout(stable_generation=2, stable_spec=AdapterSpec(source=SourceSpec(uri="s3://b/old")))

    def state(is_on_trial: bool) -> StoredState:
        record = adapter("a", rollout=rollout) if is_on_trial else adapter("a")
        return state_of([stored("adapters/dev/a", record, "9"), POOL])

    plan = plan_restore(state(of_backup), state(of_now))
    assert ([one.spec.source.uri for one in plan.updates], plan.same) == (
        ["s3://b/old" if of_backup else "s3://b/x"],
        0,
    )


def test_a_record_that_cannot_be_read_now_is_replaced():
    plan = plan_restore(
        state_of(WHOLE), state_of([stored("adapters/dev/a", b"{", "9"), stored("pools/dev", b"{", "8")])
    )
    assert [(one.name, one.etag) for one in plan.updates] == [("a", "9")]
    assert [(etag, is_readable) for _, etag, is_readable in plan.update_pools] == [("8", False)]
    assert [(one.tenant, one.found, one.wanted, one.etag) for one in plan.tenants] == [("t", None, 5, "0")]


@pytest.mark.parametrize("expected", [None, Expect(answers=[ExpectedAnswer(prompt=[1], tokens=[2])])])
def test_of_canaries_the_others_answers_are_expected(expected):
    """W6 one-digest: other files answer otherwise, and would be refused for what the new ones should answer."""
    stable = AdapterSpec(source=SourceSpec(uri="s3://b/old"), expect=expected)
    spec = AdapterSpec(
        source=SourceSpec(uri="s3://b/new"), expect=Expect(answers=[ExpectedAnswer(prompt=[3], tokens=[4])])
    )
    record = adapter("a", rollout=CanaryRollout(stable_generation=2, stable_spec=stable)).model_copy(
        update={"spec": spec}
    )
    [made] = plan_restore(state_of([stored("adapters/dev/a", record)]), StoredState()).creates
    assert made.spec.expect == expected


def past(name: str, generation: int, **fields: object) -> bytes:
    kept = {"retired_by_request": "r", "deleted": True, **fields}
    return json.dumps(adapter(name, generation=generation).model_dump(by_alias=True) | kept).encode()


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
def test_a_record_under_another_key_than_its_own_is_refused_whole(cli, store, tmp_path, one, field):
    """X2 unbreakable: what is written by its name was shown by its key. Line and field are told, nothing is written."""
    first = stored("pools/first", PoolSpec(name="first", base_models=["tiny"]))
    (tmp_path / "b.jsonl").write_bytes(text([first, one]))
    ran = cli("restore", "b.jsonl", "--yes")
    line = 2 if field == "key" else 3
    assert (ran.code, f"b.jsonl: line {line}: {field}: " in ran.err, store.requests) == (4, True, [])
    error = cli("-o", "json", "restore", "b.jsonl", "--yes")
    assert json.loads(error.err)["error"]["field"] == f"b.jsonl: line {line}: {field}"


def test_what_stands_under_another_key_is_no_part_of_a_backup_nor_of_a_plan(cli, admin, tmp_path):
    """R14 nack: a backup can be restored, whatever somebody put into the store by hand; the rest is all there."""
    odd = stored("adapters/dev/b", adapter("a"), "9")
    admin.answers["ReadBackup"] = [pb.ReadBackupResponse(records=[odd, *WHOLE], revision=12)]
    ran = cli("backup", "b.jsonl")
    assert (ran.code, "left out, since they stand under another key than their own: adapters/dev/b" in ran.err) == (
        0,
        True,
    )
    records = records_of((tmp_path / "b.jsonl").read_bytes(), "f")[1]
    assert [one.key for one in records] == [one.key for one in WHOLE]
    plan = plan_restore(state_of([stored("adapters/dev/b", adapter("b")), POOL]), state_of([odd, POOL]))
    assert [(one.name, one.etag) for one in plan.updates] == [("b", "9")]


@pytest.mark.parametrize(("known", "is_told"), [(0, False), (3999, False), (3000, False), (2999, True)])
def test_history_that_would_not_be_believed_is_left_out_and_told(known, is_told):
    """X3 given-back: the service takes no generation far above what it knows; the adapter comes back all the same."""
    now = [stored(f"history/dev/a/{known}", past("a", known))] if known else []
    saved = [stored("history/dev/a/4000", past("a", 4000)), stored("adapters/dev/a", adapter("a", generation=4001))]
    plan = plan_restore(state_of(saved), state_of(now))
    assert (plan.histories, plan.too_high) == (([], ["dev/a"]) if is_told else ([("dev", "a")], []))
    assert [one.name for one in plan.creates] == ["a"]


def test_which_history_is_left_out_is_told(cli, store, tmp_path):
    saved = [*WHOLE[1:], stored("adapters/dev/a", adapter("a", generation=4001))]
    (tmp_path / "b.jsonl").write_bytes(text(saved))
    now = [stored("history/dev/a/1", past("a", 1)), POOL, stored("tenants/t", TenantRecord(name="t"), "22")]
    store.answers["ReadBackup"] = [pb.ReadBackupResponse(records=now, revision=30)]
    ran = cli("restore", "b.jsonl", "--yes")
    assert (ran.code, "the history of dev/a is left out" in ran.err, store.asked("RestoreHistory")) == (0, True, [])


@pytest.fixture
def store(admin, tmp_path):
    """A service whose state is another than that of the file b.jsonl."""
    (tmp_path / "b.jsonl").write_bytes(text(WHOLE))
    now = [stored("adapters/dev/b", adapter("b"), "21"), POOL, stored("tenants/t", TenantRecord(name="t"), "22")]
    admin.answers["ReadBackup"] = [pb.ReadBackupResponse(records=now, revision=30)]
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["RestoreHistory"] = [pb.RestoreHistoryResponse(changed=True)]
    admin.answers["SetTenant"] = [pb.Tenant(name="t")]
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=[pb.Tenant(name="t", etag="40")])]
    return admin


def changed(admin) -> list[str]:
    return [name for name, _ in admin.requests if name not in {"ReadBackup", "ListTenants"}]


def test_backup_writes_for_its_owner_and_over_nothing(cli, admin, tmp_path):
    pages = [pb.ReadBackupResponse(records=WHOLE[:1], revision=12, next_page_token="n")]  # noqa: S106 - of a listing
    admin.answers["ReadBackup"] = [*pages, pb.ReadBackupResponse(records=WHOLE[1:], revision=12)]
    assert "1 pools, 1 tenants, 1 adapters" in cli("backup", "b.jsonl").out
    file = tmp_path / "b.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.key for one in records_of(file.read_bytes(), "f")[1]] == [one.key for one in WHOLE]
    assert cli("backup", "b.jsonl").code == 2
    assert cli("-o", "json", "backup", "b.jsonl", "--force").json["revision"] == 12
    assert "cannot write" in cli("backup", "no/such/folder.jsonl").err


def test_restore_shows_its_plan_and_asks(cli, store):
    ran = cli("restore", "b.jsonl")
    assert (ran.code, changed(store)) == (2, [])
    assert "+ adapter dev/a" in ran.out
    assert "~ tenant t: quota none -> 5" in ran.out
    assert "summary: +1 ~0 -0 =0 adapters" in ran.out
    assert cli("restore", "b.jsonl", "--dry-run").code == 0
    assert changed(store) == []


def test_each_change_holds_for_what_the_plan_was_made_from(cli, store):
    """W4 etag: of adapters, deletions and quotas."""
    assert cli("restore", "b.jsonl", "--yes", "--delete-others").code == 0
    assert changed(store) == ["RestoreHistory", "ApplyAdapters", "ApplyAdapters", "SetTenant"]
    deletion, creation = (request.changes[0] for request in store.asked("ApplyAdapters"))
    assert (deletion.delete, deletion.etag) == ("b", "21")
    assert (creation.upsert.name, creation.etag) == ("a", "0")
    assert store.asked("SetTenant")[0].tenant.etag == "40"


def test_the_longest_request_id_has_room_for_all_steps(cli, store):
    """Where an id is refused for its length, the steps before it stand."""
    assert cli("restore", "b.jsonl", "--yes", "--delete-others", "--request-id", "q" * 128).code == 0
    steps = [*store.asked("RestoreHistory"), *store.asked("ApplyAdapters"), *store.asked("SetTenant")]
    ids = [request.request_id for request in steps]
    assert (len(set(ids)), max(map(len, ids)) <= 128) == (len(ids), True)


def test_a_quota_that_somebody_set_meanwhile_stays(cli, store):
    """W4 etag."""
    store.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=[pb.Tenant(name="t", max_adapters=9)])]
    ran = cli("restore", "b.jsonl", "--yes")
    assert (ran.code, "set the quota of 't' to 9 meanwhile" in ran.err, store.asked("SetTenant")) == (5, True, [])


def test_what_was_changed_meanwhile_ends_it(cli, store):
    store.answers["ApplyAdapters"] = [Refusal(grpc.StatusCode.ABORTED, "ETAG_MISMATCH")]
    ran = cli("restore", "b.jsonl", "--yes", "--delete-others")
    assert (ran.code, len(store.asked("ApplyAdapters"))) == (5, 1)


def test_others_are_deleted_up_to_a_limit(cli, store, tmp_path):
    many = [stored(f"adapters/dev/n{number}", adapter(f"n{number}")) for number in range(11)]
    store.answers["ReadBackup"] = [pb.ReadBackupResponse(records=many, revision=30)]
    ran = cli("restore", "b.jsonl", "--yes", "--delete-others")
    assert (ran.code, changed(store)) == (4, [])
    assert "11 adapters would be deleted, more than 10" in ran.err


def test_quotas_that_rise_come_first_and_pools_keep_their_etags(cli, store, tmp_path):
    pools = [stored("pools/dev", PoolSpec(name="dev", base_models=["other"]), "31")]
    tenant = stored("tenants/t", TenantRecord(name="t", max_adapters=1), "32")
    store.answers["ReadBackup"] = [pb.ReadBackupResponse(records=[*pools, tenant], revision=30)]
    store.answers["UpdatePool"] = store.answers["CreatePool"] = [pb.Pool(name="dev")]
    fresh = stored("pools/new", PoolSpec(name="new", base_models=["tiny"]))
    gone = adapter("gone").model_dump(by_alias=True) | {"retired_by_request": "r", "deleted": True}
    history = stored("history/dev/gone/3", json.dumps(gone).encode())
    (tmp_path / "b.jsonl").write_bytes(text([history, *WHOLE, fresh, stored("adapters/dev/torn", b"{")]))
    ran = cli("-o", "json", "restore", "b.jsonl", "--yes")
    assert (ran.code, "cannot be read, and are left out: adapters/dev/torn" in ran.err) == (0, True)
    assert changed(store) == ["SetTenant", "CreatePool", "UpdatePool", *["RestoreHistory"] * 2, "ApplyAdapters"]
    assert (store.asked("SetTenant")[0].tenant.etag, store.asked("UpdatePool")[0].pool.etag) == ("32", "31")
    last, gone_too = store.asked("RestoreHistory")
    assert (last.name, bool(last.last), gone_too.name, len(gone_too.generations)) == ("a", True, "gone", 1)


def test_a_file_that_is_not_there(cli, store):
    assert "cannot read none.jsonl" in cli("restore", "none.jsonl").err
