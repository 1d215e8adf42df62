"""Replicas that share a pool's adapters among themselves, on real etcd, with engines that remember every call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing

import pytest

from registry.etcd3.ops import prefix_end
from registry.etcd3.reflector import Listed, Reflector
from registry.etcd3.stream import Changed
from registry.model.keys import Keys
from registry.model.placement import decline_id
from registry.model.records import Placement
from registry.model.status import Presence, ReplicaStatus
from tests.support.fleet import POOL, Hand, PlacedFleet
from tests.support.waiting import eventually

NAMES = [f"n{number}" for number in range(12)]
ONE = Placement(replicas=1)
# Several sidecars start at once, beside whatever else the machine does.
STARTED_SECONDS = 180


@pytest.fixture
async def fleet(etcd, hand, tmp_path) -> AsyncIterator[PlacedFleet]:
    async with AsyncExitStack() as stack:
        yield PlacedFleet(tmp_path, etcd, hand, stack)


async def test_labels_select_and_what_nobody_can_take_over_is_kept_and_said(fleet, hand):
    """R3: what a selector asks for follows from a replica's own labels; it is loaded before it is unloaded."""
    await fleet.want(hand.record("a", "v1", placement=Placement(selector={"zone": "a"})))
    await fleet.start("r0", zone="a")
    await eventually(fleet.is_placed, timeout_seconds=STARTED_SECONDS)
    await fleet.want(hand.record("a", "v1", generation=2, placement=Placement(selector={"zone": "b"})))

    async def is_said() -> bool:
        warnings = (await fleet.sidecars["r0"].status())["warnings"]
        return any(one["name"] == "a" and one["reason"] == "not_handed_over" for one in warnings)

    await eventually(is_said)
    assert fleet.owners("a") == {"r0"}
    await fleet.start("r1", zone="b")
    await eventually(fleet.is_placed, timeout_seconds=STARTED_SECONDS)
    assert (fleet.owners("a"), fleet.too_few) == ({"r1"}, [])


async def follow_refusals(hand: Hand, early: list[tuple[int, str]], *replicas: str) -> None:
    """Gathers refusals that a status tells as final before the replica's presence declines them, until cancelled."""
    root, newest = f"{hand.keys.prefix}/".encode(), dict[bytes, bytes]()
    reflector = Reflector(hand.client, root, prefix_end(root), rng=random.Random(0))
    async with aclosing(reflector.stream()) as reflections:
        async for one in reflections:
            if isinstance(one, Listed):
                newest = {kv.key: kv.value for kv in one.kvs}
            elif isinstance(one, Changed):
                newest |= {event.key: event.kv.value if event.kv else b"" for event in one.events}
                early += [
                    (one.revision, name) for replica in replicas for name in _too_early(hand.keys, newest, replica)
                ]


def _too_early(keys: Keys, newest: Mapping[bytes, bytes], replica: str) -> Iterator[str]:
    told, here = newest.get(keys.status(POOL, replica)), newest.get(keys.replica(POOL, replica))
    if told and here:
        ids = {one for group in Presence.parse(here).declines.values() for one in group.adapters}
        for one in ReplicaStatus.parse(told).failed:
            if (one.settled or one.retry_at is None) and decline_id(one.name, one.generation) not in ids:
                yield one.name


async def test_replicas_that_refuse_by_limits_of_their_own_count_as_none(fleet, hand):
    """R3 converge: a rank, or a source; the next replica takes it, whoever restarts; nothing that is served moves."""
    await fleet.start("r0", max_rank=2)
    await fleet.start("r1", may_read=False)
    await fleet.start("r2")
    await eventually(fleet.are_known, timeout_seconds=STARTED_SECONDS)
    early: list[tuple[int, str]] = []
    following = asyncio.create_task(follow_refusals(hand, early, "r0", "r1"))
    await fleet.want(*(hand.record(name, "v1", placement=ONE) for name in NAMES))
    await eventually(lambda: all(fleet.owners(name) == {"r2"} for name in NAMES), timeout_seconds=STARTED_SECONDS)

    async def are_agreed() -> bool:
        told = [await sidecar.status() for sidecar in fleet.sidecars.values()]
        assert len({one["members"] for one in told}) == 1
        return not any(one["failed"] or one["pending"] or one["leaving"] for one in told) and bool(told[0]["members"])

    await eventually(are_agreed)
    following.cancel()
    await asyncio.wait({following})
    assert (following.cancelled(), early) == (True, [])
    before = fleet.calls()
    await asyncio.to_thread(fleet.sidecars["r0"].program.stop)
    fleet.sidecars["r0"].program.start()
    fleet.sidecars["r1"].program.kill()
    fleet.sidecars["r1"].program.start()
    await eventually(are_agreed, timeout_seconds=STARTED_SECONDS)
    await fleet.want(hand.record("last", "v1", placement=ONE))
    await eventually(lambda: fleet.owners("last") == {"r2"})
    assert set(fleet.calls() - before) == {("r2", "load", "last")}
