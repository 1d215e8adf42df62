"""Where adapters are, as the command line shows it."""

from __future__ import annotations

import re

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import FakeAdmin
from tests.unit.cli.test_read import MISSING, R1, SQL, two_pools


def part(replica: str, state: int = pb.RolloutReplica.SERVING, generation: int = 2, **fields) -> pb.Residence:
    return pb.Residence(replica=replica, model="sql", generation=generation, state=state, **fields)


WHERE = pb.AdapterResidency(
    name="sql",
    generation=2,
    load="eager",
    replicas=[part("r1"), part("r2", generation=1), part("r3", pb.RolloutReplica.PENDING, reason="staging")],
    note="placed on 4, 3 alive",
)
LAZY = pb.AdapterResidency(
    name="law",
    generation=1,
    load="lazy",
    replicas=[part("r1", generation=1, loaded=True, last_used="2026-01-01T00:00Z")],
)


def listed(admin: FakeAdmin, *where: pb.AdapterResidency) -> None:
    """Records, and where they are."""
    records = [
        pb.Adapter(name=one.name, pool="dev", generation=one.generation, spec=pb.AdapterSpec(load=one.load))
        for one in where
    ]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=records)]
    admin.answers["WatchResidency"] = [whole(*where)]


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


def whole(*adapters: pb.AdapterResidency) -> list[pb.WatchResidencyResponse]:
    return [pb.WatchResidencyResponse(snapshot=True, adapters=adapters)]


def test_wide_shows_where_each_adapter_is(cli, admin):
    parts = [pb.WatchResidencyResponse(snapshot=True, more=True, adapters=[WHERE]), *whole(LAZY)]
    listed(admin, WHERE, LAZY)
    admin.answers["WatchResidency"] = [parts]
    header, sql, law = cli("get", "adapters", "-o", "wide").out.splitlines()
    titles = "NAME POOL STATE SERVING GENERATION LOAD AGE REASONS REPLICAS NOTE PLACED SOURCE UPDATED BY"
    assert header.split() == titles.split()
    assert cells(sql)[2:4] == ["Progressing", "2/3"]
    assert cells(sql)[7:10] == ["1 × staging", "r1, r2@1, r3 pending: staging", "placed on 4, 3 alive"]
    assert "r1 used 2026-01-01T00:00Z" in law
    assert admin.asked("WatchResidency")[0].detail == pb.WatchResidencyRequest.REPLICAS_AND_COUNTS


def test_who_serves_for_others_is_no_part_of_the_placement(cli, admin):
    moving = pb.AdapterResidency(name="sql", generation=2, replicas=[part("r1"), part("r4", reason="leaving")])
    listed(admin, moving)
    line = cli("get", "adapters", "-o", "wide").out.splitlines()[1]
    assert "1/1" in line
    assert "r1, r4 leaving" in line


def test_wide_of_one_adapter(cli, admin):
    two_pools(admin)
    sql = pb.Adapter(name="sql", pool="b", generation=2)
    admin.answers["GetAdapter"] = [lambda asked: sql if asked.pool == "b" else MISSING]
    admin.answers["WatchResidency"] = [whole(WHERE)]
    assert "sql   b     Progressing  2/3" in cli("get", "adapter", "SQL", "-o", "wide").out
    assert [(one.pool, one.name) for one in admin.asked("WatchResidency")] == [("b", "SQL")]
    admin.answers["GetAdapter"] = [MISSING]
    assert cli("get", "adapter", "sql", "-o", "wide").code == 3


def test_wide_is_a_table_where_there_is_nothing_more(cli, admin):
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1])]
    assert cli("-o", "wide", "get", "replicas").out == cli("get", "replicas").out


def test_describe_adapter_shows_where_it_is(cli, admin):
    admin.answers["GetAdapter"] = [SQL]
    rollout = pb.Rollout(name="sql", generation=2, done=True)
    admin.answers["WatchRollout"] = [[rollout]]
    admin.answers["WatchResidency"] = [whole(WHERE)]
    out = cli("describe", "adapter", "sql").out
    assert "Where it is (placed on 4, 3 alive):" in out
    assert "r3       sql    2           pending  staging  no" in out
    (where,) = cli("-o", "json", "describe", "adapter", "sql").json["residency"]
    assert [one["state"] for one in where["replicas"]] == ["serving", "serving", "pending"]


def test_what_is_served_instead_of_the_newest_is_not_denied(cli, admin):
    """R9 status-truth: clients get 200 from it."""
    failed = {"wanted_generation": 4, "wanted_state": pb.RolloutReplica.FAILED, "wanted_reason": "digest_mismatch"}
    parts = [
        part("r1", generation=3, loaded=True, reason="earlier_generation", **failed),
        part("r2", generation=0, loaded=True, reason="earlier_generation", **failed),
    ]
    bad = pb.AdapterResidency(name="sql", generation=4, load="eager", replicas=parts)
    listed(admin, bad)
    line = cli("get", "adapters", "-o", "wide").out.splitlines()[1]
    assert cells(line)[2:4] == ["Degraded", "2/2"]
    assert "r1@3 (generation 4 failed: digest_mismatch), r2@? (generation 4 failed: digest_mismatch)" in line
    admin.answers["GetAdapter"] = [SQL]
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=4, done=True)]]
    out = cli("describe", "adapter", "sql").out
    assert "r1       sql    3           serving  generation 4 failed: digest_mismatch  yes" in out
