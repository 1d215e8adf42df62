"""Real vLLM that is ended, and started with the same command on another base model of the same name."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.lora.base_directory import read_base
from registry.model.keys import Keys
from registry.tools.devstack import tiny_model
from sidecar.engines.vllm.plugin_calls import BASE_PATH, COVERAGE_PATH, read_base_files, read_shapes
from tests.support.engines import BASE_MODEL, RealVllm, VllmFlags
from tests.support.fleet import Hand, Sidecar, settled, shapes_of
from tests.support.waiting import eventually


def exchange(model: Path, monkeypatch) -> None:
    """Puts another model in its place: of the same names and layers, and twice as wide."""
    for name, size in (("HIDDEN_SIZE", 256), ("HEADS", 4), ("MLP_SIZE", 512)):
        monkeypatch.setattr(tiny_model, name, size)
    shutil.rmtree(model)
    tiny_model.write_model(model, seed=5)


@pytest.mark.engine
@pytest.mark.timeout(1800)
async def test_nothing_is_loaded_into_an_engine_of_another_base(
    second_vllm, plugin_flags, tiny, etcd, etcd_client, tmp_path, monkeypatch
):
    """R23 same-base: told by the plugin, and without it (each night) by the engine's own folder."""
    vllm: RealVllm = second_vllm
    tiny.adapter("a")
    hand = Hand(etcd_client, Keys(etcd.prefix), tiny.folder / "adapters")
    await hand.pool(BASE_MODEL, base=shapes_of(vllm.model), prove="off")
    await hand.put(hand.record("a", "a"))
    await vllm.ensure(replace(plugin_flags, max_loras=8))
    await vllm.clear()
    flags = vllm.flags_of_sidecar()
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, vllm.url, sources=hand.sources, extra=flags)
    sidecar.program.start()
    try:
        await eventually(lambda: is_served(sidecar))
        await tells_its_base(vllm)
        vllm.signal(signal.SIGKILL)
        exchange(vllm.model, monkeypatch)
        await vllm.again()
        await is_kept_out(sidecar, vllm)
        await tells_its_base(vllm)
        if os.environ.get("NIGHTLY"):
            vllm.signal(signal.SIGKILL)
            await vllm.again(VllmFlags())
            await is_kept_out(sidecar, vllm)
    finally:
        sidecar.program.kill()


async def is_served(sidecar: Sidecar) -> bool:
    return bool((await settled(sidecar, 0))["served"]["count"] == 1)


async def is_kept_out(sidecar: Sidecar, vllm: RealVllm) -> None:
    """Waits until the replica says that the engine of now has another base; nothing was loaded into it."""

    async def is_said() -> dict[str, Any] | None:
        status = await sidecar.status()
        return status if "is 258 by 256, expected 258 by 128" in status["note"] else None

    status = await eventually(is_said)
    assert (status["ready"], status["served"]["count"]) == (False, 0)
    asker = vllm.asker()
    assert await asker.adapters() == {}
    await asker.client.aclose()


async def tells_its_base(vllm: RealVllm) -> None:
    """What the plugin read of the files, and what the workers have in memory, is what stands in the folder."""
    asker = vllm.asker()
    files = read_base_files((await asker.client.get(BASE_PATH)).content)
    shapes = read_shapes((await asker.client.get(COVERAGE_PATH)).content)
    await asker.client.aclose()
    expected = read_base(vllm.model)
    assert files is not None
    assert files == expected
    assert (files.layout, files.weights) == (expected.layout, expected.weights)
    linear = {name: shape for name, shape in expected.modules.items() if ".layers." in name}
    assert {name: shape for name, shape in shapes.items() if ".layers." in name} == linear
