"""Adapters that do less than their training meant: modules of zeros, modules that are not there."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest

from registry.lora.base import BaseModules
from registry.lora.config import AdapterConfig
from registry.lora.coverage.findings import missing_modules, without_effect
from registry.lora.directory import examine_files
from registry.lora.policy import AdapterLimits, policy_of
from registry.lora.safetensors import CHUNK_BYTES, Tensor, all_zeros
from registry.lora.tensor_names import entry_of
from tests.corpus.drafts import LLAMA, Draft, Shape, Values

PLAIN = ("q_proj", "k_proj", "v_proj", "o_proj")
BASE = BaseModules({**LLAMA.modules, "lm_head": (64, 32)}, architecture="LlamaForCausalLM")


def warned(draft: Draft, **policy: Any) -> list[tuple[str, str]]:
    """Reasons and messages, of an adapter whose numbers are looked at."""
    files = draft.files()
    found = examine_files(lambda name: io.BytesIO(files[name]), BASE, AdapterLimits(), policy_of(policy))
    return [(one.reason, one.message) for one in found.verdict.warnings]


def zeroed(draft: Draft, *parts: str) -> Draft:
    """The draft with zeros in each tensor that has one of these in its name."""
    for name, values in draft.tensors.items():
        if any(part in name for part in parts):
            draft.tensors[name] = Values(values.dtype, values.shape, bytes(len(values.data)))
    return draft


@pytest.mark.parametrize("half", ["lora_A", "lora_B"])
def test_an_adapter_of_zeros_is_told_to_answer_as_its_base(half):
    """R5: the engine takes it, and nobody would see that it does nothing."""
    ((reason, message),) = warned(zeroed(LLAMA.draft(), half))
    assert (reason, "answer as the base model does" in message) == ("without_effect", True)
    assert warned(LLAMA.draft()) == []


def test_modules_of_zeros_among_others_are_named():
    ((reason, message),) = warned(zeroed(LLAMA.draft(), "0.self_attn.q_proj.lora_A", "1.self_attn.q_proj.lora_B"))
    assert (reason, "2 modules" in message) == ("without_effect", True)
    assert "model.layers.{0-1}.self_attn.q_proj" in message
    assert "base model" not in message


@pytest.mark.parametrize(
    ("names", "zeros", "words"),
    [
        (("m.experts.0.up_proj.lora_A.weight", "m.q_proj.lora_A.weight"), {0}, None),
        (("m.experts.0.up_proj.lora_A.weight", "m.q_proj.lora_A.weight"), {0, 1}, "all 2 modules"),
        (("m.q_proj.lora_A.weight", "score.weight"), {0}, "of 1 modules"),
        (("m.embed_tokens.lora_embedding_A", "m.embed_tokens.base_layer.weight"), {0, 1}, "all 1 modules"),
        (("score.weight",), {0}, None),
    ],
)
def test_experts_that_were_never_trained_are_none_and_a_head_has_an_effect(names, zeros, words):
    entries = [entry_of(Tensor(name, "F32", (1, 1), 0, 4)) for name in names]
    found = without_effect(entries, frozenset(names[one] for one in zeros))
    assert [words in one.message for one in found] == ([True] if words else [])


NEGATIVE = {"F64": b"\0" * 7 + b"\x80", "F32": b"\0\0\0\x80", "F16": b"\0\x80", "BF16": b"\0\x80"}


@pytest.mark.parametrize("dtype", NEGATIVE)
@pytest.mark.parametrize("last", ["zero", "number", "cut"])
def test_zeros_are_zeros_whatever_their_sign_up_to_the_last_one(dtype, last):
    zeros = NEGATIVE[dtype] * (2 * CHUNK_BYTES // len(NEGATIVE[dtype]))
    content = zeros[:-1] + b"\x40" if last == "number" else zeros
    tensors = [Tensor("a", dtype, (1, 1), 0, len(zeros)), Tensor("i", "I8", (1, 1), len(zeros), len(zeros) + 1)]
    file = io.BytesIO(b"head" + (content[:-64] if last == "cut" else content) + b"\0" * (last != "cut"))
    assert all_zeros(file, 4, tensors) == ({"a"} if last == "zero" else frozenset())


def config(**fields: Any) -> AdapterConfig:
    return AdapterConfig.model_validate({"r": 4, "lora_alpha": 8, "target_modules": list(PLAIN)} | fields)


def attention(*modules: str, layers: tuple[int, ...] = (0, 1), prefix: str = "model.") -> set[str]:
    return {f"{prefix}layers.{layer}.self_attn.{module}" for layer in layers for module in modules}


def missing(fields: dict[str, Any], names: set[str], base: BaseModules | None = BASE, **renames: str) -> str:
    """What is told to be missing; nothing: nothing is."""
    found = missing_modules(config(**fields), names, renames, base)
    assert [one.reason for one in found] == ["modules_missing"] * len(found)
    return found[0].message.split(": ")[1].split(";")[0] if found else ""


REGEX = r".*\.self_attn\.(q|k|v|o)_proj"


FIRST = attention(*PLAIN, layers=(0,))
SECOND = attention(*PLAIN, layers=(1,))
QUERIES = attention("q_proj")
Q1 = "model.layers.1.self_attn.q_proj"


def told_of(pattern: str, *parts: str) -> str:
    return ", ".join(pattern.format(part) for part in parts)


@pytest.mark.parametrize(
    ("fields", "names", "told"),
    [
        ({}, FIRST | SECOND, ""),
        ({}, attention("q_proj", "v_proj"), told_of("model.layers.{{0-1}}.self_attn.{}_proj", "k", "o")),
        ({}, FIRST, told_of("model.layers.1.self_attn.{}_proj", "k", "o", "q", "v")),
        ({"target_modules": REGEX}, FIRST | SECOND, ""),
        ({"target_modules": REGEX}, (FIRST | SECOND) - {Q1}, Q1),
        ({"target_modules": REGEX + "|never" * 500}, (FIRST | SECOND) - {Q1}, Q1),
        ({"target_modules": r"model\.layers\.0\..*q_proj"}, QUERIES, ""),
        ({"target_modules": "(broken"}, QUERIES, ""),
        ({"target_modules": "k_proj|" * 999}, QUERIES, ""),
        ({"target_modules": ["q_proj", "c_attn"]}, QUERIES, ""),
        ({"target_modules": ["q_proj", "lm_head"]}, QUERIES, "lm_head"),
        ({"target_modules": ["model.layers.0.self_attn.q_proj"]}, QUERIES - {Q1}, ""),
        ({"target_modules": sorted(QUERIES)}, QUERIES - {Q1}, Q1),
        ({"layers_to_transform": 1}, SECOND, ""),
        ({"layers_to_transform": [1], "layers_pattern": "layers"}, SECOND, ""),
        ({"layers_to_transform": [0, 1], "layers_pattern": ["h"]}, SECOND, ""),
        (
            {"layers_to_transform": [0, 1], "layers_pattern": ["h", "layers"]},
            SECOND,
            told_of("model.layers.0.self_attn.{}_proj", "k", "o", "q", "v"),
        ),
        ({"layers_to_transform": [0, 1]}, SECOND, told_of("model.layers.0.self_attn.{}_proj", "k", "o", "q", "v")),
        ({"layers_to_transform": [], "layers_pattern": ""}, FIRST | SECOND, ""),
        ({"layers_to_transform": [[0]]}, FIRST | SECOND, ""),
        ({"exclude_modules": ["k_proj", 5]}, attention("q_proj", "v_proj", "o_proj"), ""),
        ({"exclude_modules": r".*\.(k|v|o)_proj"}, QUERIES, ""),
        ({"target_modules": []}, QUERIES, ""),
        (
            {"target_modules": "all-linear"},
            FIRST | SECOND,
            told_of("model.layers.{{0-1}}.mlp.{}_proj", "down", "gate", "up"),
        ),
    ],
)
def test_modules_that_the_configuration_names_are_missing_by_pefts_rules(fields, names, told):
    """R5: of what the base has, in the layers that were trained."""
    assert missing(fields, names) == told


def test_without_a_base_only_names_without_any_module_are_missing():
    """A layer of another model may lack what the others have."""
    assert missing({}, attention("q_proj", "v_proj"), None) == "k_proj, o_proj"
    assert missing({}, attention(*PLAIN, layers=(1,)), None) == ""
    assert missing({"target_modules": REGEX}, attention("q_proj"), None) == ""
    assert missing({"exclude_modules": ["k_proj"]}, attention("q_proj", "v_proj"), None) == "o_proj"


def test_a_file_is_compared_under_its_own_names():
    """The configuration means those of the model that was trained, which the base may have otherwise."""
    prefix = "model.language_model."
    names = attention("q_proj", prefix=prefix, layers=(0,))
    renames = {name: name.replace(prefix, "model.") for name in names}
    fields = {"target_modules": r"model\.language_model\..*q_proj"}
    assert missing(fields, names, **renames) == "model.layers.1.self_attn.q_proj"
    whole = attention("q_proj", prefix=prefix)
    assert missing(fields, whole, **renames) == ""


@pytest.mark.parametrize(
    ("more", "architecture", "targets"),
    [
        ({"mtp.layers.0.self_attn.q_proj": (32, 32)}, "Qwen3NextForCausalLM", PLAIN),
        ({"model.layers.2.self_attn.q_proj": (32, 32), "model.layers.2.eh_proj": (32, 64)}, "X", PLAIN),
        ({"model.layers.2.self_attn.k_proj": (16, 32)}, "Gemma3nForConditionalGeneration", PLAIN),
        ({"model.layers.0.mlp.experts.1.up_proj": (48, 32)}, "MixtralForCausalLM", (*PLAIN, "up_proj")),
        ({"visual.blocks.0.attn.q_proj": (20, 20), "visual.blocks.0.qkv": (20, 20)}, "X", (*PLAIN, "qkv")),
    ],
)
def test_what_transformers_leaves_out_or_trainers_freeze_is_not_missing(more: dict[str, Shape], architecture, targets):
    """Experts get an adapter only if they are trained one by one; towers and layers that draft are often left alone."""
    modules = {name: shape for name, shape in BASE.modules.items() if "mlp" not in name}
    base = BaseModules({**modules, **more}, architecture=architecture)
    assert missing({"target_modules": list(targets)}, attention(*PLAIN), base) == ""
    assert missing({"target_modules": list(targets)}, attention(*PLAIN) - {Q1}, base) == Q1


def test_no_expression_takes_long():
    """R16 bounded: it is somebody's."""
    modules = {f"model.layers.{layer}.m.{n}_proj": (1, 1) for layer in range(100) for n in range(1000)}
    base, began = BaseModules(modules), time.process_time()
    assert missing({"target_modules": "(.*.*){50}x"}, {"model.layers.0.m.0_proj"}, base) == ""
    assert missing({"target_modules": r".*\.layers\.0\..*[01]_proj"}, {"model.layers.0.m.0_proj"}, base) != ""
    assert time.process_time() - began < 10
