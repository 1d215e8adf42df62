"""Replicas that share a pool's adapters among themselves, on real etcd, with engines that remember every call."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from registry.etcd3.ops import Range, prefix_end
from registry.etcd3.reflector import Listed, Reflector
from registry.etcd3.stream import Changed
from registry.model.keys import Keys
from registry.model.placement import decline_id
from registry.model.records import Placement
from registry.model.status import Presence, ReplicaStatus
from sidecar.ownership import LEASE_TTL_SECONDS
from tests.support.etcd import etcdctl
from tests.support.fleet import POOL, Hand, PlacedFleet
from tests.support.waiting import eventually

NAMES = [f"n{number}" for number in range(12)]
TWO = Placement(replicas=2)
ONE = Placement(replicas=1)
# Several sidecars start at once, beside whatever else the machine does.
STARTED_SECONDS = 180
# A machine that stands still for a moment says nothing of the sidecars; one that does so each time does.
TRIES = 3


@pytest.fixture
async def fleet(etcd, hand, tmp_path) -> AsyncIterator[PlacedFleet]:
    async with AsyncExitStack() as stack:
        yield PlacedFleet(tmp_path, etcd, hand, stack)


async def test_only_the_share_of_a_killed_replica_moves_and_a_new_one_loads_before_others_unload(etcd, fleet, hand):
    """R3 converge: the share of the dead is served again within its lease's time plus 2 s, and nothing else moves."""
    await fleet.start("r0", "r1", "r2", "r3", "r4")
    await eventually(fleet.are_known, timeout_seconds=STARTED_SECONDS)
    await fleet.want(*(hand.record(name, "v1", placement=TWO) for name in NAMES))
    await eventually(fleet.is_placed, timeout_seconds=STARTED_SECONDS)
    (presence,) = (await hand.client.range(Range(hand.keys.replica(POOL, "r0")))).kvs
    told = await etcdctl(etcd.cluster, "lease", "timetolive", f"{presence.lease:x}")
    assert f"granted with TTL({LEASE_TTL_SECONDS}s)" in told
    late_seconds = [await taken_over(fleet)]
    while late_seconds[-1] > 2 and len(late_seconds) < TRIES:
        await fleet.start(f"again{len(late_seconds)}")
        await eventually(fleet.is_placed, timeout_seconds=STARTED_SECONDS)
        late_seconds.append(await taken_over(fleet))
    assert late_seconds[-1] <= 2, late_seconds

    before = fleet.calls()
    await fleet.start("r5")
    await eventually(fleet.is_placed, timeout_seconds=STARTED_SECONDS)
    assert fleet.share("r5")
    assert {name for _, kind, name in fleet.calls() - before if kind == "unload"} == fleet.share("r5")
    assert fleet.too_few == []


async def taken_over(fleet: PlacedFleet) -> float:
    """Kills the replica with the largest share, which others come to serve, and nothing else moves.

    Returns how many seconds later than its lease's end, which is etcd's to keep.
    """
    dead = max(fleet.members, key=lambda replica: len(fleet.share(replica)))
    share, before = fleet.share(dead), fleet.calls()
    assert share
    killed_at = time.monotonic()
    fleet.kill(dead)
    gone_at, placed_at = await asyncio.gather(_moment_of(fleet.are_known), _moment_of(fleet.is_placed))
    moved = [(kind, name) for _, kind, name in (fleet.calls() - before).elements()]
    assert sorted(moved) == sorted(("load", name) for name in share)
    return placed_at - max(gone_at, killed_at + LEASE_TTL_SECONDS)


async def _moment_of(check: Callable[[], Any]) -> float:
    await eventually(check)
    return time.monotonic()


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
