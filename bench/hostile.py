"""What 50 hostile callers of the admin service cost a good one: its changes with them, and without.

The callers are a process of their own, so that what they do is not counted as what the service does.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.admin_service import Admin, admin
from bench.children import child
from bench.etcd import etcd
from bench.figures import Figure, check, percentile

CALLERS = 50
CHANGES = 200
LIMIT_SECONDS = 1.0
_CALLERS = """
import asyncio, sys
from tests.support.hostile_callers import hostile_callers
async def call():
    async with hostile_callers(sys.argv[1], int(sys.argv[2])):
        await asyncio.sleep(1)
        print("calling", flush=True)
        await asyncio.Event().wait()
asyncio.run(call())
"""


async def hostile_50(folder: Path) -> list[Figure]:
    """One caller that applies one change after the other: the 99th percentile."""
    async with etcd(folder, fsync=False) as store, admin(store) as service:
        alone = await _changes(service, 0)
        async with child(_CALLERS, service.address, str(CALLERS)) as callers:
            check(await callers.line(), "the hostile callers ended")
            among = await _changes(service, CHANGES)
    before, now = percentile(alone, 0.99), percentile(among, 0.99)
    told = (
        f"p50 {percentile(among, 0.5) * 1000:.0f} ms, p99 {now * 1000:.0f} ms, worst {max(among) * 1000:.0f} ms beside "
        f"{CALLERS} callers, limit {LIMIT_SECONDS:g} s; p99 alone {before * 1000:.0f} ms; n {len(among)}"
    )
    return [Figure("hostile_50", now / LIMIT_SECONDS, "< 1 of the limit", told)]


async def _changes(service: Admin, first: int) -> list[float]:
    seconds = []
    for number in range(first, first + CHANGES):
        started = time.monotonic()
        await service.upsert(f"acme/a{number % 5}", f"file:///a/{number}")
        seconds.append(time.monotonic() - started)
    return seconds
