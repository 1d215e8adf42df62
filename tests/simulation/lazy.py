"""R3, R6, R16: once all has healed lazy adapters are served when asked for, refused once deleted, and not kept idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from registry.transactions.changes import ApplyAdapters, Remove
from sidecar.engines.simulated.engine import Rejection
from sidecar.vllm_plugin.answers import answering
from sidecar.vllm_plugin.listing import HIDE_SECONDS
from tests.simulation.artifacts import is_good, is_refused, path_of
from tests.simulation.engines import SimEngine
from tests.simulation.history import POOL, Version
from tests.simulation.operator import Operator
from tests.simulation.sidecars import IDLE_SECONDS
from tests.simulation.world import ReplicaHost, World

UNKNOWN = "nobody"
# To be told that there is no such adapter; what has to be brought in first takes longer.
AT_ONCE_SECONDS = 0.5
# A deletion is followed, and what is idle goes, so late at most.
FOLLOW_SECONDS = 10.0
GONE_SECONDS = 2 * IDLE_SECONDS


async def ask_for_lazy(world: World, operator: Operator) -> None:
    """Asks every engine for every name, deletes one of the adapters, and waits until the others are idle."""
    if not world.has_plugin:
        return
    await _departed(world)
    for replica in world.replicas:
        for name in (*world.size.names, UNKNOWN):
            await _request(world, replica, name)
            version = world.checks.oracle.newest.lazy().get(name)
            if version is not None and is_refused(version.source, replica.name):
                await _request(world, replica, name)  # from now on the sidecar knows it, and says so itself
    lazy = sorted(_loaded(world))
    if lazy:
        await _delete(world, operator, lazy[0])
    if not await _comes(lambda: not _loaded(world), GONE_SECONDS):
        world.checks.violated(f"R16 lazy adapters stay though nobody uses them: {sorted(_loaded(world))}")


async def _departed(world: World) -> None:
    """Waits until what was unloaded by now does not answer any more; what is idle goes meanwhile, one after another."""

    def leaving() -> set[tuple[str, str]]:
        engines = ((replica.name, replica.engine.engine) for replica in world.replicas)
        return {
            (who, name) for who, one in engines if one for name in one.cards.keys() - {card.name for card in one.listed}
        }

    unloaded = leaving()
    if not await _comes(lambda: not unloaded & leaving(), 2 * HIDE_SECONDS):
        world.checks.violated(f"R6 {sorted(unloaded & leaving())} answer on though they were unloaded")


def _loaded(world: World) -> set[str]:
    """Lazy adapters that some engine lists."""
    lazy = world.checks.oracle.newest.lazy()
    return {name for replica in world.replicas for name in replica.engine.listing if name in lazy}


async def _request(world: World, replica: ReplicaHost, name: str) -> None:
    moment = world.checks.oracle.newest
    version = moment.lazy().get(name)
    if any(one.name == name and one.is_eager for one in moment.wanted.values()):
        return
    expected = _expected(world, replica.name, name, version)
    asked_at = asyncio.get_running_loop().time()
    path = await served(replica, name)
    if path not in expected:
        world.checks.violated(f"R3 a request for {name} to {replica.name} is served {path}, expected {expected}")
    elif version is None and asyncio.get_running_loop().time() - asked_at > AT_ONCE_SECONDS:
        world.checks.violated(f"R6 {replica.name} does not refuse {name} at once, which there is not")


def _expected(world: World, replica: str, name: str, version: Version | None) -> set[str | None]:
    """What a request may be served by: the newest, or what this replica served last if it cannot serve that.

    What an engine refuses it has to be told of, each process anew, before anybody knows: then there is no answer.
    Nor is there one of a replica that lost what it knew, before others tell it.
    """
    if version is None:
        return {None}
    if is_good(version.source, replica):
        return {path_of(replica, version.source)}
    good = world.checks.last_good(replica, name, world.checks.oracle.newest)
    found: set[str | None] = {path_of(replica, source) for source in good if is_good(source, replica)}
    may_lack = is_refused(version.source, replica) or not world.checks.remembers(replica, name)
    return found | {None} if may_lack else found or {None}


async def served(replica: ReplicaHost, name: str) -> str | None:
    """Path of what a request for a name is served by; None: it is refused."""
    engine = replica.engine.engine
    assert engine is not None
    try:
        return await replica.engine.ask(_answered(engine, name))
    except Rejection:
        return None


async def _answered(engine: SimEngine, name: str) -> str | None:
    with answering() as binding:
        card = await engine.card_of(name)
    await engine.generate(card, ".", 1)
    if card is None:
        return None
    engine.on_answer(card.name, card.path, binding.version)
    return card.path


async def _delete(world: World, operator: Operator, name: str) -> None:
    await operator.change(ApplyAdapters(POOL, (Remove(name),)))
    if not await _comes(lambda: all(name not in replica.engine.listing for replica in world.replicas), FOLLOW_SECONDS):
        world.checks.violated(f"R6 {name} was deleted, and is still listed")
        return
    await _departed(world)
    for replica in world.replicas:
        await _request(world, replica, name)


async def _comes(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition holds within so long."""
    end = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(0.25)
    return True
