"""Engines: the contract-tested simulated vLLM behind the real driver, with the HTTP between them played."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from sidecar.engines.simulated.card import Card
from sidecar.engines.simulated.engine import Rejection, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.sim.artifacts import REFUSED, SimStore, source_of
from tests.support.sim.loop import Process

Value = TypeVar("Value")
Change = Callable[["EngineHost", str, str, str], None]
BASE = "base"
OPTIONS = Options(served_model_name=BASE, load_seconds=0.01, token_seconds=0.2)
# Where there is one slot only, requests of other adapters wait.
SLOTS = (1, 8)
MISSING_FILES = Rejection(404, "NotFoundError", "Loading lora failed: No adapter found for <path>")


class SimEngine(SimulatedVllm):
    """Reads adapters from the replica's store in memory, each time anew; foreign paths are always there.

    Attributes:
        coming: adapters of requests that are on their way to the queue.
    """

    def __init__(self, store: SimStore, started_at: float, max_loras: int) -> None:
        super().__init__(replace(OPTIONS, max_loras=max_loras))
        self.started_at = started_at
        self.coming: list[Card] = []
        self._store = store
        self._ticks = count(1)

    @property
    def needed(self) -> set[str]:
        """Paths whose files it may read at any moment."""
        return {card.path for card in (*self.cards.values(), *self.coming, *self.bound)}

    @property
    def request_count(self) -> int:
        """Requests that are not answered yet."""
        return len(self.coming)

    async def serve(self, name: str, on_its_way_seconds: float, tokens: int) -> None:
        """A request: what it is answered with is decided when it comes in.

        Raises:
            Rejection: there is no such adapter.
            EngineDead: its files are gone.
        """
        card = await self.card_of(name)
        if card is None:
            return
        self.coming.append(card)
        try:
            await asyncio.sleep(on_its_way_seconds)
            await self.generate(card, ".", tokens)
        finally:
            self.coming.remove(card)

    def _now(self) -> float:
        """By the order of the samples, for the machine's clock is not this simulation's."""
        return float(next(self._ticks))

    async def _weights_for(self, card: Card | None) -> str:
        """Others took its room since the last step."""
        if card is not None:
            self._resident.pop(card.number, None)
        return await super()._weights_for(card)

    async def _bring_in(self, card: Card) -> None:
        if self._store.owns(card.path) and not self._store.has(card.path):
            raise MISSING_FILES
        if source_of(card.path).startswith(REFUSED):
            raise Rejection(500, "InternalServerError", "Call to add_lora method failed: wrong shapes")
        self._resident[card.number] = card.path


@dataclass(eq=False)
class EngineHost:
    """Where an engine runs, is killed and started anew.

    Attributes:
        on_change: is told (host, what, name, path) of each change of the adapters as it takes effect.
        hang: the next load waits for this event inside the engine.
        odd: what befalls the next posts, one each.
    """

    replica: str
    url: str
    store: SimStore
    rng: random.Random
    on_change: Change
    engine: SimEngine | None = None
    process: Process = field(default_factory=lambda: Process("none"))
    hang: asyncio.Event | None = None
    hanging: list[asyncio.Event] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    processes: list[Process] = field(default_factory=list)
    _starts: int = 0

    def start(self) -> None:
        """Starts a process; it has no adapters."""
        self._starts += 1
        self.process = Process(f"{self.replica}/engine{self._starts}")
        self.processes.append(self.process)
        self.engine = SimEngine(self.store, 1000.0 + self._starts, self.rng.choice(SLOTS))
        self.busy.clear()
        self.on_change(self, "start", "", "")

    def kill(self) -> None:
        """Ends the process; whoever waits for an answer learns it at once."""
        self.engine, self.hang = None, None
        self.process.kill()
        self.on_change(self, "stop", "", "")

    @property
    def incarnation(self) -> str:
        return "" if self.engine is None else repr(self.engine.started_at)

    @property
    def listing(self) -> dict[str, str]:
        """Name to path of what is loaded."""
        return {} if self.engine is None else {name: card.path for name, card in self.engine.cards.items()}

    def order_hang(self) -> asyncio.Event:
        """Makes the next load hang until the event is set."""
        self.hang = asyncio.Event()
        self.hanging.append(self.hang)
        return self.hang

    def release(self) -> None:
        """Ends everything that hangs, and what was ordered."""
        for event in self.hanging:
            event.set()
        self.hanging.clear()
        self.odd.clear()
        self.hang = None

    async def ask(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Runs `work` in the engine's process and waits for it.

        Raises:
            ConnectionResetError: the engine died.
        """
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Value] = loop.create_future()
        task = loop.create_task(work, context=self.process.context())
        task.add_done_callback(lambda done: _hand_over(done, reply))
        self.process.on_death.append(lambda: _reset(reply))
        return await reply

    async def load(self, name: str, path: str) -> None:
        """Loads as a request does. Raises Rejection."""
        engine, hold = self.engine, self.hang
        assert engine is not None
        self.hang = None
        self.busy.add(name)
        try:
            await engine.load(name, path, hold)
        finally:
            self.busy.discard(name)
        self.on_change(self, "load", name, path)

    async def unload(self, name: str) -> None:
        """Unloads as a request does. Raises Rejection."""
        engine = self.engine
        assert engine is not None
        path = self.listing.get(name, "")
        await engine.unload(name)
        self.on_change(self, "unload", name, path)


def _hand_over(task: asyncio.Task[Value], reply: asyncio.Future[Value]) -> None:
    if task.cancelled() or reply.done():
        _ = task.cancelled() or task.exception()
        return
    error = task.exception()
    if error is not None:
        reply.set_exception(error)
    else:
        reply.set_result(task.result())


def _reset(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(ConnectionResetError("the engine died"))
