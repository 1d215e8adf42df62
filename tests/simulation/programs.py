"""Programs that use the SDK: they publish and wait until it is served, go back, withdraw, and some hang up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from itertools import count
from typing import Any

from registry.client.adapters import Published
from registry.client.asynchronous import AsyncRegistry
from registry.model.errors import RegistryError
from tests.simulation.artifacts import GOOD, MISSING, ROOT
from tests.simulation.clients import answer_of
from tests.simulation.history import POOL
from tests.simulation.world import KEYS, World

# Of these the operator changes some too.
PUBLISHED = ("a", "e", "acme/c", "mine")
WAIT_SECONDS = (0.5, 5.0, 20.0)
# So many hang up amid their call.
LEAVES = 0.4
_Work = Coroutine[Any, Any, Published | None]


class Programs:
    """Several calls at once, each of a program of its own."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def work(self, seconds: float) -> None:
        """In every other world: begins calls for so long, and waits for all of them."""
        rng = random.Random(f"programs {self._world.seed}")
        if self._world.seed % 2 == 0:
            return
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as tasks:
            for number in count():
                await asyncio.sleep(rng.uniform(0.0, 8.0) * self._world.size.pause)
                if asyncio.get_running_loop().time() >= end:
                    return
                dice = random.Random(f"program {number} {self._world.seed}")
                if self._world.plays(f"p{number}", "a program"):
                    tasks.create_task(self._run(number, dice))

    async def _run(self, number: int, dice: random.Random) -> None:
        """One program: its call, its end."""
        world = self._world
        request_id, restores = f"sdk-{number}", world.restores
        address = f"program.{dice.choice(world.admins).address}"
        leaves = dice.uniform(0.0, 10.0) if dice.random() < LEAVES else None
        try:
            tls = world.tls_of_callers
            async with AsyncRegistry(address, tls=tls, timeout_seconds=5.0) as registry, asyncio.timeout(leaves):
                published = await _called(registry, request_id, f"9{number}", dice)
        except TimeoutError:
            world.log(f"{request_id} hung up")
        except RegistryError as error:
            world.log(f"{request_id}: {error.reason}")
        else:
            world.log(f"{request_id}: {published}")
            if published is not None and world.restores == restores:
                kv = world.store.at(published.revision).get(KEYS.adapter(published.pool, published.name))
                world.answers += filter(None, [answer_of(published, kv)])


def _called(registry: AsyncRegistry, request_id: str, suffix: str, dice: random.Random) -> _Work:
    name, seconds = dice.choice(PUBLISHED), dice.choice(WAIT_SECONDS)
    match dice.choices(("publish", "rollback", "retry", "withdraw"), (6, 2, 1, 1))[0]:
        case "rollback":
            return registry.rollback(name, POOL, timeout_seconds=seconds, request_id=request_id)
        case "retry":
            return registry.retry(name, POOL, timeout_seconds=seconds, request_id=request_id)
        case "withdraw":
            return registry.withdraw(name, POOL, request_id=request_id)
    source = f"{ROOT}{dice.choices((GOOD, MISSING), (5, 1))[0]}{suffix}"
    return registry.publish(source, name, POOL, timeout_seconds=seconds, request_id=request_id)
