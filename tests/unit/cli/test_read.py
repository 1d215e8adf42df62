"""get, describe and history."""

from __future__ import annotations

import json

import grpc
import pytest
import yaml

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import FakeAdmin, Refusal

SPEC = pb.AdapterSpec(source=pb.Source(uri="file:///adapters/" + "long/" * 40), load="eager")
SQL = pb.Adapter(name="sql", pool="dev", tenant="default", generation=2, spec=SPEC, etag="9", updated_by="me")
STATUS = {
    "schema": 1,
    "ready": True,
    "stale": False,
    "observed_revision": 12,
    "served": {"count": 3, "hash": "x"},
    "pending": [],
    "failed": [{"name": "law", "generation": 1, "reason": "not_found", "message": "no files", "attempts": 2}],
    "engine": {"kind": "vllm", "version": "0.32.0", "url": "http://127.0.0.1:8000"},
}
R1 = pb.Replica(name="r1", pool="dev", status_json=json.dumps(STATUS))
MISSING = Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "none")


def two_pools(admin: FakeAdmin) -> None:
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="a"), pb.Pool(name="b")])]


def test_tables_are_not_cut_where_there_is_no_terminal(cli, admin):
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    header, row = cli("get", "adapters").out.splitlines()
    assert header.split() == ["NAME", "POOL", "GENERATION", "LOAD", "REPLICAS", "SOURCE", "UPDATED", "BY"]
    assert SPEC.source.uri in row


def test_all_pages_are_read(cli, admin):
    first, second = pb.ListAdaptersResponse(adapters=[SQL]), pb.ListAdaptersResponse(adapters=[pb.Adapter(name="law")])
    first.next_page_token = "p2"  # noqa: S105 - no password
    admin.answers["ListAdapters"] = [first, second]
    assert cli("-o", "name", "get", "adapters").out == "sql\nlaw\n"
    assert [one.page_token for one in admin.asked("ListAdapters")] == ["", "p2"]


def test_without_a_pool_all_pools_are_shown(cli, admin):
    two_pools(admin)
    admin.answers["ListAdapters"] = [
        lambda asked: pb.ListAdaptersResponse(adapters=[pb.Adapter(name=f"x-{asked.pool}")])
    ]
    assert cli("-o", "name", "get", "adapters").out == "x-a\nx-b\n"


def test_a_name_is_looked_for_in_all_pools(cli, admin):
    two_pools(admin)
    admin.answers["GetAdapter"] = [lambda asked: SQL if asked.pool == "b" else MISSING]
    value = cli("-o", "json", "get", "adapter", "sql").json
    assert (value["name"], value["spec"]["placement"]) == ("sql", {"replicas": "all", "selector": {}})
    admin.answers["GetAdapter"] = [MISSING]
    ran = cli("get", "adapter", "sql")
    assert ran.code == 3
    assert "in any pool (a, b)" in ran.err


def test_replicas_show_what_they_say_of_themselves(cli, admin):
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1, pb.Replica(name="r2", pool="dev")])]
    header, r1, r2 = cli("get", "replicas").out.splitlines()
    assert header.split() == "NAME POOL READY STALE SERVED PENDING FAILED REVISION ENGINE URL NOTE".split()
    assert r1.split() == "r1 dev yes no 3 0 1 12 vllm 0.32.0 http://127.0.0.1:8000 -".split()
    assert r2.split()[:4] == ["r2", "dev", "-", "-"]


@pytest.mark.parametrize("status", ["not json", "[1]", '{"served": 3, "failed": "x", "engine": null}'])
def test_a_status_that_cannot_be_read_spoils_nothing(cli, admin, status):
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", status_json=status)])]
    assert cli("get", "replicas").code == 0


def test_yaml_is_yaml(cli, admin):
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    value = yaml.safe_load(cli("-o", "yaml", "get", "adapters").out)
    assert value["items"][0]["generation"] == 2


def test_describe_adapter_shows_spec_request_and_each_replica(cli, admin):
    admin.answers["GetAdapter"] = [SQL]
    behind = pb.RolloutReplica(replica="r2", state=pb.RolloutReplica.FAILED, reason="not_found", message="no files")
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, replicas=[behind])]]
    out = cli("describe", "adapter", "sql").out
    assert "Generation:" in out
    assert "Spec source.uri:" in out
    assert "r2       failed  not_found  no files" in out
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, replicas=[behind])]]
    assert cli("-o", "json", "describe", "adapter", "sql").json["rollout"]["replicas"][0]["reason"] == "not_found"


def test_describe_replica_shows_what_it_does_not_serve_and_why(cli, admin):
    admin.answers["GetReplica"] = [R1]
    out = cli("describe", "replica", "r1").out
    assert "Status served.count:" in out
    assert "law   1           not_found  no files  2" in out


def test_what_a_status_repeats_has_no_power_over_the_terminal(cli, admin):
    """Adapters' files and engines say what they like; tables, rows and errors show it harmlessly."""
    hostile = STATUS | {"failed": [{"name": "law", "generation": 1, "reason": "x", "message": "\x1b]0;mine\x07\rok"}]}
    admin.answers["GetReplica"] = [pb.Replica(name="r1", pool="dev", status_json=json.dumps(hostile))]
    out = cli("describe", "replica", "r1").out
    assert r"\x1b]0;mine\x07\rok" in out
    assert "\x1b" not in out
    admin.answers["GetReplica"] = [Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "no \x1b[31mr1")]
    assert r"no \x1b[31mr1" in cli("describe", "replica", "r1").err


def test_describe_replica_says_what_is_loaded_lazily_and_when_it_was_used(cli, admin):
    used = {"name": "sql", "generation": 2, "last_used": "2026-01-01T12:34:00.000Z"}
    lazy = {"count": 20000, "servable": True, "reason": "", "resident": [used, {**used, "name": "law"}, "odd"]}
    admin.answers["GetReplica"] = [pb.Replica(name="r1", pool="dev", status_json=json.dumps({**STATUS, "lazy": lazy}))]
    out = cli("describe", "replica", "r1").out
    assert "Lazy, asked for and loaded:\n" in out
    assert ["law", "2", "2026-01-01T12:34:00.000Z"] in [line.split() for line in out.splitlines()]
    assert "lazy.resident" not in out


def test_history_lists_generations(cli, admin):
    old = pb.Adapter(name="sql", pool="dev", generation=1, request_id="q0")
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse(generations=[SQL, old])]
    assert cli("-o", "name", "history", "sql").out == "2\n1\n"


def test_watch_resumes_after_the_last_revision_seen(cli, admin):
    """R2 replay-equal, for who watches from outside: nothing twice, nothing lost when the stream breaks."""
    first = pb.WatchAdaptersResponse(revision=5, events=[pb.AdapterEvent(put=SQL)], snapshot=True)
    second = pb.WatchAdaptersResponse(revision=6, events=[pb.AdapterEvent(deleted="sql")])
    broken = Refusal(grpc.StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")
    end = Refusal(grpc.StatusCode.PERMISSION_DENIED, "ETCD_PERMISSION", "enough")
    admin.answers["WatchAdapters"] = [[first, broken], [second, end]]
    ran = cli("-o", "json", "get", "adapters", "-w")
    assert ran.code == 4
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["change"] for line in lines] == ["put", "deleted"]
    assert [one.start_revision for one in admin.asked("WatchAdapters")] == [0, 6]


def test_watching_replicas_tells_changes_only(cli, admin):
    one = pb.ListReplicasResponse(replicas=[R1, pb.Replica(name="r2", pool="dev")])
    two = pb.ListReplicasResponse(replicas=[R1])
    end = Refusal(grpc.StatusCode.PERMISSION_DENIED, "ETCD_PERMISSION", "enough")
    admin.answers["ListReplicas"] = [one, two, end]
    out = cli("get", "replicas", "-w").out.splitlines()
    assert [line.split()[0] for line in out] == ["NAME", "r1", "r2", "r2"]
    assert out[-1] == "r2  deleted"


def test_describe_as_a_name_is_the_name(cli, admin):
    admin.answers |= {"GetAdapter": [SQL], "GetPool": [pb.Pool(name="dev")], "GetReplica": [R1]}
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2)]]
    assert cli("-o", "name", "describe", "adapter", "sql").out == "sql\n"
    assert cli("-o", "name", "describe", "pool", "dev").out == "dev\n"
    assert cli("-o", "name", "describe", "replica", "r1").out == "r1\n"
    assert cli("describe", "tenant", "acme").code == 2


def test_one_replica_by_its_name(cli, admin):
    admin.answers["GetReplica"] = [R1]
    assert cli("-o", "json", "get", "replica", "r1").json["status"]["served"]["count"] == 3
    admin.answers["GetReplica"] = [Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "none")]
    ran = cli("get", "replica", "r9")
    assert (ran.code, ran.err) == (3, "error: REPLICA_NOT_FOUND: none\n")
