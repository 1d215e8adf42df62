"""Modules of an adapter by their tensors, where they are in the base, and what is wrong with them, each in full."""

from __future__ import annotations

import inspect
import json
import sys
import time

import pytest

from registry.lora.base import BaseModules
from registry.lora.config import AdapterConfig, read_config
from registry.lora.modules import (
    Module,
    Patterns,
    modules_by_name,
    pair_findings,
    pattern_findings,
    rank_findings,
    renamed_pattern,
    shape_findings,
    wrapped_pattern_findings,
)
from registry.lora.remap import map_modules
from registry.lora.safetensors import Tensor
from registry.lora.tensor_names import TensorName, TensorPart, entry_of
from tests.corpus.drafts import CONFIG_FIELDS, LLAMA
from tests.unit.lora.conftest import verdict_of

A, B = TensorPart.A, TensorPart.B
EMBEDDING_A, EMBEDDING_B = TensorPart.EMBEDDING_A, TensorPart.EMBEDDING_B


def module(name: str = "m", dtype: str = "F32", **parts: tuple[int, ...]) -> Module:
    """A module of tensors of these shapes, by the names of their parts."""
    return Module(name, {TensorPart[part]: Tensor(part, dtype, shape, 0, 0) for part, shape in parts.items()})


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (module(A=(4, 32), B=(16, 4)), []),
        (module(EMBEDDING_A=(4, 64), EMBEDDING_B=(32, 4)), []),
        (module(BASE_LAYER=(4,)), []),
        (module(SAVED=(4,), dtype="I8"), []),
        (module(A=(4, 32)), [("unpaired_tensor", "m", "lora_A without lora_B")]),
        (module(B=(16, 4)), [("unpaired_tensor", "m", "lora_B without lora_A")]),
        (module(A=(4, 32), EMBEDDING_B=(16, 4)), [("unpaired_tensor", "m", "halves of two kinds")]),
        (module(EMBEDDING_A=(4, 32), B=(16, 4)), [("unpaired_tensor", "m", "halves of two kinds")]),
        (module(A=(4, 32, 1), B=(16, 4)), [("shape_mismatch", "A", "shape [4, 32, 1]")]),
        (module(A=(4, 32), B=(16,)), [("shape_mismatch", "B", "shape [16]")]),
        (
            module(A=(4, 32), B=(16, 4), dtype="I8"),
            [("dtype_not_supported", "A", "I8"), ("dtype_not_supported", "B", "I8")],
        ),
        (module(A=(4, 32), B=(16, 4), dtype="F16"), []),
        (module(A=(4, 32), B=(16, 4), dtype="BF16"), []),
    ],
)
def test_what_is_wrong_with_a_pair_in_itself(made, found):
    """R4, R5: halves that are there, of one kind, in numbers that engines read."""
    assert [(one.reason, one.key, one.found) for one in pair_findings(made)] == found


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (module(A=(4, 32), B=(16, 4)), []),
        (module(A=(5, 32), B=(16, 4)), [("A", "rank 5")]),
        (module(A=(4, 32), B=(16, 3)), [("B", "rank 3")]),
        (module(A=(3, 32), B=(16, 5)), [("A", "rank 3"), ("B", "rank 5")]),
        (module(EMBEDDING_A=(3, 64), EMBEDDING_B=(32, 4)), [("EMBEDDING_A", "rank 3")]),
        (module(A=(5, 32)), []),
        (module(B=(16, 5)), []),
        (module(A=(5,), B=(16, 5)), []),
        (module(A=(5, 32), B=(16, 5, 1)), []),
    ],
)
def test_both_halves_have_the_rank_that_is_said(made, found):
    """R4; what is no pair of matrices is told as that, and not twice."""
    told = rank_findings(made, 4)
    assert [(one.key, one.found) for one in told] == found
    assert {(one.reason, one.expected.split()[0]) for one in told} <= {("rank_mismatch", "4")}


@pytest.mark.parametrize(
    ("made", "name", "found"),
    [
        (module(A=(4, 32), B=(16, 4)), "a.q_proj", None),
        (module(A=(4, 31), B=(16, 4)), "a.q_proj", ("m", "outputs x inputs 16 x 31")),
        (module(A=(4, 32), B=(15, 4)), "a.q_proj", ("m", "outputs x inputs 15 x 32")),
        (module(A=(4, 31)), "a.q_proj", ("m", "outputs x inputs None x 31")),
        (module(EMBEDDING_A=(4, 16), EMBEDDING_B=(32, 4)), "a.embed_tokens", None),
        (module(EMBEDDING_A=(4, 32), EMBEDDING_B=(16, 4)), "a.embed_tokens", ("m", "outputs x inputs 32 x 16")),
        (module(A=(4, 32), B=(16, 4)), "a.embed_tokens", ("m", "a linear adapter")),
        (module(B=(16, 4)), "embed_tokens", ("m", "a linear adapter")),
        (module(EMBEDDING_A=(4, 16), EMBEDDING_B=(32, 4)), "a.wte", None),
        (module(A=(4, 32), B=(16, 4), BASE_LAYER=(16, 32)), "a.q_proj", None),
        (
            module(A=(4, 32), B=(16, 4), BASE_LAYER=(16, 31)),
            "a.q_proj",
            ("BASE_LAYER", "base weights of shape [16, 31]"),
        ),
        (module(A=(4, 32), B=(16, 4), BASE_LAYER=(16,)), "a.q_proj", ("BASE_LAYER", "base weights of shape [16]")),
    ],
)
def test_a_module_was_trained_on_one_of_the_bases_shape(made, name, found):
    """R5: the shape of the base's own weights too, where they are in the file."""
    told = shape_findings(made, name, (16, 32))
    assert [(one.reason, one.key, one.found) for one in told] == ([("shape_mismatch", *found)] if found else [])


def tensors(*names: str) -> list[TensorName]:
    return [entry_of(Tensor(name, "F32", (4, 4), 0, 0)) for name in names]


def test_two_tensors_that_claim_to_be_the_same_are_found():
    """R4: one of them would be left out; of a saved module there may be a weight and a bias."""
    twice = tensors("a.lora_A.weight", "a.lora_A.default.weight", "a.lora_B.weight", "score.weight", "score.bias")
    modules, findings = modules_by_name(twice)
    assert [(one.reason, one.key) for one in findings] == [("duplicate_module", "a.lora_A.default.weight")]
    assert "lora_A of a" in findings[0].found
    assert {name: set(one.parts) for name, one in modules.items()} == {"a": {A, B}, "score": {TensorPart.SAVED}}
    assert modules["a"].name == "a"


# Patterns.


# A class of characters, a thousand times: some 90 KiB when it is compiled.
WIDE = "[a-z0-9_.-]{999}"


def config(**patterns: dict[str, int]) -> AdapterConfig:
    return read_config(json.dumps(CONFIG_FIELDS | patterns).encode())


@pytest.mark.parametrize(
    ("patterns", "modules", "fields"),
    [
        ({}, 5_000_000, []),
        ({"rank_pattern": {"q": 1}}, 4_000_000, []),
        ({"rank_pattern": {"q": 1}}, 4_000_001, ["rank_pattern"]),
        ({"rank_pattern": {"q": 1}, "alpha_pattern": {"q": 1}}, 2_000_000, []),
        ({"rank_pattern": {"q": 1}, "alpha_pattern": {"q": 1}}, 2_000_001, ["rank_pattern"]),
        ({"alpha_pattern": {"q.*": 1}}, 1000, []),
        ({"alpha_pattern": {"q.*": 1}}, 4_000_000, ["rank_pattern"]),
        ({"alpha_pattern": {f"{'q' * 250}.*": 1}}, 1000, ["rank_pattern"]),
        ({"rank_pattern": {"(": 1}, "alpha_pattern": {"q": 1, "[": 1}}, 1, ["rank_pattern.(", "alpha_pattern.["]),
        ({"rank_pattern": {"(": 1}}, 4_000_001, ["rank_pattern.("]),
        ({"rank_pattern": {WIDE * 2: 1}}, 1, []),
        ({"rank_pattern": {WIDE * 5: 1}}, 1, [f"rank_pattern.{WIDE * 5}"]),
        ({"rank_pattern": {"a" * 256: 1}}, 1, []),
        ({"rank_pattern": {"a" * 257: 1}}, 1, [f"rank_pattern.{'a' * 257}"]),
        ({"rank_pattern": {"a" * 400: 1}}, 1, [f"rank_pattern.{'a' * 400}"[:300]]),
    ],
    ids=lambda one: f"{one}"[:60],
)
def test_patterns_are_followed_up_to_what_they_cost(patterns, modules, fields):
    """R8, R16: a plain key costs one step for each module, and four millions are what all may take together.

    One expression takes at most 256 KiB when it is compiled.
    """
    told = pattern_findings(config(**patterns), modules)
    assert [(one.reason, one.key) for one in told] == [("unsupported_pattern", field) for field in fields]


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
    assert not pattern_findings(config(rank_pattern={key: 8}), 100)
    assert Patterns({key: 8}, 4).value("model.layers.0.self_attn.q_proj") == 8
    assert Patterns({key: 8}, 4).value("model.norm") == 4


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
    assert [one.reason for one in pattern_findings(config(alpha_pattern={key: 8}), 1)] == ["unsupported_pattern"]
    draft = LLAMA.draft()
    draft.config["rank_pattern"] = {key: 1, "q_proj": 1}
    assert {one.reason for one in verdict_of(draft, BaseModules(LLAMA.modules)).findings} == {"unsupported_pattern"}


def test_a_key_that_is_nested_too_deeply_for_whoever_asks_is_not_followed():
    """X2: Python reads a group within a group by calling itself."""

    def asked(letter: str, depth: int = 0) -> list[str]:
        if depth:
            return asked(letter, depth - 1)
        nested = config(rank_pattern={"(" * 100 + letter + ")" * 100: 1})
        return [one.reason for one in pattern_findings(nested, 1)]

    assert asked("a") == []
    left = sys.getrecursionlimit() - len(inspect.stack(0))
    assert asked("b", left - 100) == ["unsupported_pattern"]


def test_what_cannot_be_compiled_is_told_by_us_alone(capfd):
    """R16: the engine of expressions does not write of it, a line for each key of somebody's file."""
    assert Patterns({"(?:a{999}){999}": 8}, 4).value("a") == 4
    assert capfd.readouterr() == ("", "")


def test_a_module_has_the_value_of_the_first_key_that_is_its_name_or_its_end():
    """R4: as PEFT finds it."""
    found = Patterns({"b.q": 1, "q": 2, "(": 9, "v": 3}, 4)
    assert [found.own(name) for name in ("a.b.q", "b.q", "xb.q", "a.q", "q", "v", "qv")] == [1, 1, 2, 2, 2, 3, None]
    assert [found.value(name) for name in ("a.b.q", "v", "k")] == [1, 3, 4]
    assert Patterns(None, 5).value("q") == 5


def test_a_pattern_keeps_its_values_under_new_names():
    """R4: a key for each module that one gives a value, none for the others."""
    renames = {"x.q": "model.q", "x.v": "model.v", "x.long.q": "model.long.q"}
    assert renamed_pattern({"q": 8}, renames, 4) == {r"model\.long\.q": 8, r"model\.q": 8}
    assert list(renamed_pattern({"q": 8}, renames, 4)) == [r"model\.long\.q", r"model\.q"]
    assert renamed_pattern({"k": 8}, renames, 4) == {}
    assert renamed_pattern({}, renames, 4) == renamed_pattern(None, renames, 4) == {}


def test_a_key_under_a_new_name_means_no_other_module_that_ends_with_it():
    """R4: as those of a tower. PEFT and engines take a key for all that ends with it."""
    renames = {"x.q": "layers.1.q", "tower.q": "tower.layers.1.q", "y.q": "layers.11.q", "k": "k"}
    written = renamed_pattern({"x.q": 8}, renames, 4)
    assert written == {r"tower\.layers\.1\.q": 4, r"layers\.1\.q": 8}
    found = Patterns(written, 4)
    assert {name: found.value(name) for name in renames.values()} == {
        "layers.1.q": 8,
        "tower.layers.1.q": 4,
        "layers.11.q": 4,
        "k": 4,
    }


# The places of modules in the base.


def base(*names: str, **shapes: tuple[int, int]) -> BaseModules:
    return BaseModules({**dict.fromkeys(names, (4, 4)), **shapes})


def mapped(known: BaseModules, *names: str, may_rename: bool = True) -> tuple[dict[str, str], list[tuple[str, ...]]]:
    """The new names, and what could not be found."""
    modules = {name: module(name, A=(2, 4), B=(4, 2)) for name in names}
    found = map_modules(modules, known, may_rename=may_rename)
    return found.renames, [(one.reason, one.key, one.found, one.expected) for one in found.findings]


LAYERS = base("model.layers.0.q", "model.layers.1.q", "model.layers.2.q", "model.layers.2.v", "lm_head")
LACKING = ("a module that the base does not have", "one of the base's, which are called lm_head, q, v")


def test_a_module_of_the_bases_own_name_stays_and_those_of_another_beginning_move_together():
    for may_rename in (True, False):
        assert mapped(LAYERS, "model.layers.0.q", "lm_head", may_rename=may_rename) == ({}, [])
    renames = {"x.layers.0.q": "model.layers.0.q", "x.layers.2.v": "model.layers.2.v", "y.lm_head": "lm_head"}
    assert mapped(LAYERS, *renames) == (renames, [])


def test_nothing_is_moved_where_it_may_not_be_or_where_the_beginning_is_the_bases_own():
    """R4: a module that is wrong is not made another one."""
    absent = [("no_such_module", "x.layers.0.q", *LACKING)]
    assert mapped(LAYERS, "x.layers.0.q", may_rename=False) == ({}, absent)
    towers = base("a.layers.0.q", "b.layers.0.q", "b.layers.0.v")
    lacking = ("a module that the base does not have", "one of the base's, which are called q, v")
    assert mapped(towers, "a.layers.0.q", "a.layers.0.v") == ({}, [("no_such_module", "a.layers.0.v", *lacking)])


@pytest.mark.parametrize(
    ("names", "findings"),
    [
        (["model.layers.0.q", "model.layers.3.q"], [("too_many_layers", "model.layers.3.q", "layers.3", "layers.2")]),
        (["x.layers.0.q", "x.layers.9.q"], [("too_many_layers", "x.layers.9.q", "layers.9", "layers.2")]),
        (["x.lm_head", "x.layers.0.q", "x.layers.9.q"], [("too_many_layers", "x.layers.9.q", "layers.9", "layers.2")]),
        (["model.layers.0.q", "model.layers.0.v"], [("no_such_module", "model.layers.0.v", *LACKING)]),
        (["model.layers.0.q", "model.layers.5.k"], [("no_such_module", "model.layers.5.k", *LACKING)]),
        (["x.layers.0.q", "x.other"], [("no_such_module", "x.other", *LACKING)]),
    ],
    ids=str,
)
def test_what_the_base_lacks_is_told_by_its_number_or_its_name(names, findings):
    """R14: the base is another one, or it ends before that layer."""
    renames, told = mapped(LAYERS, *names)
    expected = [
        (reason, key, found, f"at most {more}, the base's last" if reason == "too_many_layers" else more)
        for reason, key, found, more in findings
    ]
    assert (renames, told) == ({}, expected)


def test_the_last_layer_of_a_base_of_one_is_its_first_and_what_it_lacks_is_no_layer_too_many():
    one = base("model.layers.0.q", "lm_head")
    for names in (("model.layers.0.q", "model.layers.1.q"), ("x.layers.0.q", "x.layers.1.q", "x.lm_head")):
        expected = ("too_many_layers", names[1], "layers.1", "at most layers.0, the base's last")
        assert mapped(one, *names)[1] == [expected]
    known = base("model.layers.0.q", "model.layers.1.v")
    lacking = ("a module that the base does not have", "one of the base's, which are called q, v")
    expected = ("no_such_module", "model.layers.1.q", *lacking)
    assert mapped(known, "model.layers.0.q", "model.layers.1.q")[1] == [expected]


def test_a_module_is_compared_with_few_names():
    """R16 bounded: it is told in a status."""
    many = base(*(f"model.layers.0.part{at:02}" for at in range(15)))
    (finding,) = mapped(many, "other")[1]
    assert finding[3].count("part") <= 12


def test_a_module_in_several_places_is_not_guessed_and_in_another_shape_only_where_there_is_one():
    small, large = {"left.layers.0.q": (4, 4)}, {"right.layers.0.q": (8, 8)}
    assert mapped(BaseModules(small | large), "x.layers.0.q") == ({"x.layers.0.q": "left.layers.0.q"}, [])
    assert mapped(BaseModules(large), "x.layers.0.q") == ({"x.layers.0.q": "right.layers.0.q"}, [])
    both = BaseModules({"left.layers.0.q": (8, 8), "right.layers.0.q": (8, 8)})
    assert [one[:2] for one in mapped(both, "x.layers.0.q")[1]] == [("no_such_module", "x.layers.0.q")]
    alike = BaseModules({"left.layers.0.q": (4, 4), "right.layers.0.q": (4, 4)})
    renames, (finding,) = mapped(alike, "x.layers.0.q", "x.layers.0.q")
    assert (renames, finding[:2]) == ({}, ("ambiguous_module", "x.layers.0.q"))
    assert "below 'left.' and 'right.'" in finding[2]


def test_a_tower_is_never_taken_for_the_language_model():
    """R4: though it has the same blocks, in the same shape."""
    both = base("visual.blocks.0.q", "model.blocks.0.q")
    assert mapped(both, "x.visual.blocks.0.q", "y.blocks.0.q") == (
        {"x.visual.blocks.0.q": "visual.blocks.0.q", "y.blocks.0.q": "model.blocks.0.q"},
        [],
    )
    assert mapped(base("visual.blocks.0.q"), "y.blocks.0.q")[0] == {}


@pytest.mark.parametrize(
    "names",
    [
        ["model.layers.0._checkpoint_wrapped_module.q", "model.layers.2.v"],
        ["_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module.q", "module.model.layers.2.v"],
        ["x.layers._orig_mod.0.q.base_layer", "x.layers.2._x.module.v"],
        ["model.layers.0.q.base_layer", "lm_head.base_layer"],
    ],
    ids=str,
)
def test_wrappers_amid_names_are_left_out(names):
    """R5: at any depth, around some of the modules or all, and below another beginning."""
    renames, told = mapped(LAYERS, *names)
    assert (told, {renames.get(name, name) for name in names} <= LAYERS.modules.keys()) == ([], True)
    absent = [name for name in names if name not in LAYERS.modules]
    refused = mapped(LAYERS, *names, may_rename=False)
    assert (refused[0], [one[1] for one in refused[1]]) == ({}, absent)


def test_a_part_that_the_base_has_is_no_wrapper():
    """R4: its modules are others."""
    known = base("model.layers.0.q", "model.layers.0.module.k", "model.layers.0._x.k")
    for name in ("model.layers.0.module.q", "model.layers.0._x.q"):
        assert [one[:2] for one in mapped(known, name)[1]] == [("no_such_module", name)]


def test_another_part_that_the_base_lacks_is_told_and_not_left_out():
    """R4, R14: it may be a module of another model; if not, who trained it can say so."""
    known = base("model.layers.0.q", "model.layers.1.q", "lm_head")
    names = ("model.layers.0.inner.q", "model.layers.1.inner.q")
    renames, (finding,) = mapped(known, *names)
    assert (renames, finding[:2]) == ({}, ("no_such_module", names[0]))
    assert finding[2] == "'inner' amid the names of 2 modules, which are the base's without it"
    for others in (("model.layers.0.inner.q", "model.layers.1.other.q"), ("inner",), ("model.layers.0.inner.v",)):
        assert "amid" not in mapped(known, *others)[1][0][2]


def test_patterns_that_a_wrapper_changes_are_not_guessed():
    """R4: the training matched them before it wrapped its modules, or afterwards."""
    names = {"layers.0._x.q": "layers.0.q"}
    fits = {"q": 2, "layers.0.*q": 2}
    assert wrapped_pattern_findings(config(rank_pattern=fits, alpha_pattern=fits), names) == []
    found = wrapped_pattern_findings(config(rank_pattern={"layers.0.q": 2}, alpha_pattern={"_x.q": 2}), names)
    assert [(one.reason, one.key) for one in found] == [
        ("unsupported_pattern", "rank_pattern"),
        ("unsupported_pattern", "alpha_pattern"),
    ]
    assert wrapped_pattern_findings(config(rank_pattern={"layers.0.q": 2}), {}) == []
