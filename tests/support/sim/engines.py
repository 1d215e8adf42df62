"""Engines: the contract-tested simulated vLLM behind the real driver, with the HTTP between them played."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.exchange import JsonPost, Lost, NotSent, Reply, unheard
from sidecar.engines.simulated import pages
from sidecar.engines.simulated.card import Card
from sidecar.engines.simulated.engine import EngineDead, Rejection, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.sim.artifacts import REFUSED, SimStore, source_of
from tests.support.sim.loop import Process

Value = TypeVar("Value")
Change = Callable[["EngineHost", str, str, str], None]
BASE = "base"
OPTIONS = Options(served_model_name=BASE, max_cpu_loras=1000, load_seconds=0.01)
MISSING_FILES = Rejection(404, "NotFoundError", "Loading lora failed: No adapter found for <path>")


class SimEngine(SimulatedVllm):
    """Reads adapters from the replica's store in memory; foreign paths are always there."""

    def __init__(self, store: SimStore, started_at: float) -> None:
        super().__init__(OPTIONS)
        self.started_at = started_at
        self._store = store

    async def _bring_in(self, card: Card) -> None:
        if self._store.owns(card.path) and not self._store.has(card.path):
            raise MISSING_FILES
        if source_of(card.path).startswith(REFUSED):
            raise Rejection(500, "InternalServerError", "Call to add_lora method failed: wrong shapes")


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
        self.engine = SimEngine(self.store, 1000.0 + self._starts)
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


class SimHttp:
    """In place of `sidecar.engines.vllm_http.VllmHttp`: the same answers, without sockets."""

    def __init__(self, host: EngineHost, on_call: Callable[[EngineHost, JsonPost], None]) -> None:
        self.url = host.url
        self._host = host
        self._on_call = on_call

    async def get(self, paths: Sequence[str], timeout_seconds: float, *, optional: str = "") -> list[bytes]:
        """See `VllmHttp.get`."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.sleep(self._host.rng.uniform(0.0002, 0.002))
                if self._host.engine is None:
                    raise EngineUnreachable(f"{self.url}: connection refused")
                return await self._host.ask(_pages(self._host.engine, paths))
        except (TimeoutError, ConnectionResetError) as error:
            raise EngineUnreachable(f"{self.url}: {error}") from error

    async def find(self, _path: str, timeout_seconds: float) -> bytes | None:
        """See `VllmHttp.find`; there is no plugin."""
        await self.get(["/health"], timeout_seconds)
        return None

    async def has_route(self, _path: str, timeout_seconds: float) -> bool:
        """See `VllmHttp.has_route`."""
        await self.get(["/health"], timeout_seconds)
        return True

    async def completes(self, _body: Mapping[str, object]) -> bool:
        """See `VllmHttp.completes`."""
        if self._host.engine is None:
            return False
        try:
            await self._host.ask(self._host.engine.generate(None, ".", 1))
        except (ConnectionResetError, EngineDead):
            return False
        return True

    async def post(
        self,
        requests: Sequence[JsonPost],
        _request_id: str,
        timeout_seconds: float,
        on_sent: Callable[[], None] = unheard,
    ) -> Sequence[Reply | Lost | NotSent]:
        """See `VllmHttp.post`."""
        host = self._host
        await asyncio.sleep(host.rng.uniform(0.0002, 0.002))
        if host.engine is None:
            return [NotSent("connection refused")] * len(requests)
        on_sent()
        odd = host.odd.pop(0) if host.odd else ""
        if odd == "lost request":
            return [Lost("the connection broke")] * len(requests)
        if odd == "busy":
            return [Reply(429, b"slow down")] * len(requests)
        for request in requests:
            self._on_call(host, request)
        answers: list[Reply | Lost | NotSent] = []
        conversation = _Conversation(host, requests, answers)
        try:
            async with asyncio.timeout(timeout_seconds):
                await host.ask(conversation.run())
        except (TimeoutError, ConnectionResetError) as error:
            conversation.is_over = True
            return [*answers, *[Lost(f"no answer: {error}")] * (len(requests) - len(answers))]
        return [Lost("the connection broke")] * len(requests) if odd == "lost reply" else answers

    async def aclose(self) -> None:
        """See `VllmHttp.aclose`."""


@dataclass
class _Conversation:
    """Requests that came in one piece: carried out in order, the later ones perhaps not if the client has gone."""

    host: EngineHost
    requests: Sequence[JsonPost]
    answers: list[Reply | Lost | NotSent]
    is_over: bool = False

    async def run(self) -> None:
        for request in self.requests:
            if self.is_over and self.host.rng.random() < 0.5:
                return
            self.answers.append(await self._answer(request))

    async def _answer(self, request: JsonPost) -> Reply:
        name, path = str(request.body["lora_name"]), request.body.get("lora_path")
        try:
            if path is not None:
                await self.host.load(name, str(path))
            else:
                await self.host.unload(name)
        except Rejection as rejection:
            return Reply(rejection.status, json.dumps(pages.error_body(rejection)).encode())
        return Reply(200, b"Success")


async def _pages(engine: SimEngine, paths: Sequence[str]) -> list[bytes]:
    """The bodies, with room for other requests between them."""
    bodies = []
    for path in paths:
        bodies.append(_page(engine, path))
        await asyncio.sleep(0.0)
    return bodies


def _page(engine: SimEngine, path: str) -> bytes:
    match path:
        case "/metrics":
            return pages.metrics(engine).encode()
        case "/v1/models":
            return json.dumps(pages.models(engine)).encode()
        case "/version":
            return json.dumps({"version": engine.options.version}).encode()
        case _:
            return b""


def http_for(
    hosts: Mapping[str, EngineHost], on_call: Callable[[EngineHost, JsonPost], None]
) -> Callable[[str, Path | None], SimHttp]:
    """A constructor to stand in for `VllmHttp`."""

    def make(url: str, _api_key_file: Path | None) -> SimHttp:
        return SimHttp(hosts[url], on_call)

    return make
