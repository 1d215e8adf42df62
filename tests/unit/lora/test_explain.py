"""What becomes of each matrix."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from registry.lora.base import BaseModules
from registry.lora.coverage.explain import MatrixFate, explained
from registry.lora.coverage.findings import EngineEvidence, evidence_finding
from tests.corpus.drafts import LLAMA, Draft, floats
from tests.unit.lora.conftest import tensors_of, verdict_of
from tests.unit.lora.test_coverage import GATE, LLAMA4, base, draft_of


def fates(draft: Draft, known: BaseModules | None = None, **policy: Any) -> list[MatrixFate]:
    return explained(tensors_of(draft), verdict_of(draft, known, **policy), known)


def test_matrices_that_are_alike_are_one_row():
    gates = [GATE, GATE.replace("0", "1")]
    known = base(*gates, architecture="Qwen3MoeForCausalLM")
    rows = fates(draft_of(*gates, base=known), known, drop=["o_proj"])
    assert rows == [
        MatrixFate("model.layers.{0-1}.mlp.down_proj", "applied", ""),
        MatrixFate("model.layers.{0-1}.mlp.gate", "refused", "not_applied_by_engine"),
        MatrixFate("model.layers.{0-1}.self_attn.o_proj", "dropped", ""),
        MatrixFate("model.layers.{0-1}.self_attn.q_proj", "applied", ""),
        MatrixFate("model.layers.{0-1}.self_attn.v_proj", "applied", ""),
    ]


def test_rows_in_another_order_and_new_names_are_told():
    assert {one.fate for one in fates(LLAMA.draft(), LLAMA4)} == {"applied", "reordered"}
    draft = LLAMA.draft()
    draft.rename("base_model.model.model.layers.", "base_model.model.wrapped.layers.")
    assert {(one.fate, one.note) for one in fates(draft, base())} == {("renamed", "'wrapped.' becomes 'model.'")}
    assert {one.fate for one in fates(draft, None)} == {"applied"}


def told(draft: Draft, known: BaseModules | None = None, **policy: Any) -> dict[str, str]:
    return {one.module: one.fate for one in fates(draft, known, **policy)}


def test_a_module_is_dropped_where_all_of_it_is():
    """R22: the one that is dropped, and none of which a part is left."""
    assert told(LLAMA.draft(), base(), drop=["0.self_attn.q_proj"])["model.layers.0.self_attn.q_proj"] == "dropped"
    draft = LLAMA.draft()
    draft.tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"] = floats(Random(1), (32, 1))
    assert set(told(draft, base(), dora="strip").values()) == {"applied"}
    assert set(told(LLAMA.draft(), base(), drop=["proj"]).values()) == {"applied"}


def test_an_old_key_of_one_half_is_told():
    draft = LLAMA.draft()
    draft.rename("0.self_attn.q_proj.lora_B.weight", "0.self_attn.q_proj.lora_B.default.weight")
    found = {one.module: (one.fate, one.note) for one in fates(draft, base())}
    assert found.pop("model.layers.0.self_attn.q_proj") == ("renamed", "the keys of its tensors, as engines read them")
    assert {fate for fate, _ in found.values()} == {"applied"}


def test_keys_of_an_earlier_release_are_told():
    """The engine refuses the file as it is, or serves it as the base."""
    for old, new in ((".weight", ".default.weight"), ("base_model.model.", ""), ("base_", "base_model.model.base_")):
        draft = LLAMA.draft()
        draft.rename(old, new)
        told = {(one.fate, one.note) for one in fates(draft, base())}
        assert told == {("renamed", "the keys of its tensors, as engines read them")}


def test_what_a_finding_names_or_the_base_lacks_is_refused():
    draft = LLAMA.draft()
    tensor = draft.tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]
    tensor.dtype = "I8"
    draft.rename("layers.1.mlp.", "layers.1.other.")
    found = {one.module: (one.fate, one.note) for one in fates(draft, base())}
    assert found["model.layers.0.self_attn.q_proj"] == ("refused", "dtype_not_supported")
    assert found["model.layers.1.other.down_proj"] == ("refused", "no_such_module")
    towers = BaseModules({f"{tower}.{name}": shape for tower in "ab" for name, shape in base().modules.items()})
    assert {one.note for one in fates(LLAMA.draft(), towers)} <= {"no_such_module", "ambiguous_module"}


LAYER = "model.layers.{0-1}"
SAID = EngineEvidence(
    "vllm 0.32.0",
    "MoeForCausalLM",
    applied=(f"{LAYER}.self_attn.q_proj", f"{LAYER}.mlp.experts.{{0-7}}.up_proj"),
    taken=("q_proj", "gate", "experts.{0,9}.up_proj"),
)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (f"{LAYER}.self_attn.q_proj", None),
        (f"{LAYER}.mlp.experts.{{0-7}}.up_proj", None),
        (f"{LAYER}.mlp.gate", "not_applied_by_engine"),
        (f"{LAYER}.mlp.experts.9.up_proj", "not_applied_by_engine"),
        (f"{LAYER}.mlp.experts.up_proj", "not_taken_by_engine"),
        ("lm_head", "not_taken_by_engine"),
        ("a.{0-99999}.{0-99999}", "not_taken_by_engine"),
        ("model.layers.2.self_attn.q_proj", "not_applied_by_engine"),
    ],
)
def test_only_what_the_engine_says_that_it_applies_is_right(module, reason):
    """R22 applied-whole: S2, S3, S5 and all that it would answer with 500, without a table."""
    found = evidence_finding((module,), SAID)
    assert (found.reason if found else None) == reason
    if reason and "99999" not in module:
        assert "says the engine itself (vllm 0.32.0, MoeForCausalLM)" in found.found


def test_names_are_the_engines_after_it_renamed_them():
    said = EngineEvidence(
        "vllm 0.32.0",
        "A",
        ("language_model.model.layers.0.attn.q_proj", "visual.0.q"),
        ("q_proj", "q"),
        parts=((".self_attn.", ".attn."),),
        beginnings=(("model.language_model.", "language_model.model."), ("model.visual.", "visual.")),
        ends=((".qq.lora_A.weight", ".q.lora_A.weight"),),
    )
    right = ("model.language_model.layers.0.self_attn.q_proj", "model.visual.0.qq", "visual.0.q")
    assert evidence_finding(right, said) is None
    assert evidence_finding(("model.layers.0.self_attn.q_proj",), said).reason == "not_applied_by_engine"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("a.old.b.old.q", "a.new.b.old.q"),
        ("start.q", "begin.q"),
        ("a.start.q", "a.start.q"),
        ("a.finish", "a.end"),
        ("a.finish.q", "a.finish.q"),
        ("start.old.finish", "begin.new.end"),
    ],
)
def test_an_engine_renames_a_part_once_a_beginning_and_an_end(module, name):
    said = EngineEvidence(
        "e",
        "A",
        (name,),
        (),
        parts=((".old.", ".new."),),
        beginnings=(("start.", "begin."),),
        ends=((".finish.lora_A.weight", ".end.lora_A.weight"),),
    )
    assert said.unapplied(module) is None
    assert replace(said, applied=(f"x{name}",)).unapplied(module)


def test_each_cause_has_its_modules_and_the_first_is_told():
    """R22: all of the modules that an engine does not apply for the same reason."""
    found = evidence_finding((f"{LAYER}.mlp.gate", "lm_head"), SAID)
    assert (found.reason, found.key) == ("not_applied_by_engine", "model.layers.0.mlp.gate")
    assert found.found.startswith("2 modules that the engine serves as the base (model.layers.{0-1}.mlp.gate)")
    refused = evidence_finding(("lm_head",), SAID)
    assert refused.found.startswith("1 modules that the engine does not load (lm_head)")


def test_what_an_engine_said_counts_for_a_base_beside_the_table():
    """R22 applied-whole: and no warning is left where the engine was asked."""
    said = EngineEvidence("vllm 0.32.0", "A", tuple(LLAMA.targets), ("down_proj",))
    known = base(architecture="NewForCausalLM", evidence=said)
    verdict = verdict_of(LLAMA.draft(), known)
    assert (verdict.findings, verdict.warnings) == ((), ())
    assert known == replace(known, evidence=None), "it is the same base, whatever is known of engines"
    down = "model.layers.0.mlp.down_proj"
    fewer = replace(said, applied=tuple(name for name in LLAMA.targets if name != down))
    [finding] = verdict_of(LLAMA.draft(), replace(known, evidence=fewer)).findings
    assert (finding.reason, finding.key) == ("not_applied_by_engine", down)
