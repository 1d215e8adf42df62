"""Engines: the contract-tested simulated vLLM behind the real driver, with the HTTP between them played."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from sidecar.engines.simulated.engine import Card, Rejection, SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.transport import Reply
from sidecar.vllm_plugin.answers import answering
from sidecar.vllm_plugin.usage import Usage
from tests.simulation.artifacts import SimStore, is_refused, source_of
from tests.simulation.calls import ask
from tests.simulation.loop import Process, current_process
from tests.simulation.pace import Pace
from tests.simulation.plugin import PlayedPlugin, Socket

Value = TypeVar("Value")
Change = Callable[["EngineHost", str, str, str], None]
BASE = "base"
OPTIONS = Options(served_model_name=BASE, load_seconds=0.01, token_seconds=0.2, development=True)
# Where there is one slot only, requests of other adapters wait.
SLOTS = (1, 8)
# Ends a load that found its name on the way out: no call by itself.
SHOW_PATH = "/v1/loraplane/show"
# In place of a page's status: it comes, and half of it is not as it should be.
HALF = -1


class SimEngine(SimulatedVllm):
    """Reads adapters from the replica's store in memory, each time anew; other absolute paths are always there.

    Attributes:
        coming: adapters of requests that are on their way to the queue.
        resolved: what the plugin was told, by name, until it is registered or refused.
        unbound: requests of which it is not known yet what they are bound to.
        requests: those that are not answered yet, also those that it has not even taken in since it stands still.
        plugin: ours; None: it has none.
        refused: paths of what it refused to load.
        broken_off: how often nobody waited any more for what the plugin was told, by path.
        left_behind: numbers of what was unloaded without the plugin.
        refuses: whether a load of that name is refused now.
        next_hang: is asked by each load what it is to wait for.
        on_answer: is told (name, path, what its plugin says of the answer) of each request that was answered.
    """

    def __init__(self, store: SimStore, started_at: float, max_loras: int, base: str = BASE) -> None:
        super().__init__(replace(OPTIONS, max_loras=max_loras, served_model_name=base))
        self.started_at = started_at
        self.coming: list[Card] = []
        self.resolved: dict[str, Card] = {}
        self.unbound = 0
        self.requests: set[asyncio.Task[None]] = set()
        self.plugin: PlayedPlugin | None = None
        self.refused: set[str] = set()
        self.broken_off: Counter[str] = Counter()
        self.left_behind: set[int] = set()
        self.refuses: Callable[[str], bool] = _nothing_refused
        self.next_hang: Callable[[], asyncio.Event | None] = lambda: None
        self._on_resolved: Callable[[str, str], None] = lambda _name, _path: None
        self.on_answer: Callable[[str, str, str], None] = lambda _name, _path, _proof: None
        self._store = store
        self._ticks = count(1)
        self._core: set[asyncio.Task[None]] = set()

    def ask_by(self, socket: Socket, on_resolved: Callable[[str, str], None]) -> None:
        """Gives it our plugin; `on_resolved` is told (name, path) of what is registered by a request."""
        self.cards = Usage(now=asyncio.get_running_loop().time)
        self.plugin = PlayedPlugin(self, socket, self._store)
        self.resolve = self._ask_plugin
        self._on_resolved = on_resolved

    async def _ask_plugin(self, name: str) -> Card | None:
        assert self.plugin is not None
        card = await self.plugin.resolve(name, self.options.model)
        if card is not None:
            self.resolved[name] = card
        return card

    async def _resolve(self, name: str) -> None:
        try:
            await super()._resolve(name)
        except asyncio.CancelledError:
            if name in self.resolved:
                self.broken_off[self.resolved[name].path] += 1
            raise
        finally:
            card = self.resolved.pop(name, None)
        if card is not None:
            self._on_resolved(name, card.path)

    async def add(self, card: Card, hold: asyncio.Event | None = None) -> None:
        """As an engine's, whose core goes on if its caller leaves; memory may be short, and it may hang."""
        if self.refuses(card.name):
            self.refused.add(card.path)
            raise Rejection(500, "InternalServerError", "Call to add_lora method failed: out of memory")
        core = asyncio.get_running_loop().create_task(super().add(card, hold or self.next_hang()))
        self._core.add(core)
        core.add_done_callback(self._core.discard)
        core.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(core)

    async def unload(self, name: str, hold: asyncio.Event | None = None) -> None:
        """As an engine's, which keeps the weights until it needs the room."""
        card = self.cards.get(name)
        await super().unload(name, hold)
        if card is not None:
            self.left_behind.add(card.number)

    async def stand_still(self, event: asyncio.Event) -> None:
        """Makes no step until the event is set."""
        async with self._turn:
            await event.wait()

    @property
    def listed(self) -> list[Card]:
        """What it lists for the sidecar."""
        plugin = self.plugin
        return [card for card in self.cards.values() if plugin is None or not plugin.is_leaving(card)]

    @property
    def needed(self) -> set[str]:
        """Paths whose files it may read at any moment."""
        return {card.path for card in (*self.cards.values(), *self.coming, *self.resolved.values(), *self.bound)}

    async def serve(self, name: str, on_its_way_seconds: float, tokens: int) -> None:
        """A request: what it is answered with is decided when it comes in.

        Raises:
            Rejection: there is no such adapter.
            EngineDead: its files are gone.
        """
        self.unbound += 1
        try:
            with answering() as binding:
                card = await self.card_of(name)
        finally:
            self.unbound -= 1
        if card is None:
            return
        self.coming.append(card)
        try:
            await asyncio.sleep(on_its_way_seconds)
            await self.generate(card, ".", tokens)
            self.on_answer(card.name, card.path, binding.version)
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
        is_hub_id = not card.path.startswith("/")  # to vLLM, and there is no hub
        if is_hub_id or (self._store.owns(card.path) and not self._store.has(card.path)):
            self.refused.add(card.path)
            raise Rejection(404, "NotFoundError", "Loading lora failed: No adapter found for <path>")
        if is_refused(source_of(card.path), self._store.replica):
            self.refused.add(card.path)
            raise Rejection(500, "InternalServerError", "Call to add_lora method failed: wrong shapes")
        self._resident[card.number] = card.path


def _nothing_refused(_name: str) -> bool:
    return False


@contextmanager
def noted(out: Counter[Process]) -> Iterator[None]:
    """Counts a request of the process that makes it until it is answered."""
    process = current_process()
    out[process] += 1
    try:
        yield
    finally:
        out[process] -= 1


@contextmanager
def waited_for(out: Counter[Process]) -> Iterator[None]:
    """Counts a question until it is answered, if it is one that a sidecar's loop waits for."""
    task = asyncio.current_task()
    with noted(out) if task is not None and task.get_name() == "reconciler" else nullcontext():
        yield


@dataclass(eq=False)
class EngineHost:
    """Where an engine runs, is killed and started anew.

    Attributes:
        on_change: is told (host, what, name, path) of each change of the adapters as it takes effect.
        on_answer: is told (host, name, path, what its plugin says of the answer) of each request that was answered.
        on_reply: is told (host, name, what was listed before, the answer) of each call of the plugin that has ended.
        hang: the next load waits for this event inside the engine's core.
        stuck: the next load waits for this event before the engine's core hears of it.
        odd: what befalls the next posts, one each.
        base: the name of the base model that its next process has.
        refuses: whether a load of that name is refused now, as when memory is short.
        step_seconds: how long a step takes at most, between two of which our plugin tells what still runs.
        broken: pages that answer with that HTTP status instead.
        socket: on which our plugin in it asks the sidecar; None: it has no plugin.
        pace: what its answers take; None: no longer than usual.
        refused, broken_off, slots: by incarnation, paths that it refused, how often requests that brought others in
            were broken off, and how many adapters it takes at once.
        others: the incarnations that had another base model.
        listed_at: when the last listing that was answered was asked for.
        calls, questions: how many of each sidecar's process are not answered yet, of the questions those of its loop.
        evidence: when it was asked what still runs, each of the last times that it answered.
        let_go: names of which an unload was sent last, and never arrived: whoever sent it cannot know that.
    """

    replica: str
    url: str
    store: SimStore
    rng: random.Random
    on_change: Change
    engine: SimEngine | None = None
    base: str = BASE
    process: Process = field(default_factory=lambda: Process("none"))
    hang: asyncio.Event | None = None
    stuck: asyncio.Event | None = None
    hanging: list[asyncio.Event] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    refuses: Callable[[str], bool] = _nothing_refused
    step_seconds: float = 0.0
    broken: dict[str, int] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    processes: list[Process] = field(default_factory=list)
    socket: Socket | None = None
    stalls: list[asyncio.Event] = field(default_factory=list)
    pace: Pace | None = None
    refused: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    broken_off: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    slots: dict[str, int] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    calls: Counter[Process] = field(default_factory=Counter)
    questions: Counter[Process] = field(default_factory=Counter)
    listed_at: float = 0.0
    evidence: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    let_go: set[str] = field(default_factory=set)
    on_reply: Callable[[EngineHost, str, Mapping[str, str], Reply], None] = lambda _host, _name, _before, _reply: None
    on_answer: Callable[[EngineHost, str, str, str], None] = lambda _host, _name, _path, _proof: None
    _standing: set[asyncio.Task[None]] = field(default_factory=set)
    _starts: int = 0

    def start(self) -> None:
        """Starts a process, if none runs; it has no adapters."""
        if self.engine is not None:
            return
        self._starts += 1
        self.process = Process(f"{self.replica}/engine{self._starts}")
        self.processes.append(self.process)
        self.engine = SimEngine(self.store, 1000.0 + self._starts, self.rng.choice(SLOTS), self.base)
        self.engine.next_hang = self._next_hang
        self.engine.refuses = self._refuses_now
        self.engine.on_answer = lambda name, path, proof: self.on_answer(self, name, path, proof)
        if self.socket is not None:
            self.engine.ask_by(self.socket, lambda name, path: self.on_change(self, "load", name, path))
        self.refused[self.incarnation] = self.engine.refused
        self.broken_off[self.incarnation] = self.engine.broken_off
        self.slots[self.incarnation] = self.engine.options.max_loras
        if self.base != BASE:
            self.others.add(self.incarnation)
        self.busy.clear()
        self.stalls.clear()
        self.on_change(self, "start", "", "")

    def kill(self) -> None:
        """Ends the process; whoever waits for an answer learns it at once."""
        self.engine, self.hang, self.stuck = None, None, None
        self.process.kill()
        self.on_change(self, "stop", "", "")

    async def dawdle(self) -> None:
        """Takes what the next answer takes beside its usual time."""
        if self.pace is not None and (seconds := self.pace.seconds()):
            await asyncio.sleep(seconds)

    def _refuses_now(self, name: str) -> bool:
        return self.refuses(name)

    def _next_hang(self) -> asyncio.Event | None:
        hang, self.hang = self.hang, None
        return hang

    @property
    def incarnation(self) -> str:
        return "" if self.engine is None else repr(self.engine.started_at)

    @property
    def has_other_base(self) -> bool:
        """Whether it has another base model than the one that adapters are for."""
        return self.incarnation in self.others

    @property
    def coming(self) -> list[Card]:
        """Adapters that requests on their way to the queue refer to."""
        return [] if self.engine is None else [*self.engine.coming, *self.engine.resolved.values()]

    @property
    def listing(self) -> dict[str, str]:
        """Name to path of what is loaded, without what answers on for a moment after it was unloaded."""
        return {} if self.engine is None else {card.name: card.path for card in self.engine.listed}

    def order_hang(self, *, is_outside: bool) -> asyncio.Event:
        """Makes the next load hang until the event is set; `is_outside`: beside which the engine does all else."""
        event = asyncio.Event()
        self.hang, self.stuck = (self.hang, event) if is_outside else (event, self.stuck)
        self.hanging.append(event)
        return event

    def stall(self) -> asyncio.Event:
        """Makes the engine generate and load nothing until the event is set, though it answers."""
        engine, event = self.engine, asyncio.Event()
        assert engine is not None
        self.hanging.append(event)
        self.stalls.append(event)
        task = asyncio.get_running_loop().create_task(engine.stand_still(event), context=self.process.context())
        self._standing.add(task)
        return event

    @property
    def is_stalled(self) -> bool:
        return any(not event.is_set() for event in self.stalls)

    def release(self) -> None:
        """Ends everything that hangs, and what was ordered."""
        for event in self.hanging:
            event.set()
        self.hanging.clear()
        self.process.resume()
        self.odd.clear()
        self.hang = self.stuck = None

    def heal(self) -> None:
        """From now on it refuses nothing that is good, and all its pages are there."""
        self.refuses = _nothing_refused
        self.broken.clear()

    async def ask(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Runs `work` in the engine's process and waits for it. Raises ConnectionResetError: the engine died."""
        return await ask(self.process, work)

    async def load(self, name: str, path: str) -> None:
        """Loads as a request does. Raises Rejection."""
        engine, hold, stuck = self.engine, self.hang, self.stuck
        assert engine is not None
        self.hang = self.stuck = None
        self.busy.add(name)
        try:
            if stuck is not None:
                await stuck.wait()
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

    async def call_plugin(self, path: str, body: Mapping[str, object]) -> Reply:
        """Swaps or unloads as the plugin does."""
        engine, before = self.engine, self.listing
        assert engine is not None
        assert engine.plugin is not None
        name = str(body.get("lora_name", ""))
        self.busy.add(name)
        try:
            reply = await engine.plugin.call(path, body)
        finally:
            self.busy.discard(name)
        self.on_reply(self, name, before, reply)
        if self.listing != before:
            new = self.listing.get(name)
            self.on_change(self, "unload" if new is None else "load", name, new or before.get(name, ""))
        return reply
