"""Replicas that share a pool's adapters among themselves, on real etcd, with engines that remember every call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from registry.etcd3.ops import Range
from registry.model.records import AdapterRecord, Canary, CanaryRollout, Placement, Strategy
from sidecar.report.writer import LEASE_TTL_SECONDS
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


async def test_more_than_there_are_is_all_and_labels_select(fleet, hand):
    """What a selector asks for follows from a replica's own labels; it is handed over all the same."""
    by_label = hand.record("labelled", "v1", placement=Placement(selector={"zone": "a"}))
    await fleet.want(hand.record("many", "v1", placement=Placement(replicas=7)), by_label)
    await fleet.start("r0", "r1", zone="a")
    await fleet.start("r2", zone="b")
    await eventually(fleet.is_placed, timeout_seconds=STARTED_SECONDS)
    assert fleet.owners("many") == {"r0", "r1", "r2"}
    assert fleet.owners("labelled") == {"r0", "r1"}
    await fleet.want(hand.record("labelled", "v1", generation=2, placement=Placement(selector={"zone": "b"})))
    await eventually(fleet.is_placed)
    assert fleet.owners("labelled") == {"r2"}
    assert fleet.too_few == []


async def test_what_nobody_can_take_over_is_kept_and_said(fleet, hand):
    """Load before unload: where those who are to serve it cannot, those who do go on, and their status says why."""
    await fleet.want(hand.record("a", "v1", placement=Placement(selector={"zone": "a"})))
    await fleet.start("r0", zone="a")
    await eventually(fleet.is_placed, timeout_seconds=STARTED_SECONDS)
    await fleet.want(hand.record("a", "v1", generation=2, placement=Placement(selector={"zone": "b"})))

    async def is_said() -> bool:
        warnings = (await fleet.sidecars["r0"].status())["warnings"]
        return any(one["name"] == "a" and one["reason"] == "not_handed_over" for one in warnings)

    await eventually(is_said)
    assert fleet.engines["r0"].cards.keys() == {"a"}
    await hand.delete("a")
    await eventually(lambda: not fleet.engines["r0"].cards)


@pytest.mark.parametrize("limits", [{"max_rank": 2}, {"may_read": False}], ids=["rank", "source"])
async def test_a_replica_that_refuses_by_limits_of_its_own_counts_as_none(fleet, hand, limits):
    """R3 converge: the next replica takes it, whoever restarts; nothing that is served moves meanwhile."""
    await fleet.start("r0", "r1", **limits)
    await fleet.start("r2")
    await eventually(fleet.are_known, timeout_seconds=STARTED_SECONDS)
    await fleet.want(*(hand.record(name, "v1", placement=ONE) for name in NAMES))
    await eventually(lambda: all(fleet.owners(name) == {"r2"} for name in NAMES), timeout_seconds=STARTED_SECONDS)

    async def are_agreed() -> bool:
        told = [await sidecar.status() for sidecar in fleet.sidecars.values()]
        assert len({one["members"] for one in told}) == 1
        return not any(one["failed"] or one["pending"] or one["leaving"] for one in told) and bool(told[0]["members"])

    await eventually(are_agreed)
    before = fleet.calls()
    await asyncio.to_thread(fleet.sidecars["r0"].program.stop)
    fleet.sidecars["r0"].program.start()
    fleet.sidecars["r1"].program.kill()
    fleet.sidecars["r1"].program.start()
    await eventually(are_agreed, timeout_seconds=STARTED_SECONDS)
    await fleet.want(hand.record("last", "v1", placement=ONE))
    await eventually(lambda: fleet.owners("last") == {"r2"})
    assert set(fleet.calls() - before) == {("r2", "load", "last")}


async def test_only_canaries_take_a_new_generation_until_it_is_promoted_or_given_up(fleet, hand):
    """W6, R4: while a rollout is on, all but the canaries keep the weights of the generation before."""
    await fleet.want(first := hand.record("a", "v1"))
    await fleet.start("r0", "r1", "r2")
    await eventually(fleet.is_placed, timeout_seconds=STARTED_SECONDS)
    await eventually(fleet.are_known, timeout_seconds=STARTED_SECONDS)  # canaries are chosen among these
    old = {engine.cards["a"].path for engine in fleet.engines.values()}
    assert len(old) == 1

    second = rolling(hand, 2, "v2", first)
    await fleet.want(second)
    (canary,) = await eventually(lambda: changed(fleet, old))
    await settled(fleet, hand)
    assert changed(fleet, old) == {canary}

    await fleet.want(second.model_copy(update={"rollout": None}))
    await eventually(lambda: changed(fleet, old) == set(fleet.engines))
    new = {engine.cards["a"].path for engine in fleet.engines.values()}
    assert len(new) == 1

    third = rolling(hand, 3, "v3", second.model_copy(update={"rollout": None}))
    await fleet.want(third)
    assert await eventually(lambda: changed(fleet, new)) == {canary}
    given_up = second.model_copy(update={"generation": 4, "rollout": None})
    await fleet.want(given_up)
    await eventually(lambda: not changed(fleet, new))


def rolling(hand: Hand, generation: int, source: str, before: AdapterRecord) -> AdapterRecord:
    """A generation that one canary takes first."""
    rollout = CanaryRollout(stable_generation=before.generation, stable_spec=before.spec)
    made = hand.record("a", source, generation, strategy=Strategy(canary=Canary(replicas=1)))
    return made.model_copy(update={"rollout": rollout})


def changed(fleet: PlacedFleet, old: set[str]) -> set[str]:
    """The replicas that list the adapter with other weights."""
    listed = {replica: engine.cards.get("a") for replica, engine in fleet.engines.items()}
    assert all(listed.values()), "a swap is being made"
    return {replica for replica, card in listed.items() if card is not None and card.path not in old}


async def settled(fleet: PlacedFleet, hand: Hand) -> None:
    """Waits until every replica says that it has nothing left to do about the newest record."""
    revision = await hand.revision_of("a")

    async def is_so() -> bool:
        for sidecar in fleet.sidecars.values():
            status = await sidecar.status()
            assert status["observed_revision"] >= revision
            assert not status["pending"]
            assert not status["failed"]
        return True

    await eventually(is_so)
