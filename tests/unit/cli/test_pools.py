"""Pools and tenants: looked at, made, changed and deleted."""

from __future__ import annotations

import json
import re

import pytest

from registry.cli.local_adapters import base_here, base_message
from registry.model.status import EngineStatus, ReplicaStatus, ReportedEvidence, Served
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA, QWEN2
from tests.unit.cli.fake_admin import Hold
from tests.unit.cli.test_read import R1

SERVING = pb.RolloutReplica.SERVING


def test_describe_pool(cli, admin):
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"], limits=pb.PoolLimits(max_rank=16))]
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(snapshot=True, adapters=[standing("sql")]), Hold()]]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[R1])]
    out = cli("describe", "pool", "dev").out
    assert "Max rank:     16" in out
    assert "r1    dev" in out
    assert re.search(r"^Adapters: +1/1$", out, re.MULTILINE)
    told = cli("-o", "json", "describe", "pool", "dev").json
    assert (told["adapters"], told["status"]["served"]) == (1, 1)
    assert not admin.asked("ListAdapters"), "all of which may be many"


def standing(name: str, state: pb.RolloutReplica.State = SERVING, **more: str) -> pb.AdapterResidency:
    """How two replicas stand to an adapter: the first serves it."""
    counts = [pb.ResidenceCount(replicas=1, state=one) for one in (SERVING, state)]
    return pb.AdapterResidency(name=name, generation=1, counts=counts, **more)


def reporting(name: str, *, ready: bool = True, leaving: bool = False) -> pb.Replica:
    return pb.Replica(name=name, pool="dev", leaving=leaving, status_json=json.dumps({"ready": ready}))


@pytest.mark.parametrize(
    ("state", "replicas", "lacking", "adapters", "shown"),
    [
        ("Healthy", [reporting("r1"), reporting("r2")], 0, [standing("a"), standing("b")], "2/2 2/2"),
        ("Healthy", [reporting("r1"), reporting("r2", ready=False, leaving=True)], 0, [standing("a")], "1/1 1/1"),
        ("Healthy", [], 0, [], "0/0 0/0"),
        ("Progressing", [reporting("r1"), reporting("r2", ready=False)], 0, [standing("a")], "1/2 1/1"),
        ("Progressing", [reporting("r1")], 0, [standing("a"), standing("b", pb.RolloutReplica.PENDING)], "1/1 1/2"),
        ("Progressing", [], 0, [pb.AdapterResidency(name="a")], "0/0 0/1"),
        ("Degraded", [reporting("r1")], 7, [standing("a")], "1/8 1/1"),
        ("Degraded", [reporting("r1")], 0, [standing("a", pb.RolloutReplica.FAILED)], "1/1 0/1"),
        ("Degraded", [reporting("r1")], 0, [standing("a", halted="two canaries refused it")], "1/1 0/1"),
        ("Degraded", [pb.Replica(name="r1"), reporting("r2")], 1, [], "1/3 0/0"),
    ],
)
def test_a_pool_says_how_it_is(cli, admin, state, replicas, lacking, adapters, shown):
    """R9 status-truth: of one list of replicas and one of counted adapters, and nothing of adapters that hide."""
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=replicas, lacking=lacking)]
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(snapshot=True, adapters=adapters), Hold()]]
    header, row = cli("get", "pools").out.splitlines()
    assert header.split()[:4] == ["NAME", "STATE", "REPLICAS", "ADAPTERS"]
    assert row.split()[:4] == ["dev", state, *shown.split()]
    (asked,) = admin.asked("WatchResidency")
    assert (asked.pool, asked.detail) == ("dev", pb.WatchResidencyRequest.COUNTS)
    assert (len(admin.asked("ListReplicas")), admin.asked("ListAdapters")) == (1, [])
    (item,) = cli("-o", "json", "get", "pools").json["items"]
    ready, served = ([int(part) for part in one.split("/")] for one in shown.split())
    keys = ("ready", "replicas", "served", "adapters")
    assert item["status"] == {"state": state, **dict(zip(keys, ready + served, strict=True))}
    assert cli("-o", "name", "get", "pools", "--field-selector", f"state={state.lower()}").out == "dev\n"
    for column in ("replicas", "-adapters"):
        assert cli("-o", "name", "get", "pools", "--sort-by", column).out == "dev\n"


def test_names_of_pools_are_told_without_a_look_at_what_is_in_them(cli, admin):
    assert cli("-o", "name", "get", "pools").out == "dev\n"
    assert {name for name, _ in admin.requests} == {"ListPools"}


def test_replicas_that_found_different_files_are_an_error_of_the_pool(cli, admin):
    """W6 one-digest: describe says which replica found what."""
    found = [{"name": "sql", "generation": 2, "digest": digest} for digest in ("sha256:1", "sha256:2", "sha256:1")]
    says = [json.dumps({"found": [one, {"name": "law", "generation": 1, "digest": "sha256:3"}]}) for one in found]
    replicas = [pb.Replica(name=f"r{i}", pool="dev", status_json=one) for i, one in enumerate(says)]
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"])]
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
    assert (
        cli("pool", "create", "dev", "--base-model", "tiny", "--engine-host", "vllm-0", "--engine-host", "*.a").code
        == 0
    )
    assert list(admin.asked("CreatePool")[1].pool.limits.engine_hosts) == ["vllm-0", "*.a"]
    assert cli("pool", "update", "dev", "--engine-host", "10.0.0.0/8").code == 0
    assert list(admin.asked("UpdatePool")[0].update_mask.paths) == ["limits.engine_hosts"]
    assert cli("pool", "update", "dev", "--prove", "off").code == 0
    assert list(admin.asked("UpdatePool")[-1].update_mask.paths) == ["limits.prove"]
    assert admin.asked("UpdatePool")[-1].pool.limits.prove == "off"
    assert cli("pool", "update", "dev", "--max-adapters", "5").code == 0
    assert list(admin.asked("UpdatePool")[-1].update_mask.paths) == ["limits.max_adapters"]
    changed = admin.asked("UpdatePool")[-1].pool
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


STATUS = ReplicaStatus(
    replica="r1",
    pool="dev",
    engine=EngineStatus(kind="vllm", version="0.32.0", url="", base_models=["tiny"], incarnation="e1"),
    observed_revision=1,
    ready=True,
    stale=False,
    served=Served(count=0, hash=""),
    pending=[],
    failed=[],
    updated_at="",
)
SAID = ReportedEvidence(engine="vllm 0.32.0", architecture="LlamaForCausalLM", applied=["a"], taken=["q_proj"])


def replica(said: ReportedEvidence | None) -> pb.Replica:
    engine = STATUS.engine.model_copy(update={"evidence": said})
    status = STATUS.model_copy(update={"engine": engine}).to_bytes().decode()
    return pb.Replica(name="r1", pool="dev", status_json=status)


def test_a_pool_keeps_what_its_engines_say_that_they_apply(cli, admin, tmp_path):
    """R22 applied-whole: check and apply then know what a replica would."""
    base = base_here(LLAMA.write_base(tmp_path / "base"))
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"], base=base_message(base))]
    admin.answers |= {"UpdatePool": [lambda request: request.pool], "GetReplica": [replica(SAID)]}
    assert cli("pool", "update", "dev", "--evidence-from", "r1").code == 0
    [request] = admin.asked("UpdatePool")
    assert list(request.update_mask.paths) == ["base"]
    assert request.pool.base.evidence.engine == "vllm 0.32.0"
    admin.answers["GetPool"] = [request.pool]
    ran = cli("-o", "json", "check", str(LLAMA.draft().write(tmp_path / "a")), "--pool", "dev")
    assert (ran.code, ran.json["findings"][0]["reason"]) == (4, "not_applied_by_engine")
    admin.answers["UpdatePool"] = [lambda request: request.pool]
    assert cli("pool", "update", "dev", "--from", str(tmp_path / "base")).code == 0
    assert admin.asked("UpdatePool")[-1].pool.base.evidence.engine == "vllm 0.32.0"
    other = QWEN2.write_base(tmp_path / "other")
    assert cli("pool", "update", "dev", "--from", str(other)).code == 0
    assert not admin.asked("UpdatePool")[-1].pool.base.HasField("evidence")


def test_what_no_engine_said_is_not_kept(cli, admin, tmp_path):
    pool = pb.Pool(name="dev", base_models=["tiny"])
    admin.answers |= {"GetPool": [pool], "GetReplica": [replica(SAID)]}
    assert "--from DIR" in cli("pool", "update", "dev", "--evidence-from", "r1").err
    pool.base.CopyFrom(base_message(base_here(LLAMA.write_base(tmp_path / "base"))))
    for told, message in ((replica(None), "does not say"), (pb.Replica(name="r1", status_json="{"), "cannot be read")):
        admin.answers["GetReplica"] = [told]
        ran = cli("pool", "update", "dev", "--evidence-from", "r1")
        assert (ran.code, message in ran.err) == (4, True)
    assert not admin.asked("UpdatePool")


def test_a_replica_is_drained_and_taken_back(cli, admin):
    """R20 drain: what is so already is said, and no mistake."""
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev", base_models=["tiny"])])]
    for changed, drained, undrained in (
        (True, "replica r1 is to drain", "replica r1 is to serve again"),
        (False, "replica r1 drains already", "replica r1 does not drain"),
    ):
        admin.answers["DrainReplica"] = [pb.DrainReplicaResponse(changed=changed, revision=8)]
        ran = cli("drain", "r1", "--request-id", "q1")
        assert (ran.code, ran.out.splitlines()) == (0, [drained, "revision 8, request id q1"])
        ran = cli("undrain", "r1", "--pool", "other")
        assert (ran.code, ran.out.splitlines()[0]) == (0, undrained)
        assert cli("-o", "json", "undrain", "r1").json["changed"] is changed
        assert cli("-o", "name", "drain", "r1").out == "r1\n"
    first, second = admin.asked("DrainReplica")[:2]
    assert (first.pool, first.name, first.undrain, first.request_id) == ("dev", "r1", False, "q1")
    assert (second.pool, second.undrain) == ("other", True)


def test_a_pool_says_how_many_replicas_it_is_to_have(cli, admin):
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["base"])]
    admin.answers["UpdatePool"] = [lambda asked: asked.pool]
    assert cli("pool", "update", "dev", "--expect", "3").code == 0
    (asked,) = admin.asked("UpdatePool")
    assert (list(asked.update_mask.paths), asked.pool.limits.expected_replicas) == (["limits.expected_replicas"], 3)


def group(count: int, **labels: str) -> pb.ReplicaGroup:
    return pb.ReplicaGroup(labels=labels, replicas=count)


def test_a_pool_says_how_many_replicas_of_which_labels_it_is_to_have(cli, admin):
    """What is given is changed, and nothing else."""
    there = pb.PoolLimits(expected_replicas=9, expected_groups=[group(3, zone="a"), group(2, zone="b", gpu="a10")])
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["base"], limits=there)]
    admin.answers["UpdatePool"] = [lambda asked: asked.pool]
    flags = ("--expect-labels", "gpu=a10,zone=b:4", "--expect-labels", "zone=c:d:1", "--expect-labels", "zone=a:0")
    assert cli("pool", "update", "dev", *flags).code == 0
    (asked,) = admin.asked("UpdatePool")
    assert list(asked.update_mask.paths) == ["limits.expected_groups"]
    assert list(asked.pool.limits.expected_groups) == [group(4, zone="b", gpu="a10"), group(1, zone="c:d")]
    assert cli("pool", "update", "dev", "--expect", "8").code == 0
    assert list(admin.asked("UpdatePool")[1].update_mask.paths) == ["limits.expected_replicas"]
    admin.answers["CreatePool"] = [lambda asked: asked.pool]
    assert cli("pool", "create", "new", "--base-model", "m", "--expect-labels", "zone=a:3").code == 0
    assert list(admin.asked("CreatePool")[0].pool.limits.expected_groups) == [group(3, zone="a")]


@pytest.mark.parametrize("word", ["zone=b", "zone:3", "3", "=b:3", "zone=b:-1", "zone=b:1000000000", "zone=a,b:1"])
def test_what_says_no_number_of_labels_is_refused(cli, admin, word):
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["base"])]
    ran = cli("pool", "update", "dev", "--expect-labels", word)
    assert (ran.code, "write KEY=VALUE:N, or KEY=VALUE,KEY=VALUE:N" in ran.err) == (2, True)
    assert not admin.asked("UpdatePool")


def test_what_a_pool_expects_is_shown_with_how_many_live(cli, admin):
    limits = pb.PoolLimits(expected_replicas=6, expected_groups=[group(3, zone="a"), group(3, zone="b")])
    pool = pb.Pool(name="dev", base_models=["base"], limits=limits)
    admin.answers |= {"GetPool": [pool], "ListPools": [pb.ListPoolsResponse(pools=[pool])]}
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse()]
    groups = [pb.GroupPresence(expected=group(3, zone=zone), live=live) for zone, live in (("a", 3), ("b", 1))]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(lacking=2, groups=groups)]
    assert "6, zone=a: 3, zone=b: 3" in cli("get", "pools").out
    shown = cli("describe", "pool", "dev").out
    assert re.search(r"^Living: +zone=a: 3 of 3, zone=b: 1 of 3$", shown, re.MULTILINE)
    told = cli("-o", "json", "describe", "pool", "dev").json
    assert told["lacking"] == 2
    assert told["groups"][1] == {"labels": {"zone": "b"}, "replicas": 3, "live": 1}
    assert cli("get", "replicas").err == "note: pool dev expects 2 more replicas than live: zone=b: 1 of 3\n"
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(lacking=2)]
    assert cli("get", "replicas").err == "note: pool dev expects 2 more replicas than live\n"
    gone = [pb.MissingReplica(name="r1")]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(lacking=1, missing=gone, groups=groups[:1])]
    assert cli("get", "replicas").err == "", "which a row tells"


@pytest.mark.parametrize(("flags", "told"), [([], "r3 forgotten"), (["--dry-run"], "r3 would be forgotten")])
def test_a_replica_that_is_gone_is_forgotten(cli, admin, flags, told):
    admin.answers["ForgetReplica"] = [pb.ForgetReplicaResponse()]
    assert cli("replica", "forget", "r3", "--pool", "dev", *flags).out == told + "\n"
    (asked,) = admin.asked("ForgetReplica")
    assert (asked.pool, asked.name, asked.validate_only) == ("dev", "r3", bool(flags))
    shown = cli("-o", "json", "replica", "forget", "r3", "--pool", "dev", *flags).json
    assert shown == {"replica": "r3", "pool": "dev", "forgotten": not flags}
