"""Who speaks for a replica: its presence and status in etcd, and one process of several."""

from __future__ import annotations

import json
import signal
from importlib.metadata import version

from registry.etcd3.ops import Range
from tests.support.fleet import POOL, settled
from tests.support.waiting import eventually


async def test_a_frozen_sidecar_whose_lease_expired_publishes_everything_again(hand, engine, sidecar):
    """Fault 15, R9, R10: what /status says is what etcd holds, under a lease, and goes with the sidecar."""
    await hand.pool()
    revision = await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await settled(sidecar, revision)
    keys = (hand.keys.status(POOL, "r1"), hand.keys.replica(POOL, "r1"))

    async def found() -> list:
        return [kv for key in keys for kv in (await hand.client.range(Range(key))).kvs]

    async def are_told() -> bool:
        both = await found()
        assert len(both) == 2
        status, presence = both
        said, told = json.loads(status.value), json.loads(presence.value)
        assert (said["observed_revision"] >= revision, said["ready"], said["served"]["count"]) == (True, True, 1)
        assert (told["pool"], told["version"]) == (POOL, version("loraplane"))
        return status.lease == presence.lease > 0

    async def are_gone() -> bool:
        return not await found()

    await eventually(are_told)
    sidecar.program.signal(signal.SIGSTOP)
    await eventually(are_gone)
    sidecar.program.signal(signal.SIGCONT)
    await eventually(are_told)
    assert sidecar.program.stop() == 0
    await eventually(are_gone)
