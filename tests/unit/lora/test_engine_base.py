"""When the base model of an engine is another than the expected one, and how that is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.lora.base import BaseModules
from registry.lora.coverage.findings import EngineEvidence
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase, difference

MODULES = {f"model.layers.{layer}.{name}": (16, 8) for layer in (0, 1) for name in ("q", "k")}
BASE = BaseModules(MODULES, layout="sha256:l", weights="sha256:w")
EVIDENCE = EngineEvidence("vllm 0.32.0", "A", (), (), beginnings=(("model.", "language_model.model."),))


def wider(name: str, shape: tuple[int, int]) -> BaseModules:
    return BaseModules({**MODULES, name: shape})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (BASE, ""),
        (wider("model.layers.1.k", (16, 9)), "its model.layers.1.k is 16 by 9, expected 16 by 8 (fingerprint "),
        (BaseModules(dict.fromkeys(MODULES, (32, 8))), "its model.layers.{0-1}.k is 32 by 8, expected 16 by 8"),
        (wider("model.layers.2.k", (16, 8)), "it has model.layers.2.k (fingerprint"),
        (BaseModules(dict(list(MODULES.items())[:2])), "it lacks model.layers.1.k"),
        (wider("lm_head", (64, 8)), ""),
        (replace(BASE, weights="sha256:v"), "it has other weights (sha256:v, expected sha256:w)"),
        (replace(BASE, weights="sha256:v", layout="sha256:other"), ""),
        (replace(BASE, weights=None), ""),
        (BaseModules(dict.fromkeys(MODULES, (8, 16))), ""),
    ],
)
def test_names_shapes_and_weights_are_compared(found, said):
    """R23 same-base: a tied head may be in one's files alone, and the same model may be saved in another form."""
    told = difference(BASE, EngineBase(files=found))
    assert said in told if said else not told
    assert not said or told.endswith("loraplane pool update --from")


def test_what_is_in_its_memory_counts_where_nobody_sees_its_files():
    """R23: by its own names; one of the classes keeps some of them transposed."""
    same = {"language_model.model.layers.0.q": (16, 8), "language_model.model.layers.0.k": (8, 16)}
    assert difference(BASE, EngineBase(shapes=same, evidence=EVIDENCE)) == ""
    other = same | {"language_model.model.layers.1.q": (16, 16)}
    told = difference(BASE, EngineBase(shapes=other, evidence=EVIDENCE))
    assert "its model.layers.1.q is 16 by 16, expected 16 by 8" in told
    assert difference(BASE, EngineBase(files=BASE, shapes=other, evidence=EVIDENCE)) == ""


def test_of_what_is_not_known_nothing_is_said():
    for engine in (UNKNOWN_BASE, EngineBase(shapes={"q": (1, 1)}), EngineBase(evidence=EVIDENCE)):
        assert (engine.is_known, difference(BASE, engine)) == (False, "")
    assert difference(None, EngineBase(files=BASE)) == ""
    for known in (EngineBase(files=BASE), EngineBase(own=BASE), EngineBase(shapes={"q": (1, 1)}, evidence=EVIDENCE)):
        assert known.is_known
