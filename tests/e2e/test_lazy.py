"""Twenty thousand lazy adapters behind one real vLLM that holds sixteen.

REQUESTS says how many of them are asked for; the full number is 500.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from bench.usage import rss_bytes
from registry.etcd3.ops import Delete, Txn
from registry.model.keys import Keys
from registry.tools.devstack.engine_environment import MAX_CPU_LORAS
from tests.support.engines import Asker
from tests.support.fleet import POOL
from tests.support.lazy_fleet import LazyFleet, lazy_fleet
from tests.support.swap_verdict import Sequenced
from tests.support.waiting import eventually

RECORDS = 20_000
REQUESTS = int(os.environ.get("REQUESTS", "60"))
WARM = 40  # until the engine and the sidecar have all that they keep
HOSTILE = int(os.environ.get("HOSTILE", "800"))
HOSTILE_BYTES = 20_000
# More than there is room for, while those that were just answered for are still to be used.
MAX_ABOVE_ROOM = 128
MAX_GROWTH_BYTES = 64 * 1024 * 1024


def memory(fleet: LazyFleet) -> tuple[int, int]:
    """Of the engine and of the sidecar."""
    return fleet.vllm.rss_bytes(), rss_bytes(fleet.sidecar.program.pid)


@pytest.mark.engine
@pytest.mark.timeout(1800)
async def test_any_of_twenty_thousand_answers_rightly_at_its_first_request(real_vllm, plugin_flags, tiny, tmp_path):
    """R4 right-weights, R16 bounded; a deleted one is refused, and the base model never answers for it.

    Nor do names that nobody has grow the engine, though vLLM keeps a lock and the name of whatever anybody asked for.
    """
    async with lazy_fleet(real_vllm, plugin_flags, tmp_path, tiny, RECORDS) as fleet:
        sample = fleet.sample(WARM + REQUESTS, seed=1)
        await ask(fleet, sample[:WARM])
        before = memory(fleet)
        most = await ask(fleet, sample[WARM:])
        after = memory(fleet)
        told = [f"{one / 1e6:.0f} -> {other / 1e6:.0f} MB" for one, other in zip(before, after, strict=True)]
        print(f"{REQUESTS} names of {RECORDS}: at most {most} listed; engine {told[0]}, sidecar {told[1]}")
        assert most <= MAX_CPU_LORAS + MAX_ABOVE_ROOM
        assert all(late - early < MAX_GROWTH_BYTES for early, late in zip(before, after, strict=True)), told
        await eventually(lambda: settled(fleet))
        await deleted_is_refused(fleet, sample[-1][0])
        await hostile(fleet.vllm.url, "warm", 200)
        before = fleet.vllm.rss_bytes()
        await hostile(fleet.vllm.url, "cold", HOSTILE)
        grown = fleet.vllm.rss_bytes() - before
        print(f"{HOSTILE} hostile names of {HOSTILE_BYTES} bytes: {grown / 1e6:+.1f} MB")
        assert grown < HOSTILE * HOSTILE_BYTES / 4  # half of the names are long


async def ask(fleet: LazyFleet, sample: list[tuple[str, Sequenced]]) -> int:
    """Each name once; how many adapters were listed at most."""
    most = 0
    for name, expected in sample:
        assert (await fleet.answer(name)).is_like(expected), name
        most = max(most, len(await fleet.asker.adapters()))
    return most


async def settled(fleet: LazyFleet) -> bool:
    """True once no more is listed, and in memory, than the engine was started for."""
    return len(await fleet.asker.adapters()) <= MAX_CPU_LORAS >= len(await fleet.resident())


async def deleted_is_refused(fleet: LazyFleet, name: str) -> None:
    key = Keys().adapter(POOL, name)
    await fleet.client.txn(Txn((), (Delete(key),)))
    await eventually(lambda: refused(fleet, name))
    assert name not in await fleet.asker.adapters()


async def refused(fleet: LazyFleet, name: str) -> bool:
    return (await fleet.asker.complete(name, "x")).status_code == 404


async def hostile(url: str, kind: str, count: int) -> None:
    """So many names that nobody has, every other one too long to be asked for; all of them are refused."""
    asker, numbers = Asker(url), iter(range(count))

    async def client() -> None:
        for number in numbers:
            name = f"{kind}-{number}" + "x" * (HOSTILE_BYTES if number % 2 else 100)
            assert (await asker.complete(name, "x", tokens=1)).status_code == 404

    try:
        await asyncio.gather(*[client() for _ in range(8)])
    finally:
        await asker.client.aclose()
