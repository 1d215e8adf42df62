"""R3: what every replica must come to once everything has healed, and must stay.

R16: what it must let go of; R13: what it comes back to without etcd; R17: what its engine refused before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

from registry.model.names import name_key
from registry.model.placement import Member
from registry.model.status import ReplicaStatus
from sidecar.plan.names import SEPARATOR
from sidecar.plan.readiness import DEGRADED_SHARE
from tests.simulation.artifacts import is_good, is_refused, path_of, source_of
from tests.simulation.history import POOL, Members, Version, Wanted
from tests.simulation.links import Way
from tests.simulation.world import KEYS, ReplicaHost, World

# A load that hangs is given up after 60 s, and a retry is at most 60 s away.
CONVERGE_SECONDS = 150.0
# What somebody else did to an engine at the very end is found by the next look at it.
DRIFT_SECONDS = 20.0
# What was put off while requests ran, such as a swap of a record that nobody can read any more, may still come.
LAST_TRIES = 3
# In so many worlds etcd goes at the end, and hosts come back without it, so soon.
COME_BACK_SHARE, COME_BACK_SECONDS = 0.3, 30.0
# In so many an engine begins anew, and refuses everything for so long; a try comes so soon after that.
WARM_UP_SHARE, COLD_SECONDS, WELL_SECONDS = 0.2, 12.0, 75.0
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
    if replica.engine.engine is not None and replica.engine.engine.unbound:
        return "a request may yet load something"
    moment = world.checks.oracle.newest
    listing = {name: path for name, path in replica.engine.listing.items() if replica.place.store.owns(path)}
    share = moment.share(replica.name, _live(world))
    for one in moment.wanted.values():
        if one.is_conducted:
            return f"the rollout of {one.name} is neither promoted nor halted"
        path = listing.get(one.name)
        if one.is_eager and (difference := _misplaced(world, replica.name, one, share.get(one.name), path)):
            return difference
    known = {one.name for one in moment.wanted.values() if one.is_eager} | moment.unreadable.keys()
    superfluous = [name for name in listing if name not in known]
    if superfluous:
        return f"superfluous: {superfluous}"
    return _status_difference(world, replica, {*moment.unreadable})


def _misplaced(world: World, replica: str, one: Wanted, version: Version | None, path: str | None) -> str:
    """How what is listed under a name differs from the version that is the replica's; None: it is not to serve it."""
    if version is None:
        # What one of its owners cannot serve may be kept.
        is_taken = all(is_good(source, owner) for owner, source in _served_by(world, one))
        return f"{one.name} is {path}, and should be on others alone" if is_taken and path else ""
    is_there, can_serve = path == path_of(replica, version.source), is_good(version.source, replica)
    if is_there == can_serve:
        return ""
    return f"{one.name} is {path}, and should be {version.source}" if can_serve else f"{one.name} is no good: {path}"


def _served_by(world: World, one: Wanted) -> list[tuple[str, str]]:
    """Who is to serve an adapter, and which source."""
    moment, live = world.checks.oracle.newest, _live(world)
    shares = {replica: moment.share(replica, live).get(one.name) for replica in live}
    return [(replica, version.source) for replica, version in shares.items() if version is not None]


def _live(world: World) -> Members:
    """All replicas, which have no labels, and room alike."""
    return {replica.name: Member(replica.name, {}) for replica in world.replicas}


def _status_difference(world: World, replica: ReplicaHost, unreadable: set[str]) -> str:
    kv = world.store.kvs.get(KEYS.status(POOL, replica.name))
    if kv is None:
        return "it has no status"
    status = ReplicaStatus.parse(kv.value)
    moment = world.checks.oracle.newest
    share = moment.share(replica.name, _live(world))
    bad = {name for name, version in share.items() if not is_good(version.source, replica.name)}
    failed = {entry.name for entry in status.failed}
    newest = world.checks.oracle.moments[-1][0]
    if status.stale or status.observed_revision < newest or status.pending:
        return f"its status says {kv.value!r}"
    refused = [version for version in share.values() if is_refused(version.source, replica.name)]
    serves = any(replica.place.store.owns(path) for path in replica.engine.listing.values())
    if not status.ready and (serves or not refused) and len(refused) <= DEGRADED_SHARE * len(share):
        return f"its status says {kv.value!r}"
    lazy = moment.lazy()
    asked = {name for name, version in lazy.items() if not is_good(version.source, replica.name)}
    # Why the last question for one was not answered stays in the status until the next question.
    asked |= {entry.name for entry in status.failed if entry.name in lazy and entry.retry_at}
    if failed - asked != bad | unreadable:
        return f"failed are {failed}, expected {bad | unreadable}"
    return ""


async def stay(world: World, seconds: float) -> None:
    """R3: what has converged stays so, and nothing is called any more."""
    drifts = (sample.at for samples in world.checks.samples.values() for sample in samples if sample.what == "foreign")
    await asyncio.sleep(max(0.0, max(drifts, default=0.0) + DRIFT_SECONDS - world.monotonic()))
    for _ in range(LAST_TRIES):
        before = world.checks.calls
        await asyncio.sleep(seconds)
        if world.checks.calls == before:
            break
    else:
        world.checks.violated("R3 engines are called although nothing changes")
    for replica in world.replicas:
        if difference := _difference(world, replica):
            world.checks.violated(f"R3 {replica.name} did not stay: {difference}")


def check_listed(world: World) -> None:
    """R4 digest-true, R6 unload-eventual: once all is quiet, what is listed is of its entry, and has one."""
    moment = world.checks.oracle.newest
    due = {one.name: one for one in moment.wanted.values() if one.is_eager}
    for replica in world.replicas:
        for name, path in replica.engine.listing.items():
            if not replica.place.store.owns(path):
                continue
            world.told["R4"] += 1
            source, key = source_of(path), name_key(name)
            if name not in due and key not in moment.unreadable:
                world.checks.violated(f"R6 {replica.name} still lists {name}, which there is not")
            elif name in due and source not in (newest := _newest_due(world, replica.name, due[name])) and newest:
                world.checks.violated(f"R4 {replica.name} lists {name} from {source}, and its entry is of {newest}")


def _newest_due(world: World, replica: str, one: Wanted) -> set[str]:
    """Sources of the entry; none: an earlier one may be listed, which is kept for what cannot be served."""
    sources, owners = {version.source for version in one.versions}, _served_by(world, one)
    serves = any(owner == replica for owner, _ in owners) or all(is_good(source, owner) for owner, source in owners)
    return sources if serves and all(is_good(source, replica) for source in sources) else set()


async def warm_up(world: World) -> None:
    """R17: what an engine refuses for a while, it serves within a bound of being well again."""
    dice = random.Random(f"warm up {world.seed}")
    if dice.random() >= WARM_UP_SHARE or world.restores:
        return  # as in `come_back`
    replica = dice.choice(world.replicas)
    engine, before = replica.engine, _lasting(world, replica)
    world.log(f"{replica.name} begins anew, and refuses everything for a while")
    world.told["R17"] += len(before)
    engine.kill()
    engine.start()
    engine.refuses = lambda _name: True
    await asyncio.sleep(COLD_SECONDS)
    engine.heal()
    if not await _stands({replica: before}, world, WELL_SECONDS):
        now = _lasting(world, replica)
        world.checks.violated(f"R17 {replica.name} serves {now}, and served {before} before its engine refused it")


async def come_back(world: World) -> None:
    """R13: while etcd is out of reach, sidecars and engines that restart come back to what was served."""
    dice = random.Random(f"come back {world.seed}")
    if dice.random() >= COME_BACK_SHARE or world.restores:
        return  # what was served of another store may be known by nobody
    way = dice.choice((Way.REFUSED, Way.HUNG))
    for link in world.links.values():
        link.set_way(way)
    before = {replica: _lasting(world, replica) for replica in world.replicas}
    world.told["R13"] += sum(map(len, before.values()))
    for replica in world.replicas:
        restarts = dice.choice(("sidecar", "engine", "both"))
        world.log(f"etcd is out of reach, and of {replica.name} restarts: {restarts}")
        if restarts != "engine":
            world.kill(replica)
            world.start(replica)
        if restarts != "sidecar":
            replica.engine.kill()
            replica.engine.start()
    if not await _stands(before, world, COME_BACK_SECONDS):
        now = {replica.name: _lasting(world, replica) for replica in before}
        world.checks.violated(f"R13 without etcd {now} are back, of {[*before.values()]}")


async def _stands(wanted: Mapping[ReplicaHost, Mapping[str, str]], world: World, seconds: float) -> bool:
    """Whether engines list the names that they are to within so long: of what fails it may be a later good one."""
    for _ in range(int(seconds / 0.5)):
        if all(_lasting(world, replica).keys() == served.keys() for replica, served in wanted.items()):
            return True
        await asyncio.sleep(0.5)
    return False


def _lasting(world: World, replica: ReplicaHost) -> dict[str, str]:
    """What an engine lists of what nobody has to ask for, without what canaries alone are to have.

    Who was one has their version still where that of all others fails: once it is gone it does not come back. Nor does
    what an engine has of an adapter that was deleted before, as of a load that ended late; nor, where the sidecar began
    anew, what it had until others serve it.
    """
    moment = world.checks.oracle.newest
    lazy, share = moment.lazy(), moment.share(replica.name, _live(world))
    stable = [one for one in moment.wanted.values() if one.stable is not None and share.get(one.name) == one.stable]
    canaries = {(one.name, one.newest.source) for one in stable}
    of_others = {one.name for one in moment.wanted.values() if one.is_eager and one.name not in share}
    return {
        name: source_of(path)
        for name, path in replica.engine.listing.items()
        if replica.place.store.owns(path)
        and name not in lazy
        and name not in of_others
        and (name, source_of(path)) not in canaries
        and _is_of_this_life(world, replica, name, source_of(path))
    }


def _is_of_this_life(world: World, replica: ReplicaHost, name: str, source: str) -> bool:
    moment, plain = world.checks.oracle.newest, name.partition(SEPARATOR)[0]
    wanted = moment.wanted.get(name_key(plain))
    versions = () if wanted is None else wanted.versions
    is_wanted = wanted is None or any(one.source == source for one in versions)
    return is_wanted or source in world.checks.last_good(replica.name, plain, moment)


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
    """Sources in the store that are neither desired, nor listed, nor what was served last of what cannot be."""
    moment, name = world.checks.oracle.newest, replica.name
    staged = {source_of(staged.path) for staged in replica.place.store.staged.values()}
    needed = {version.source for one in moment.wanted.values() for version in one.versions}
    failing = [one for one in moment.wanted.values() if not all(is_good(each.source, name) for each in one.versions)]
    needed |= {source for one in failing for source in world.checks.last_good(name, one.name, moment)}
    return staged - needed - {source_of(path) for path in replica.engine.listing.values()}
