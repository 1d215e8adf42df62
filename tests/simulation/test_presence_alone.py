"""Presences that no replica stands behind, in the simulation: they draw nothing, and nothing moves when they go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from registry.etcd3.ops import Put, Txn
from registry.model.placement import members_digest
from registry.model.records import AdapterSpec, Placement, PoolLimits, SourceSpec
from registry.model.status import Presence, ReplicaStatus, ReportedLimits
from registry.transactions.changes import ApplyAdapters, CreatePool, Upsert
from tests.simulation.artifacts import GOOD, ROOT
from tests.simulation.engines import BASE
from tests.simulation.history import POOL
from tests.simulation.simulation import expire_leases, play_by_hand
from tests.simulation.test_residency import Publisher, hub_of
from tests.simulation.world import KEYS, World

ROOM = 50
ADAPTERS = 24
GHOST = "ghost"
SETTLE_SECONDS = 20.0


def write(world: World, key: bytes, value: bytes, lease: int) -> None:
    world.store.txn(Txn((), (Put(key, value, lease),)))


def put_presence(world: World, capacity: int, lease: int, **fields: object) -> None:
    """A presence like that of a real replica but for its name and room."""
    real = world.store.kvs[KEYS.replica(POOL, world.replicas[0].name)].value
    changed = {"replica": GHOST, "owner": GHOST, "incarnation": GHOST, "capacity": capacity, "seat": ""} | fields
    write(world, KEYS.replica(POOL, GHOST), Presence.parse(real).model_copy(update=changed).to_bytes(), lease)


def put_status(world: World, lease: int, holds: int) -> None:
    """A status like that of a real replica but for its name and what its engine holds."""
    real = ReplicaStatus.parse(world.store.kvs[KEYS.status(POOL, world.replicas[0].name)].value)
    engine = real.engine.model_copy(update={"limits": ReportedLimits(max_cpu_loras=holds), "url": "http://ghost"})
    said = real.model_copy(update={"replica": GHOST, "engine": engine})
    write(world, KEYS.status(POOL, GHOST), said.to_bytes(), lease)


def held_lease(world: World) -> int:
    return world.store.grant(3600, asyncio.get_running_loop().time())


def alone(world: World) -> None:
    put_presence(world, 1_000_000, 0)


def alone_under_a_lease(world: World) -> None:
    put_presence(world, 1_000_000, held_lease(world))


def endless(world: World) -> None:
    put_presence(world, 2**62, held_lease(world))


def beside_the_status_of_another(world: World) -> None:
    put_presence(world, 1_000_000, held_lease(world))
    put_status(world, held_lease(world), 1_000_000)


def of_an_earlier_release(world: World) -> None:
    put_presence(world, 1_000_000, held_lease(world), by_reports=False)


def listed(world: World) -> dict[str, int]:
    """How many engines list each adapter."""
    found: dict[str, int] = {}
    for host in world.replicas:
        for name in host.engine.listing:
            found[name] = found.get(name, 0) + 1
    return found


async def with_a_ghost(world: World, appear: Callable[[World], None], *, least: int) -> None:
    """Adapters of one replica each come while something says that it lives; then that goes."""
    expiring = asyncio.create_task(expire_leases(world))
    for admin in world.admins:
        admin.start()
    publisher = Publisher(world)
    await publisher.change(CreatePool(POOL, (BASE,), PoolLimits(max_adapters=ROOM)))
    for host in world.replicas:
        host.engine.start()
        world.start(host)
    await asyncio.sleep(SETTLE_SECONDS)
    appear(world)
    names = [f"a{number}" for number in range(ADAPTERS)]
    for name in names:
        spec = AdapterSpec(source=SourceSpec(uri=f"{ROOT}{GOOD}{name}"), placement=Placement(replicas=1))
        await publisher.change(ApplyAdapters(POOL, (Upsert(name, spec),)))
    await asyncio.sleep(SETTLE_SECONDS)
    served = listed(world)
    assert ({*served.values()}, len(served) >= least) == ({1}, True), f"{len(served)} of {ADAPTERS} are served"
    async with hub_of(world, "reader") as hub, hub.look(POOL) as subscription:
        known = (await subscription.look()).view.snapshot.known
    said = {ReplicaStatus.parse(world.store.kvs[KEYS.status(POOL, one.name)].value).members for one in world.replicas}
    assert said == {members_digest(list(known.values())[-1])}, "admin service and sidecars have the same answer"
    before = world.checks.calls
    if least == ADAPTERS:
        for key in (KEYS.replica(POOL, GHOST), KEYS.status(POOL, GHOST)):
            world.store.delete(key)
        await asyncio.sleep(SETTLE_SECONDS)
        assert (listed(world), world.checks.calls) == (served, before), "nothing moves when it goes"
    expiring.cancel()
    assert [one for one in world.checks.violations if GHOST not in one] == []


GHOSTS = [alone, alone_under_a_lease, endless, beside_the_status_of_another, of_an_earlier_release]


@pytest.mark.parametrize("appear", GHOSTS, ids=lambda one: one.__name__)
def test_a_presence_that_does_not_report_draws_no_adapter(appear: Callable[[World], None]) -> None:
    """X3 given-back, R3 converge: whoever may write a key below replicas/ would else take what is placed by number."""
    play_by_hand(0, partial(with_a_ghost, appear=appear, least=ADAPTERS))


def with_a_status(world: World, *, by_reports: bool) -> None:
    lease = held_lease(world)
    put_status(world, lease, 2)
    put_presence(world, 1_000_000, lease, by_reports=by_reports)


@pytest.mark.parametrize("by_reports", [True, False])
def test_who_reports_draws_as_much_as_its_engine_holds(*, by_reports: bool) -> None:
    """X3 given-back: of any release; what it says of itself beyond that counts for nothing."""
    play_by_hand(
        0, partial(with_a_ghost, appear=partial(with_a_status, by_reports=by_reports), least=ADAPTERS * 3 // 4)
    )
