"""The one converter between records and messages: nothing is lost, nothing is forgotten."""

from __future__ import annotations

import subprocess
import sys

import pytest

from registry.model.messages import (
    adapter_dict,
    adapter_message,
    limits_dict,
    pool_dict,
    pool_message,
    retired_message,
    spec_dict,
    spec_message,
    tenant_dict,
    tenant_message,
)
from registry.model.records import (
    AdapterRecord,
    AdapterSpec,
    BaseShapes,
    CanaryRollout,
    KeptGeneration,
    Placement,
    PoolLimits,
    PoolSpec,
    ReplicaGroup,
    Restoration,
    RetiredRecord,
    SourceSpec,
    TenantRecord,
)
from registry.model.status import ReportedEvidence, ScaledReplicas
from registry.v1 import registry_pb2 as pb


def test_no_field_is_forgotten():
    """A field of a record is in its message and in its plain form, and the other way round."""
    assert set(spec_dict(pb.AdapterSpec())) == set(AdapterSpec.model_fields)
    assert set(pb.AdapterSpec.DESCRIPTOR.fields_by_name) == set(AdapterSpec.model_fields)
    assert set(limits_dict(pb.PoolLimits())) == set(PoolLimits.model_fields)
    assert set(pool_dict(pb.Pool())) == set(PoolSpec.model_fields) - {"schema_version"} | {"etag"}
    assert set(tenant_dict(pb.Tenant())) == set(TenantRecord.model_fields) - {"schema_version"} | {"etag"}


def test_a_pool_there_and_back():
    said = ReportedEvidence(engine="e", architecture="A", applied=["a"], taken=["b"], ends=[("x", "y")])
    base = BaseShapes(modules={"q": (1, 2)}, fingerprint="sha256:" + "0" * 64, names=["b"])
    more = base.model_copy(update={"architecture": "A", "tied": True, "head_size": 8, "evidence": said})
    more = more.model_copy(update={"layout": "sha256:" + "1" * 64, "weights": "sha256:" + "2" * 64})
    zones = [ReplicaGroup(labels={"zone": zone, "gpu": "a10"}, replicas=2) for zone in "ab"]
    for shapes, limits in (
        (base, PoolLimits()),
        (more, PoolLimits(expected_replicas=5, expected_groups=zones)),
        (None, PoolLimits(expected_groups=zones[:1])),
    ):
        pool = PoolSpec(name="p", base_models=["b"], base=shapes, limits=limits)
        assert pool_dict(pool_message(pool, 3)) == {**pool.model_dump(exclude={"schema_version"}), "etag": "3"}


@pytest.mark.parametrize(
    ("text", "replicas"),
    [
        ("3", 3),
        ("9" * 18, 10**18 - 1),
        ("9" * 19, "9" * 19),
        ("9" * 5000, "9" * 5000),
        ("25%", "25%"),
        ("-1", "-1"),
        ("1.5", "1.5"),
        ("", ""),
    ],
)
def test_a_number_that_no_reader_takes_stays_text(text, replicas):
    """X2: Python refuses to read very many digits; what is no number is refused by its field, not here."""
    strategy = pb.Strategy(canary_replicas=text)
    assert spec_dict(pb.AdapterSpec(strategy=strategy))["strategy"]["canary"]["replicas"] == replicas


DIGEST, SIGNATURE = "sha256:" + "a" * 64, "A" * 86 + "=="
WHOLE_SPEC = {
    "source": {"uri": "s3://a", "digest": DIGEST, "signature": SIGNATURE},
    "base_model": "b",
    "load": "lazy",
    "priority": -3,
    "placement": {"replicas": 7, "selector": {"zone": "a"}},
    "prepare": {"remap": "off", "vision": "keep", "dora": "strip", "drop": ["mlp.gate"]},
    "credentials": "c",
    "labels": {"team": "x"},
    "strategy": {"canary": {"replicas": 2}, "promote": "manual", "max_failures": 4, "soak_seconds": 0},
    "description": "d",
    "expect": {"answers": [{"prompt": [1, 2], "tokens": [3], "logprobs": [-0.5]}], "tolerance": 0.75},
    "enabled": False,
    "ttl_seconds": 604_800,
    "ttl_from": "use",
    "keep": 3,
}
SPEC_MESSAGE = pb.AdapterSpec(
    source=pb.Source(uri="s3://a", digest=DIGEST, signature=SIGNATURE),
    base_model="b",
    load="lazy",
    priority=-3,
    placement=pb.Placement(replicas=7, selector={"zone": "a"}),
    prepare=pb.Prepare(remap="off", vision="keep", dora="strip", drop=["mlp.gate"]),
    credentials="c",
    labels={"team": "x"},
    strategy=pb.Strategy(canary_replicas="2", promote="manual", max_failures=4, soak_seconds=0),
    description="d",
    expect=pb.Expect(answers=[pb.ExpectedAnswer(prompt=[1, 2], tokens=[3], logprobs=[-0.5])], tolerance=0.75),
    enabled=False,
    ttl_seconds=604_800,
    ttl_from="use",
    keep=3,
)
WHOLE_LIMITS = {
    "max_rank": 8,
    "max_adapters": 9,
    "target_modules": ["q_proj"],
    "require_signature": True,
    "require_digest": True,
    "engine_hosts": ["*.svc"],
    "expected_replicas": 2,
    "expected_groups": [{"labels": {"zone": "a"}, "replicas": 2}],
    "prove": "off",
    "roles": ["decode"],
}
LIMITS_MESSAGE = pb.PoolLimits(
    max_rank=8,
    max_adapters=9,
    target_modules=["q_proj"],
    require_signature=True,
    require_digest=True,
    engine_hosts=["*.svc"],
    expected_replicas=2,
    expected_groups=[pb.ReplicaGroup(labels={"zone": "a"}, replicas=2)],
    prove="off",
    roles=["decode"],
)


def test_the_limits_of_a_pool_in_both_forms():
    """What is not limited is not said, so that clients of all releases read the same."""
    limited = PoolSpec(name="p", base_models=["b"], limits=PoolLimits.model_validate(WHOLE_LIMITS))
    assert pool_message(limited, 5) == pb.Pool(
        name="p", base_models=["b"], limits=LIMITS_MESSAGE, engine="vllm", engine_names="plain", etag="5"
    )
    assert limits_dict(LIMITS_MESSAGE) == WHOLE_LIMITS
    free = pool_message(PoolSpec(name="p", base_models=["b"]), 0)
    assert free == pb.Pool(name="p", base_models=["b"], limits={}, engine="vllm", engine_names="plain")
    assert limits_dict(free.limits) == PoolLimits().model_dump()


def test_an_adapter_with_its_canaries_in_both_forms():
    stable = AdapterSpec(source=SourceSpec(uri="file:///a"))
    record = AdapterRecord(
        name="A/x",
        pool="p",
        tenant="a",
        generation=3,
        spec=stable,
        updated_at="now",
        updated_by="u",
        request_id="r",
        rollout=CanaryRollout(stable_generation=2, stable_spec=stable, halted="why"),
        expires_at="then",
        kept=[KeptGeneration(generation=2, spec=stable)],
    )
    told = adapter_dict(adapter_message(record, 12))
    canaries = {"stable_generation": 2, "stable_spec": stable.model_dump(), "halted": "why"}
    assert told == {
        **record.model_dump(exclude={"schema_version", "rollout", "retry", "kept", "scaled"}),
        "kept_generations": [2],
        "canaries": canaries,
        "restored_by": None,
        "etag": "12",
    }
    plain = adapter_dict(adapter_message(record.model_copy(update={"rollout": None}), 0))
    assert (plain["canaries"], plain["etag"]) == (None, "")
    by = Restoration(principal="mallory", at="then")
    for mark, shown in ((None, None), (by, {"principal": "mallory", "at": "then"})):
        fields = record.model_dump(by_alias=True) | {"retired_by_request": "q", "deleted": True, "restored_by": mark}
        assert adapter_dict(retired_message(RetiredRecord.model_validate(fields)))["restored_by"] == shown


def test_a_number_of_replicas_that_follows_requests_in_both_forms():
    placement = Placement.model_validate({"replicas": 2, "by_load": {"max": 8, "per_replica": 50}})
    spec = AdapterSpec(source=SourceSpec(uri="file:///a"), placement=placement)
    scaled = ScaledReplicas(replicas=3, reason="120.0 requests at once", at="then")
    fields = {"name": "x", "pool": "p", "tenant": "x", "generation": 1, "spec": spec, "scaled": scaled}
    record = AdapterRecord.model_validate(fields | {"updated_at": "now", "updated_by": "u", "request_id": "r"})
    message = adapter_message(record, 1)
    range_told = pb.Placement(replicas=2, by_load=pb.ByLoad(max=8, per_replica=50))
    assert message.spec.placement == range_told
    assert adapter_dict(message)["scaled"] == {"replicas": 3, "reason": "120.0 requests at once", "at": "then"}


def test_a_tenant_in_both_forms():
    limited = TenantRecord(name="t", max_adapters=5, adapters=2)
    assert tenant_dict(tenant_message(limited, 3)) == {"name": "t", "max_adapters": 5, "adapters": 2, "etag": "3"}
    assert tenant_message(TenantRecord(name="t"), 0) == pb.Tenant(name="t")
    assert tenant_dict(pb.Tenant(name="t")) == {"name": "t", "max_adapters": None, "adapters": 0, "etag": ""}


def test_messages_are_shown_without_pydantic():
    program = "import sys, registry.model.messages; sys.exit('pydantic' in sys.modules or 'grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_whole_spec_in_both_forms():
    assert spec_message(AdapterSpec.model_validate(WHOLE_SPEC)) == SPEC_MESSAGE
    assert spec_dict(SPEC_MESSAGE) == WHOLE_SPEC


SOURCE = {"source": {"uri": "file:///a"}}
ANSWER = {"prompt": [1], "tokens": [2]}
SHORT: list[tuple[dict[str, object], dict[str, object]]] = [
    ({}, {}),
    ({"strategy": pb.Strategy(canary_replicas="1")}, {"strategy": {"canary": {"replicas": 1}}}),
    ({"strategy": pb.Strategy(canary_replicas="25%")}, {"strategy": {"canary": {"replicas": "25%"}}}),
    ({"placement": pb.Placement(selector={"a": "b"})}, {"placement": {"replicas": "all", "selector": {"a": "b"}}}),
    ({"prepare": pb.Prepare(remap="off")}, {"prepare": {"remap": "off"}}),
    ({"expect": pb.Expect(answers=[pb.ExpectedAnswer(**ANSWER)])}, {"expect": {"answers": [ANSWER]}}),
    ({"enabled": True}, {}),
    ({"ttl_seconds": 10}, {"ttl_seconds": 10}),
    ({"ttl_from": "change"}, {"ttl_from": "change"}),
]


@pytest.mark.parametrize(("message", "values"), SHORT)
def test_what_a_message_leaves_out_has_the_default_of_the_record(message, values):
    """And is the same there and back."""
    spec = AdapterSpec.model_validate(SOURCE | values)
    assert spec_dict(pb.AdapterSpec(source=pb.Source(uri="file:///a"), **message)) == spec.model_dump()
    assert AdapterSpec.model_validate(spec_dict(spec_message(spec))) == spec
