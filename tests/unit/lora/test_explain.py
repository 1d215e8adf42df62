"""What becomes of each matrix."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from registry.lora.base import BaseModules
from registry.lora.check import examine
from registry.lora.config import read_config
from registry.lora.coverage.explain import MatrixFate, explained
from registry.lora.policy import policy_of
from registry.lora.safetensors import Tensor
from tests.corpus.drafts import LLAMA, Draft, floats
from tests.unit.lora.test_check import NO_LIMITS
from tests.unit.lora.test_coverage import GATE, LLAMA4, base, draft_of


def fates(draft: Draft, known: BaseModules | None, **policy: Any) -> list[MatrixFate]:
    tensors = [Tensor(name, one.dtype, one.shape, 0, len(one.data)) for name, one in draft.tensors.items()]
    config = read_config(json.dumps(draft.config).encode())
    return explained(tensors, examine(config, tensors, known, NO_LIMITS, policy_of(policy)), known)


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


def test_a_tensor_that_stands_alone_is_told_too():
    draft = LLAMA.draft()
    draft.tensors["model.odd"] = floats(Random(1), (32, 1))
    found = {one.module: (one.fate, one.note) for one in fates(draft, base())}
    assert found.pop("model.odd") == ("refused", "unknown_tensor")
    assert set(found.values()) == {("applied", "")}


def test_an_old_key_of_one_half_is_told():
    draft = LLAMA.draft()
    draft.rename("0.self_attn.q_proj.lora_B.weight", "0.self_attn.q_proj.lora_B.default.weight")
    found = {one.module: (one.fate, one.note) for one in fates(draft, base())}
    assert found.pop("model.layers.0.self_attn.q_proj") == ("renamed", "the keys of its tensors, as engines read them")
    assert {fate for fate, _ in found.values()} == {"applied"}


def test_weights_of_the_base_in_the_file_are_no_embedding():
    """R22: engines use their own, whatever they take LoRA for."""
    known = base(architecture="MistralForCausalLM")
    draft = LLAMA.draft()
    draft.tensors["base_model.model.model.layers.0.self_attn.k_proj.base_layer.weight"] = floats(Random(1), (16, 32))
    assert told(draft, known)["model.layers.0.self_attn.k_proj"] == "applied"


def test_an_embedding_is_told_as_the_engine_takes_it():
    known = base(architecture="MistralForCausalLM")
    rows = {
        one.module: (one.fate, one.note) for one in fates(draft_of(base=known, embedding="model.embed_tokens"), known)
    }
    assert rows["model.embed_tokens"] == ("refused", "not_taken_by_engine")
    assert rows["model.layers.{0-1}.self_attn.q_proj"] == ("applied", "")


def test_keys_of_an_earlier_release_are_told():
    """The engine refuses the file as it is, or serves it as the base."""
    for old, new in ((".weight", ".default.weight"), ("base_model.model.", ""), ("base_", "base_model.model.base_")):
        draft = LLAMA.draft()
        draft.rename(old, new)
        told = {(one.fate, one.note) for one in fates(draft, base())}
        assert told == {("renamed", "the keys of its tensors, as engines read them")}


def test_a_wrapper_amid_a_name_is_said_to_be_left_out():
    draft = LLAMA.draft()
    draft.rename("self_attn", "_orig_mod.self_attn")
    found = {one.module: (one.fate, one.note) for one in fates(draft, base())}
    assert found["model.layers.{0-1}._orig_mod.self_attn.q_proj"] == ("renamed", "without the wrapper amid its name")


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
