"""A sidecar's HTTP port under connections that say nothing, in a process that may open few descriptors."""

from __future__ import annotations

import time

from registry.etcd3.ops import KeyValue, Range
from sidecar.report.writer import LEASE_TTL_SECONDS
from tests.support.fleet import POOL, settled
from tests.support.silent import FEW_DESCRIPTORS, silent_connections


async def test_silent_connections_take_no_replica_out(hand, engine, sidecar):
    """X3 given-back: lease, readiness and new records are as without them; who refuses them says so in few lines."""

    async def presence() -> KeyValue:
        return (await hand.client.range(Range(hand.keys.replica(POOL, "r1")))).kvs[0]

    await hand.pool()
    sidecar.program.before = FEW_DESCRIPTORS
    sidecar.program.start()
    await settled(sidecar, await hand.put(hand.record("a", "v1")))
    before, logged = await presence(), sidecar.program.log.stat().st_size
    async with silent_connections(sidecar.http, 1150):
        until = time.monotonic() + 2 * LEASE_TTL_SECONDS
        while time.monotonic() < until:
            assert await sidecar.is_ready()
        await settled(sidecar, await hand.put(hand.record("b", "v2")))
        now = await presence()
        assert (now.lease, now.create_revision) == (before.lease, before.create_revision)
        metrics = await sidecar.metrics()
    assert metrics['loraplane_connections_closed_total{port="http",reason="replaced"}'] >= 1100
    assert sidecar.program.log.stat().st_size - logged < 20_000
