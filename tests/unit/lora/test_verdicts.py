"""Whole verdicts on adapters: what is found, what is warned of, and what preparation is to change."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from registry.lora.base import BaseModules
from registry.lora.check import Changes, examine
from registry.lora.config import read_config
from registry.lora.findings import Finding, UnfitAdapter, leading, shown
from registry.lora.json_files import json_object
from registry.lora.policy import AdapterLimits, Policy
from registry.lora.safetensors import Tensor
from registry.lora.tensor_names import is_vision
from tests.corpus.drafts import CONFIG_FIELDS, LLAMA, RANK, Draft, Values, floats
from tests.unit.lora.conftest import verdict_of
from tests.unit.lora.test_coverage import base

KNOWN = base(architecture="LlamaForCausalLM")
STEM = "base_model.model."
Q = f"{STEM}model.layers.0.self_attn.q_proj"
TOWER = ("visual.blocks.0.attn.qkv", "visual.blocks.1.attn.qkv")


def numbers(*shape: int) -> Values:
    return floats(random.Random(3), shape)


def with_tower() -> Draft:
    draft = LLAMA.draft()
    for module in TOWER:
        draft.tensors |= {
            f"{STEM}{module}.lora_A.weight": numbers(RANK, 32),
            f"{STEM}{module}.lora_B.weight": numbers(32, RANK),
        }
    return draft


def reasons(draft: Draft, known: BaseModules | None = KNOWN, **policy: object) -> tuple[list[str], list[str]]:
    """The reasons of findings and of warnings."""
    verdict = verdict_of(draft, known, **policy)
    return [one.reason for one in verdict.findings], [one.reason for one in verdict.warnings]


def findings(draft: Draft, *about: Any) -> dict[str, Finding]:
    return {one.reason: one for one in verdict_of(draft, *about).findings}


NOTHING = Changes(renamed={}, dropped=(), config={})


@pytest.mark.parametrize(
    ("changes", "is_any"),
    [
        (NOTHING, False),
        (Changes({"a": "b"}, (), {}), True),
        (Changes({}, ("a",), {}), True),
        (Changes({}, (), {"use_dora": False}), True),
        (Changes({}, (), {}, {"a": 8}), True),
    ],
)
def test_each_kind_of_change_is_one(changes, is_any):
    """R4: what has to be changed is never served as it is."""
    assert bool(changes) is is_any


def test_a_tower_is_refused_left_out_or_kept():
    """R5, R22: and only where something is lost somebody is warned."""
    known = base(*TOWER, architecture="LlamaForCausalLM")
    tower = sorted(name for name in with_tower().tensors if "visual" in name)
    (finding,) = verdict_of(with_tower(), known).findings
    assert (finding.reason, finding.key, finding.found) == ("vision_modules", TOWER[0], "2 vision modules")
    single = LLAMA.draft()
    single.tensors[f"{STEM}{TOWER[1]}.lora_A.weight"] = numbers(RANK, 32)
    assert [(one.reason, one.key) for one in verdict_of(single, known).findings] == [("vision_modules", TOWER[1])]
    dropped = verdict_of(with_tower(), known, vision="drop")
    assert (dropped.findings, dropped.changes.dropped) == ((), tuple(tower))
    (warning,) = dropped.warnings
    assert (warning.reason, warning.message.split()[0]) == ("vision_dropped", "2")
    kept = verdict_of(with_tower(), known, vision="keep")
    assert (kept.findings, kept.warnings, kept.changes.dropped) == ((), (), ())
    for vision in ("reject", "drop", "keep"):
        assert reasons(LLAMA.draft(), vision=vision) == ([], [])


@pytest.mark.parametrize(
    "module",
    [
        *("model.visual.merger.mlp.0", "vision_tower.layers.0.q_proj", "model.vision_backbone.image_projector.w1"),
        *("vision_language_adapter.w_in", "model.embed_vision.embedding_projection", "transformer.vision.linear_proj"),
        *(
            "mlp1.1",
            "mlp_AR.linear_1",
            "merger.mlp.0",
            "vit_merger.linear_1",
            "model.connector.modality_projection.proj",
        ),
        *("vpm.encoder.layers.0.self_attn.q_proj", "apm.layers.0.self_attn.q_proj", "resampler.attn.out_proj"),
        *("model.sam_model.blocks.0.attn.qkv", "model.projector.layers", "qformer.encoder.layer.0.attention.query"),
        *("language_projection", "model.spatial_projectors.0.linear", "model.embed_tokens_extend.image_embed.glb_GN"),
        *("whisper_encoder.layers.0.fc1", "audio_language_adapter.w_in", "sound_encoder.encoder.layers.0.up"),
        *("multi_modal_projector.linear_1", "mm_projector.0", "speech_projector.linear1", "img_projection.0"),
    ],
)
def test_towers_and_what_connects_them_are_told_by_their_names(module):
    """R22 applied-whole: vLLM leaves them out without a word unless it is started with tower LoRA."""
    assert is_vision(module)


@pytest.mark.parametrize(
    "module",
    [
        *("model.layers.0.self_attn.q_proj", "language_model.model.layers.0.mlp.down_proj", "llm.layers.0.mlp.up_proj"),
        *("model.layers.0.mlp.experts.3.up_proj", "encoder.layers.0.self_attn.q_proj", "model.mtp.layers.0.eh_proj"),
        *("transformer.h.0.attn.c_attn", "model.layers.0.mixer.in_proj", "model.layers.0.mlp.mlp1_proj", "lm_head"),
        *("model.embed_tokens", "score", "classifier.dense", "model.layers.0.linear_attn.in_proj_qkvz"),
    ],
)
def test_modules_of_language_models_are_no_towers(module):
    assert not is_vision(module)


def test_dora_is_refused_or_taken_off():
    """R5: in the file, in its configuration, or in both."""
    for in_config, magnitudes in ((True, 0), (False, 2), (True, 2)):
        draft = LLAMA.draft()
        names = [f"{STEM}model.layers.{at}.self_attn.q_proj.lora_magnitude_vector" for at in range(magnitudes)]
        draft.tensors |= {name: numbers(32, 1) for name in names}
        draft.config["use_dora"] = in_config
        (finding,) = verdict_of(draft, KNOWN).findings
        key = "use_dora" if in_config else names[0]
        assert (finding.reason, finding.key, finding.found) == (
            "dora_not_supported",
            key,
            f"DoRA ({magnitudes} magnitudes)",
        )
        stripped = verdict_of(draft, KNOWN, dora="strip")
        assert (stripped.findings, [one.reason for one in stripped.warnings]) == ((), ["dora_stripped"])
        assert (stripped.changes.dropped, stripped.changes.config) == (
            tuple(names),
            {"use_dora": False} if in_config else {},
        )
    assert reasons(LLAMA.draft(), dora="strip") == ([], [])


def test_modules_that_a_record_drops_and_weights_of_the_base_are_left_out_and_told():
    verdict = verdict_of(LLAMA.draft(), KNOWN, drop=["0.self_attn.q_proj", "1.mlp.down_proj", "nowhere"])
    (warning,) = verdict.warnings
    assert warning.reason == "modules_dropped"
    assert warning.message.startswith("2 modules were left out")
    assert "model.layers.0.self_attn.q_proj" in warning.message
    assert len(verdict.changes.dropped) == 4
    assert reasons(LLAMA.draft(), drop=["nowhere"]) == ([], [])
    draft = LLAMA.draft()
    draft.tensors[f"{Q}.base_layer.weight"] = numbers(32, 32)
    draft.tensors[f"{STEM}model.layers.0.self_attn.k_proj.base_layer.weight"] = numbers(16, 32)
    passed_over = [f"{STEM}model.embed_tokens.base_layer.weight", f"{STEM}lm_head.base_layer.weight"]
    draft.tensors |= dict.fromkeys(passed_over, numbers(64, 32))
    refused = sorted(name for name in draft.tensors if name.endswith("_proj.base_layer.weight"))
    verdict = verdict_of(draft, KNOWN)
    assert (verdict.findings, verdict.changes) == ((), Changes({}, tuple(refused), {}))
    (warning,) = verdict.warnings
    assert (warning.reason, warning.message.split()[0]) == ("base_layer_ignored", "4")


@pytest.mark.parametrize(
    "name", ["lm_head.base_layer.weight", "embed_tokens.base_layer.weight", "wte.base_layer.weight"]
)
def test_weights_of_the_base_are_left_out_where_vllm_refuses_a_file_with_them(name):
    """R17: vLLM passes over those of an embedding and a head below another module alone, and answers 500 for others."""
    draft = LLAMA.draft()
    draft.rename(STEM, "")
    draft.tensors[name] = numbers(64, 32)
    assert verdict_of(draft).changes.dropped == (name,)


@pytest.mark.parametrize("saved", [None, ["classifier"], ["score"], ["score", "classifier"]])
def test_a_head_that_stands_in_the_file_is_named_in_the_configuration(saved):
    """R22: vLLM takes it for half a pair else, and answers 500, or with the head of the base."""
    draft = LLAMA.draft()
    draft.config["modules_to_save"] = saved
    draft.tensors |= {f"{STEM}score.modules_to_save.default.{leaf}": numbers(2, 32) for leaf in ("weight", "bias")}
    is_named = "score" in (saved or ())
    wanted = {} if is_named else {"modules_to_save": [*(saved or ()), "score"]}
    assert verdict_of(draft).changes.config == wanted
    assert verdict_of(draft, drop=["score"]).changes.config == {}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["x.weight"], [("unknown_tensor", "x.weight")]),
        (["x.weight", "y.weight"], [("unknown_tensor", "x.weight")]),
        ([f"{Q}.bias"], [("bias_not_supported", f"{Q}.bias")]),
        ([f"{Q}.bias", "b.bias"], [("bias_not_supported", f"{Q}.bias")]),
        ([f"{Q}.bias", "x.weight"], [("bias_not_supported", f"{Q}.bias"), ("unknown_tensor", "x.weight")]),
    ],
    ids=str,
)
def test_tensors_that_are_no_lora_are_told_once_for_each_kind(names, found):
    """R5: an engine would leave them out, and answer otherwise than the training."""
    draft = LLAMA.draft()
    draft.tensors |= {name: numbers(32, 1) for name in names}
    for known in (KNOWN, None):
        assert [(one.reason, one.key) for one in verdict_of(draft, known).findings] == found


SAVED = f"{STEM}score.modules_to_save.default."


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ({"weight": ("F32", (2, 32)), "bias": ("F64", (2,))}, []),
        ({"weight": ("I8", (2, 32))}, [("dtype_not_supported", f"{SAVED}weight")]),
        ({"bias": ("F32", (2,))}, [("unpaired_tensor", "score")]),
        ({"weight": ("F32", (64,))}, [("shape_mismatch", f"{SAVED}weight")]),
        ({"weight": ("F32", (2, 32)), "bias": ("F32", (3,))}, [("shape_mismatch", f"{SAVED}bias")]),
        (
            {"weight": ("F32", (2, 32)), f"{STEM}score.weight": ("F32", (2, 32))},
            [("duplicate_module", f"{STEM}score.weight")],
        ),
        (
            {"weight": ("F32", (2, 32)), f"{STEM}classifier.weight": ("F32", (2, 32))},
            [("duplicate_module", "classifier")],
        ),
    ],
    ids=str,
)
def test_a_head_that_the_engine_would_not_load_is_refused(tensors, found):
    """R22: vLLM answers 500 for a bias alone and for a second head; of two of one name the file would be broken."""
    draft = LLAMA.draft()
    draft.tensors |= {
        name if name.startswith(STEM) else SAVED + name: Values(dtype, shape, b"")
        for name, (dtype, shape) in tensors.items()
    }
    assert [(one.reason, one.key) for one in verdict_of(draft).findings] == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lora_A.weight", "lora_A.default.weight"),
        ("score.weight", "score.modules_to_save.default.weight"),
    ],
)
def test_names_that_no_engine_reads_are_refused_where_they_may_not_be_changed(old, new):
    """R22: prepare.remap off leaves them, and vLLM answers 500."""
    draft = LLAMA.draft()
    draft.tensors[f"{STEM}score.weight"] = numbers(2, 32)
    for prefix in (STEM, "", STEM + STEM):
        assert reasons(replaced(draft, STEM, prefix), None, remap="off")[0] == []
    draft.rename(old, new)
    (finding,) = verdict_of(draft, remap="off").findings
    assert (finding.reason, new in finding.key) == ("unknown_tensor", True)
    assert reasons(draft, None)[0] == []


def replaced(draft: Draft, old: str, new: str) -> Draft:
    made = Draft(draft.config, dict(draft.tensors))
    made.rename(old, new)
    return made


def test_an_adapter_without_weights_is_none():
    """R5: it would answer as the base does. What is wrong besides is told instead."""
    empty = LLAMA.draft()
    empty.tensors = {f"{Q}.base_layer.weight": numbers(32, 32)}
    assert reasons(empty)[0] == ["no_tensors"]
    saved = LLAMA.draft()
    saved.tensors = {f"{STEM}score.weight": numbers(2, 32)}
    assert reasons(saved, None)[0] == ["no_tensors"], "vLLM answers 500 for a head alone"
    half = LLAMA.draft()
    half.tensors = {f"{Q}.lora_B.weight": numbers(32, RANK)}
    assert reasons(half)[0] == ["unpaired_tensor"]
    wrong = LLAMA.draft()
    wrong.config["bias"] = "all"
    assert reasons(wrong, drop=["q_proj", "v_proj", "o_proj", "down_proj"])[0] == ["bias_not_supported"]


def test_two_modules_that_would_come_to_have_one_name_are_found():
    """R4: one of them would be left out."""
    draft = LLAMA.draft()
    for half in ("A", "B"):
        name = f"{Q}.lora_{half}.weight"
        draft.tensors[name.replace("model.layers", "wrapped.layers")] = draft.tensors[name]
    (finding,) = verdict_of(draft, KNOWN).findings
    assert (finding.reason, finding.key) == ("duplicate_module", "model.layers.0.self_attn.q_proj")


def test_old_names_become_those_that_engines_read_unless_a_record_says_otherwise():
    """R4, R22."""
    draft = LLAMA.draft()
    draft.rename("lora_A.weight", "lora_A.default.weight")
    renamed = {old: old.replace(".default", "") for old in draft.tensors if ".default" in old}
    assert verdict_of(draft, KNOWN).changes == Changes(renamed, (), {})
    assert verdict_of(draft, KNOWN, remap="off").changes == NOTHING
    wrapped = LLAMA.draft()
    wrapped.rename("base_model.model.model.", "base_model.model.wrapped.")
    assert verdict_of(wrapped, KNOWN).changes.renamed == {
        old: old.replace("wrapped.", "model.") for old in wrapped.tensors
    }
    assert set(reasons(wrapped, remap="off")[0]) == {"no_such_module"}


def test_patterns_follow_their_modules_to_new_names():
    """R4: a rank or an alpha belongs to its module, whatever that is called."""
    draft = LLAMA.draft()
    draft.config |= {
        "rank_pattern": {"0.self_attn.q_proj": RANK},
        "alpha_pattern": {"wrapped.layers.1.mlp.down_proj": 9},
    }
    assert verdict_of(draft, KNOWN).changes == NOTHING
    draft.rename("base_model.model.model.", "base_model.model.wrapped.")
    assert verdict_of(draft, KNOWN).changes.config == {
        "rank_pattern": {r"model\.layers\.0\.self_attn\.q_proj": RANK},
        "alpha_pattern": {r"model\.layers\.1\.mlp\.down_proj": 9},
    }
    del draft.config["alpha_pattern"]
    assert set(verdict_of(draft, KNOWN).changes.config) == {"rank_pattern"}
    draft.config["rank_pattern"] = {"(": RANK}
    assert verdict_of(draft, KNOWN).changes.config == {}


@pytest.mark.parametrize(
    ("most", "found"), [(None, None), (RANK, None), (RANK + 1, None), (RANK - 1, ("r", f"rank {RANK}"))]
)
def test_a_rank_is_that_of_the_modules_own_pattern_and_refused_above_the_replicas_own(most, found):
    told = findings(LLAMA.draft(), KNOWN, AdapterLimits(max_rank=most))
    assert [(one.key, one.found) for one in told.values()] == ([found] if found else [])
    draft = LLAMA.draft()
    draft.config["rank_pattern"] = {"0.self_attn.q_proj": 2 * RANK}
    verdict = verdict_of(draft, KNOWN)
    mismatches = [("rank_mismatch", f"{Q}.lora_{half}.weight") for half in "AB"]
    assert ([(one.reason, one.key) for one in verdict.findings], verdict.rank) == (mismatches, 2 * RANK)


def test_the_first_module_that_replicas_leave_out_is_told_with_how_many_there_are():
    told = findings(LLAMA.draft(), KNOWN, AdapterLimits(target_modules=("q_proj", "down_proj")))
    (finding,) = told.values()
    assert (finding.reason, finding.key) == ("target_modules_mismatch", "model.layers.0.self_attn.o_proj")
    assert finding.found.startswith("2 modules")
    assert "q_proj, down_proj" in finding.expected


def test_another_base_is_told_with_few_of_the_names_that_are_right():
    """R16 bounded."""
    names = tuple(f"org/name-{at:02}" for at in range(32))
    draft = LLAMA.draft()
    draft.config["base_model_name_or_path"] = "org/other"
    (finding,) = verdict_of(draft, base(architecture="LlamaForCausalLM", names=names)).findings
    assert (finding.reason, finding.found) == ("other_base", "'org/other'")
    assert finding.expected.count("org/") <= 8
    draft.config["base_model_name_or_path"] = "/cache/Name-31/"
    assert not verdict_of(draft, base(architecture="LlamaForCausalLM", names=names)).findings


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("org/Llama", True),
        ("/models/llama/", True),
        ("/cache/hub/models--org--Llama/snapshots/0123abcd", True),
        ("/cache/hub/models--org--Llama/snapshots/0123abcd/", True),
        ("models--llama/snapshots/0123abcd", True),
        (r"C:\cache\hub\models--org--Llama\snapshots\0123abcd", True),
        ("/cache/hub/models--org--Other/snapshots/llama", False),
        ("qwen", False),
        (None, False),
    ],
)
def test_another_base_of_the_same_shapes_is_told_by_its_name(name, right):
    draft = LLAMA.draft()
    draft.config["base_model_name_or_path"] = name
    found = findings(draft, BaseModules(LLAMA.modules, ("meta/llama",)))
    assert ("other_base" not in found) is right
    assert not findings(draft, BaseModules(LLAMA.modules))
    cached = BaseModules(LLAMA.modules, ("/hub/models--meta--Llama/snapshots/4567",))
    assert ("other_base" not in findings(draft, cached)) is right


def test_modules_of_two_places_at_once_are_of_none():
    half = {f"left.{name}": shape for name, shape in LLAMA.modules.items() if ".0." in name}
    half |= {f"right.{name}": shape for name, shape in LLAMA.modules.items() if ".1." in name}
    assert set(findings(LLAMA.draft(), BaseModules(half))) == {"no_such_module"}


def test_a_key_that_stands_twice_is_found_soon_among_many():
    """R16 bounded: what somebody sends is read in linear time."""
    pairs = ", ".join(f'"{number}": 0' for number in range(200_000))
    started = time.process_time()
    with pytest.raises(UnfitAdapter, match="'199999' stands there twice"):
        json_object("adapter_config.json", f'{{{pairs}, "199999": 0}}'.encode())
    assert time.process_time() - started < 5


@pytest.mark.no_cover  # what it executes, quicker tests do too
@pytest.mark.parametrize("name", ["model.nowhere.{}.q_proj", "model.layers.9{}.experts.0.q_proj"])
def test_what_the_base_lacks_is_said_in_time_that_grows_with_the_modules(name):
    """R16, X2: the base was looked through anew for each of them, an hour for as many as a header holds."""
    base = BaseModules({f"model.layers.{i}.experts.{j}.q_proj": (8, 8) for i in range(60) for j in range(250)})
    tensors = [Tensor(f"{name.format(i)}.lora_A.weight", "F32", (), 0, 0) for i in range(20_000)]
    config = read_config(json.dumps(CONFIG_FIELDS).encode())
    started = time.process_time()
    found = examine(config, tensors, base, AdapterLimits(), Policy()).findings
    assert time.process_time() - started < 10
    assert {one.reason for one in found} & {"no_such_module", "too_many_layers"}


def test_what_is_wrong_for_good_leads():
    """R14: else a source that may be right later would hide what no new try mends."""
    later = Finding("source_incomplete", "a", "nothing", "weights", "wait", permanent=False)
    for_good = Finding("rank_too_high", "r", "64", "at most 16", "train with less")
    assert leading([later, for_good]) == [for_good, later]


def test_a_value_that_is_too_deep_to_be_printed_is_shown_all_the_same():
    """X2: whoever prints stands deeper than whoever read it."""
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert shown(value) == "a list"


def test_a_finding_says_everything_in_one_line():
    found = findings(LLAMA.draft(), None, AdapterLimits(max_rank=1))["rank_too_high"]
    assert found.sentence().startswith("r: found rank 4, expected at most 1; start the engines with --max-lora-rank 4")
    assert set(found.as_dict()) == {"reason", "key", "found", "expected", "remedy", "permanent"}


def test_a_key_that_no_module_has_gives_no_module_a_value_under_its_new_name():
    """R4: trained without it, an engine would scale by it."""
    draft = LLAMA.draft()
    draft.rename("base_model.model.model.", "base_model.model.inner.")
    draft.config["alpha_pattern"] = {r"model\.layers\.0\.self_attn\.q_proj": 99}
    verdict = verdict_of(draft, BaseModules(LLAMA.modules))
    assert (verdict.findings, verdict.changes.config) == ((), {"alpha_pattern": {}})
