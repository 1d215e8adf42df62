"""Admin services as processes of the simulation, and an operator who repeats what is not settled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from registry.admin.conductor import Conductor
from registry.admin.metrics import Metrics
from registry.admin.pool_conductor import Shared
from registry.errors import InvalidArgument, RegistryError, Unavailable
from registry.etcd3.client import Client
from registry.etcd3.options import ClientOptions
from registry.keys import Keys
from registry.store.break_glass import BreakGlass, Removal
from registry.store.budget import Budget
from registry.store.gate import Gate
from registry.store.mirror import Mirrors
from registry.store.writer import Writer
from registry.transactions.changes import Change
from registry.transactions.context import Caller, Limits
from registry.transactions.replay import Settled
from tests.support.sim.calls import ask
from tests.support.sim.loop import Process

CALL_SECONDS = 5.0


@dataclass(frozen=True)
class Answer:
    """How a request ended for its caller; `revision` 0: it was refused."""

    request_id: str
    revision: int
    reason: str = ""
    is_refused_by_replay: bool = False


@dataclass(eq=False)
class Admin:
    """One admin service, with its conductor; `start` it anew after a kill.

    Attributes:
        on_end: is told of a conductor that ends, which none does by itself.
    """

    name: str
    endpoints: tuple[str, ...]
    keys: Keys
    wall: Callable[[], datetime]
    rng: random.Random
    on_end: Callable[[str], None]
    process: Process = field(init=False)
    _metrics: Metrics = field(default_factory=Metrics)
    _starts: int = 0

    def start(self) -> None:
        """Starts a process with nothing in its memory."""
        self._starts += 1
        self.process = Process(f"{self.name}.{self._starts}")
        self.process.context().run(self._open)

    def _open(self) -> None:
        client = Client(ClientOptions(self.endpoints), rng=random.Random(self.rng.random()))
        gate = Gate()
        gate.open()
        rng = random.Random(self.rng.random())
        self._glass = BreakGlass(client, self.keys, gate, now=self.wall)
        self._writer = Writer(client, self.keys, Limits(), gate, rng=rng, now=self.wall)
        shared = Shared(client, self.keys, self._writer, Mirrors(client, rng=rng), self._metrics, rng)
        conductor = asyncio.get_running_loop().create_task(Conductor(shared).run())
        conductor.add_done_callback(self._conductor_ended)

    def _conductor_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.on_end(f"the conductor of {self.name} ended: {task.exception()!r}")

    async def change(self, change: Change, request_id: str) -> Settled:
        """One try.

        Raises:
            ConnectionResetError: the process died.
            RegistryError: as the writer raises it.
        """
        return await ask(self.process, self._change(change, request_id))

    async def break_glass(self, pool: str, name: str, request_id: str) -> Removal:
        """One try; raises as `change`."""
        caller = Caller("op", "operator", request_id, request_id_given=True)
        return await ask(self.process, self._remove(pool, name, caller))

    async def _remove(self, pool: str, name: str, caller: Caller) -> Removal:
        return await self._glass.delete(pool, name, None, caller, Budget.of(CALL_SECONDS))

    async def _change(self, change: Change, request_id: str) -> Settled:
        caller = Caller("op", "operator", request_id, request_id_given=True)
        return await self._writer.change(change, caller, Budget.of(CALL_SECONDS), validate_only=False)


async def settle(admins: list[Admin], change: Change, request_id: str, rng: random.Random) -> Answer:
    """Asks one admin after another, always with the same request id, until the outcome is known."""
    tries = 0
    while True:
        tries += 1
        try:
            async with asyncio.timeout(3 * CALL_SECONDS):
                settled = await rng.choice(admins).change(change, request_id)
        except (ConnectionResetError, Unavailable, TimeoutError):
            await asyncio.sleep(rng.uniform(0.05, 1.0))
        except InvalidArgument as error:
            return Answer(request_id, 0, error.reason, is_refused_by_replay=tries > 1)
        except RegistryError as error:
            return Answer(request_id, 0, error.reason)
        else:
            return Answer(request_id, settled.revision)
