"""What is written for each module of a trained adapter, with its rank, its scale and its error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from registry.lora.base import BaseModules
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE
from registry.lora.directory import examine_directory, open_directory
from registry.lora.findings import CannotPublish
from registry.lora.policy import AdapterLimits, Policy
from registry.tools.convert.options import ConversionOptions, ModuleOutcome, task_of
from tests.corpus.drafts import CONFIG_FIELDS, Draft, Values, safetensors
from tests.support.played_torch import first_halves

Array = np.ndarray[Any, Any]
MODULES = {
    "model.layers.0.self_attn.q_proj": (6, 5),
    "model.layers.0.self_attn.v_proj": (4, 5),
    "model.layers.1.self_attn.q_proj": (6, 5),
}
Q0, V0, Q1 = MODULES
PREFIX = "base_model.model."
RANK, ALPHA = 3, 6.0
TYPES = {"F32": "<f4", "F16": "<f2"}


class Training:
    """An adapter and the weights of its base; `pairs`: up and down of each module."""

    def __init__(self, ranks: Mapping[str, int] | None = None) -> None:
        chance = np.random.default_rng(3)
        ranks = ranks or {}
        self.weights = {name: chance.normal(size=shape).astype(np.float32) for name, shape in MODULES.items()}
        self.pairs: dict[str, tuple[Array, Array]] = {}
        for name, (outputs, inputs) in MODULES.items():
            rank = ranks.get(name, RANK)
            sizes = np.logspace(0, -2, rank)
            up = chance.normal(size=(outputs, rank)) * sizes
            self.pairs[name] = up.astype(np.float32), chance.normal(size=(rank, inputs)).astype(np.float32)
        self.config: dict[str, Any] = {
            **CONFIG_FIELDS,
            "r": RANK,
            "lora_alpha": ALPHA,
            "target_modules": ["q_proj", "v_proj"],
            "note": "of its training",
        }
        self.tensors: dict[str, Values] = {}
        self.dtype = "F32"
        self.base_dtype = "F32"

    def magnitudes(self) -> dict[str, Array]:
        """DoRA: a magnitude of each row."""
        self.config["use_dora"] = True
        made = {name: np.linspace(0.5, 2.0, shape[0], dtype=np.float32) for name, shape in MODULES.items()}
        for name, values in made.items():
            self.hold(f"{name}.lora_magnitude_vector", values)
        return made

    def hold(self, name: str, array: Array) -> None:
        self.tensors[f"{PREFIX}{name}"] = Values(self.dtype, array.shape, array.astype(TYPES[self.dtype]).tobytes())

    def write(self, folder: Path) -> Path:
        for name, (up, down) in self.pairs.items():
            self.hold(f"{name}.lora_A.weight", down)
            self.hold(f"{name}.lora_B.weight", up)
        base = {
            f"{name}.weight": Values(self.base_dtype, one.shape, one.astype("<f4").tobytes())
            for name, one in self.weights.items()
        }
        (folder / "base").mkdir()
        (folder / "base" / "model.safetensors").write_bytes(safetensors(base))
        return Draft(self.config, self.tensors, {"format": "pt", "by": "a trainer"}).write(folder / "trained")


BASE = BaseModules(MODULES)


class Made:
    """What a conversion wrote."""

    def __init__(self, numeric: Any, folder: Path, outcomes: list[ModuleOutcome]) -> None:
        self.folder = folder
        self.outcomes = {one.module: one for one in outcomes}
        self.config = json.loads((folder / CONFIG_FILE).read_text())
        self.opened = open_directory(folder)
        places = numeric.stored.places_in(folder / WEIGHTS_FILE)
        self.tensors = {name.removeprefix(PREFIX): place.read() for name, place in places.items()}

    def delta(self, module: str) -> Array:
        """What whoever reads the files adds to the weights of a module."""
        alpha = self.config["alpha_pattern"].get(module.replace(".", r"\."), self.config["lora_alpha"])
        rank = self.config["rank_pattern"].get(module.replace(".", r"\."), self.config["r"])
        up, down = (self.tensors[f"{module}.lora_{half}.weight"] for half in "BA")
        assert (up.shape[1], down.shape[0]) == (rank, rank), "its rank is that of the configuration"
        made: Array = alpha / rank * (up.array.astype(float) @ down.array.astype(float))
        return made


@pytest.fixture
def convert(numeric, tmp_path) -> Callable[..., Made]:
    """Converts a training; `first`: how it began, True: computed, a folder: kept there."""

    def call(
        training: Training,
        *,
        base: bool = True,
        first: Any = None,
        vision: Any = "reject",
        modules: BaseModules | None = BASE,
        **wish: Any,
    ) -> Made:
        source, out = training.write(tmp_path), tmp_path / "out"
        out.mkdir()
        opened = open_directory(source)
        options = ConversionOptions(**{"max_error": 1e-3, **wish}, policy=Policy(vision=vision))
        task = task_of(opened, modules, options)
        assert task.verdict.findings == ()
        weights = None
        if base:
            begun = numeric.arithmetic.computed(task.init.lower()) if first is True else first
            weights = numeric.converter.BaseWeights(numeric.stored.places_of_base(tmp_path / "base"), begun)
        outcomes = numeric.converter.convert(source, out, opened, task, options, weights)
        made = Made(numeric, out, outcomes)
        if vision == "reject":
            plain = Policy(remap="off")
            found = examine_directory(out, BASE, AdapterLimits(), plain).verdict
            assert (found.findings, bool(found.changes)) == ((), False), "it is served as it is written"
        return made

    return call


def relative(found: Array, wanted: Array) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def trained(training: Training, module: str, scale: float) -> Array:
    up, down = (one.astype(float) for one in training.pairs[module])
    made: Array = scale * up @ down
    return made


@pytest.mark.parametrize("rank", [1, 2])
def test_a_lower_rank_is_the_nearest_there_is(convert, rank):
    """R4: and it is told how far that is, and which rank would do."""
    training = Training()
    made = convert(training, base=False, rank=rank, max_error=1.0)
    for module in MODULES:
        wanted = trained(training, module, ALPHA / RANK)
        values = np.linalg.svd(wanted, compute_uv=False)
        least = np.linalg.norm(values[rank:]) / np.linalg.norm(values)
        outcome = made.outcomes[module]
        assert relative(made.delta(module), wanted) == pytest.approx(least, rel=1e-4)
        assert (outcome.kind, outcome.trained_rank, outcome.rank, outcome.alpha) == ("rank", RANK, rank, rank)
        assert outcome.error == pytest.approx(least, rel=1e-4)
        assert outcome.enough == 1, "all is within an error of 1"
    assert made.config["note"] == "of its training"
    assert (made.config["r"], made.config["lora_alpha"]) == (rank, rank)
    assert made.opened.header.metadata == {"format": "pt", "by": "a trainer"}


def test_what_would_be_too_far_from_the_training_is_not_written(convert, tmp_path):
    with pytest.raises(CannotPublish, match="rank 3 would do"):
        convert(Training(), base=False, rank=1, max_error=1e-6)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("use_rslora", [False, True])
def test_each_module_keeps_its_own_rank_and_scale(convert, use_rslora):
    """R4: one has its rank and its alpha by a pattern; only what has more than the wanted rank is shortened."""
    training = Training({Q1: 4, V0: 1})
    training.config |= {"rank_pattern": {Q1: 4, "v_proj": 1}, "alpha_pattern": {Q1: 2.0}, "use_rslora": use_rslora}
    made = convert(training, base=False, rank=3, max_error=0.9)
    alphas, ranks = {Q0: ALPHA, V0: ALPHA, Q1: 2.0}, {Q0: 3, V0: 1, Q1: 4}
    assert {module: made.outcomes[module].kind for module in MODULES} == {Q0: "kept", V0: "kept", Q1: "rank"}
    for module in MODULES:
        scale = alphas[module] / (math.sqrt(ranks[module]) if use_rslora else ranks[module])
        wanted = trained(training, module, scale)
        outcome = made.outcomes[module]
        assert relative(made.delta(module), wanted) == pytest.approx(outcome.error, rel=1e-4, abs=1e-6)
        assert outcome.error < 0.1
        assert (outcome.trained_rank, outcome.rank) == (ranks[module], min(3, ranks[module]))
        assert outcome.enough == (None if module != Q1 else 1)
    assert (made.config["use_rslora"], made.config["r"]) == (False, 3)
    assert made.config["rank_pattern"] == {V0.replace(".", r"\."): 1}


@pytest.mark.parametrize(("dtype", "bound"), [("F16", 1e-3), ("BF16", 1e-2)])
def test_a_cast_changes_the_numbers_alone(convert, tmp_path, dtype, bound):
    training = Training()
    made = convert(training, base=False, dtype=dtype, max_error=bound)
    assert {tensor.dtype for tensor in made.opened.header.tensors} == {dtype}
    assert made.folder.joinpath(CONFIG_FILE).read_bytes() == (tmp_path / "trained" / CONFIG_FILE).read_bytes()
    for module, outcome in made.outcomes.items():
        wanted = trained(training, module, ALPHA / RANK)
        up, down = (made.tensors[f"{module}.lora_{half}.weight"].array.astype(float) for half in "BA")
        assert relative(ALPHA / RANK * up @ down, wanted) == pytest.approx(outcome.error, rel=1e-4)
        assert 1e-6 < outcome.error < bound
        assert (outcome.kind, outcome.rank, outcome.enough) == ("cast", RANK, None)
        assert outcome.alpha == pytest.approx(ALPHA)


def test_what_is_in_that_type_already_is_kept_to_the_bit(convert):
    training = Training()
    training.tensors[f"{PREFIX}score.weight"] = Values("F16", (2, 5), np.ones((2, 5), "<f2").tobytes())
    training.config |= {"task_type": "SEQ_CLS", "modules_to_save": ["score"]}
    made = convert(training, base=False, dtype="F32", vision="keep", modules=None)
    assert {one.kind for one in made.outcomes.values()} == {"kept"}
    assert [one.error for one in made.outcomes.values()] == pytest.approx([0.0] * 3, abs=1e-9)
    for module, (up, down) in training.pairs.items():
        assert made.tensors[f"{module}.lora_B.weight"].array.tolist() == up.tolist()
        assert made.tensors[f"{module}.lora_A.weight"].array.tolist() == down.tolist()
    assert made.tensors["score.weight"].array.tolist() == [[1.0] * 5] * 2
    assert {tensor.dtype for tensor in made.opened.header.tensors} == {"F32"}


@pytest.mark.parametrize("dtype", [None, "BF16"])
def test_magnitudes_go_into_the_pairs(convert, dtype):
    """R4: with the rank of the matrix nothing is lost but what the type of the numbers costs."""
    training = Training()
    magnitudes = training.magnitudes()
    made = convert(training, rank=5, dtype=dtype, max_error=1e-2)
    for module in MODULES:
        weight = training.weights[module].astype(float)
        directed = weight + trained(training, module, ALPHA / RANK)
        rows = np.linalg.norm(directed, axis=1)
        wanted = (magnitudes[module] / rows)[:, None] * directed - weight
        outcome = made.outcomes[module]
        assert outcome.error == pytest.approx(relative(made.delta(module), wanted), rel=1e-3, abs=1e-6)
        assert outcome.error < (1e-5 if dtype is None else 1e-2)
        assert (outcome.kind, outcome.trained_rank, outcome.rank) == ("dora", RANK, min(5, MODULES[module][0]))
    assert made.config["use_dora"] is False
    assert not [name for name in made.tensors if "magnitude" in name]


@pytest.mark.parametrize(
    ("rank", "expected", "is_shortened"),
    [(2 * RANK - 1, 2 * RANK - 1, True), (2 * RANK, 2 * RANK, False), (2 * RANK + 1, 2 * RANK, False)],
    ids=str,
)
def test_what_was_taken_off_may_be_shortened(convert, rank, expected, is_shortened):
    training = Training()
    training.config["init_lora_weights"] = "pissa"
    outcome = convert(training, first=True, rank=rank, max_error=0.9).outcomes[Q0]
    assert (outcome.kind, outcome.rank, outcome.enough is not None) == ("init", expected, is_shortened)


@pytest.mark.parametrize("first", [True, "kept"])
def test_what_was_taken_out_of_the_base_is_taken_off(convert, numeric, tmp_path, first):
    """R4: PiSSA trains on a changed base: what it added to the base that is served is the difference, exactly."""
    training = Training()
    training.config["init_lora_weights"] = "PiSSA"
    scale = ALPHA / RANK
    halves = {name: first_halves(one, RANK, scale) for name, one in training.weights.items()}
    if first == "kept":
        kept = Training()
        kept.pairs = {name: (up.astype(np.float32), down.astype(np.float32)) for name, (up, down) in halves.items()}
        (tmp_path / "first").mkdir()
        first = numeric.arithmetic.kept(kept.write(tmp_path / "first"))
    made = convert(training, first=first)
    for module in MODULES:
        up, down = halves[module]
        wanted = trained(training, module, scale) - scale * up @ down
        outcome = made.outcomes[module]
        assert relative(made.delta(module), wanted) < 1e-5
        assert outcome.error < 1e-5
        assert (outcome.kind, outcome.trained_rank, outcome.rank) == ("init", RANK, 2 * RANK)
        assert (outcome.alpha, outcome.enough) == (2 * RANK, None)
    assert made.config["init_lora_weights"] is True
    assert {tensor.dtype for tensor in made.opened.header.tensors} == {"F32"}


def other_training(*_: object) -> None:
    raise KeyError("it has no such pair")


@pytest.mark.parametrize(
    ("init", "change", "how", "told"),
    [
        (
            None,
            lambda one: setattr(one, "base_dtype", "I32"),
            {},
            "no plain weights of {}; name one that is not quantized",
        ),
        (None, lambda one: one.weights.pop(Q0), {}, "the base has no plain weights of {}"),
        (None, lambda one: one.weights.pop(Q0), {"base": False}, "the base has no plain weights of {}"),
        ("pissa", id, {}, "nothing says how {} began; name the first adapter with --initial"),
        ("pissa", id, {"first": other_training}, "it has no such pair; name the adapter that this training began with"),
    ],
    ids=["packed", "lacking", "no base", "unknown beginning", "another training"],
)
def test_what_lacks_the_weights_of_its_base_or_its_beginning_is_refused(convert, init, change, how, told):
    training = Training()
    training.config["init_lora_weights"] = init or True
    if not init:
        training.magnitudes()
    change(training)
    with pytest.raises(CannotPublish, match=told.format(Q0)):
        convert(training, **how)


def test_the_parts_that_see_are_left_out_where_they_may_be(convert):
    training = Training()
    for half, shape in (("A", (RANK, 4)), ("B", (4, RANK))):
        training.hold(f"visual.blocks.0.attn.qkv.lora_{half}.weight", np.ones(shape))
    made = convert(training, base=False, rank=2, max_error=0.9, vision="drop")
    assert set(made.outcomes) == set(MODULES)
    assert not [name for name in made.tensors if "visual" in name]


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_module_that_the_base_calls_otherwise_is_written_under_the_bases_name(convert, is_renamed):
    """R4: its numbers are read under that name; where only numbers change, patterns have to find the old ones."""
    training = Training()
    named = {name: training.pairs.pop(name) for name in MODULES}
    training.pairs = {name.replace("model.", "language_model.", 1): pair for name, pair in named.items()}
    wish = {"rank": 2, "max_error": 0.9} if is_renamed else {"dtype": "F16", "vision": "keep"}
    made = convert(training, base=False, **wish)
    assert set(made.outcomes) == set(MODULES)
    if not is_renamed:
        assert {name.partition(".")[0] for name in made.tensors} == {"language_model"}
        return
    assert set(made.tensors) == {f"{module}.lora_{half}.weight" for module in MODULES for half in "AB"}
    training.pairs = named
    for module in MODULES:
        assert relative(made.delta(module), trained(training, module, ALPHA / RANK)) < 0.1


def outcome(module: str, rank: int, alpha: float) -> ModuleOutcome:
    return ModuleOutcome(module, "rank", 8, rank, alpha, 0.0)


def test_a_configuration_says_of_each_module_what_differs_from_the_most(numeric):
    """PEFT takes the first key that a name ends with: the longest come first, also where a shorter one has a key."""
    outcomes = [
        outcome("proj", 2, 2),
        outcome("b.proj", 4, 4),
        outcome("a.proj", 4, 8),
        outcome("c.a.proj", 8, 8),
        outcome("c.b.proj", 8, 16),
    ]
    made = json.loads(numeric.converter.new_config(b'{"r": 64, "peft_type": "LORA", "use_rslora": true}', outcomes))
    assert made == {
        "r": 8,
        "lora_alpha": 8,
        "rank_pattern": {r"c\.a\.proj": 8, r"c\.b\.proj": 8, r"a\.proj": 4, r"b\.proj": 4, "proj": 2},
        "alpha_pattern": {r"c\.a\.proj": 8, r"c\.b\.proj": 16, r"a\.proj": 8, r"b\.proj": 4, "proj": 2},
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": False,
        "peft_type": "LORA",
    }
    assert list(made["alpha_pattern"]) == [r"c\.a\.proj", r"c\.b\.proj", r"a\.proj", r"b\.proj", "proj"]


def test_a_half_without_its_other_is_no_pair(numeric, tmp_path):
    """What reads an adapter before it is examined would otherwise end with an error of its own."""
    training = Training()
    source = training.write(tmp_path)
    opened = open_directory(source)
    places = numeric.stored.places_in(source / WEIGHTS_FILE)
    task = task_of(opened, BASE, ConversionOptions(dtype="BF16"))
    for module, half in ((Q0, "A"), (V0, "B")):
        places.pop(f"{PREFIX}{module}.lora_{half}.weight")
    assert [one.name for one in numeric.converter._trained(places, opened.config, task)] == [Q1]
