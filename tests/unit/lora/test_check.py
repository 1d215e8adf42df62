"""What depends on the pool: limits, names of the base, modules that fit in several places, hostile patterns."""

from __future__ import annotations

import io
import json
import re
import time
from itertools import permutations
from typing import Any

import pytest

from registry.lora.base import BaseModules, expand
from registry.lora.check import examine
from registry.lora.config import AdapterConfig, read_config
from registry.lora.directory import check_files, open_directory
from registry.lora.findings import Finding, UnfitAdapter, leading, shown
from registry.lora.json_files import json_object
from registry.lora.modules import Patterns, pattern_findings, renamed_pattern
from registry.lora.policy import AdapterLimits, Policy, is_served, policy_of
from registry.lora.safetensors import Tensor, not_finite
from tests.corpus.drafts import CONFIG, CONFIG_FIELDS, LLAMA, QWEN2, RANK, WEIGHTS, Draft, Values

NO_LIMITS = AdapterLimits()


def findings(
    draft: Draft, base: BaseModules | None = None, limits: AdapterLimits = NO_LIMITS, **policy: Any
) -> dict[str, Finding]:
    tensors = [Tensor(name, one.dtype, one.shape, 0, len(one.data)) for name, one in draft.tensors.items()]
    config = read_config(json.dumps(draft.config).encode())
    return {one.reason: one for one in examine(config, tensors, base, limits, policy_of(policy)).findings}


def test_the_rank_is_compared_with_the_replicas_limit():
    assert not findings(LLAMA.draft(), limits=AdapterLimits(max_rank=RANK))
    found = findings(LLAMA.draft(), limits=AdapterLimits(max_rank=RANK - 1))
    assert found["rank_too_high"].found == f"rank {RANK}"


def test_a_rank_pattern_counts_as_the_engine_counts_it():
    draft = LLAMA.draft()
    draft.config["rank_pattern"] = {"nowhere": 99}
    assert set(findings(draft, limits=AdapterLimits(max_rank=64))) == {"rank_too_high"}


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
    assert bool(findings(LLAMA.draft(), limits=AdapterLimits(target_modules=targets))) is not served


def test_a_fused_module_is_served_where_one_of_its_parts_is():
    assert is_served("model.layers.0.self_attn.qkv_proj", ("q_proj",))
    assert not is_served("model.layers.0.self_attn.o_proj", ("q_proj",))


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


OPTIONAL = {name: field.default for name, field in AdapterConfig.model_fields.items() if not field.is_required()}


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_field_that_is_null_or_missing_says_nothing(name, is_there):
    """R4: trainings write both for what they do not use."""
    draft = LLAMA.draft()
    draft.config.pop(name, None)
    draft.config |= {name: None} if is_there else {}
    assert not findings(draft, BaseModules(LLAMA.modules))
    config = read_config(json.dumps(draft.config).encode())
    assert (config.highest_rank, Patterns(config.rank_pattern, config.r).value("q_proj")) == (RANK, RANK)


@pytest.mark.parametrize("half", ["A", "B"])
def test_half_an_embedding_is_unpaired_and_of_the_right_shape(half):
    """R14: what is wrong is told, and nothing else."""
    draft = LLAMA.draft()
    shape = {"A": (RANK, 64), "B": (32, RANK)}[half]
    name = f"base_model.model.model.embed_tokens.lora_embedding_{half}"
    draft.tensors[name] = Values("F32", shape, bytes(4 * shape[0] * shape[1]))
    found = findings(draft, BaseModules(LLAMA.modules))
    other = {"A": "B", "B": "A"}[half]
    assert [(one.reason, one.found) for one in found.values()] == [
        ("unpaired_tensor", f"lora_{half} without lora_{other}")
    ]


@pytest.mark.parametrize("alpha", [1e10, -1e10, "8", None, True], ids=str)
@pytest.mark.parametrize("field", ["lora_alpha", "alpha_pattern"])
def test_an_alpha_is_a_number_that_trainings_have(field, alpha):
    """R16 bounded."""
    value = {"q_proj": alpha} if field == "alpha_pattern" else alpha
    with pytest.raises(UnfitAdapter) as refused:
        read_config(json.dumps(CONFIG_FIELDS | {field: value}).encode())
    assert [(one.reason, one.key) for one in refused.value.findings] == [("invalid_config", field)]


def test_an_alpha_of_nothing_is_told_where_it_stands():
    """R5: the adapter would answer as the base model does."""
    draft = LLAMA.draft()
    draft.config |= {"lora_alpha": -8.5, "alpha_pattern": {"q_proj": 0.0, "v_proj": 4}}
    assert [(one.reason, one.key) for one in findings(draft).values()] == [("zero_alpha", "alpha_pattern.q_proj")]


@pytest.mark.parametrize(
    "key",
    [
        "q_proj",
        r"model\.layers\.[01]\.self_attn\.(?:q|v)_proj",
        "^model.*q_proj$",
        r"layers\.\d.+",
        r".*\.0\..*q_proj",
        r"layers\.\d{1,2}\.self_attn\.[^kv]_proj",
    ],
)
def test_patterns_are_followed_as_peft_follows_them(key):
    config = read_config(json.dumps(CONFIG_FIELDS | {"rank_pattern": {key: 8}}).encode())
    assert not pattern_findings(config, 100)
    assert Patterns(config.rank_pattern, 4).value("model.layers.0.self_attn.q_proj") == 8
    assert Patterns(config.rank_pattern, 4).value("model.norm") == 4


@pytest.mark.parametrize("key", ["(a+)+b", "(a|b)*c", ".*.*.*x", "a{1,99}", "(((a?)?)?)?" * 20 + "b", "(a?){200}b"])
def test_no_pattern_takes_long(key):
    """R8, R16: an expression out of somebody's file must not hold up a sidecar, however it is nested."""
    started = time.process_time()
    assert Patterns({key: 8}, 4).value("a" * 512 + "!") == 4
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "key",
    [
        "(",
        "(?:a{999}){999}",
        "a{0,999}b{0,999}" * 9,
        "é",
        "a" * 999,
        "[z-a]",
        r"[\d-a]",
        ")(",
        "(?=a)b",
        r"(a)\1",
        "(?i)a",
        "a{,3}",
        "[[:alpha:]]",
        "(" * 256,
    ],
)
def test_patterns_that_are_not_read_as_peft_reads_them_are_refused(key):
    """R16: and no rank is called wrong because of a pattern that was not followed."""
    config = read_config(json.dumps(CONFIG_FIELDS | {"alpha_pattern": {key: 8}}).encode())
    assert [one.reason for one in pattern_findings(config, 1)] == ["unsupported_pattern"]
    draft = LLAMA.draft()
    draft.config["rank_pattern"] = {key: 1, "q_proj": 1}
    assert set(findings(draft, BaseModules(LLAMA.modules))) == {"unsupported_pattern"}


def test_a_key_that_stands_twice_is_found_soon_among_many():
    """R16 bounded: what somebody sends is read in linear time."""
    pairs = ", ".join(f'"{number}": 0' for number in range(200_000))
    started = time.process_time()
    with pytest.raises(UnfitAdapter, match="'199999' stands there twice"):
        json_object("adapter_config.json", f'{{{pairs}, "199999": 0}}'.encode())
    assert time.process_time() - started < 5


def test_a_range_that_runs_backward_is_none():
    """X2 unbreakable: it counts as no module, and what stands beside it would be made all the same."""
    with pytest.raises(ValueError, match="not a range"):
        expand({"{0-999999}.{5-1}": (1, 1)})


def test_too_many_patterns_are_refused_whatever_they_are():
    """R16 bounded."""
    patterns = {f"layers.{i}.q_proj": 8 for i in range(4096)}
    config = read_config(json.dumps(CONFIG_FIELDS | {"rank_pattern": patterns}).encode())
    assert not pattern_findings(config, 100)
    assert [one.reason for one in pattern_findings(config, 1000)] == ["unsupported_pattern"]
    slow = read_config(json.dumps(CONFIG_FIELDS | {"rank_pattern": {"(a?){200}b": 8}}).encode())
    assert [one.reason for one in pattern_findings(slow, 1000)] == ["unsupported_pattern"]


@pytest.mark.parametrize("name", ["model.nowhere.{}.q_proj", "model.layers.9{}.experts.0.q_proj"])
def test_what_the_base_lacks_is_said_in_time_that_grows_with_the_modules(name):
    """R16, X2: the base was looked through anew for each of them, an hour for as many as a header holds."""
    base = BaseModules({f"model.layers.{i}.experts.{j}.q_proj": (8, 8) for i in range(60) for j in range(250)})
    tensors = [Tensor(f"{name.format(i)}.lora_A.weight", "F32", (), 0, 0) for i in range(20_000)]
    config = read_config(json.dumps(CONFIG_FIELDS).encode())
    started = time.process_time()
    found = examine(config, tensors, base, NO_LIMITS, Policy()).findings
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
    found = findings(LLAMA.draft(), limits=AdapterLimits(max_rank=1))["rank_too_high"]
    assert found.sentence().startswith("r: found rank 4, expected at most 1; start the engines with --max-lora-rank 4")
    assert set(found.as_dict()) == {"reason", "key", "found", "expected", "remedy", "permanent"}


def test_what_a_stranger_wrote_has_no_power_over_a_terminal():
    """A file says how its tensors are called; a status, a log and a table repeat it."""
    draft = LLAMA.draft()
    draft.tensors["\x1b]0;mine\x07\nready\u202e"] = next(iter(draft.tensors.values()))
    found = findings(draft)["unknown_tensor"]
    assert found.sentence().startswith(r"\x1b]0;mine\x07\nready\u202e: found")
    assert found.as_dict()["key"] == r"\x1b]0;mine\x07\nready\u202e"


@pytest.mark.parametrize("names", list(permutations(["proj", "a.proj", "b.a.proj", "xa.proj"])))
def test_a_renamed_module_keeps_its_rank_beside_one_whose_name_ends_its_own(names):
    """R4: a key is for every module whose name ends with it, and the first that fits counts."""
    ranks = {f"old.{name}": rank for name, rank in zip(names, (4, 8, 16, 32), strict=True)}
    renamed = renamed_pattern(
        {re.escape(name): rank for name, rank in ranks.items()}, dict(zip(ranks, names, strict=True))
    )
    found = Patterns(renamed, 1)
    assert [found.value(name) for name in names] == [4, 8, 16, 32]


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": ["\\ud83d x"]}'])
def test_half_a_character_is_refused(text):
    """X2: it can be read, and never be written anywhere."""
    with pytest.raises(UnfitAdapter):
        json_object("adapter_config.json", text.encode())
    assert json_object("adapter_config.json", b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
