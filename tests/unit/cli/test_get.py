"""get, history and what is listed: how it is shown, chosen and ordered, and what is said of what is left out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from registry.cli.failure import CliError, Exit
from registry.cli.views.differences import changed_fields
from registry.cli.views.get import Kind, Query, find, labels_of
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Hold, Refusal

MISSING = Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "none")


def ways(state: int, replicas: int, reason: str = "", **wanted) -> pb.ResidenceCount:
    return pb.ResidenceCount(replicas=replicas, state=state, reason=reason, **wanted)


TWO_POOLS = pb.ListPoolsResponse(pools=[pb.Pool(name="a"), pb.Pool(name="b")])
NOT_FOUND = Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "none")
REFUSED = Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "not you")


@pytest.mark.parametrize(
    ("terms", "labels"),
    [
        *(([], {}), (["a=1", "a=1"], {"a": "1"}), (["a=b=c"], {"a": "b=c"}), (["a="], {"a": ""})),
        (["a=1,b=2", "c=3"], {"a": "1", "b": "2", "c": "3"}),
    ],
)
def test_labels_that_are_asked_for(terms, labels):
    assert labels_of(terms) == labels


@pytest.mark.parametrize(
    ("lacking", "missing", "live", "told"),
    [
        *((0, 0, [], []), (1, 1, [], []), (1, 1, [3], []), (2, 1, [], ["pool dev expects 2 more replicas than live"])),
        (2, 2, [1], ["pool dev expects 2 more replicas than live: zone=a: 1 of 3"]),
    ],
)
def test_replicas_that_have_no_row_are_told_of(found, admin, lacking, missing, live, told):
    zone = pb.ReplicaGroup(labels={"zone": "a"}, replicas=3)
    gone = [pb.MissingReplica(name=f"m{number}") for number in range(missing)]
    listed = pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", pool="dev")], missing=gone, lacking=lacking)
    listed.groups.extend(pb.GroupPresence(expected=zone, live=one) for one in live)
    admin.answers["ListReplicas"] = [listed]
    rows, notes = found(Kind.REPLICAS)
    assert (len(rows), notes) == (1 + missing, told)


def test_a_name_is_looked_for_in_every_pool_but_not_past_a_refusal(found, admin):
    """Who may not see one pool is told so, and not that there is nothing. A tenant is found in any letters."""
    admin.answers["ListPools"] = [TWO_POOLS]
    admin.answers["GetReplica"] = [NOT_FOUND, pb.Replica(name="r1", pool="b")]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse()]
    [one], _ = found(Kind.REPLICAS, "r1")
    assert one.pool == "b"
    admin.answers["GetReplica"] = [NOT_FOUND]
    with pytest.raises(CliError, match=r"there is no replica 'r1' in any pool \(a, b\)"):
        found(Kind.REPLICAS, "r1")
    admin.answers["GetReplica"] = [NOT_FOUND, REFUSED]
    with pytest.raises(CliError, match="not you"):
        found(Kind.REPLICAS, "r1")
    admin.answers["ListPools"] = [pb.ListPoolsResponse()]
    with pytest.raises(CliError, match="there is no pool either"):
        found(Kind.REPLICAS, "r1")
    tenants = [pb.Tenant(name=name, adapters=len(name)) for name in ("acme", "other")]
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=tenants)]
    assert ([one.name for one in found(Kind.TENANTS, "ACME")[0]], len(found(Kind.TENANTS)[0])) == (["acme"], 2)
    with pytest.raises(CliError, match="there is no tenant 'none'"):
        found(Kind.TENANTS, "none")


SERVED, BAD, LATER = pb.RolloutReplica.SERVING, pb.RolloutReplica.FAILED, pb.RolloutReplica.PENDING
SQL = pb.Adapter(name="sql", pool="dev", generation=2, etag="9", spec=pb.AdapterSpec(load="eager"))


@pytest.mark.parametrize(
    ("counts", "fields", "expected"),
    [
        ([ways(SERVED, 8), ways(SERVED, 2, "leaving")], {}, "Healthy 8/8 -"),
        ([ways(SERVED, 5), ways(LATER, 1, "staging"), ways(BAD, 2, "x")], {}, "Degraded 5/8 2 × x, 1 × staging"),
        ([ways(SERVED, 6), ways(LATER, 2, "over_capacity")], {}, "Degraded 6/8 2 × over_capacity"),
        ([], {"note": "no replica is alive"}, "Progressing 0/0 no replica is alive"),
    ],
)
def test_the_table_says_how_each_adapter_is(cli, admin, counts, fields, expected):
    """R9 status-truth: how many serve it of those that should, the dead among them, and why the others do not."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    one = pb.AdapterResidency(name="sql", generation=2, load="eager", counts=counts, **fields)
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(snapshot=True, adapters=[one])]]
    header, row = cli("get", "adapters").out.splitlines()
    assert header.split() == ["NAME", "POOL", "STATE", "SERVING", "GENERATION", "LOAD", "AGE", "REASONS"]
    _, _, state, serving, generation, load, age, why = row.split(None, 7)
    assert (f"{state} {serving} {why}", generation, load, age) == (expected, "2", "eager", "-")
    assert admin.asked("WatchResidency")[-1].detail == pb.WatchResidencyRequest.COUNTS
    now, seconds = datetime.now(UTC), {"old": 3 * 86_400, "new": 1, "mid": 18_000, "later": -3600}
    ages = {name: (now - timedelta(seconds=age)).isoformat() for name, age in seconds.items()}
    odd = {"a": "", "b": "yesterday", "c": "2026-01-01T00:00:00"}  # X2 unbreakable: whatever stands in a record
    found = [pb.Adapter(name=name, pool="dev", updated_at=at) for name, at in (ages | odd).items()]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=found)]
    lines = [line.split() for line in cli("get", "adapters", "--sort-by", "-age").lines[1:]]
    assert [line[0] for line in lines if line[0] in ages] == ["old", "mid", "new", "later"]
    told = {line[0]: line[6] for line in lines if line[0] not in {"new", "mid"}}
    assert told == dict.fromkeys(odd, "-") | {"old": "3d", "later": "0s"}


def test_wide_says_where_each_adapter_is(cli, admin):
    """Of parts of a state the whole; of one adapter in whichever pool it is; where nothing is known nothing is said."""
    parts = [
        pb.Residence(replica="r1", state=SERVED, generation=2),
        pb.Residence(replica="r3", state=LATER, generation=2, reason="staging"),
    ]
    where = [
        pb.AdapterResidency(name=name, generation=2, replicas=parts, note="placed on 4") for name in ("law", "sql")
    ]
    halves = [pb.WatchResidencyResponse(snapshot=True, more=not at, adapters=[where[at]]) for at in (0, 1)]
    admin.answers |= {"ListAdapters": [pb.ListAdaptersResponse(adapters=[SQL])], "WatchResidency": [halves]}
    header, sql = cli("get", "adapters", "-o", "wide").lines
    titles = "NAME POOL STATE SERVING GENERATION LOAD AGE REASONS REPLICAS NOTE PLACED SOURCE UPDATED BY EXPIRES"
    row = "sql dev Progressing 1/2 2 eager - 1 × staging r1, r3 pending: staging placed on 4 all -"
    assert (header, sql) == (titles, row)
    admin.answers["ListPools"] = [TWO_POOLS]
    of_b = pb.Adapter(name="sql", pool="b", generation=2)
    admin.answers["GetAdapter"] = [lambda asked: of_b if asked.pool == "b" else MISSING]
    assert "sql b Progressing 1/2" in cli("get", "adapter", "SQL", "-o", "wide").lines[1]
    asked = admin.asked("WatchResidency")
    assert [(one.pool, one.name) for one in asked] == [("dev", ""), ("b", "SQL")]
    assert {one.detail for one in asked} == {pb.WatchResidencyRequest.REPLICAS_AND_COUNTS}
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(snapshot=True), Hold()]]
    assert "sql b - - 2 eager" in cli("get", "adapter", "SQL", "-o", "wide").lines[1]
    assert "status" not in cli("-o", "json", "get", "adapter", "sql").json
    admin.answers["GetAdapter"] = [MISSING]
    ran = cli("get", "adapter", "sql", "-o", "wide")
    assert (ran.code, "in any pool (a, b)" in ran.err) == (3, True)


@pytest.mark.parametrize(
    ("form", "is_asked"),
    [
        *((form, True) for form in ("table", "json", "yaml", "custom-columns=N:.name")),
        *((form, False) for form in ("name", "manifest")),
    ],
)
def test_where_adapters_are_is_asked_for_whoever_is_told_of_it(cli, admin, form, is_asked):
    """Programs too; a list of names costs one question. Without a pool all are shown."""
    admin.answers["ListPools"] = [TWO_POOLS]
    listed = lambda asked: pb.ListAdaptersResponse(adapters=[pb.Adapter(name=f"x-{asked.pool}")])  # noqa: E731 - short
    admin.answers["ListAdapters"] = [listed]
    ran = cli("get", "adapters", "-o", form)
    assert (ran.code, bool(admin.asked("WatchResidency"))) == (0, is_asked)
    assert ("x-a" in ran.out, "x-b" in ran.out) == (True, True)


@pytest.fixture
def many(admin) -> None:
    """Three adapters of two teams, of which one has failed somewhere."""
    found = [
        pb.Adapter(name=name, pool="dev", generation=generation, spec=pb.AdapterSpec(labels={"team": team}))
        for name, team, generation in (("a10", "ml", 2), ("a9", "bi", 10), ("B", "ml", 1))
    ]
    well, waits = pb.Residence(replica="r1", state=SERVED), pb.Residence(replica="r1", state=LATER, reason="staging")
    bad = pb.Residence(replica="r2", state=BAD, reason="over_capacity")
    kept = pb.Residence(replica="r3", state=SERVED, wanted_state=BAD, wanted_reason="over_capacity")
    homes = zip(found, ([well], [well, bad, kept], [well, waits]), strict=True)
    where = [pb.AdapterResidency(name=one.name, generation=one.generation, replicas=parts) for one, parts in homes]
    admin.answers |= {
        "ListAdapters": [pb.ListAdaptersResponse(adapters=found)],
        "GetAdapter": [lambda asked: next((it for it in found if it.name == asked.name), MISSING)],
        "WatchResidency": [[pb.WatchResidencyResponse(snapshot=True, adapters=where)]],
    }


@pytest.mark.parametrize(
    ("line", "names"),
    [
        *(("-l team=ml", "a10 B"), ("-l team=ml,stage=test", ""), ("-l team=ml -l x=y", ""), ("-l team=bi", "a9")),
        *(("--sort-by name", "a9 a10 B"), ("--sort-by -NAME", "B a10 a9"), ("--sort-by -generation", "a9 a10 B")),
        *(("--sort-by serving", "B a9 a10"), ("B a9", "B a9"), ("--field-selector state=degraded", "a9")),
        *(("--field-selector State=Progressing", "B"), ("--field-selector name=b", "B")),
        ("--field-selector generation=2,name=a10", "a10"),
        ("--field-selector generation=2 --field-selector name=B", ""),
    ],
)
def test_what_is_listed_can_be_chosen_and_ordered(cli, many, line, names):
    """Of 500 adapters those that matter: by label, by what a column says, the worst first; in every form."""
    for form in ("table", "wide"):
        ran = cli("-o", form, "get", "adapters", *line.split(), "--pool", "dev")
        assert (ran.code, ran.err, [one.split()[0] for one in ran.lines[1:]]) == (0, "", names.split())
    assert cli("-o", "name", "get", "Adapters", *line.split(), "--pool", "dev").out.split() == names.split()
    items = cli("-o", "json", "get", "adapters", *line.split(), "--pool", "dev").json["items"]
    assert [one["name"] for one in items] == names.split()
    if names == "a9":
        told = {"state": "Degraded", "serving": 2, "replicas": 3, "reasons": {"over_capacity": 2}, "note": ""}
        assert items[0]["status"] == told


@pytest.fixture
def found(client) -> Any:
    """What is found of a kind, by name where one is given, and what is said of what is left out."""

    def look(kind: Kind, name: str | None = None, pool: str | None = None) -> tuple[list[Any], list[str]]:
        notes: list[str] = []
        return find(client, Query(kind, pool, name, None), notes.append), notes

    return look


def test_replicas_are_counted_by_residency_unless_the_caller_sees_no_adapter(cli, admin):
    """An admin service of an earlier release tells each part instead, which is counted here."""
    status = '{"ready": true, "served": {"count": 13}}'
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", status_json=status)])]
    count = pb.AdapterCount(adapters=13, state=pb.RolloutReplica.UNKNOWN, reason="engine_unreachable")
    counted = pb.WatchResidencyResponse(replicas=[pb.ReplicaResidency(replica="r1", counts=[count])])
    admin.answers["WatchResidency"] = [[counted]]
    assert "r1 yes 0/13 0 0" in " ".join(cli("get", "replicas", "--pool", "dev").lines[1].split())
    adapters = [pb.AdapterResidency(name="a", replicas=[pb.Residence(replica="r1", state=SERVED, loaded=True)])] * 2
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(adapters=adapters)]]
    [one] = cli("-o", "json", "get", "replicas", "--pool", "dev").json["items"]
    assert one["adapters"] == {
        **dict.fromkeys(("wanted", "serving", "loaded"), 2),
        **dict.fromkeys(("behind", "pending", "failed", "unknown"), 0),
    }
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse()]]
    [none] = cli("-o", "json", "get", "replicas", "--pool", "dev").json["items"]
    assert none["adapters"] == dict.fromkeys(one["adapters"], 0)
    admin.answers["WatchResidency"] = [REFUSED]
    [one] = cli("-o", "json", "get", "replicas", "--pool", "dev").json["items"]
    assert "adapters" not in one
    assert "13" in cli("get", "replicas", "--pool", "dev").lines[1]
    admin.answers["WatchResidency"] = [Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND", "none")]
    assert cli("get", "replicas", "--pool", "dev").code == Exit.NOT_FOUND


def test_who_sees_pools_and_no_adapter_gets_the_pools(cli, admin):
    """As the role pool-operator: how they are follows from their adapters, so that it is not known."""
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev", base_models=["tiny"])])]
    admin.answers["WatchResidency"] = [REFUSED]
    ran = cli("get", "pools")
    assert (ran.code, " ".join(ran.lines[1].split())) == (0, "dev - - - tiny -")
    [one] = cli("-o", "json", "get", "pools").json["items"]
    assert (one["name"], "status" in one) == ("dev", False)
    admin.answers["WatchResidency"] = [Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND", "none")]
    assert cli("get", "pools").code == Exit.NOT_FOUND


def test_what_cannot_be_read_is_counted_and_a_replica_that_does_not_live_is_found_by_its_name(found, admin, cli):
    """The first ten are named. A sidecar that dies does not vanish; whoever may not see one is told so."""
    names = [f"n{number}" for number in range(11)]
    admin.answers["ListAdapters"] = [
        pb.ListAdaptersResponse(unreadable=names[:4], next_page_token="n"),  # noqa: S106 - of a listing
        pb.ListAdaptersResponse(unreadable=names[4:]),
    ]
    told = ", ".join(names[:10])
    note = f"11 adapters of pool dev cannot be read, and are left out: {told}, …; see loraplane doctor"
    assert found(Kind.ADAPTERS)[1] == [note]
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(unreadable=names[:10])]
    note = f"10 tenants cannot be read, and are left out: {told}; see loraplane doctor"
    assert (found(Kind.TENANTS)[1], cli("get", "tenants").err) == ([note], f"note: {note}\n")
    admin.answers["ListPools"] = [pb.ListPoolsResponse(unreadable=["p"])]
    assert found(Kind.POOLS) == ([], ["1 pools cannot be read, and are left out: p; see loraplane doctor"])
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev", base_models=["tiny"])])]
    first = pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", pool="dev")], next_page_token="2")  # noqa: S106
    gone = pb.ListReplicasResponse(missing=[pb.MissingReplica(name="r2")])
    admin.answers["ListReplicas"] = [lambda asked: gone if asked.page_token else first]
    [one], _ = found(Kind.REPLICAS, "r2")
    assert (one.name, one.pool, one.missing) == ("r2", "dev", True)
    assert "r2 dev no 0/0 0 0 - just gone" in cli("get", "replica", "r2").lines[1]
    assert [one["name"] for one in cli("-o", "json", "get", "replicas").json["items"]] == ["r1", "r2"]
    ran = cli("get", "replica", "r3")
    assert (ran.code, ran.err) == (3, "error: REPLICA_NOT_FOUND: none\n")
    admin.answers["GetReplica"] = [REFUSED]
    with pytest.raises(CliError, match="not you"):
        found(Kind.REPLICAS, "r2")


def test_history_tells_what_each_generation_changed(cli, admin):
    """From old to new value, by whom, and by which request; where the one before is gone, that it is not known."""
    specs = [
        pb.AdapterSpec(source=pb.Source(uri="s3://b/x", digest=f"sha256:{at:064}"), priority=at, labels={"l": "x" * at})
        for at in (3, 99)
    ]
    about = {"updated_by": "ann", "request_id": "q7"}
    found = [pb.Adapter(generation=at, spec=spec, **about) for at, spec in zip((8, 7), reversed(specs), strict=True)]
    found.append(pb.Adapter(generation=5, spec=specs[0]))
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=found)]
    first, second, third = (line.split("  ") for line in cli("history", "sql").lines[1:])
    digests = f"source.digest: sha256:{'0' * 12}… → sha256:{'0' * 12}…"
    assert f"labels.l: xxx → {'x' * 60}…; priority: 3 → 99; {digests}" in "  ".join(first)
    assert ("ann" in "  ".join(first), "q7" in "  ".join(second)) == (True, True)
    assert "→" not in "  ".join([*second, *third])
    assert "s3://b/x" in cli("-o", "wide", "history", "sql").out


def test_a_part_that_comes_or_goes_is_told_by_its_fields_alone():
    """No line says of something that it was nothing, and is nothing."""
    plain, canaries = pb.Adapter(), pb.Adapter(spec=pb.AdapterSpec(strategy=pb.Strategy(canary_replicas="1")))
    told = [line.partition(":")[0] for line in changed_fields(plain, canaries)]
    assert (told[:1], "strategy" in told) == (["strategy.canary.replicas"], False)
    assert [line.partition(":")[0] for line in changed_fields(canaries, plain)] == told


def test_who_restored_a_generation_is_told_wherever_it_is_shown(cli, admin):
    """W7 audit-complete: in the history, in what is said of the adapter, and for programs."""
    by = pb.Restoration(principal="mallory\n", at="then")
    old = [pb.Adapter(name="sql", pool="dev", generation=number, restored_by=by) for number in (3, 2)]
    admin.answers["GetAdapter"] = [SQL]
    admin.answers["ListAdapterHistory"] = [
        pb.ListAdapterHistoryResponse(generations=[SQL, *old, pb.Adapter(name="sql", generation=1)], unreadable=[4, 5])
    ]
    ran = cli("history", "sql")
    assert ran.err == "note: generations that cannot be read, and are left out: 4, 5\n"
    is_told = ["restored by mallory\\n at then" in line for line in ran.out.splitlines()[1:]]
    assert is_told == [False, True, True, False]
    assert " ".join(cli("-o", "wide", "history", "sql").lines[2].split()).count("mallory\\n at then") == 2
    told = cli("-o", "json", "history", "sql").json["items"]
    assert [one["restored_by"] for one in told] == [None, *[{"principal": "mallory\n", "at": "then"}] * 2, None]
    line = "generation 3, 2 by mallory\\n at then; rollback takes them with --restored"
    assert line in cli("describe", "adapter", "sql").out
    assert [one["generation"] for one in cli("-o", "json", "describe", "adapter", "sql").json["restored"]] == [3, 2]
    assert cli("-o", "name", "history", "sql").out.split() == ["2", "3", "2", "1"]
