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
from registry.lora.coverage.findings import (
    finding_of,
    patterns_of,
    prepared_modules,
    stored_findings,
    unknown_coverage,
)
from registry.lora.coverage.table import Coverage, Unapplied, coverage_of
from registry.lora.prepare import new_weights
from registry.lora.safetensors import Tensor, read_header
from registry.lora.tensor_names import entry_of
from tests.corpus.drafts import LLAMA, RANK, WEIGHTS, Architecture, Draft, floats, safetensors
from tests.unit.lora.conftest import verdict_of

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
def test_a_matrix_that_the_engine_ignores_is_refused_by_name_or_dropped_where_the_record_says_so(case):
    """R22 applied-whole, R5: it would be served as the base, with 200; what was lost is said."""
    architecture, name = IGNORED[case]
    modules = [name.format(0), name.format(1)]
    known = base(*modules, architecture=architecture + CAUSAL)
    draft = draft_of(*modules, base=known)
    [finding] = verdict_of(draft, known).findings
    assert (finding.reason, finding.key) == ("not_applied_by_engine", modules[0])
    assert f"2 modules that the engine serves as the base ({name.format('{0-1}')})" in finding.found
    assert f"set prepare.drop to [{'.'.join(modules[0].split('.')[-2:])}]" in finding.remedy
    verdict = verdict_of(draft, known, drop=[".".join(name.split(".")[-2:])])
    assert (verdict.findings, len(verdict.changes.dropped)) == ((), 4)
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


EXPERTS = [f"model.layers.0.mlp.experts.{n}.{end}_proj" for n in range(2) for end in ("gate", "up", "down")]


@pytest.mark.parametrize(
    ("architecture", "engine", "names", "expected"),
    [
        ("MixtralForCausalLM", "vllm", EXPERTS, []),
        ("MixtralForCausalLM", "vllm", [], []),
        ("MixtralForCausalLM", "vllm", EXPERTS[:3], ["not_taken_by_engine"]),
        ("NewForCausalLM", "vllm", EXPERTS[2::3], ["not_taken_by_engine"]),
        ("MixtralForCausalLM", "sglang", EXPERTS[:3], []),
    ],
)
def test_experts_are_taken_with_all_parts_of_all_of_a_layer(architecture, engine, names, expected):
    """R22 applied-whole: vLLM fails an assertion else, and answers 500. Other layers may have none."""
    others = [name.replace("layers.0", "layers.1") for name in EXPERTS]
    known = base(*EXPERTS, *others, architecture=architecture, engine=engine)
    assert reasons(draft_of(*names, base=known), known) == expected
    stored = dict.fromkeys(names, False)
    assert [one.reason for one in stored_findings(stored, known)] == expected
    assert stored_findings(stored, None) == []


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


def test_of_what_is_stored_each_module_of_a_pattern_is_looked_at():
    """X2: also one whose name is no pattern, and was taken for one."""
    moe = base(GATE, architecture="Qwen3MoeForCausalLM")
    modules = {GATE.replace(".0.", ".{0-1}."): False}
    assert [one.reason for one in stored_findings(modules, moe)] == ["not_applied_by_engine"]
    assert stored_findings(modules, None) == []
    assert [one.reason for one in stored_findings({"layers.{5-3}.q_proj": False}, None)] == ["not_taken_by_engine"]


def test_what_is_not_known_is_said():
    """R22 applied-whole: an unknown architecture is never passed over in silence."""
    for known in (base(), base(architecture="NewForCausalLM"), base(architecture="LlamaForCausalLM", engine="sglang")):
        verdict = verdict_of(LLAMA.draft(), known)
        assert [one.reason for one in verdict.warnings] == ["engine_coverage_unknown"]
        assert not verdict.findings
    assert not verdict_of(LLAMA.draft(), base(architecture="LlamaForCausalLM")).warnings
    for architecture, engine in (
        ("LlamaForCausalLM", "sglang"),
        (None, "vllm"),
        ("", "vllm"),
        ("Llama4ForCausalLM", "x"),
    ):
        assert coverage_of(architecture, engine) is None


MEASURED = (
    "Llama Qwen3 Phi3 Mixtral Exaone4 Nemotron FalconH1 Ernie4_5 Apertus Granite Solar HyperCLOVAX MiniCPM Lfm2 Cohere "
    "Cohere2 Olmo Olmo2 Olmo3 Arcee SeedOss HunYuanDenseV1 Starcoder2 Phi GPTNeoX SmolLM3 Ministral Glm Helium BitNet "
    "Persimmon Dots1 Gemma Gemma2 Gemma3 Mistral Qwen2 Olmoe Glm4Moe GptOss Ernie4_5_Moe OPT Glm4 GraniteMoe "
    "GraniteMoeHybrid GraniteMoeShared Gemma4 Llama4 Qwen2Moe Qwen3Moe DeepseekV2 DeepseekV3 ExaoneMoe GPTBigCode"
).split()
READ_ONLY = (
    "Jamba PhiMoE Cwm Jais2 Nanbeige VaultGemma Doge Qwen3Next DeepseekV32 GlmMoeDsa MistralLarge3 AXK1 ExaoneMoE "
    "K2Horizon Qwen3_5 Qwen3_5Moe"
).split()


def test_only_what_was_measured_is_passed_without_a_warning():
    """R22 applied-whole: of what was only read in an engine's source, and of what is unknown, somebody is told."""
    warned = {
        name: [one.message for one in unknown_coverage(base(architecture=name + CAUSAL))]
        for name in (*MEASURED, *READ_ONLY, "New")
    }
    assert [name for name, messages in warned.items() if messages] == [*READ_ONLY, "New"]
    assert all(f"vllm applies all of these modules for {name}" in told[0] for name, told in warned.items() if told)
    assert unknown_coverage(None) == []
    (unnamed,) = unknown_coverage(base())
    assert "loraplane pool update --from" in unnamed.message


def coverage(architecture: str) -> Coverage:
    found = coverage_of(architecture, "vllm")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("architecture", "module", "is_embedding", "reason"),
    [
        ("MistralForCausalLM", "model.wte", True, "not_taken_by_engine"),
        ("MistralForCausalLM", "model.wte", False, None),
        ("MistralForCausalLM", "embed_out", False, "not_taken_by_engine"),
        ("MistralForCausalLM", "model.visual.lm_head", False, None),
        ("MistralForCausalLM", "model.layers.0.mlp.gate", False, None),
        ("LlamaForCausalLM", "model.wte", True, "not_taken_by_engine"),
        ("LlamaForCausalLM", "embed_out", False, "not_taken_by_engine"),
        ("Qwen3MoeForCausalLM", "mlp.gate", False, "not_applied_by_engine"),
        ("Qwen3MoeForCausalLM", "model.layers.0.xmlp.gate", False, None),
        ("Qwen3MoeForCausalLM", "model.layers.0.gate", False, None),
        ("Dots1ForCausalLM", "model.layers.1.mlp.experts.12.up_proj", False, "not_taken_by_engine"),
        ("Dots1ForCausalLM", "model.layers.1.mlp.experts.up_proj", False, None),
        ("Dots1ForCausalLM", "model.layers.1.mlp.up_proj", False, None),
        ("BertModel", "embeddings.word_embeddings", True, "not_taken_by_engine"),
        ("BertModel", "encoder.layer.0.attention.self.query", False, None),
        ("BertModel", "pooler.dense", False, "not_applied_by_engine"),
        ("BertModel", "encoder.layer.0.output.dense", False, None),
        ("XLMRobertaModel", "embeddings.word_embeddings", True, "not_taken_by_engine"),
        ("Gemma4ForCausalLM", "model.embed_tokens", True, "not_taken_by_engine"),
        ("Gemma4ForCausalLM", "model.embed_tokens_per_layer", True, "not_taken_by_engine"),
        ("Gemma4ForConditionalGeneration", "model.language_model.embed_tokens", True, "not_taken_by_engine"),
        ("LlavaForConditionalGeneration", "language_model.lm_head", False, "not_taken_by_engine"),
        ("Qwen3VLForConditionalGeneration", "model.language_model.embed_tokens", True, "not_taken_by_engine"),
        ("Qwen3VLMoeForConditionalGeneration", "a.layers.0.mlp.gate", False, "not_applied_by_engine"),
        ("Qwen3_5ForCausalLM", "model.embed_tokens", True, None),
        ("Qwen3_5ForConditionalGeneration", "model.language_model.embed_tokens", True, "not_taken_by_engine"),
        ("Qwen3_5MoeForCausalLM", "model.layers.0.mlp.shared_expert_gate", False, "not_applied_by_engine"),
        ("LlamaForSequenceClassification", "model.embed_tokens", True, None),
        ("LlamaForSequenceClassification", "lm_head", False, "not_taken_by_engine"),
        ("Qwen3Model", "embed_tokens", True, None),
        ("Qwen2Model", "embed_tokens", True, "not_taken_by_engine"),
        ("GraniteMoeSharedForCausalLM", "a.block_sparse_moe.router.layer", False, "not_taken_by_engine"),
    ],
)
def test_what_is_known_against_a_module(architecture, module, is_embedding, reason):
    """R22 applied-whole: by the whole last parts of its name, any number standing for all."""
    found = coverage(architecture).unapplied(module, is_embedding=is_embedding)
    assert (found and found.reason) == reason


def test_rows_are_ordered_of_the_language_model_alone():
    """R22: Llama 4's tower has queries and keys too, which vLLM leaves as they are."""
    llama4 = coverage("Llama4ForConditionalGeneration")
    names = ("language_model.layers.0.self_attn.k_proj", "vision_model.layers.0.self_attn.q_proj", "a.self_attn.v_proj")
    assert [llama4.is_rotary(name) for name in names] == [True, False, False]
    assert not coverage("LlamaForCausalLM").is_rotary(names[0])


@pytest.mark.parametrize(("count", "more"), [(1, ""), (8, ""), (9, " and 1 more"), (12, " and 4 more")])
def test_so_many_patterns_are_told_and_a_remedy_names_all_that_is_to_be_dropped_or_none(count, more):
    """R16 bounded: a finding is a line."""
    ends = [f"{chr(97 + at)}.q" for at in range(count)]
    assert patterns_of([f"a{end}" for end in ends]) == ", ".join(f"a{end}" for end in ends[:8]) + more
    remedy = finding_of(Unapplied("not_applied_by_engine", "so"), [f"model.{end}" for end in ends]).remedy
    dropped = f", or set prepare.drop to [{', '.join(ends)}] and lose what they learned" if count <= 8 else ""
    assert remedy == f"train without them{dropped}"


def test_the_modules_of_a_prepared_adapter_are_told_with_what_they_are():
    parts = {
        "a": ["lora_A.weight", "lora_B.weight"],
        "b": ["lora_embedding_A", "lora_embedding_B"],
        "c": ["lora_embedding_A", "lora_B.weight"],
        "d": ["base_layer.weight", "bias"],
        "e": ["lora_magnitude_vector", "lora_B.weight"],
    }
    entries = [entry_of(Tensor(f"{name}.{part}", "F32", (), 0, 0)) for name, each in parts.items() for part in each]
    assert prepared_modules(entries) == {"a": False, "b": True, "c": True, "e": False}


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
def test_the_head_of_a_tied_base_is_its_embedding_and_as_wide(tmp_path, architecture, tied, expected):
    """Llama-3.2-1B's checkpoint has no lm_head, and vLLM serves an adapter of it."""
    config = {"architectures": [architecture], "tie_word_embeddings": tied}
    known = read_base(written(tmp_path / "base", config, TIED))
    assert known.fingerprint == BaseModules(shapes(Architecture("", TIED, ()))).fingerprint
    draft = LLAMA.draft("lm_head")
    assert reasons(draft, known) == expected
    if not expected:
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


def test_rows_of_queries_and_keys_are_ordered_as_vllm_orders_the_bases():
    """R22 applied-whole; S1: vLLM's own permutation, in numpy."""
    draft = LLAMA.draft("model.layers.1.self_attn.k_proj")
    verdict = verdict_of(draft, LLAMA4)
    assert not verdict.findings
    moved = {f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_B.weight" for i in (0, 1)}
    assert set(verdict.changes.rotary) == moved | {"base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight"}
    content = safetensors(draft.tensors, {})
    length = int.from_bytes(content[:8], "little")
    header = read_header(content[8 : 8 + length], len(content), WEIGHTS)
    body = content[8 + length :]
    layout = new_weights(header, verdict.changes)
    new = b"".join(body[begin:end] for one in layout.ranges for begin, end in one.parts())
    assert len(new) == sum(one.end - one.begin for one in layout.ranges)
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


@pytest.mark.parametrize("size", [None, 1, 5, 6, 64])
def test_without_the_size_of_a_head_that_divides_queries_and_keys_they_are_refused(size):
    """R22 applied-whole: a pool's record of an earlier release does not say it; 16 keys are no head of 32."""
    known = base(architecture="Llama4ForCausalLM", head_size=size)
    [finding] = verdict_of(LLAMA.draft(), known).findings
    assert (finding.reason, finding.key) == ("not_applied_by_engine", Q)
    only = LLAMA.draft()
    only.tensors = {name: values for name, values in only.tensors.items() if "q_proj" not in name}
    assert reasons(only, known) == []
    known, draft = base(architecture="Llama4ForCausalLM", head_size=32), LLAMA.draft()
    assert verdict_of(draft, known).changes.rotary
    draft.tensors |= LLAMA.draft("model.layers.1.self_attn.k_proj").tensors
    verdict = verdict_of(draft, known)
    assert ([one.reason for one in verdict.findings], verdict.changes.rotary) == (["not_applied_by_engine"], {})


def test_the_order_of_rows_is_a_part_of_the_prepared_id():
    """R4: other bytes have another id; what no release ordered otherwise keeps its id."""
    assert LLAMA4.prepared_for != LLAMA4.fingerprint
    assert LLAMA4.identity != base().identity
    assert base(architecture="LlamaForCausalLM").prepared_for == LLAMA4.fingerprint
    assert base(architecture="NewForCausalLM").prepared_for == base().prepared_for == LLAMA4.fingerprint
    assert LLAMA4.prepared_for == f"{LLAMA4.fingerprint} rotary 8"
