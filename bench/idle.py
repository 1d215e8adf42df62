"""What a sidecar costs while nothing happens, at 20,000 records: its share of a core, and its memory."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.engines import engines
from bench.etcd import Store, catalogue, etcd
from bench.figures import Figure, check
from bench.sidecars import sidecars
from bench.usage import cpu_seconds, rss_bytes
from registry.model.keys import Keys
from tests.support.waiting import eventually

RECORDS = 20_000
WINDOW_SECONDS = 30.0
CPU_LIMIT = 0.01
MEMORY_LIMIT_BYTES = 100_000_000
# The same imports and a loop that turns once a second, as whoever looks after anything has to.
_FLOOR = """
import asyncio
import sidecar.main
async def idle():
    print("ready", flush=True)
    while True:
        await asyncio.sleep(1)
asyncio.run(idle())
"""


@dataclass(frozen=True, slots=True)
class Idle:
    """What a process used over the window: the share of one core, and memory at its end."""

    cpu: float
    rss_bytes: int


async def idle_20000(folder: Path) -> list[Figure]:
    """A sidecar and a bare process with the same imports, over the same time."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(etcd(folder, fsync=False))
        keys = Keys()
        await store.put_pool(keys)
        await store.put(*catalogue(keys, RECORDS))
        hosted = await stack.enter_async_context(engines(1))
        (sidecar,) = await stack.enter_async_context(sidecars(store, hosted))
        bare = await stack.enter_async_context(_bare())
        await eventually(lambda: _has_snapshot(store))
        await asyncio.sleep(3)  # until it has really come to rest
        ours, floor = await asyncio.gather(_watched(sidecar.program.pid), _watched(bare))
        status = await sidecar.status()
    count = status["lazy"]["count"]
    check(count == RECORDS and status["ready"], f"the sidecar knows {count} records of {RECORDS}: {status['note']}")
    return _figures(ours, floor)


def _figures(ours: Idle, floor: Idle) -> list[Figure]:
    cpu = f"ours {ours.cpu:.3%} of a core over {WINDOW_SECONDS:g} s, limit {CPU_LIMIT:.0%}, idle Python {floor.cpu:.3%}"
    memory = (
        f"ours {ours.rss_bytes / 1e6:.1f} MB resident, limit {MEMORY_LIMIT_BYTES / 1e6:.0f} MB, "
        f"Python with the same imports {floor.rss_bytes / 1e6:.1f} MB, {RECORDS} records"
    )
    return [
        Figure("idle_20000_cpu", ours.cpu / CPU_LIMIT, "< 1 of the limit", cpu),
        Figure("idle_20000_memory", ours.rss_bytes / MEMORY_LIMIT_BYTES, "< 1 of the limit", memory),
    ]


def _has_snapshot(store: Store) -> bool:
    return any(store.folder.glob("store-*/state/*/snapshot-*"))


async def _watched(pid: int) -> Idle:
    before, started = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(WINDOW_SECONDS)
    return Idle((cpu_seconds(pid) - before) / (time.monotonic() - started), rss_bytes(pid))


@asynccontextmanager
async def _bare() -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _FLOOR, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        await process.wait()
