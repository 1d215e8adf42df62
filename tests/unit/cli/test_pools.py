"""Pools and tenants: looked at, made, changed and deleted."""

from __future__ import annotations

import json

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.test_read import R1, SQL


def test_describe_pool(cli, admin):
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"], limits=pb.PoolLimits(max_rank=16))]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1])]
    out = cli("describe", "pool", "dev").out
    assert "Max rank:     16" in out
    assert "r1    dev" in out
    assert cli("-o", "json", "describe", "pool", "dev").json["adapters"] == 1


def test_replicas_that_found_different_files_are_an_error_of_the_pool(cli, admin):
    """W6 one-digest: describe says which replica found what."""
    found = [{"name": "sql", "generation": 2, "digest": digest} for digest in ("sha256:1", "sha256:2", "sha256:1")]
    says = [json.dumps({"found": [one, {"name": "law", "generation": 1, "digest": "sha256:3"}]}) for one in found]
    replicas = [pb.Replica(name=f"r{i}", pool="dev", status_json=one) for i, one in enumerate(says)]
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"])]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=replicas)]
    (error,) = [line for line in cli("describe", "pool", "dev").out.splitlines() if line.startswith("error: ")]
    assert "digests_differ: sql generation 2: sha256:1 on r0, r2; sha256:2 on r1;" in error
    differing = cli("-o", "json", "describe", "pool", "dev").json["disagreements"]
    assert [(one["name"], one["digests"]["sha256:2"]) for one in differing] == [("sql", ["r1"])]
    admin.answers["GetReplica"] = [replicas[1]]
    assert "sql   2           sha256:2" in cli("describe", "replica", "r1").out


def test_tenants(cli, admin):
    tenants = [pb.Tenant(name="acme", adapters=3, max_adapters=10), pb.Tenant(name="default", adapters=1)]
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=tenants)]
    assert cli("get", "tenants").out.splitlines()[1].split() == ["acme", "3", "10"]
    assert cli("-o", "json", "get", "tenants", "acme").json["max_adapters"] == 10
    assert cli("get", "tenants", "nobody").code == 3


def test_tenant_set(cli, admin):
    admin.answers["SetTenant"] = [pb.Tenant(name="acme", max_adapters=10)]
    assert cli("tenant", "set", "acme", "--max-adapters", "10", "--request-id", "q1").code == 0
    [request] = admin.asked("SetTenant")
    assert (request.tenant.name, request.tenant.max_adapters, request.request_id) == ("acme", 10, "q1")


def test_pool_create_update_delete(cli, admin):
    pool = pb.Pool(name="dev", base_models=["tiny"], limits=pb.PoolLimits(max_rank=16), etag="4")
    admin.answers |= {"CreatePool": [pool], "UpdatePool": [pool], "GetPool": [pool]}
    admin.answers["DeletePool"] = [pb.DeletePoolResponse(revision=8)]
    assert cli("pool", "create", "dev", "--base-model", "tiny", "--max-rank", "16").code == 0
    assert admin.asked("CreatePool")[0].pool == pb.Pool(
        name="dev", base_models=["tiny"], limits=pb.PoolLimits(max_rank=16)
    )
    assert cli("pool", "update", "dev", "--max-adapters", "5").code == 0
    assert list(admin.asked("UpdatePool")[-1].update_mask.paths) == ["limits.max_adapters"]
    changed = admin.asked("UpdatePool")[0].pool
    assert (changed.limits.max_rank, changed.limits.max_adapters, changed.etag) == (16, 5, "4")
    assert cli("-o", "json", "pool", "delete", "dev").json["revision"] == 8


def test_removals_are_confirmed_for_a_pool_up_to_a_revision(cli, admin):
    admin.answers["ConfirmRemovals"] = [pb.Pool(name="dev", base_models=["tiny"], removals_confirmed_revision=7)]
    ran = cli("-o", "json", "pool", "confirm-removals", "dev", "--revision", "7", "--request-id", "q1")
    assert (ran.code, ran.json["removals_confirmed_revision"]) == (0, 7)
    [request] = admin.asked("ConfirmRemovals")
    assert (request.name, request.revision, request.request_id) == ("dev", 7, "q1")
    assert cli("pool", "confirm-removals", "dev").code == 2


def test_one_pool_by_its_name_and_all(cli, admin):
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny", "small"])]
    assert "tiny, small" in cli("get", "pool", "dev").out
    assert cli("-o", "name", "get", "pools").out == "dev\n"


def test_changes_of_pools_and_tenants_tell_their_request_id(cli, admin):
    """One change can be followed by its request id."""
    pool = pb.Pool(name="dev", base_models=["tiny"])
    admin.answers |= {"CreatePool": [pool], "UpdatePool": [pool], "GetPool": [pool]}
    admin.answers |= {"DeletePool": [pb.DeletePoolResponse(revision=8)], "SetTenant": [pb.Tenant(name="acme")]}
    for line in (
        "pool create dev --base-model tiny",
        "pool update dev --base-model small --max-rank 8",
        "pool delete dev",
        "tenant set acme --max-adapters 3",
    ):
        arguments = [*line.split(), "--request-id", "q1"]
        assert cli("-o", "json", *arguments).json["request_id"] == "q1"
        assert "request id q1" in cli(*arguments).out
        assert cli("-o", "name", *arguments).out in {"dev\n", "acme\n"}
    assert list(admin.asked("UpdatePool")[0].pool.base_models) == ["small"]
