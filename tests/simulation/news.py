"""News that comes while its predecessor is being dealt with: a change of whatever a sidecar is just at work on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextvars import copy_context

from registry.transactions.changes import DrainReplica
from tests.simulation.faults import Fault, befall
from tests.simulation.history import POOL
from tests.simulation.operator import Operator
from tests.simulation.world import World

# Of so many calls one is met by news; 0: none.
ONE_IN = (0, 10, 3)
# News comes at once, amid the call, or when what it led to is under way.
AFTER_SECONDS = (0.0, 0.001, 0.005, 0.05, 0.5)
KINDS = ("change", "change", "drain", "fault")


class News:
    """Meets calls to engines, and statuses that are written, with news of their adapter, replica, engine or members."""

    def __init__(self, world: World, operator: Operator, faults: Sequence[Fault], seconds: float) -> None:
        self._world = world
        self._operator = operator
        self._faults = faults
        self._end = asyncio.get_running_loop().time() + seconds
        rng = random.Random(f"news {world.seed}")
        self._one_in = rng.choice(ONE_IN)
        self._count = 0
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_work(self, replica: str, name: str) -> None:
        """Each piece of work of a sidecar; `name`: of the adapter that it is about, if it is about one."""
        self._count += 1
        dice = random.Random(f"news {self._count} {self._world.seed}")
        loop = asyncio.get_running_loop()
        if not self._one_in or dice.random() * self._one_in >= 1.0 or loop.time() >= self._end:
            return
        task = loop.create_task(self._come(f"n{self._count}", replica, name, dice), context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Waits until all that came is dealt with."""
        await asyncio.gather(*self._tasks)

    async def _come(self, part: str, replica: str, name: str, dice: random.Random) -> None:
        await asyncio.sleep(dice.choice(AFTER_SECONDS))
        kind = dice.choice(KINDS)
        if not self._world.plays(part, f"news amid work on {name or 'all'} of {replica}: {kind}"):
            return
        match kind:
            case "fault":
                await befall(self._world, dice.choice(self._faults), dice, self._end)
            case "drain":
                await self._operator.change(DrainReplica(POOL, replica, drain=dice.random() < 0.5))
            case _:
                names = self._world.size.names
                await self._operator.change_one(name if name in names else dice.choice(names))
