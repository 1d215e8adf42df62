"""What no adapter may break on a replica: by what the engine says, and by what the pool asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.lora.coverage.findings import EngineEvidence
from sidecar.engines.vllm.responses import unread_scales
from sidecar.plan.backoff import EXPECT_HINT
from sidecar.plan.limits import limit_digest, limits_of, rejection_of
from sidecar.plan.types import FailedAdapter, ReplicaLimits
from sidecar.vllm_plugin.protocol import expected_key
from tests.support.records import kv
from tests.support.worlds import desired, known, observed, path_of, pool, wants

EXPECT = {"answers": [{"prompt": [1], "tokens": [2], "logprobs": [-1.0]}]}
STATE = wants({"a": "v1"}, generation=3)
ADAPTER = STATE.adapters["a"]
STAGED = known(STATE, "v1").staged.get(ADAPTER.ref)
assert STAGED is not None


def engine(**facts):
    seen = observed()
    return replace(seen, facts=replace(seen.facts, **facts), no_effect=frozenset({"p"}), unexpected={"k": "m"})


@pytest.mark.parametrize(
    ("of_engine", "of_pool", "both"),
    [(None, None, None), (8, None, 8), (None, 8, 8), (8, 16, 8), (16, 8, 8), (8, 8, 8)],
)
def test_of_two_limits_the_lower_one_counts(of_engine, of_pool, both):
    found = limits_of(pool(max_rank=of_pool), observed(max_lora_rank=of_engine))
    assert (found.max_rank, found.capacity) == (both, None)
    found = limits_of(pool(max_adapters=of_pool), observed(max_cpu_loras=of_engine))
    assert (found.max_rank, found.capacity) == (None, both)


@pytest.mark.parametrize(
    ("of_engine", "of_pool", "which"),
    [(None, None, None), (("q_proj",), None, ("q_proj",)), (None, ["v_proj"], ("v_proj",)), (("q",), ["v"], ("q",))],
)
def test_what_an_engine_says_of_its_modules_is_better_than_what_the_pool_says(of_engine, of_pool, which):
    assert limits_of(pool(target_modules=of_pool), observed(target_modules=of_engine)).target_modules == which
    if not of_engine:
        assert limits_of(None, observed()).target_modules is None


@pytest.mark.parametrize(
    ("proves", "expects", "prove", "asks"),
    [
        (True, True, "effect", (True, True)),
        (True, False, "effect", (True, False)),
        (False, True, "effect", (False, False)),
        (True, True, "off", (False, False)),
    ],
)
def test_what_an_engine_said_of_adapters_counts_where_it_is_to_be_asked(proves, expects, prove, asks):
    """R22 applied-whole: the operator may switch it off; a plugin that cannot be asked has said nothing."""
    found = limits_of(pool(prove=prove), engine(proves=proves, expects=expects))
    assert (found.proves, found.expects) == asks
    assert (found.no_effect, dict(found.unexpected)) == (
        (frozenset({"p"}), {"k": "m"}) if asks[0] else (frozenset(), {})
    )


def refused(limits: ReplicaLimits, *, adapter=ADAPTER, staged=STAGED, lists=None) -> tuple[str, str] | None:
    """Why an adapter is not served: the reason, and the first words of the message."""
    seen = None if lists is None else observed(lists)
    found = rejection_of(adapter, limits, seen, staged)
    if found is None:
        return None
    assert found == FailedAdapter(
        *(adapter.name, adapter.generation, found.reason, found.message, 1, None, adapter.request_id),
        is_settled=True,
        is_own=found.is_own,
    )
    return found.reason, found.message


FREE = ReplicaLimits()
COVERS_Q = EngineEvidence("vllm 0.32.0", "Llama", applied=("m.q_proj",), taken=("q_proj",))


def test_within_its_limits_an_adapter_is_served():
    for lists in (None, {}, {"a": "v1"}, {"a": "v0"}, {"other": "/elsewhere"}):
        assert refused(FREE, lists=lists) is None
    assert refused(replace(FREE, max_rank=STAGED.rank)) is None
    assert refused(replace(FREE, base_names=frozenset({"b"})), staged=None) is None
    targets = replace(STAGED, modules=("m.q_proj",))
    assert refused(replace(FREE, target_modules=("q_proj", "v_proj")), staged=targets) is None
    assert refused(replace(FREE, evidence=COVERS_Q), staged=targets) is None


@pytest.mark.parametrize(
    ("limits", "reason", "words"),
    [
        ({"base_names": frozenset({"a"})}, "name_is_base_model", "'a' is a name of the engine's base model"),
        ({"max_rank": STAGED.rank - 1}, "rank_too_high", f"rank {STAGED.rank} is above the replica's limit of"),
        ({"target_modules": ("v_proj", "experts")}, "target_modules_mismatch", "leaves out o_proj: start it with"),
        (
            {"target_modules": ("o_proj", "v_proj", "up_proj")},
            "target_modules_mismatch",
            "leaves out experts: start it",
        ),
        ({"evidence": COVERS_Q}, None, "vllm 0.32.0"),
        ({"no_effect": frozenset({path_of("v1")})}, "no_effect", "with it the engine answers a short prompt as its"),
    ],
)
def test_what_breaks_a_limit_is_refused_with_the_reason_and_what_to_do(limits, reason, words):
    """R5, R8, R22: also before the engine lists anything, as when a lazy one is asked for."""
    staged = replace(STAGED, modules=("m.o_proj", "m.v_proj", "m.experts.{0-3}.up_proj"))
    for lists in (None, {}):
        found = refused(replace(FREE, **limits), staged=staged, lists=lists)
        assert found is not None
        assert reason in (None, found[0])
        assert words in found[1]
        if reason != "name_is_base_model":
            assert refused(replace(FREE, **limits), staged=None, lists=lists) is None, "nobody has seen its files"


@pytest.mark.parametrize(
    ("version", "unread"), [("0.29.0", {"patterns", "rslora_experts"}), ("0.31.0", {"patterns"}), ("0.32.0", set())]
)
def test_an_adapter_whose_scales_the_engine_does_not_read_is_refused(version, unread):
    """R5, R22: the engine would take it, and multiply what it adds by another number."""
    limits = limits_of(pool(), engine(version=version, unread_scales=unread_scales(version)))
    for source in ("patterns", "rslora", "rslora_experts"):
        found = refused(limits, staged=replace(STAGED, scales=frozenset({"rslora", source})))
        assert (found is not None) == (source in unread)
        if found:
            assert found[0] == "not_applied_by_engine"
            assert f"vLLM {version} takes lora_alpha / r and ignores" in found[1]
    digests = {limit_digest("not_applied_by_engine", one, "") for one in (FREE, limits)}
    assert len(digests) == (2 if unread else 1), "it is tried again by an engine that reads them"


def test_a_name_that_somebody_else_has_is_refused():
    """R11 foreign-safe: whether or not its files are there."""
    for staged in (STAGED, None):
        found = refused(FREE, staged=staged, lists={"a": "/elsewhere"})
        assert found == ("name_conflict", "the engine has 'a' from /elsewhere, which is not ours; unload it")


def test_only_the_expectation_of_the_record_itself_is_held_against_it():
    """R22: other records may have the same files."""
    state = desired(kv("a", 1, expect=EXPECT), kv("b", 2))
    a, b = state.adapters["a"], state.adapters["b"]
    lookup = known(state, "v1").staged.get
    limits = replace(FREE, unexpected={expected_key(path_of("v1"), a.ref.expect): "it says otherwise"})
    assert refused(limits, adapter=a, staged=lookup(a.ref)) == ("not_as_expected", f"it says otherwise{EXPECT_HINT}")
    assert refused(limits, adapter=b, staged=lookup(b.ref)) is None
    assert refused(FREE, adapter=a, staged=lookup(a.ref)) is None
    elsewhere = replace(FREE, unexpected={expected_key(path_of("v9"), a.ref.expect): "it says otherwise"})
    assert refused(elsewhere, adapter=a, staged=lookup(a.ref)) is None
