"""Modules that the base has and the engine does not apply, by architecture."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from registry.lora.base import BaseModules
from registry.lora.base_directory import read_base
from registry.lora.check import AdapterVerdict, examine
from registry.lora.config import read_config
from registry.lora.coverage.table import coverage_of
from registry.lora.policy import policy_of
from registry.lora.prepare import RotaryRows, new_weights
from registry.lora.safetensors import Tensor
from registry.lora.safetensors import read_header as header_of
from tests.corpus.drafts import LLAMA, RANK, WEIGHTS, Architecture, Draft, floats, safetensors
from tests.unit.lora.test_check import NO_LIMITS

Q, GATE = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.gate"
CAUSAL = "ForCausalLM"


def base(*modules: str, **more: Any) -> BaseModules:
    """Of the Llama's modules and these, 32 x 32."""
    return BaseModules({**shapes(LLAMA), **dict.fromkeys(modules, (32, 32))}, **more)


def shapes(architecture: Architecture) -> dict[str, tuple[int, int]]:
    return {name: (shape[0], shape[1]) for name, shape in architecture.modules.items()}


def draft_of(*modules: str, base: BaseModules, embedding: str = "") -> Draft:
    draft = LLAMA.draft()
    made = Architecture("llama", {**base.served}, modules).draft()
    draft.tensors |= made.tensors
    if embedding:
        entries, width = base.served[embedding]
        stem = f"base_model.model.{embedding}"
        draft.tensors[f"{stem}.lora_embedding_A"] = floats(random.Random(1), (RANK, entries))
        draft.tensors[f"{stem}.lora_embedding_B"] = floats(random.Random(2), (width, RANK))
    return draft


def verdict_of(draft: Draft, base: BaseModules, **policy: Any) -> AdapterVerdict:
    tensors = [Tensor(name, one.dtype, one.shape, 0, len(one.data)) for name, one in draft.tensors.items()]
    return examine(read_config(json.dumps(draft.config).encode()), tensors, base, NO_LIMITS, policy_of(policy))


def reasons(draft: Draft, base: BaseModules, **policy: Any) -> list[str]:
    return [one.reason for one in verdict_of(draft, base, **policy).findings]


IGNORED = {
    "S2": ("Qwen2Moe", "model.layers.{}.mlp.shared_expert_gate"),
    "S3": ("Qwen3Moe", "model.layers.{}.mlp.gate"),
    "S3 DeepSeek": ("DeepseekV2", "model.layers.{}.mlp.gate"),
    "S4": ("DeepseekV3", "model.layers.{}.self_attn.kv_b_proj"),
    "S5": ("GPTBigCode", "transformer.h.{}.attn.c_attn"),
    "S6": ("GraniteMoeShared", "model.layers.{}.shared_mlp.input_linear"),
    "S7": ("Dots1", "model.layers.{}.mlp.gate"),
    "S7 shared": ("Dots1", "model.layers.{}.mlp.shared_experts.down_proj"),
    "S8": ("Doge", "model.layers.{}.self_attn.dt_proj"),
}


@pytest.mark.parametrize("case", IGNORED)
def test_a_matrix_that_the_engine_ignores_is_refused_by_name(case):
    """R22 applied-whole, R5: it would be served as the base, with 200."""
    architecture, name = IGNORED[case]
    modules = [name.format(0), name.format(1)]
    known = base(*modules, architecture=architecture + CAUSAL)
    [finding] = verdict_of(draft_of(*modules, base=known), known).findings
    assert (finding.reason, finding.key) == ("not_applied_by_engine", modules[0])
    assert f"2 modules that the engine serves as the base ({name.format('{0-1}')})" in finding.found
    assert f"set prepare.drop to [{'.'.join(modules[0].split('.')[-2:])}]" in finding.remedy


@pytest.mark.parametrize("case", IGNORED)
def test_the_same_matrix_is_dropped_where_the_record_says_so(case):
    """R22 applied-whole: and what was lost is said."""
    architecture, name = IGNORED[case]
    modules = [name.format(0), name.format(1)]
    known = base(*modules, architecture=architecture + CAUSAL)
    verdict = verdict_of(draft_of(*modules, base=known), known, drop=[".".join(name.split(".")[-2:])])
    assert not verdict.findings
    assert len(verdict.changes.dropped) == 4
    [warning] = [one for one in verdict.warnings if one.reason == "modules_dropped"]
    assert name.format("{0-1}") in warning.message


REFUSED = {
    "L2": ("Glm4", "model.layers.0.mlp.gate_up_proj"),
    "L3": ("GraniteMoe", "model.layers.0.block_sparse_moe.router.layer"),
    "L3 hybrid": ("GraniteMoeHybrid", "model.layers.0.block_sparse_moe.router.layer"),
    "L4": ("Dots1", "model.layers.1.mlp.experts.12.gate_proj"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_module_that_the_engine_does_not_take_is_refused(case):
    """R22 applied-whole: the engine would answer 500, whatever is tried."""
    architecture, module = REFUSED[case]
    known = base(module, architecture=architecture + CAUSAL)
    assert reasons(draft_of(module, base=known), known) == ["not_taken_by_engine"]


@pytest.mark.parametrize(
    ("architecture", "embedding", "head"),
    [
        ("Llama", True, True),
        ("Qwen3Moe", True, True),
        ("Cohere", True, False),
        ("Olmo", True, False),
        ("Olmo2", True, False),
        ("Ministral", True, False),
        ("Glm", True, False),
        ("Helium", True, False),
        ("BitNet", True, False),
        ("Persimmon", True, False),
        ("Dots1", True, False),
        ("Doge", True, False),
        ("Cwm", True, False),
        ("Gemma2", False, False),
        ("Mistral", False, False),
        ("Qwen2", False, False),
        ("OPT", False, False),
    ],
)
def test_embeddings_and_heads_are_served_where_the_engine_takes_them(architecture, embedding, head):
    """R22 applied-whole; L1: by the embedding modules of vLLM's class."""
    known = base(architecture=architecture + CAUSAL)
    refusals = ["not_taken_by_engine"]
    assert reasons(draft_of(base=known, embedding="model.embed_tokens"), known) == ([] if embedding else refusals)
    assert reasons(draft_of("lm_head", base=known), known) == ([] if head else refusals)


def test_towers_are_the_policys_matter():
    module = "visual.blocks.0.mlp.gate"
    known = base(module, architecture="Qwen3MoeForCausalLM")
    assert reasons(draft_of(module, base=known), known, vision="keep") == []


def test_what_is_not_known_is_said():
    """R22 applied-whole: an unknown architecture is never passed over in silence."""
    for known in (base(), base(architecture="NewForCausalLM"), base(architecture="LlamaForCausalLM", engine="sglang")):
        verdict = verdict_of(LLAMA.draft(), known)
        assert [one.reason for one in verdict.warnings] == ["engine_coverage_unknown"]
        assert not verdict.findings
    assert not verdict_of(LLAMA.draft(), base(architecture="LlamaForCausalLM")).warnings
    assert coverage_of("LlamaForCausalLM", "sglang") is None


def test_many_causes_are_cut_short():
    modules = [f"model.layers.0.part{chr(97 + i)}.mlp.gate" for i in range(12)]
    known = base(*modules, architecture="Qwen3MoeForCausalLM")
    [finding] = verdict_of(draft_of(*modules, base=known), known).findings
    assert "and 4 more)" in finding.found
    assert "set prepare.drop to [mlp.gate]" in finding.remedy


def test_a_remedy_that_would_be_cut_short_is_not_given():
    modules = [f"model.layers.1.mlp.experts.{number}.up_proj" for number in range(9)]
    known = base(*modules, architecture="Dots1ForCausalLM")
    [finding] = verdict_of(draft_of(*modules, base=known), known).findings
    assert "(model.layers.1.mlp.experts.{0-8}.up_proj)" in finding.found
    assert finding.remedy == "train without them"


# A tied base, and what config.json says.


def written(folder: Path, config: object, modules: dict[str, Any]) -> Path:
    Architecture("made", modules, ()).write_base(folder)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


TIED = {name: shape for name, shape in LLAMA.modules.items() if name != "lm_head"}


@pytest.mark.parametrize(
    ("architecture", "tied", "expected"),
    [
        ("LlamaForCausalLM", True, []),
        ("GraniteForCausalLM", True, []),
        ("LlamaForCausalLM", False, ["no_such_module"]),
        ("LlamaForCausalLM", None, ["no_such_module"]),
        ("Qwen2ForCausalLM", True, ["not_taken_by_engine"]),
        ("NewForCausalLM", True, ["no_such_module"]),
    ],
)
def test_the_head_of_a_tied_base_is_its_embedding(tmp_path, architecture, tied, expected):
    """Llama-3.2-1B's checkpoint has no lm_head, and vLLM serves an adapter of it."""
    config = {"architectures": [architecture], "tie_word_embeddings": tied}
    known = read_base(written(tmp_path / "base", config, TIED))
    assert known.fingerprint == BaseModules(shapes(Architecture("", TIED, ()))).fingerprint
    assert reasons(LLAMA.draft("lm_head"), known) == expected


def test_a_head_of_another_width_than_the_embeddings_is_refused(tmp_path):
    known = read_base(
        written(tmp_path / "base", {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}, TIED)
    )
    draft = LLAMA.draft("lm_head")
    draft.tensors["base_model.model.lm_head.lora_B.weight"] = floats(random.Random(0), (65, RANK))
    assert reasons(draft, known) == ["shape_mismatch"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("{", (None, False, None)),
        ({"architectures": "Llama"}, (None, False, None)),
        ({"architectures": ["no class"], "head_dim": 8}, (None, False, None)),
        ({"architectures": ["A"], "hidden_size": 32, "num_attention_heads": 4}, ("A", False, 8)),
        ({"architectures": ["A"], "text_config": {"model_type": "gemma"}}, ("A", True, None)),
        (
            {
                "architectures": ["A", "B"],
                "text_config": {"head_dim": 16, "hidden_size": 32, "num_attention_heads": 4},
                "tie_word_embeddings": True,
            },
            ("A", True, 16),
        ),
    ],
)
def test_what_config_json_says_stands_beside_the_modules(tmp_path, config, expected):
    known = read_base(written(tmp_path / "base", config, TIED))
    assert (known.architecture, known.is_tied, known.head_size) == expected


# Llama 4: queries and keys.

HEAD = 8
LLAMA4 = base(architecture="Llama4ForCausalLM", head_size=HEAD)
B = f"base_model.model.{Q}.lora_B.weight"


def test_rows_of_queries_and_keys_are_ordered_as_vllm_orders_the_bases():
    """R22 applied-whole; S1: vLLM's own permutation, in numpy."""
    draft = LLAMA.draft("model.layers.1.self_attn.k_proj")
    verdict = verdict_of(draft, LLAMA4)
    assert not verdict.findings
    moved = {f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_B.weight" for i in (0, 1)}
    assert set(verdict.changes.rotary) == moved | {"base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight"}
    content = safetensors(draft.tensors, {})
    length = int.from_bytes(content[:8], "little")
    header = header_of(content[8 : 8 + length], len(content), WEIGHTS)
    body = content[8 + length :]
    layout = new_weights(header, verdict.changes)
    new = b"".join(body[begin:end] for one in layout.ranges for begin, end in one.parts())
    assert len(layout.start) + len(new) == layout.size_bytes
    for tensor in header.tensors:
        old = np.frombuffer(body[tensor.begin : tensor.end], "<f4").reshape(tensor.shape)
        found = np.frombuffer(new[tensor.begin : tensor.end], "<f4").reshape(tensor.shape)
        expected = permuted(old) if tensor.name in verdict.changes.rotary else old
        assert np.array_equal(found, expected)


def permuted(weight: Any) -> Any:
    """``permute_qk_weight_for_rotary`` of vLLM 0.32."""
    outputs, inputs = weight.shape
    heads = outputs // HEAD
    return weight.reshape(heads, outputs // heads // 2, 2, inputs).transpose(0, 2, 1, 3).reshape(outputs, inputs)


def test_an_order_of_rows_loses_none():
    assert sorted(RotaryRows(24, 6).order()) == list(range(24))
    assert list(RotaryRows(8, 4).order()) == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("size", [None, 5, 6])
def test_without_the_size_of_a_head_queries_and_keys_are_refused(size):
    """R22 applied-whole: a pool's record of an earlier release does not say it."""
    known = base(architecture="Llama4ForCausalLM", head_size=size)
    [finding] = verdict_of(LLAMA.draft(), known).findings
    assert (finding.reason, finding.key) == ("not_applied_by_engine", Q)
    only = LLAMA.draft()
    only.tensors = {name: values for name, values in only.tensors.items() if "q_proj" not in name}
    assert reasons(only, known) == []


def test_a_missing_half_is_said_as_that():
    draft = LLAMA.draft()
    del draft.tensors[B]
    assert reasons(draft, LLAMA4) == ["unpaired_tensor"]


def test_the_order_of_rows_is_a_part_of_the_prepared_id():
    """R4: other bytes have another id; what no release ordered otherwise keeps its id."""
    assert LLAMA4.prepared_for != LLAMA4.fingerprint
    assert LLAMA4.identity != base().identity
    assert base(architecture="LlamaForCausalLM").prepared_for == LLAMA4.fingerprint


def test_drop_is_a_part_of_the_prepared_id_where_it_is_set():
    assert "drop" not in policy_of({}).as_dict()
    assert policy_of({"drop": ["b", "a", "b"]}).as_dict()["drop"] == ["a", "b"]
    assert policy_of({"drop": None}) == policy_of({"drop": []}) == policy_of({})


@pytest.mark.parametrize("drop", ["mlp.gate", [""], ["mlp.gate", ""], [1], {"mlp.gate": 1}], ids=str)
def test_what_is_no_list_of_modules_drops_none(drop):
    """R22: no module at all would be left of what ends with nothing."""
    with pytest.raises(ValueError, match="no list of modules"):
        policy_of({"drop": drop})


def test_a_name_is_dropped_by_its_last_parts_only():
    draft = LLAMA.draft()
    verdict = verdict_of(draft, base(architecture="LlamaForCausalLM"), drop=["proj", "0.self_attn.q_proj"])
    assert verdict.changes.dropped == (B.replace("lora_B", "lora_A"), B)
