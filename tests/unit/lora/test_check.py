"""What depends on the pool: limits, names of the base, modules that fit in several places, hostile patterns."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from registry.lora.base import BaseModules
from registry.lora.check import examine
from registry.lora.config import read_config
from registry.lora.findings import Finding, UnfitAdapter, leading, shown
from registry.lora.json_files import json_object
from registry.lora.modules import Patterns, pattern_findings
from registry.lora.policy import AdapterLimits, Policy, policy_of
from registry.lora.safetensors import Tensor
from tests.corpus.drafts import CONFIG_FIELDS, LLAMA, Draft

NO_LIMITS = AdapterLimits()


def findings(
    draft: Draft, base: BaseModules | None = None, limits: AdapterLimits = NO_LIMITS, **policy: Any
) -> dict[str, Finding]:
    tensors = [Tensor(name, one.dtype, one.shape, 0, len(one.data)) for name, one in draft.tensors.items()]
    config = read_config(json.dumps(draft.config).encode())
    return {one.reason: one for one in examine(config, tensors, base, limits, policy_of(policy)).findings}


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


NOT_PEFTS = r"( (?:a{999}){999} é [z-a] [\d-a] )( (?=a)b (a)\1 (?i)a a{,3} [[:alpha:]]".split()


@pytest.mark.parametrize("key", [*NOT_PEFTS, "a{0,999}b{0,999}" * 9, "a" * 999, "(" * 256], ids=lambda key: key[:20])
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


@pytest.mark.no_cover  # what it executes, quicker tests do too
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


def test_a_finding_says_everything_in_one_line():
    found = findings(LLAMA.draft(), limits=AdapterLimits(max_rank=1))["rank_too_high"]
    assert found.sentence().startswith("r: found rank 4, expected at most 1; start the engines with --max-lora-rank 4")
    assert set(found.as_dict()) == {"reason", "key", "found", "expected", "remedy", "permanent"}
