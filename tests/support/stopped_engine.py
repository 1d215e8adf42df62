"""Real vLLM that is stopped and goes on, as its sidecar tells of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from registry.etcd3.client import Client
from registry.model.keys import Keys
from tests.support.engines import BASE_MODEL, Asker, RealVllm
from tests.support.fleet import Hand, Sidecar
from tests.support.tiny import Tiny
from tests.support.waiting import eventually

# What is promised is 10 and 30 s; a machine that others use too may be late.
SLACK_SECONDS = 30.0
# Requests that run while all of it is stopped.
RUNNING = 4


@asynccontextmanager
async def serving_one(
    folder: Path, client: Client, keys: Keys, tiny: Tiny, vllm: RealVllm
) -> AsyncIterator[tuple[Hand, Sidecar]]:
    """A replica whose engine runs and serves `a` alone, and who has `b`, `c` and `d` to add."""
    await vllm.clear()
    for name in ("a", "b", "c", "d"):
        tiny.adapter(name)
    hand = Hand(client, keys, tiny.folder / "adapters")
    await hand.pool(BASE_MODEL, prove="off")
    await hand.put(hand.record("a", "a"))
    flags = vllm.flags_of_sidecar()
    sidecar = Sidecar(folder, client.options.endpoints, keys.prefix, vllm.url, sources=hand.sources, extra=flags)
    sidecar.program.start()
    try:
        await eventually(lambda: serves(sidecar, 1))
        yield hand, sidecar
    finally:
        sidecar.program.kill()


async def serves(sidecar: Sidecar, count: int) -> bool:
    said = await sidecar.status()
    return bool(said["ready"]) and said["served"]["count"] == count


async def is_not_ready(sidecar: Sidecar) -> bool:
    return (await sidecar.get("/readyz"))[0] == 503


async def seconds_until_told(sidecar: Sidecar, at_most: float) -> float:
    """How long it takes until /readyz tells that the engine is not ready."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    await eventually(lambda: is_not_ready(sidecar), timeout_seconds=at_most + SLACK_SECONDS)
    return loop.time() - start


async def is_told_and_served(hand: Hand, vllm: RealVllm, sidecar: Sidecar) -> None:
    """R18 readiness-follows, R3: all of it under a pending change, then its core alone, beside which HTTP goes on.

    In the end it serves `b` too.
    """
    asker = Asker(vllm.url)
    running = [asyncio.create_task(asker.complete("a", "x", tokens=64)) for _ in range(RUNNING)]
    await asyncio.wait(running, timeout=0.2)
    vllm.signal(signal.SIGSTOP)
    await hand.put(hand.record("b", "b"))
    frozen = await seconds_until_told(sidecar, 10.0)
    vllm.signal(signal.SIGCONT)
    await eventually(lambda: serves(sidecar, 2))
    assert [reply.status_code for reply in await asyncio.gather(*running)] == [200] * RUNNING
    vllm.signal(signal.SIGSTOP, is_core=True)
    assert (await asker.client.get("/health")).status_code == 200
    stalled = await seconds_until_told(sidecar, 30.0)
    vllm.signal(signal.SIGCONT, is_core=True)
    await eventually(lambda: serves(sidecar, 2))
    await asker.client.aclose()
    print(f"frozen was told after {frozen:.1f} s, a core that stands still after {stalled:.1f} s")
