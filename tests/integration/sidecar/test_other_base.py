"""A base model that is exchanged under the same name: beside an engine that tells, and beside one that does not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from registry.tools.devstack.tiny_model import TinyTensor, write_json, write_safetensors
from tests.support.adapters import MODULES
from tests.support.fleet import Hand, Sidecar, SimulatedEngine, serves, settled, shapes_of
from tests.support.waiting import eventually


def write_base(folder: Path, width: int = 16, value: float = 1.0) -> None:
    """A base model whose modules have that width, and are filled with that value."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tensor = TinyTensor((width, width), [value] * width**2)
    write_safetensors(
        folder / "model.safetensors", {f"model.layers.0.self_attn.{one}.weight": tensor for one in MODULES}
    )
    write_json(folder / "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_base(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture(params=["plugin", "engine's own folder", "--base-model"])
async def started(request, etcd, tmp_path: Path, base: Path) -> AsyncIterator[tuple[SimulatedEngine, Sidecar]]:
    """An engine that serves the folder `base`, and a sidecar that hears or sees what is in there, in each way."""
    seen = "/elsewhere/base" if request.param == "--base-model" else str(base)
    engine = SimulatedEngine(tmp_path, "--model", seen, plugin=request.param == "plugin")
    await engine.start()
    extra = ["--base-model", str(base)] if request.param == "--base-model" else []
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url, extra=extra)
    sidecar.program.start()
    yield engine, sidecar
    sidecar.program.kill()
    engine.program.kill()


async def blocked(sidecar: Sidecar) -> dict[str, Any]:
    """Waits until the replica is not ready since its engine has another base, and gives its status."""

    async def is_blocked() -> dict[str, Any] | None:
        status = await sidecar.status()
        return status if "base model" in status["note"] and not await sidecar.is_ready() else None

    status = await eventually(is_blocked)
    assert [one["reason"] for one in status["warnings"]] == ["blocked"]
    return status


async def test_an_engine_that_is_started_on_another_base_gets_nothing(hand: Hand, started, base, tmp_path):
    """R23 same-base, R9: other shapes and weights, while the sidecar lives and while it is down; or of the pool."""
    engine, sidecar = started
    await hand.pool(base=shapes_of(base))
    await hand.put(hand.record("a", "v1"))
    await serves(engine, sidecar, "a")
    await settled(sidecar, 0)
    engine.program.kill()
    write_base(base, 32)
    await engine.start()
    status = await blocked(sidecar)
    assert "its model.layers.0.self_attn.q_proj is 32 by 32, expected 16 by 16" in status["note"]
    assert (await engine.listing(), status["served"]["count"]) == ({}, 0)
    sidecar.program.kill()
    engine.program.kill()
    write_base(base, value=2.0)
    await engine.start()
    sidecar.program.start()
    status = await blocked(sidecar)
    assert "it has other weights" in status["note"]
    assert await engine.listing() == {}
    await hand.pool(base=shapes_of(base))
    listing = await serves(engine, sidecar, "a")
    await settled(sidecar, 0)
    write_base(tmp_path / "other", 32)
    await hand.pool(base=shapes_of(tmp_path / "other"))
    assert ((await blocked(sidecar))["served"]["count"], await engine.listing()) == (1, listing)
