"""What depends on the pool: limits, names of the base, modules that fit in several places, hostile patterns."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from registry.lora.base import BaseModules
from registry.lora.check import examine
from registry.lora.config import read_config
from registry.lora.directory import check_files, open_directory
from registry.lora.findings import Finding, UnfitAdapter
from registry.lora.finite import not_finite
from registry.lora.patterns import Patterns, pattern_findings
from registry.lora.policy import Limits, Policy, is_served, policy_of
from registry.lora.tensors import Tensor
from tests.corpus.drafts import CONFIG, CONFIG_FIELDS, LLAMA, QWEN2, RANK, WEIGHTS, Draft

NO_LIMITS = Limits()


def findings(
    draft: Draft, base: BaseModules | None = None, limits: Limits = NO_LIMITS, **policy: Any
) -> dict[str, Finding]:
    tensors = [Tensor(name, one.dtype, one.shape, 0, len(one.data)) for name, one in draft.tensors.items()]
    config = read_config(json.dumps(draft.config).encode())
    return {one.reason: one for one in examine(config, tensors, base, limits, policy_of(policy)).findings}


def test_the_rank_is_compared_with_the_replicas_limit():
    assert not findings(LLAMA.draft(), limits=Limits(max_rank=RANK))
    found = findings(LLAMA.draft(), limits=Limits(max_rank=RANK - 1))
    assert found["rank_too_high"].found == f"rank {RANK}"


def test_a_rank_pattern_counts_as_the_engine_counts_it():
    draft = LLAMA.draft()
    draft.config["rank_pattern"] = {"nowhere": 99}
    assert set(findings(draft, limits=Limits(max_rank=64))) == {"rank_too_high"}


@pytest.mark.parametrize(
    ("targets", "served"),
    [
        (None, True),
        (("q_proj", "v_proj", "o_proj", "down_proj"), True),
        (("qkv_proj", "o_proj", "down_proj"), True),
        (("q_proj", "v_proj"), False),
        (("k_proj",), False),
    ],
)
def test_modules_that_the_engine_leaves_out_are_found(targets, served):
    """R5: it would take them, and answer as the base model does."""
    assert bool(findings(LLAMA.draft(), limits=Limits(target_modules=targets))) is not served


def test_a_fused_module_is_served_where_one_of_its_parts_is():
    assert is_served("model.layers.0.self_attn.qkv_proj", ("q_proj",))
    assert not is_served("model.layers.0.self_attn.o_proj", ("q_proj",))


@pytest.mark.parametrize(
    ("name", "right"), [("org/Llama", True), ("/models/llama/", True), ("qwen", False), (None, False)]
)
def test_another_base_of_the_same_shapes_is_told_by_its_name(name, right):
    draft = LLAMA.draft()
    draft.config["base_model_name_or_path"] = name
    found = findings(draft, BaseModules(LLAMA.modules, ("meta/llama",)))
    assert ("other_base" not in found) is right
    assert not findings(draft, BaseModules(LLAMA.modules))


def test_modules_that_fit_in_two_places_are_not_guessed():
    """A model of two like towers: which one is meant nobody can tell."""
    towers = {f"{tower}.{name}": shape for tower in ("left", "right") for name, shape in LLAMA.modules.items()}
    found = findings(LLAMA.draft(), BaseModules(towers))
    assert set(found) == {"ambiguous_module"}
    assert "'left.model.' and 'right.model.'" in found["ambiguous_module"].found


def test_shapes_decide_between_two_places():
    towers = {f"left.{name}": shape for name, shape in LLAMA.modules.items()}
    towers |= {f"right.{name}": (2 * a, 2 * b) for name, (a, b) in LLAMA.modules.items()}
    assert not findings(LLAMA.draft(), BaseModules(towers))


def test_modules_of_two_places_at_once_are_of_none():
    half = {f"left.{name}": shape for name, shape in LLAMA.modules.items() if ".0." in name}
    half |= {f"right.{name}": shape for name, shape in LLAMA.modules.items() if ".1." in name}
    assert set(findings(LLAMA.draft(), BaseModules(half))) == {"no_such_module"}


@pytest.mark.parametrize(
    "key", ["q_proj", r"model\.layers\.[01]\.self_attn\.(?:q|v)_proj", "^model.*q_proj$", r"layers\.\d.+"]
)
def test_patterns_that_end_soon_are_followed(key):
    config = read_config(json.dumps(CONFIG_FIELDS | {"rank_pattern": {key: 8}}).encode())
    assert not pattern_findings(config, 100)
    assert Patterns(config.rank_pattern, 4).value("model.layers.0.self_attn.q_proj") == 8
    assert Patterns(config.rank_pattern, 4).value("model.norm") == 4


@pytest.mark.parametrize("key", ["(a+)+b", "(a|b)*c", ".*.*.*x", "a{1,99}", "(", "é", "a" * 999, "[z-a]"])
def test_patterns_that_may_not_end_are_refused(key):
    """R8, R16: an expression out of somebody's file must not hold up a sidecar."""
    config = read_config(json.dumps(CONFIG_FIELDS | {"alpha_pattern": {key: 8}}).encode())
    assert [one.reason for one in pattern_findings(config, 1)] == ["unsupported_pattern"]


def test_too_many_patterns_are_refused_whatever_they_are():
    """R16 bounded."""
    patterns = {f"layers.{i}.q_proj": 8 for i in range(4096)}
    config = read_config(json.dumps(CONFIG_FIELDS | {"rank_pattern": patterns}).encode())
    assert not pattern_findings(config, 100)
    assert [one.reason for one in pattern_findings(config, 1000)] == ["unsupported_pattern"]


def test_nothing_is_left_where_all_modules_are_dropped():
    draft = LLAMA.draft()
    draft.rename("model.model.layers", "model.visual.blocks")
    assert set(findings(draft, BaseModules(LLAMA.modules), vision="drop")) == {"no_tensors"}


def test_found_by_name_in_another_shape_is_told_as_that():
    """A wrong beginning and a wrong base at once: the shapes are what is wrong."""
    draft = QWEN2.draft()
    draft.rename("model.model.layers", "model.wrapped.layers")
    assert set(findings(draft, BaseModules(LLAMA.modules))) == {"shape_mismatch"}


def test_modules_without_a_number_are_found_too():
    draft = LLAMA.draft("lm_head")
    draft.rename("base_model.model.lm_head", "base_model.model.wrapped.lm_head")
    assert not findings(draft, BaseModules(LLAMA.modules))
    draft.rename("wrapped.lm_head", "wrapped.other_head")
    assert set(findings(draft, BaseModules(LLAMA.modules))) == {"no_such_module"}


def test_a_layer_that_the_base_leaves_out_is_no_layer_too_many():
    """Models that skip a module in some layers exist."""
    modules = {name: shape for name, shape in LLAMA.modules.items() if name != "model.layers.0.mlp.down_proj"}
    modules |= {"model.layers.2.mlp.down_proj": LLAMA.modules["model.layers.0.mlp.down_proj"]}
    draft = LLAMA.draft()
    del modules["model.layers.1.self_attn.q_proj"]
    assert set(findings(draft, BaseModules(modules))) == {"no_such_module"}


def test_numbers_of_a_file_that_was_cut_off_meanwhile_are_the_hashs_matter():
    """R16: the search ends with the file."""
    tensor = Tensor("a", "F32", (4,), 0, 16)
    assert not not_finite(io.BytesIO(b"\0" * 4), 0, [tensor])


def test_a_folder_whose_files_are_none_is_said_to_be(tmp_path):
    with pytest.raises(UnfitAdapter) as refused:
        check_files(tmp_path)
    assert [one.reason for one in refused.value.findings] == ["source_incomplete"] * 2
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(UnfitAdapter) as refused:
        check_files(tmp_path)
    assert [one.reason for one in refused.value.findings] == ["source_incomplete", "weights_not_safetensors"]
    (tmp_path / WEIGHTS).mkdir()
    (tmp_path / CONFIG).write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(UnfitAdapter) as refused:
        check_files(tmp_path)
    assert [one.reason for one in refused.value.findings] == ["not_an_adapter"]
    with pytest.raises(UnfitAdapter, match="more than 1048576 bytes"):
        open_directory(tmp_path)


def test_a_policy_is_one_of_its_choices():
    assert policy_of({"dora": "strip", "later": 1}) == Policy(dora="strip")
    with pytest.raises(ValueError, match="which is none of auto, off"):
        policy_of({"remap": "maybe"})


def test_a_saved_classifier_is_left_to_the_engine():
    draft = LLAMA.draft()
    draft.config["modules_to_save"] = ["score"]
    draft.tensors["base_model.model.score.weight"] = next(iter(draft.tensors.values()))
    assert not findings(draft)


def test_halves_of_two_kinds_are_no_pair():
    draft = LLAMA.draft()
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    draft.tensors[f"{name}.lora_embedding_A"] = draft.tensors.pop(f"{name}.lora_A.weight")
    assert "unpaired_tensor" in findings(draft)


def test_a_finding_says_everything_in_one_line():
    found = findings(LLAMA.draft(), limits=Limits(max_rank=1))["rank_too_high"]
    assert found.sentence().startswith("r: found rank 4, expected at most 1; start the engines with --max-lora-rank 4")
    assert set(found.as_dict()) == {"reason", "key", "found", "expected", "remedy", "permanent"}


def test_what_a_stranger_wrote_has_no_power_over_a_terminal():
    """A file says how its tensors are called; a status, a log and a table repeat it."""
    draft = LLAMA.draft()
    draft.tensors["\x1b]0;mine\x07\nready\u202e"] = next(iter(draft.tensors.values()))
    found = findings(draft)["unknown_tensor"]
    assert found.sentence().startswith(r"\x1b]0;mine\x07\nready\u202e: found")
    assert found.as_dict()["key"] == r"\x1b]0;mine\x07\nready\u202e"
