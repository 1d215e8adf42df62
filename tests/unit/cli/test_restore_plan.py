"""The plan of a restoration, whole; and that it is carried out in the order in which it holds."""

from __future__ import annotations

import base64
import json

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
from registry.model.records import AdapterRecord, AdapterSpec, CanaryRollout, PoolSpec, SourceSpec, TenantRecord
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import applied
from tests.unit.cli.test_backups import adapter, stored, text


def spec(uri: str) -> AdapterSpec:
    return AdapterSpec(source=SourceSpec(uri=uri))


def retired(name: str, generation: int, pool: str = "dev") -> pb.StoredRecord:
    """A generation that is no more, as history keeps it."""
    record = adapter(name, generation=generation).model_dump(by_alias=True)
    value = json.dumps({**record, "pool": pool, "retired_by_request": "r", "deleted": True}).encode()
    return stored(f"history/{pool}/{name}/{generation}", value)


def pool(name: str, *bases: str, etag: str = "7") -> pb.StoredRecord:
    return stored(f"pools/{name}", PoolSpec(name=name, base_models=list(bases)), etag)


def tenant(name: str, quota: int | None, etag: str = "7") -> pb.StoredRecord:
    return stored(f"tenants/{name}", TenantRecord(name=name, max_adapters=quota), etag)


BACKUP = state_of(
    [
        pool("same", "tiny"),
        pool("other", "tiny"),
        pool("gone", "tiny"),
        tenant("same", 5),
        tenant("rises", 9),
        tenant("falls", 1),
        tenant("freed", None),
        tenant("gone", 3),
        stored("adapters/dev/b", adapter("b")),
        stored("adapters/dev/a", adapter("A", generation=4)),
        stored("adapters/dev/same", adapter("same")),
        stored("adapters/dev/changed", adapter("changed", "s3://b/old")),
        retired("a", 2),
        retired("past", 1),
        retired("kept", 1),
    ]
)
NOW = state_of(
    [
        pool("same", "tiny", etag="11"),
        pool("other", "small", etag="12"),
        tenant("same", 5, "21"),
        tenant("rises", 2, "22"),
        tenant("falls", 4, "23"),
        tenant("freed", 4, "24"),
        tenant("new", 4, "25"),
        stored("adapters/dev/same", adapter("same"), "31"),
        stored("adapters/dev/changed", adapter("Changed", "s3://b/new"), "32"),
        stored("adapters/dev/z", adapter("Z"), "33"),
        stored("adapters/dev/extra", adapter("extra"), "34"),
        retired("kept", 1),
    ]
)


def test_the_whole_plan_of_a_restoration():
    """W4 etag, W6: each change at the etag that was found, names by their keys, and nothing that is so already."""
    pools = {name: PoolSpec(name=name, base_models=["tiny"]) for name in ("gone", "other")}
    assert plan_restore(BACKUP, NOW) == RestorePlan(
        create_pools=[pools["gone"]],
        update_pools=[(pools["other"], "12", True)],
        tenants=[
            RestoredQuota("rises", 2, 9, "22"),
            RestoredQuota("falls", 4, 1, "23"),
            RestoredQuota("freed", 4, None, "24"),
            RestoredQuota("gone", None, 3, "0"),
        ],
        histories=[("dev", "a"), ("dev", "b"), ("dev", "past")],
        creates=[
            RestoredAdapter("dev", "A", spec("s3://b/x"), "0"),
            RestoredAdapter("dev", "b", spec("s3://b/x"), "0"),
        ],
        updates=[RestoredAdapter("dev", "Changed", spec("s3://b/old"), "32")],
        same=1,
        others=[("dev", "extra", "34"), ("dev", "Z", "33")],
        canaries=[],
        too_high=[],
    )


def test_what_stands_as_it_was_needs_no_change():
    plan = plan_restore(NOW, NOW)
    assert plan == RestorePlan([], [], [], [], [], [], same=4, others=[], canaries=[], too_high=[])


def test_an_adapter_whose_record_the_backup_could_not_read_is_none_of_the_others():
    """It was there: to delete it would be a loss."""
    torn = state_of([stored("adapters/dev/z", b"{")])
    assert plan_restore(torn, NOW).others == [("dev", "Changed", "32"), ("dev", "extra", "34"), ("dev", "same", "31")]


@pytest.mark.parametrize(
    ("of_backup", "present", "of_now", "is_restored"),
    [
        ([1, 2], 3, [], True),
        ([1, 2], None, [], True),
        ([1, 2], 3, [1, 2], True),
        ([1, 2], 3, [1, 2, 3], False),
        ([1, 2], None, [2], False),
        ([1, 2], None, [1], True),
        ([5], 3, [4], True),
        ([], 3, [3], False),
    ],
)
def test_history_is_restored_where_it_lacks_the_newest(of_backup, present, of_now, is_restored):
    """The generation of an adapter that comes back follows its last."""
    records = [retired("a", one) for one in of_backup]
    records += [stored("adapters/dev/a", adapter("a", generation=present))] if present else []
    plan = plan_restore(state_of(records), state_of([retired("a", one) for one in of_now]))
    assert plan.histories == ([("dev", "a")] if is_restored else [])


def test_the_history_of_an_adapter_that_is_there_is_its_own():
    now = [stored("adapters/dev/a", adapter("a"))]
    assert plan_restore(state_of([retired("a", 9)]), state_of(now)).histories == []


@pytest.mark.parametrize(
    ("found", "wanted", "rises"),
    [(1, 2, True), (2, 1, False), (1, None, True), (None, 5, False), (None, None, True), (0, 1, True), (3, 3, False)],
)
def test_which_quotas_rise(found, wanted, rises):
    """W5 quota-never: those come before more adapters, the others after fewer."""
    assert RestoredQuota("t", found, wanted, "1").rises is rises


def test_of_canaries_the_rest_of_the_record_is_the_newest():
    """What all others served are files; priority and labels are of the adapter."""
    stable = AdapterSpec(source=SourceSpec(uri="s3://b/old"), base_model="old", credentials="c", priority=1)
    new = AdapterSpec(source=SourceSpec(uri="s3://b/new"), priority=9, labels={"team": "x"})
    record = AdapterRecord(
        name="a",
        pool="dev",
        tenant="t",
        generation=3,
        spec=new,
        updated_at="t",
        updated_by="b",
        rollout=CanaryRollout(stable_generation=2, stable_spec=stable),
    )
    [made] = plan_restore(state_of([stored("adapters/dev/a", record)]), StoredState()).creates
    assert made.spec == new.model_copy(
        update={"source": stable.source, "base_model": "old", "credentials": "c", "prepare": stable.prepare}
    )


def test_a_backup_is_plain_ascii_whatever_it_holds():
    """So it comes whole through any program that copies text."""
    values = {"pools/é": '{"é": "\u2028"}'.encode(), "pools/b": b"\xff\xfe"}
    whole = backup_text([pb.StoredRecord(key=key, value=value) for key, value in values.items()], 12, "now")
    assert whole.isascii()
    header, *lines, end = map(json.loads, whole.splitlines())
    assert header == {"format": "loraplane-backup/1", "revision": 12, "created_at": "now"}
    assert lines[1] == {"key": "pools/b", "base64": base64.b64encode(b"\xff\xfe").decode()}
    assert (end["records"], len(end["sha256"])) == (2, 64)
    revision, found = records_of(whole + b"\n\n", "f")
    assert (revision, {one.key: one.value for one in found}) == (12, values)


def test_a_state_keeps_values_and_etags_of_what_cannot_be_read_too():
    odd = [
        stored("adapters/dev/torn", b"{", "3"),
        stored("history/dev/a/1", b"{", "4"),
        stored("history/dev", b"{}", "5"),
        stored("pools/a/b", b"{}", "6"),
        stored("pools/p", b"{}", "7"),
    ]
    state = state_of(odd)
    assert state.unreadable == [one.key for one in odd]
    assert state.etags == {one.key: one.etag for one in odd}
    assert state.values == {one.key: one.value for one in odd}
    assert (state.adapters, state.history, state.pools) == ({}, {}, {})


@pytest.fixture
def store(admin, tmp_path):
    """A service of the state NOW; and a backup of another."""
    names = ["pools/gone", "pools/other", "tenants/rises", "tenants/falls", "adapters/dev/b", "adapters/dev/changed"]
    saved = [pb.StoredRecord(key=name, value=BACKUP.values[name]) for name in [*names, "history/dev/past/1"]]
    (tmp_path / "b.jsonl").write_bytes(text(saved))
    now = [pb.StoredRecord(key=key, value=value, etag=NOW.etags[key]) for key, value in NOW.values.items()]
    admin.answers["ReadBackup"] = (
        [
            pb.ReadBackupResponse(records=now[:3], revision=30, next_page_token="n"),  # noqa: S106 - of a listing
            pb.ReadBackupResponse(records=now[3:], revision=30),
        ]
        * 9
    )
    admin.answers["ApplyAdapters"] = [applied]
    admin.answers["RestoreHistory"] = [pb.RestoreHistoryResponse(changed=True)]
    admin.answers["SetTenant"] = [pb.Tenant(name="t")]
    admin.answers["CreatePool"] = admin.answers["UpdatePool"] = [pb.Pool(name="dev")]
    tenants = [pb.Tenant(name="falls", max_adapters=4, etag="50"), pb.Tenant(name="rises", max_adapters=9)]
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=tenants)]
    return admin


LINES = [
    "+ pool gone",
    "~ pool other",
    "~ tenant rises: quota 2 -> 9",
    "~ tenant falls: quota 4 -> 1",
    "+ history dev/b",
    "+ history dev/past",
    "+ adapter dev/b",
    "~ adapter dev/Changed",
    "- adapter dev/extra",
    "- adapter dev/same",
    "- adapter dev/Z",
]


def test_the_plan_is_told_whole_before_anything_is_done(cli, store):
    ran = cli("restore", "b.jsonl", "--delete-others", "--dry-run")
    assert (ran.code, ran.out.splitlines()) == (0, [*LINES, "summary: +1 ~1 -3 =0 adapters"])
    value = cli("-o", "json", "restore", "b.jsonl", "--delete-others", "--dry-run").json
    assert (value["plan"], value["summary"]) == (LINES, {"created": 1, "updated": 1, "deleted": 3, "unchanged": 0})
    assert value["backup"] == {"pools": 2, "tenants": 2, "adapters": 2, "earlier generations": 1, "unreadable": 0}
    left = cli("restore", "b.jsonl", "--dry-run")
    assert left.out.splitlines() == [*LINES[:-3], "summary: +1 ~1 -0 =0 adapters"]
    assert "3 adapters that the backup does not have stay; --delete-others deletes them" in left.err
    assert [name for name, _ in store.requests if name != "ReadBackup"] == []


def test_each_step_is_carried_out_once_and_in_order(cli, store):
    """W5: room is made before it is taken; W3: each step has an id of its own, which another run sends again."""
    ran = cli("restore", "b.jsonl", "--delete-others", "--yes", "--request-id", "q")
    assert ran.code == 0, ran.err
    steps = [(name, one) for name, one in store.requests if name not in {"ReadBackup", "ListTenants"}]
    assert [(name, one.request_id) for name, one in steps] == [
        ("SetTenant", "q:rise0"),
        ("CreatePool", "q:new0"),
        ("UpdatePool", "q:pool0"),
        ("RestoreHistory", "q:history0:0"),
        ("RestoreHistory", "q:history1:0"),
        ("ApplyAdapters", "q:others"),
        ("ApplyAdapters", "q:adapters"),
        ("SetTenant", "q:fall0"),
    ]
    raised, created, updated, live, past, others, adapters, lowered = (one for _, one in steps)
    assert raised.tenant == pb.Tenant(name="rises", max_adapters=9, etag="22")
    assert lowered.tenant == pb.Tenant(name="falls", max_adapters=1, etag="50")
    assert (created.pool.name, created.pool.etag) == ("gone", "")
    assert (updated.pool.name, updated.pool.etag) == ("other", "12")
    assert list(updated.update_mask.paths) == ["base_models", "limits", "base", "engine", "engine_names"]
    assert (live.pool, live.name, live.last, list(live.generations)) == (
        "dev",
        "b",
        BACKUP.values["adapters/dev/b"],
        [],
    )
    assert (past.pool, past.name, past.last) == ("dev", "past", b"")
    assert list(past.generations) == [BACKUP.values["history/dev/past/1"]]
    assert [(one.delete, one.etag) for one in others.changes] == [("extra", "34"), ("same", "31"), ("Z", "33")]
    sent = [(one.upsert.name, one.upsert.spec.source.uri, one.etag) for one in adapters.changes]
    assert sent == [("Changed", "s3://b/old", "32"), ("b", "s3://b/x", "0")]
    assert "created  b" in ran.out


def test_a_pool_that_cannot_be_read_is_replaced_whole(cli, store):
    """Of what cannot be read nothing can stay, so no field is named."""
    now = [pb.StoredRecord(key="pools/other", value=b"{", etag="12")]
    store.answers["ReadBackup"] = [pb.ReadBackupResponse(records=now, revision=30)]
    store.answers["ListTenants"] = [pb.ListTenantsResponse()]
    assert cli("restore", "b.jsonl", "--yes").code == 0
    assert list(store.asked("UpdatePool")[0].update_mask.paths) == []


@pytest.mark.parametrize(("others", "limit", "code"), [(3, 3, 0), (3, 2, 4)])
def test_as_many_as_the_limit_are_deleted_and_no_more(cli, store, others, limit, code):
    ran = cli("restore", "b.jsonl", "--delete-others", "--yes", "--delete-limit", str(limit))
    assert ran.code == code
    if code:
        assert f"{others} adapters would be deleted, more than {limit}; give --delete-limit" in ran.err
        assert store.asked("ApplyAdapters") == []


def test_a_quota_that_somebody_took_away_meanwhile_is_not_set(cli, store):
    """W4 etag: its counter changed since, so that it is known by its quota."""
    store.answers["ListTenants"] = [pb.ListTenantsResponse()]
    ran = cli("restore", "b.jsonl", "--yes")
    assert (ran.code, "somebody set the quota of 'falls' to 0 meanwhile" in ran.err) == (5, True)


def test_a_backup_is_not_written_over_even_where_it_is_a_link_to_nothing(cli, store, tmp_path):
    (tmp_path / "link.jsonl").symlink_to("nowhere")
    ran = cli("backup", "link.jsonl")
    assert (ran.code, "link.jsonl is there already" in ran.err, store.asked("ReadBackup")) == (2, True, [])


def test_a_backup_that_broke_off_before_does_not_hinder_the_next(cli, store, tmp_path):
    (tmp_path / ".c.jsonl.new").write_text("half of one")
    (tmp_path / ".c.jsonl.new").chmod(0o644)
    ran = cli("backup", "c.jsonl")
    assert ran.code == 0, ran.err
    expected = "c.jsonl: revision 30, 2 pools, 5 tenants, 4 adapters, 1 earlier generations, 0 unreadable\n"
    assert (ran.out, (tmp_path / "c.jsonl").stat().st_mode & 0o777) == (expected, 0o600)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b.jsonl", "c.jsonl"]
    assert len(records_of((tmp_path / "c.jsonl").read_bytes(), "f")[1]) == len(NOW.values)
