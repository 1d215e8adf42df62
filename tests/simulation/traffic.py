"""Requests to the engines. Each is bound to files when it comes in, and needs them until its end."""

from __future__ import annotations

import asyncio
import random
from itertools import count

from sidecar.engines.simulated.engine import EngineDead, Rejection
from tests.simulation.engines import EngineHost
from tests.simulation.lazy import UNKNOWN
from tests.simulation.world import World

# More would still be under way long after everything has healed.
MOST_AT_ONCE = 2
# The longest outlive the grace, and all evidence that would do for shorter ones.
TOKENS = (1, 5, 70)
# So many are given up before they are answered: while they wait, are resolved, or run.
LEAVES = 0.3


async def send(world: World, seconds: float) -> None:
    """Sends requests for so long; some wait until all that came before them are answered."""
    rng = random.Random(f"traffic {world.seed}")
    pause_seconds = rng.choice((0.3, 1.0, 5.0)) * world.size.pause
    end = asyncio.get_running_loop().time() + seconds
    for number in count():
        await asyncio.sleep(rng.uniform(0.0, 2 * pause_seconds))
        if asyncio.get_running_loop().time() >= end:
            return
        dice = random.Random(f"request {number} {world.seed}")
        _ask(world, f"t{number}", dice.choice(world.replicas).engine, dice)


def _ask(world: World, part: str, host: EngineHost, rng: random.Random) -> None:
    """One request for whatever the engine lists, in the engine's own process."""
    asked = (*world.size.names, UNKNOWN) if world.has_plugin else ()  # what may be desired, and what is nowhere
    names, engine = sorted({*host.listing, *asked}), host.engine
    if engine is None or not names or len(engine.requests) >= MOST_AT_ONCE:
        return
    leaves = rng.uniform(0.0, rng.choice((0.05, 1.0, 10.0))) if rng.random() < LEAVES else None
    name, on_its_way_seconds, tokens = rng.choice(names), rng.choice((0.0, 0.1, 4.0)), rng.choice(TOKENS)
    if not world.plays(part, f"a request for {name} to {host.replica}"):
        return
    work = engine.serve(name, on_its_way_seconds, tokens)
    task = asyncio.get_running_loop().create_task(work, context=host.process.context())
    engine.requests.add(task)
    task.add_done_callback(engine.requests.discard)
    task.add_done_callback(lambda done: _answered(world, host, done))
    if leaves is not None:
        asyncio.get_running_loop().call_later(leaves, task.cancel)


def _answered(world: World, host: EngineHost, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        return
    match task.exception():
        case None | Rejection():
            return
        case EngineDead():
            world.checks.violated(f"R7 {host.replica}'s engine died of files that are gone")
        case error:
            world.checks.violated(f"a request failed: {error!r}")
