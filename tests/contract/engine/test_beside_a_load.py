"""What real vLLM does beside a load that hangs in its core, which the sidecar's calls at once rest on."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from sidecar.engines.observed import Done
from tests.support.tiny import Tiny
from tests.support.waiting import eventually

CONFIG = "adapter_config.json"


def stuck_adapter(tiny: Tiny, folder: Path) -> Path:
    """An adapter whose config comes through a pipe: whoever reads it waits for a writer. Gives the pipe."""
    shutil.copytree(tiny.adapter("a"), folder / "stuck")
    pipe = folder / "stuck" / CONFIG
    pipe.unlink()
    os.mkfifo(pipe)
    return pipe


def give(writer: int, pipe: Path, tiny: Tiny) -> None:
    """The config, also to whoever reads it again: from now on it is a file."""
    config = (Path(tiny.adapter("a")) / CONFIG).read_bytes()
    pipe.unlink()
    pipe.write_bytes(config)
    os.write(writer, config)


def opened(pipe: Path) -> int | None:
    """The pipe for writing, once somebody reads it."""
    with suppress(OSError):
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    return None


@pytest.mark.engine
async def test_a_load_that_hangs_in_the_core_holds_up_loads_and_no_unload(real_vllm, plugin_flags, tiny, tmp_path):
    """R19 not-held-up: nor the listing; other loads wait in the core's queue, and are carried out after it."""
    await real_vllm.ensure(plugin_flags)
    await real_vllm.clear()
    engine = real_vllm.driver()
    await engine.observe()
    assert await engine.load("b", tiny.adapter("b"), request_id="r") == Done()
    pipe = stuck_adapter(tiny, tmp_path)
    hanging = asyncio.create_task(engine.load("x", str(pipe.parent), request_id="r"))
    writer = await eventually(lambda: opened(pipe))
    try:
        behind = asyncio.create_task(engine.load("c", tiny.adapter("c"), request_id="r"))
        assert await engine.unload("b", request_id="r") == Done()
        assert dict((await engine.observe()).adapters) == {}
        assert not hanging.done()
        assert not behind.done()
        give(writer, pipe, tiny)
    finally:
        os.close(writer)
    assert await asyncio.gather(hanging, behind) == [Done(), Done()]
    assert set((await engine.observe()).adapters) == {"x", "c"}
    for name in ("x", "c"):
        assert await engine.unload(name, request_id="r") == Done()
