"""One change among 20,000 records beside one among 100: what it costs a sidecar, and how long it takes.

Two real sidecars, each with an engine, follow two prefixes of one etcd. Changes go to one and the other in turns: an
eager adapter is created, which ends in a load call, and deleted, which ends in an unload call.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.engines import Engines, Kind, engines
from bench.etcd import Store, catalogue, etcd, put_of, record
from bench.figures import Figure, check, of_times
from bench.sidecars import sidecars, sources
from bench.usage import cpu_seconds
from bench.weights import write_large_adapter
from registry.etcd3.ops import Delete, Put, Txn
from registry.model.keys import Keys
from registry.model.records import SourceSpec
from tests.support.fleet import Sidecar

FEW, MANY = 100, 20_000
EAGER = 10
TURNS = 100
WARM_UP = 5
ADAPTER_BYTES = 16 << 10


@dataclass
class Side:
    """One sidecar with its records."""

    store: Store
    keys: Keys
    engines: Engines
    sidecar: Sidecar
    source: SourceSpec
    seconds: list[float] = field(default_factory=list)
    cpu: float = 0.0

    async def turn(self, number: int) -> None:
        """Creates an adapter and deletes it."""
        name = f"changed-{number}"
        put = put_of(self.keys, record(name, self.source))
        await self._change(put, "load", name)
        await self._change(Delete(put.key), "unload", name)

    async def _change(self, op: Put | Delete, kind: Kind, name: str) -> None:
        await self.store.client.txn(Txn((), (op,)))
        started = time.monotonic()
        (received,) = await self.engines.received(kind, [name])
        self.seconds.append(received - started)

    async def measure(self, number: int) -> None:
        """A turn with its CPU, and that of what the sidecar does after it."""
        before = cpu_seconds(self.sidecar.program.pid)
        await self.turn(number)
        await asyncio.sleep(0.1)
        self.cpu += cpu_seconds(self.sidecar.program.pid) - before


async def one_change_20000_vs_100(folder: Path) -> list[Figure]:
    """CPU and latency of a change must not depend on the number of records."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(etcd(folder, fsync=False))
        few, many = [await _side(stack, store, count) for count in (FEW, MANY)]
        for number in range(WARM_UP):
            await few.turn(number)
            await many.turn(number)
        few.seconds.clear()
        many.seconds.clear()
        for number in range(WARM_UP, WARM_UP + TURNS):
            await few.measure(number)
            await many.measure(number)
    check(few.cpu > 0, "no CPU time was measured")
    changes = 2 * TURNS
    told = f"{FEW} records {few.cpu / changes * 1000:.2f} ms CPU a change, {MANY} {many.cpu / changes * 1000:.2f} ms"
    return [
        Figure("one_change_cpu", many.cpu / few.cpu, "<= 1.2", f"{told}; n {changes}/{changes}"),
        of_times("one_change_latency", few.seconds, many.seconds, target="<= 1.2", note=f"the floor is {FEW} records"),
    ]


async def _side(stack: AsyncExitStack, store: Store, count: int) -> Side:
    """A sidecar among `count` records, all but a few of them lazy."""
    prefix = f"/among-{count}"
    keys = Keys(prefix)
    written = write_large_adapter(sources(store) / "one", ADAPTER_BYTES, 1)
    source = SourceSpec(uri=written.uri, digest=written.digest)
    await store.put_pool(keys)
    await store.put(*catalogue(keys, count - EAGER))
    await store.put(*(put_of(keys, record(f"kept-{number}", source)) for number in range(EAGER)))
    hosted = await stack.enter_async_context(engines(1))
    (sidecar,) = await stack.enter_async_context(sidecars(store, hosted, prefix, name=f"among-{count}"))
    await hosted.received("load", [f"kept-{number}" for number in range(EAGER)])
    status = await sidecar.status()
    check(status["lazy"]["count"] == count - EAGER, f"the sidecar knows {status['lazy']} of {count} records")
    return Side(store, keys, hosted, sidecar, source)
