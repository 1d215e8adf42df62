"""Where adapters are, as the command line shows it."""

from __future__ import annotations

import grpc

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal
from tests.unit.cli.test_read import R1, SQL, two_pools


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


def whole(*adapters: pb.AdapterResidency) -> list[pb.WatchResidencyResponse]:
    return [pb.WatchResidencyResponse(snapshot=True, adapters=adapters)]


def test_wide_shows_where_each_adapter_is(cli, admin):
    parts = [pb.WatchResidencyResponse(snapshot=True, more=True, adapters=[WHERE]), *whole(LAZY)]
    admin.answers["WatchResidency"] = [parts]
    header, sql, law = cli("get", "adapters", "-o", "wide").out.splitlines()
    assert header.split() == "NAME POOL GENERATION LOAD STATE SERVING REASONS REPLICAS NOTE".split()
    assert sql.endswith("r1, r2@1, r3 pending: staging  placed on 4, 3 alive")
    assert "2 of 3" in sql
    assert "r1 used 2026-01-01T00:00Z" in law


def test_who_serves_for_others_is_no_part_of_the_placement(cli, admin):
    moving = pb.AdapterResidency(name="sql", generation=2, replicas=[part("r1"), part("r4", reason="leaving")])
    admin.answers["WatchResidency"] = [whole(moving)]
    line = cli("get", "adapters", "-o", "wide").out.splitlines()[1]
    assert "1 of 1" in line
    assert "r1, r4 leaving" in line


def test_wide_of_one_adapter(cli, admin):
    two_pools(admin)
    missing = [Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "none")]
    admin.answers["WatchResidency"] = [lambda asked: whole(WHERE) if asked.pool == "b" else missing]
    assert "sql   b     2" in cli("get", "adapter", "SQL", "-o", "wide").out
    assert [one.name for one in admin.asked("WatchResidency")] == ["SQL", "SQL"]
    admin.answers["WatchResidency"] = [missing]
    assert cli("get", "adapter", "sql", "-o", "wide").code == 3


def test_wide_is_a_table_where_there_is_nothing_more(cli, admin):
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1])]
    assert cli("-o", "wide", "get", "replicas").out == cli("get", "replicas").out


def test_where_adapters_are_can_be_watched(cli, admin):
    gone = pb.WatchResidencyResponse(gone=["sql"])
    admin.answers["WatchResidency"] = [[*whole(WHERE), gone, Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND")]]
    lines = cli("get", "adapters", "-o", "wide", "-w").out.splitlines()
    assert lines[1].split()[:7] == ["sql", "dev", "2", "eager", "Progressing", "2", "of"]
    assert lines[2] == "sql  deleted"


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
    admin.answers["WatchResidency"] = [whole(bad)]
    line = cli("get", "adapters", "-o", "wide").out.splitlines()[1]
    assert "2 of 2" in line
    assert "r1@3 (generation 4 failed: digest_mismatch), r2@? (generation 4 failed: digest_mismatch)" in line
    admin.answers["GetAdapter"] = [SQL]
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=4, done=True)]]
    out = cli("describe", "adapter", "sql").out
    assert "r1       sql    3           serving  generation 4 failed: digest_mismatch  yes" in out
