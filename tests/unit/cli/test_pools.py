"""Pools, tenants and replicas: how they are, and how they are made, changed, drained and forgotten."""

from __future__ import annotations

import json

import grpc
import pytest

from registry.cli.local_adapters import base_here, base_message
from registry.model.status import ReportedEvidence
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA, QWEN2
from tests.support.fake_admin import Hold, Refusal
from tests.support.residency_world import engine_status, replica_status

SAID = ReportedEvidence(engine="vllm 0.32.0", architecture="LlamaForCausalLM", applied=["a"], taken=["q_proj"])


def replica(said: ReportedEvidence | None) -> pb.Replica:
    status = replica_status("r1", 1, pool="dev", engine=engine_status(evidence=said))
    return pb.Replica(name="r1", pool="dev", status_json=status.to_bytes().decode())


def test_a_pool_keeps_what_its_engines_say_that_they_apply(cli, admin, tmp_path):
    """R22 applied-whole: check and apply then know what a replica would."""
    base = base_here(LLAMA.write_base(tmp_path / "base"))
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["tiny"], base=base_message(base))]
    admin.answers |= {"UpdatePool": [lambda request: request.pool], "GetReplica": [replica(SAID)]}
    assert cli("pool", "update", "dev", "--evidence-from", "r1").code == 0
    [request] = admin.asked("UpdatePool")
    assert (list(request.update_mask.paths), request.pool.base.evidence.engine) == (["base"], "vllm 0.32.0")
    admin.answers["GetPool"] = [request.pool]
    ran = cli("-o", "json", "check", str(LLAMA.draft().write(tmp_path / "a")), "--pool", "dev")
    assert (ran.code, ran.json["findings"][0]["reason"]) == (4, "not_applied_by_engine")
    admin.answers["UpdatePool"] = [lambda request: request.pool]
    assert cli("pool", "update", "dev", "--from", str(tmp_path / "base")).code == 0
    assert admin.asked("UpdatePool")[-1].pool.base.evidence.engine == "vllm 0.32.0"
    other = QWEN2.write_base(tmp_path / "other")
    assert cli("pool", "update", "dev", "--from", str(other)).code == 0
    assert not admin.asked("UpdatePool")[-1].pool.base.HasField("evidence")
    admin.requests.clear()
    pool = pb.Pool(name="dev", base_models=["tiny"])
    admin.answers |= {"GetPool": [pool], "GetReplica": [replica(SAID)]}
    assert "--from DIR" in cli("pool", "update", "dev", "--evidence-from", "r1").err
    pool.base.CopyFrom(base_message(base_here(LLAMA.write_base(tmp_path / "again"))))
    for told, message in ((replica(None), "does not say"), (pb.Replica(name="r1", status_json="{"), "cannot be read")):
        admin.answers["GetReplica"] = [told]
        ran = cli("pool", "update", "dev", "--evidence-from", "r1")
        assert (ran.code, message in ran.err) == (4, True)
    assert not admin.asked("UpdatePool")


def group(count: int, **labels: str) -> pb.ReplicaGroup:
    return pb.ReplicaGroup(labels=labels, replicas=count)


def test_a_pool_says_how_it_is(cli, admin):
    """R9 status-truth: of one list of replicas and one of counted adapters, and nothing of adapters that hide. W6 one-
    digest: replicas that found different files are an error of the pool; describe says which found what.
    """
    serving = [pb.ResidenceCount(replicas=1, state=pb.RolloutReplica.SERVING)]
    counted = [pb.AdapterResidency(name="a", generation=1, counts=serving)]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[replica(None)], lacking=7)]
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(snapshot=True, adapters=counted), Hold()]]
    header, row = (line.split()[:4] for line in cli("get", "pools").lines)
    assert (header, row) == (["NAME", "STATE", "REPLICAS", "ADAPTERS"], ["dev", "Degraded", "1/8", "1/1"])
    (item,) = cli("-o", "json", "get", "pools").json["items"]
    assert item["status"] == {"state": "Degraded", "ready": 1, "replicas": 8, "served": 1, "adapters": 1}
    for more in (["--field-selector", "state=degraded"], ["--sort-by", "replicas"], ["--sort-by", "-adapters"]):
        assert cli("-o", "name", "get", "pools", *more).out == "dev\n"
    (asked, *_) = admin.asked("WatchResidency")
    assert (asked.pool, asked.detail, admin.asked("ListAdapters")) == ("dev", pb.WatchResidencyRequest.COUNTS, [])
    assert "tiny" in cli("get", "pool", "dev").out
    admin.requests.clear()
    assert (cli("-o", "name", "get", "pools").out, len(admin.requests)) == ("dev\n", 1), "names need no look into it"
    found = [{"name": "sql", "generation": 2, "digest": digest} for digest in ("sha256:1", "sha256:2", "sha256:1")]
    says = [json.dumps({"found": [one, {"name": "law", "generation": 1, "digest": "sha256:3"}]}) for one in found]
    replicas = [pb.Replica(name=f"r{i}", pool="dev", status_json=one) for i, one in enumerate(says)]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=replicas)]
    (told,) = [line for line in cli("describe", "pool", "dev").lines if line.startswith("error: ")]
    assert "digests_differ: sql generation 2: sha256:1 on r0, r2; sha256:2 on r1;" in told
    differing = cli("-o", "json", "describe", "pool", "dev").json["disagreements"]
    assert [(one["name"], one["digests"]["sha256:2"]) for one in differing] == [("sql", ["r1"])]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("pool create dev --base-model tiny", "dev"),
        ("pool update dev --base-model small --max-rank 8 --max-adapters 0", "dev"),
        ("pool confirm-removals dev --revision 7", "dev"),
        ("pool delete dev", "dev"),
        ("tenant set acme --max-adapters 3", "acme"),
    ],
)
@pytest.mark.parametrize("is_dry", [False, True])
def test_changes_of_pools_and_tenants_tell_their_request_id(cli, line, name, is_dry):
    """W9 dry-run: one change can be followed by its request id; one that was only tried is told as such."""
    arguments = [*line.split(), "--request-id", "q1", *(["--dry-run"] if is_dry else [])]
    told = cli("-o", "json", *arguments).json
    assert (told["request_id"], told.get("revision", 8), told["dry_run"]) == ("q1", 8, is_dry)
    assert "confirm" not in line or told["removals_confirmed_revision"] == 7
    last, said = cli(*arguments).lines[-1], "dry run, nothing was changed; "
    assert (last.endswith("request id q1"), last.startswith(said)) == (True, is_dry)
    assert cli("-o", "name", *arguments).out == f"{name}\n"


def test_an_order_to_a_replica_is_told(cli, admin):
    """R20 drain, W9 dry-run: what is so already is said, and no mistake; and what was only tried."""
    for changed, drained, undrained in (
        (True, "replica r1 is to drain", "replica r1 is to serve again"),
        (False, "replica r1 drains already", "replica r1 does not drain"),
    ):
        admin.answers["DrainReplica"] = [pb.DrainReplicaResponse(changed=changed, revision=8)]
        for verb, told in (("drain", drained), ("undrain", undrained)):
            line = [verb, "r1", "--request-id", "q1"]
            assert cli(*line).out.splitlines() == [told, "revision 8, request id q1"]
            assert cli(*line, "--dry-run").lines == [told, "dry run, nothing was changed; revision 8, request id q1"]
            whole = {"name": "r1", "pool": "dev", "changed": changed, "revision": 8, "request_id": "q1"}
            for flags in ([], ["--dry-run"]):
                asked = {"drain": verb == "drain", "dry_run": bool(flags)}
                assert cli("-o", "json", *line, *flags).json == whole | asked
            assert cli("-o", "name", *line).out == "r1\n"
    for flags, told in (([], "r3 forgotten"), (["--dry-run"], "r3 would be forgotten")):
        line = ["replica", "forget", "r3", "--pool", "dev", *flags]
        assert cli(*line).out == f"{told}\n"
        assert cli("-o", "json", *line).json == {"replica": "r3", "pool": "dev", "forgotten": not flags}


def test_a_pool_says_of_which_roles_a_replica_is_to_serve_each_adapter(cli, admin):
    """And takes it back with the word any."""
    there = pb.PoolLimits(expected_replicas=2, roles=["prefill"])
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["base"], limits=there)]
    for words, roles in ((["prefill", "decode"], ["prefill", "decode"]), (["any"], [])):
        flags = [flag for word in words for flag in ("--role", word)]
        assert cli("pool", "update", "dev", *flags).code == 0
        asked = admin.asked("UpdatePool")[-1]
        assert (list(asked.update_mask.paths), list(asked.pool.limits.roles)) == (["limits.roles"], roles)
    assert "2, role prefill" in cli("get", "pool", "dev").out


def test_a_pool_says_how_many_replicas_of_which_labels_it_is_to_have(cli, admin):
    """What is given is changed, and nothing else. One that cannot be read is replaced whole or not at all."""
    there = pb.PoolLimits(expected_replicas=9, expected_groups=[group(3, zone="a"), group(2, zone="b", gpu="a10")])
    admin.answers["GetPool"] = [pb.Pool(name="dev", base_models=["base"], limits=there)]
    flags = ("--expect-labels", "gpu=a10,zone=b:4", "--expect-labels", "zone=c:d:1", "--expect-labels", "zone=a:0")
    assert cli("pool", "update", "dev", *flags).code == 0
    (asked,) = admin.asked("UpdatePool")
    assert list(asked.update_mask.paths) == ["limits.expected_groups"]
    assert list(asked.pool.limits.expected_groups) == [group(4, zone="b", gpu="a10"), group(1, zone="c:d")]
    assert "9, zone=a: 3, gpu=a10,zone=b: 2" in cli("get", "pool", "dev").out
    admin.requests.clear()
    admin.answers["GetPool"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, "UNREADABLE_RECORD", "it is broken")]
    ran = cli("pool", "update", "dev", "--max-rank", "16")
    assert (ran.code, admin.asked("UpdatePool")) == (4, [])
    assert "it is broken; give --base-model and every limit" in ran.err
    assert cli("pool", "update", "dev", "--max-rank", "16", "--base-model", "tiny").code == 0
    [sent] = admin.asked("UpdatePool")
    assert sent.pool == pb.Pool(name="dev", base_models=["tiny"], limits=pb.PoolLimits(max_rank=16))
    assert not sent.HasField("update_mask")
    admin.answers["GetPool"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, "FUTURE_SCHEMA", "upgrade")]
    assert cli("pool", "update", "dev", "--base-model", "tiny").code == 4
