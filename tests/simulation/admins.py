"""Admin services as processes of the simulation, and an operator who repeats what is not settled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from registry.admin.health import AdminMetrics
from registry.etcd3.client import Client
from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.options import ClientOptions
from registry.model.errors import RegistryError, Unavailable
from registry.model.keys import Keys
from registry.rollout.controller import RolloutController, Shared
from registry.runtime.clock import Deadline
from registry.store.reader import Reader
from registry.store.writer import WriteGate, Writer
from registry.transactions.builder import Settled
from registry.transactions.changes import Change, RepairTenant
from registry.transactions.context import Caller, TxnLimits
from tests.simulation.calls import CallerLeft, ask
from tests.simulation.loop import Process
from tests.support.cancelling import cancelled_at

CALL_SECONDS = 5.0
# The share of calls whose caller leaves.
LEAVES = 0.1


@dataclass(frozen=True)
class Answer:
    """How a request ended for its caller; `revision` 0: it was refused.

    `was_unsettled`: of an earlier call with the same id the caller knew no outcome; it may have been under way yet.
    """

    request_id: str
    revision: int
    reason: str = ""
    was_unsettled: bool = False


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
    _metrics: AdminMetrics = field(default_factory=AdminMetrics)
    _starts: int = 0

    def start(self) -> None:
        """Starts a process with nothing in its memory."""
        self._starts += 1
        self.process = Process(f"{self.name}.{self._starts}")
        self.process.context().run(self._open)

    def _open(self) -> None:
        client = Client(ClientOptions(self.endpoints), rng=random.Random(self.rng.random()))
        gate = WriteGate()
        gate.open()
        rng = random.Random(self.rng.random())
        self._reader = Reader(client, self.keys)
        self._writer = Writer(client, self.keys, TxnLimits(), gate, rng=rng, now=self.wall)
        shared = Shared(
            client, self.keys, self._writer, SharedInformerFactory(client, rng=rng), self._metrics.count_conducted, rng
        )
        controller = asyncio.get_running_loop().create_task(RolloutController(shared).run())
        controller.add_done_callback(self._conductor_ended)

    def _conductor_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.on_end(f"the conductor of {self.name} ended: {task.exception()!r}")

    async def change(self, change: Change, request_id: str, leaves_at: int = 0) -> Settled:
        """One try; the caller leaves at the n-th wait of the admin service, 0: never.

        Raises:
            CallerLeft: it did, before the end.
            ConnectionResetError: the process died.
            RegistryError: as the writer raises it.
        """
        work = self._change(change, request_id)
        return await ask(self.process, cancelled_at(leaves_at, work) if leaves_at else work)

    async def _change(self, change: Change, request_id: str) -> Settled:
        caller = Caller("op", "operator", request_id, request_id_given=True)
        deadline = Deadline.of(CALL_SECONDS)
        if isinstance(change, RepairTenant):
            change = replace(change, lost=await self._reader.lost_adapters(change.name, deadline))
        return await self._writer.change(change, caller, deadline, validate_only=False)


@dataclass(frozen=True)
class Impatience:
    """Callers that leave amid a call, now and then; `left` is told of each."""

    rng: random.Random
    left: Callable[[], None]

    def leaves_at(self) -> int:
        """The wait at which the next caller leaves; 0: it stays."""
        return self.rng.randint(1, 12) if self.rng.random() < LEAVES else 0


async def settle(
    admins: list[Admin], change: Change, request_id: str, rng: random.Random, impatience: Impatience
) -> Answer:
    """Asks one admin after another, always with the same request id, until the outcome is known."""
    was_unsettled = False
    while True:
        try:
            async with asyncio.timeout(3 * CALL_SECONDS):
                settled = await rng.choice(admins).change(change, request_id, impatience.leaves_at())
        except CallerLeft:
            was_unsettled = True
            impatience.left()
        except (ConnectionResetError, Unavailable, TimeoutError):
            was_unsettled = True
            await asyncio.sleep(rng.uniform(0.05, 1.0))
        except RegistryError as error:
            return Answer(request_id, 0, error.reason, was_unsettled)
        else:
            return Answer(request_id, settled.revision)
