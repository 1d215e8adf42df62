"""R3: what every replica must come to once everything has healed, and must stay. R16: and what it must let go of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from registry.model.status import ReplicaStatus
from tests.support.sim.artifacts import path_of, source_of
from tests.support.sim.history import POOL
from tests.support.sim.world import KEYS, ReplicaHost, World

# A load that hangs is given up after 60 s, and a retry is at most 60 s away.
CONVERGE_SECONDS = 150.0
# What somebody else did to an engine at the very end is found by the next look at it.
DRIFT_SECONDS = 20.0
STAY_SECONDS = 20.0
# The last requests end; then come the grace, the evidence, and the store's next round.
LET_GO_SECONDS = 60


async def converge(world: World, confirm: Callable[[], Awaitable[None]]) -> None:
    """R3: within a bound each engine has what it should, and says so. `confirm` lets held lists be followed."""
    left = [*world.replicas]
    for _ in range(int(CONVERGE_SECONDS / 0.5)):
        left = [replica for replica in left if _difference(world, replica)]
        if not left:
            return
        await asyncio.sleep(0.5)
        await confirm()
    for replica in left:
        world.checks.violated(f"R3 {replica.name}: {_difference(world, replica)}")


def _difference(world: World, replica: ReplicaHost) -> str:
    """How a replica is not yet what it should be; empty: it is."""
    moment = world.checks.oracle.newest
    listing = {name: path for name, path in replica.engine.listing.items() if replica.place.store.owns(path)}
    live = [one.name for one in world.replicas]
    for name, source in moment.eager().items():
        is_good = source.startswith("good")
        is_there = listing.get(name) == path_of(replica.name, source)
        if replica.name not in moment.owners(name, live):
            if is_good and name in listing:
                return f"{name} should be on {moment.owners(name, live)} alone"
            continue  # what its owners cannot serve may be kept
        if is_good and not is_there:
            return f"{name} should be {source}, is {listing.get(name)}"
        if not is_good and is_there and not source.startswith("good"):
            return f"{name} has {source}, which is no good"
    known = {one.name for one in moment.wanted.values() if one.is_eager} | moment.unreadable.keys()
    superfluous = [name for name in listing if name not in known]
    if superfluous:
        return f"superfluous: {superfluous}"
    return _status_difference(world, replica, {*moment.unreadable})


def _status_difference(world: World, replica: ReplicaHost, unreadable: set[str]) -> str:
    kv = world.store.kvs.get(KEYS.status(POOL, replica.name))
    if kv is None:
        return "it has no status"
    status = ReplicaStatus.parse(kv.value)
    moment = world.checks.oracle.newest
    live = [one.name for one in world.replicas]
    bad = {
        one.name
        for one in moment.wanted.values()
        if one.is_eager and not one.source.startswith("good") and replica.name in moment.owners(one.name, live)
    }
    failed = {entry.name for entry in status.failed}
    newest = world.checks.oracle.moments[-1][0]
    if not status.ready or status.stale or status.observed_revision < newest or status.pending:
        return f"its status says {kv.value!r}"
    if failed != bad | unreadable:
        return f"failed are {failed}, expected {bad | unreadable}"
    return ""


async def stay(world: World) -> None:
    """R3: what has converged stays so, and nothing is called any more."""
    await asyncio.sleep(DRIFT_SECONDS)
    before = world.checks.calls
    await asyncio.sleep(STAY_SECONDS)
    if world.checks.calls != before:
        world.checks.violated("R3 engines are called although nothing changes")
    for replica in world.replicas:
        if difference := _difference(world, replica):
            world.checks.violated(f"R3 {replica.name} did not stay: {difference}")


async def let_go(world: World) -> None:
    """R16: within a bound no store has what nobody needs any more."""
    for _ in range(LET_GO_SECONDS):
        if not any(_kept_in_vain(world, replica) for replica in world.replicas):
            return
        await asyncio.sleep(1.0)
    for replica in world.replicas:
        if kept := _kept_in_vain(world, replica):
            world.checks.violated(f"R16 {replica.name} keeps what nobody needs: {sorted(kept)}")


def _kept_in_vain(world: World, replica: ReplicaHost) -> set[str]:
    """Sources in the store that are neither desired nor listed."""
    staged = {source_of(staged.path) for staged in replica.place.store.staged.values()}
    desired = {one.source for one in world.checks.oracle.newest.wanted.values()}
    return staged - desired - {source_of(path) for path in replica.engine.listing.values()}
