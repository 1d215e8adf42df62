"""Which base adapters are compared with, and what a replica does where that is in doubt."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from registry.lora.base import BaseModules, compress
from registry.lora.coverage.findings import EngineEvidence
from registry.lora.engine_base import EngineBase
from registry.lora.findings import AdapterWarning
from registry.model.records import BaseShapes, PoolSpec
from registry.runtime.clock import Moment
from sidecar.artifacts.preparation import Bases
from sidecar.engines.observed import EngineFacts, Observed
from sidecar.plan.planner import make_plan
from sidecar.plan.types import LazySituation, Load, StatusInputs
from sidecar.report.status import ReplicaIdentity, derive_status
from tests.corpus.drafts import LLAMA, QWEN2, Architecture
from tests.support.worlds import known, observed, pool, staged, wants


def pool_of(architecture: Architecture | None) -> PoolSpec:
    if architecture is None:
        return pool()
    base = BaseModules(architecture.modules)
    shapes = BaseShapes(modules=compress(base.modules), fingerprint=base.fingerprint)
    return pool().model_copy(update={"base": shapes})


def test_the_pools_base_is_followed_as_it_changes():
    bases = Bases(None)
    bases.follow(pool_of(LLAMA))
    assert bases.current == BaseModules(LLAMA.modules)
    first = bases.current
    bases.follow(pool_of(LLAMA))
    assert bases.current is first
    bases.follow(pool_of(QWEN2))
    assert bases.current == BaseModules(QWEN2.modules)
    bases.follow(None)
    assert bases.current is None


def test_a_replica_with_another_base_than_its_pools_does_nothing_and_says_so():
    """R4, R5: one of the two is wrong; until it is known which, nothing new is served."""
    bases = Bases(BaseModules(QWEN2.modules))
    bases.follow(pool_of(None))
    assert (bases.current, bases.problem) == (BaseModules(QWEN2.modules), "")
    bases.follow(pool_of(LLAMA))
    assert "--base-model" in bases.problem
    state = wants({"a": "v1"})
    plan = make_plan(state, pool(), observed(), replace(known(state, "v1"), base_problem=bases.problem), now=0)
    assert (plan.blocked, plan.calls, plan.stage) == (bases.problem, (), ())
    bases.follow(pool_of(QWEN2))
    assert bases.problem == ""


def test_each_start_of_an_engine_is_compared():
    """R23 same-base: with the pool's base, or else the sidecar's own; what the engine says soon is waited for."""
    llama, qwen = EngineBase(files=BaseModules(LLAMA.modules)), EngineBase(files=BaseModules(QWEN2.modules))
    bases = Bases(None)
    bases.follow(pool_of(None), qwen)
    bases.follow(pool_of(None), EngineBase(awaited="asked again"))
    assert (bases.current, bases.problem) == (None, "")
    bases.follow(pool_of(LLAMA), EngineBase(awaited="asked again"))
    assert bases.problem == "asked again"
    bases.follow(pool_of(LLAMA), qwen)
    assert (bases.current, "pool update --from" in bases.problem) == (BaseModules(LLAMA.modules), True)
    bases.follow(pool_of(LLAMA), llama)
    assert bases.problem == ""
    bases.follow(pool_of(QWEN2), llama)
    assert bases.problem
    own = Bases(BaseModules(QWEN2.modules))
    own.follow(pool_of(None), llama)
    assert own.problem
    own.follow(pool_of(None), replace(llama, own=llama.files))
    assert (own.current, own.problem) == (llama.files, "")
    own.follow(pool_of(None), replace(llama, own=None))
    assert (own.current, own.problem) == (llama.files, ""), "what was read last counts until it can be read again"


def test_an_engine_that_would_end_at_an_unfit_adapter_gets_none_that_is_not_compared():
    """It reads files when a request comes, which is too late to refuse them; and it lists nothing, which is said."""
    state = wants({"a": "v1"})
    facts = EngineFacts("axolotl", "", "http://e", "e1", swap="unproven")
    blind, axolotl = Observed(facts, ("base",)), pool().model_copy(update={"engine": "axolotl"})
    plan = make_plan(state, axolotl, blind, replace(known(state, "v1"), base_known=False), now=0)
    assert (plan.calls, plan.stage, "--base-model" in plan.blocked) == ((), (), True)
    plan = make_plan(state, axolotl, blind, known(state, "v1"), now=0)
    assert ([type(call) for call in plan.calls], plan.blocked) == ([Load], "")
    assert [one.reason for one in plan.warnings] == ["base_unproven", "adapter_unproven"]


def test_modules_that_the_engine_leaves_out_are_refused():
    """R5: it would take the adapter, and answer as the base model does."""
    state = wants({"a": "v1"})
    facts = {ref: replace(one, targets=frozenset({"q_proj"})) for ref, one in staged(state, "v1").items()}
    for limits, is_served in (
        ({}, True),
        ({"target_modules": ["q_proj"]}, True),
        ({"target_modules": ["o_proj"]}, False),
    ):
        plan = make_plan(state, pool(**limits), observed(), replace(known(state), lookup=facts.get), now=0)
        assert [type(call) for call in plan.calls] == ([Load] if is_served else [])
        assert [one.reason for one in plan.failed] == ([] if is_served else ["target_modules_mismatch"])
    own = observed(target_modules=("o_proj",))
    assert make_plan(state, pool(target_modules=["q_proj"]), own, replace(known(state), lookup=facts.get), now=0).failed


def test_modules_that_the_engine_says_it_does_not_apply_are_refused():
    """R22 applied-whole, R5: also of what was staged long ago; and what the engine says, nobody has to have seen."""
    state, warning = wants({"a": "v1"}), AdapterWarning("engine_coverage_unknown", "nobody has seen it")
    modules = ("l.{0-1}.q_proj", "l.{0-1}.gate")
    facts = {ref: replace(one, modules=modules, warnings=(warning,)) for ref, one in staged(state, "v1").items()}
    context = replace(known(state), lookup=facts.get)
    for applied, reasons, warned in (
        (None, [], ["engine_coverage_unknown"]),
        (modules, [], []),
        (modules[:1], ["not_applied_by_engine"], []),
    ):
        said = EngineEvidence("vllm 0.32.0", "A", applied, ("gate",)) if applied else None
        engine = replace(observed(), facts=replace(observed().facts, evidence=said))
        plan = make_plan(state, pool(), engine, context, now=0)
        assert [one.reason for one in plan.failed] == reasons
        assert [type(call) for call in plan.calls] == ([] if reasons else [Load])
        assert [one.reason for one in plan.warnings] == ([] if reasons else warned)
    assert "2 modules that the engine serves as the base (l.{0-1}.gate)" in plan.failed[0].message


def test_warnings_are_listed_and_counted_out():
    """R16 bounded."""
    names = {f"n{i}": "v1" for i in range(150)}
    state = wants(names)
    warning = AdapterWarning("dora_stripped", "taken off")
    facts = {ref: replace(one, warnings=(warning,)) for ref, one in staged(state, "v1").items()}
    plan = make_plan(state, pool(), observed(), replace(known(state), lookup=facts.get, base_known=False), now=0)
    assert (plan.warnings[0].name, plan.warnings[0].reason) == ("", "base_unknown")
    assert {one.reason for one in plan.warnings[1:]} == {"dora_stripped"}
    assert len(plan.warnings) == 100
    situation = StatusInputs(
        1, observed(), plan, ready=True, stale=False, lazy=LazySituation(), note="", held="", last_request_id=""
    )
    status = derive_status(
        ReplicaIdentity("r", "p", "vllm", "http://e"), situation, Moment(0.0, datetime(2026, 1, 1, tzinfo=UTC))
    )
    assert (status.warnings[1].reason, status.warnings[1].message) == ("dora_stripped", "taken off")


def test_a_base_is_what_its_pool_says_of_it_and_of_its_engines():
    """R22 applied-whole: a record of an earlier release says no architecture, and the replica's own base does."""
    own = BaseModules(LLAMA.modules, architecture="LlamaForCausalLM")
    bases = Bases(own)
    bases.follow(pool_of(LLAMA))
    assert bases.current == own
    said = pool_of(LLAMA)
    shapes = said.base.model_copy(update={"architecture": "Qwen3ForCausalLM", "tied": True, "head_size": 8})
    bases.follow(said.model_copy(update={"base": shapes}))
    assert bases.current == BaseModules(LLAMA.modules, (), "Qwen3ForCausalLM", is_tied=True, head_size=8)
    bases.follow(said.model_copy(update={"base": shapes, "engine": "sglang"}))
    assert (bases.current.engine, bases.current.coverage) == ("sglang", None)
