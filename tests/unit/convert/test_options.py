"""What has to be computed for a publication, and when its errors are too large; without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.lora.base import BaseModules
from registry.lora.directory import Opened, open_directory
from registry.lora.policy import Policy
from registry.tools.convert.options import (
    CannotPublish,
    ConversionOptions,
    ModuleOutcome,
    Task,
    base_doubts,
    check_errors,
    impossible,
    task_of,
)
from tests.corpus.drafts import LLAMA, RANK, Draft, Values

BASE = BaseModules({name: (shape[0], shape[1]) for name, shape in LLAMA.modules.items()})


def opened(folder: Path, draft: Draft) -> Opened:
    return open_directory(draft.write(folder / "a"))


def task(folder: Path, draft: Draft, **wish: object) -> Task:
    return task_of(opened(folder, draft), BASE, ConversionOptions(**wish))


def with_magnitude(**config: object) -> Draft:
    draft = LLAMA.draft()
    for module in LLAMA.targets:
        outputs = LLAMA.modules[module][0]
        draft.tensors[magnitude_of(module)] = Values("F32", (outputs,), bytes(4 * outputs))
    draft.config |= {"use_dora": True} | config
    return draft


def magnitude_of(module: str) -> str:
    return f"base_model.model.{module}.lora_magnitude_vector"


def one_of_another_type() -> Draft:
    draft = LLAMA.draft()
    name, values = next(iter(draft.tensors.items()))
    draft.tensors[name] = Values("F16", values.shape, bytes(len(values.data) // 2))
    return draft


def plain(**config: object) -> Draft:
    draft = LLAMA.draft()
    draft.config |= config
    return draft


@pytest.mark.parametrize(
    ("draft", "wish", "is_work"),
    [
        (LLAMA.draft(), {}, False),
        (LLAMA.draft(), {"rank": RANK}, False),
        (LLAMA.draft(), {"rank": RANK - 1}, True),
        (LLAMA.draft(), {"dtype": "F32"}, False),
        (LLAMA.draft(), {"dtype": "BF16"}, True),
        (one_of_another_type(), {"dtype": "F32"}, True),
        *((plain(init_lora_weights=how), {}, False) for how in (None, False)),
        (with_magnitude(), {}, True),
    ],
    ids=["nothing", "its rank", "a lower rank", "its type", "another type", "a tensor", "as usual", "random", "dora"],
)
def test_what_is_so_already_is_no_work(tmp_path, draft, wish, is_work):
    found, is_dora = task(tmp_path, draft, **wish), draft.config.get("use_dora", False)
    assert (bool(found), found.is_dora, found.needs_base) == (is_work, is_dora, is_dora)
    assert (found.init, found.verdict.findings) == (None, ())


@pytest.mark.parametrize(
    ("init", "has_initial", "is_mended"),
    [
        ("PiSSA", False, True),
        ("olora", False, True),
        ("pissa_niter_4", False, False),
        ("pissa_niter_4", True, True),
        ("corda", True, True),
        ("lora_ga", False, False),
        ("lora_ga", True, True),
        ("loftq", True, False),
        ("gaussian", False, False),
        (True, False, False),
    ],
    ids=str,
)
def test_an_initialisation_is_mended_if_it_can_be_known(tmp_path, init, has_initial, is_mended):
    found = task(tmp_path, plain(init_lora_weights=init), has_initial=has_initial)
    assert (found.init is not None) is is_mended
    refused = [one.reason for one in found.verdict.findings]
    assert refused == ([] if is_mended or init in {"gaussian", True} else ["unsupported_init"])


def test_what_is_dropped_by_policy_is_work(tmp_path):
    draft = LLAMA.draft()
    for half, shape in (("A", (RANK, 20)), ("B", (60, RANK))):
        name = f"base_model.model.visual.blocks.0.attn.qkv.lora_{half}.weight"
        draft.tensors[name] = Values("F32", shape, bytes(4 * shape[0] * shape[1]))
    assert task(tmp_path, draft).verdict.findings[0].reason == "vision_modules"
    found = task_of(open_directory(tmp_path / "a"), BASE, ConversionOptions(policy=Policy(vision="drop")))
    assert (bool(found), found.needs_base, found.verdict.findings) == (True, False, ())


def objections(folder: Path, draft: Draft) -> list[tuple[str, str]]:
    """What cannot be computed: where, and what was found."""
    made = opened(folder, draft)
    return [(one.key, one.found) for one in impossible(task_of(made, BASE, ConversionOptions()), made)]


def test_what_cannot_be_computed_is_said(tmp_path):
    """Which way round the base's matrices lie is no matter of what is not computed with them."""
    for number, (config, keys) in enumerate(
        (({"fan_in_fan_out": True}, ["fan_in_fan_out"]), ({"init_lora_weights": "pissa"}, ["use_dora"]), ({}, []))
    ):
        assert [key for key, _ in objections(tmp_path / f"{number}", with_magnitude(**config))] == keys
    for number, more in enumerate(({}, {"fan_in_fan_out": True}, {"lora_dropout": 0.1})):
        assert objections(tmp_path / f"plain{number}", plain(**more)) == []
    draft = with_magnitude()
    draft.tensors[magnitude_of(LLAMA.targets[0]) + ".default.weight"] = Values("F32", (1,), bytes(4))
    assert [found for _, found in objections(tmp_path / "two", draft)] == ["two of one module"]
    draft = with_magnitude()
    for half, shape in (("A", (RANK, 64)), ("B", (32, RANK))):
        name = f"base_model.model.model.embed_tokens.lora_embedding_{half}"
        draft.tensors[name] = Values("F32", shape, bytes(4 * shape[0] * shape[1]))
    assert [found for _, found in objections(tmp_path / "embedding", draft)] == ["an embedding"]


@pytest.mark.parametrize(
    ("values", "config", "key", "found"),
    [
        (None, {}, LLAMA.targets[0], "no magnitude"),
        (Values("F32", (1,), bytes(4)), {}, LLAMA.targets[0], "a magnitude of F32 [1]"),
        (Values("I64", LLAMA.modules[LLAMA.targets[0]][:1], b""), {}, LLAMA.targets[0], "a magnitude of I64"),
        (Values("F32", (1,), bytes(4)), {"use_dora": False}, "use_dora", "not set, and 8 magnitudes"),
    ],
    ids=["none", "one_for_all", "of_another_type", "denied"],
)
def test_magnitudes_that_are_not_those_of_a_training_are_said(tmp_path, values, config, key, found):
    """R4: a module without one would be published as plain LoRA, which it was not."""
    draft = with_magnitude(**config)
    del draft.tensors[magnitude_of(LLAMA.targets[0])]
    if values is not None:
        values.data = values.data or bytes(8 * values.shape[0])
        draft.tensors[magnitude_of(LLAMA.targets[0])] = values
    ((where, told),) = objections(tmp_path, draft)
    assert (where, told.startswith(found)) == (key, True)


def outcome(error: float, enough: int | None = None) -> ModuleOutcome:
    return ModuleOutcome("m", "dora", 8, 4, 4, error, enough)


def test_errors_are_bounded_and_the_remedy_is_named():
    check_errors([], 0.1)
    check_errors([outcome(0.05)], ConversionOptions().max_error)
    with pytest.raises(CannotPublish, match=r"0\.0501 .*expected at most 0\.05"):
        check_errors([outcome(0.0501)], ConversionOptions().max_error)
    check_errors([outcome(0.1), outcome(0.0)], 0.1)
    with pytest.raises(CannotPublish, match=r"0\.2 \(2 of 3 modules.*rank 12 would do"):
        check_errors([outcome(0.2, 7), outcome(0.0, 1), outcome(0.15, 12)], 0.1)
    with pytest.raises(CannotPublish, match="another --dtype"):
        check_errors([outcome(float("nan")), outcome(0.2)], 0.1)
    assert outcome(0.5).as_dict()["error"] == 0.5


@pytest.mark.parametrize(
    ("says", "names", "is_said"),
    [
        ("meta-llama/Llama-3.1-8B", {"llama-3.1-8b"}, False),
        ("/models/Llama-3.1-8B/", {"snapshot", "llama-3.1-8b"}, False),
        ("/hub/models--meta-llama--Llama-3.1-8B/snapshots/abc", {"llama-3.1-8b"}, False),
        (None, {"llama-3.1-8b"}, False),
        ("meta-llama/Llama-3.1-8B-Instruct", {"llama-3.1-8b"}, True),
    ],
)
def test_another_bases_weights_are_told_by_its_name(tmp_path, says, names, is_said):
    """R4: of the same shapes, they convert it to another adapter; what is not computed with them is not."""
    for draft, is_converted in ((with_magnitude(), True), (LLAMA.draft(), False)):
        draft.config["base_model_name_or_path"] = says
        adapter = opened(tmp_path / f"{is_converted}", draft)
        found = base_doubts(task_of(adapter, None, ConversionOptions()), adapter, names)
        assert [one.reason for one in found] == (["base_name_differs"] if is_said and is_converted else [])
