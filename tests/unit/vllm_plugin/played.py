"""An API server that is played: what the plugin does can be seen step by step."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from starlette.applications import Starlette

from sidecar.engines.transport import Reply
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.guard import CONTROL_HEADER, Guard
from sidecar.vllm_plugin.routes import Plugin, listing_route, routes
from sidecar.vllm_plugin.server import EngineAdapter, Lister, Prober
from sidecar.vllm_plugin.usage import Usage
from tests.support.engine_in_memory import answer_of


@dataclass(eq=False)
class Version:
    """An adapter."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class Clock:
    """Seconds that pass when told."""

    at = 100.0

    def __call__(self) -> float:
        return self.at


@dataclass
class PlayedServer:
    """Implements `ApiServer`. `calls` are the engine's; `gate` holds loads back; `fails` makes them fail."""

    registered: Usage[EngineAdapter] = field(default_factory=Usage)
    limits: Mapping[str, int | None] = field(default_factory=dict)
    flying: list[EngineAdapter] = field(default_factory=list)
    memory: set[int] = field(default_factory=set)
    calls: list[tuple[str, int]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    fails: Exception | None = None
    locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    ask_workers: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None
    ask_memory: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None
    model_name: str = "base"
    kv_connectors: list[str] = field(default_factory=list)
    prober: Prober | None = None
    lister: Lister | None = None
    read_base: Callable[[], dict[str, Any]] | None = None
    is_full: bool = False
    vocabulary: int | None = None
    numbers: Iterable[int] = field(default_factory=lambda: count(1))

    def load(self, name: str, path: str) -> None:
        self.registered[name] = loaded = self._version(name, path)
        self.memory.add(loaded.lora_int_id)

    def lock(self, name: str) -> asyncio.Lock:
        return self.locks[name]

    def make(self, name: str, path: str, like: EngineAdapter | None) -> EngineAdapter:
        return self._version(name, path)

    async def add(self, adapter: EngineAdapter) -> None:
        self.calls.append(("add", adapter.lora_int_id))
        if self.gate is not None:
            await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        self.memory.add(adapter.lora_int_id)

    async def remove(self, number: int) -> None:
        self.calls.append(("remove", number))
        self.memory.discard(number)

    async def resident(self) -> set[int]:
        return set(self.memory)

    def in_flight(self) -> Iterable[EngineAdapter]:
        return self.flying

    def paths(self) -> dict[str, str]:
        return {name: adapter.lora_path for name, adapter in self.registered.items()}

    def _version(self, name: str, path: str) -> Version:
        return Version(name, next(iter(self.numbers)), path)


OURS, OPEN = {CONTROL_HEADER: "sidecar"}, Guard()


class Asking:
    """Asks the routes of one plugin."""

    def __init__(self, adapters: Adapters | None, guard: Guard = OPEN) -> None:
        self.plugin = Plugin(adapters, guard)
        first = [listing_route(adapters)] if adapters is not None else []
        self._app = Starlette(routes=[*first, *routes(self.plugin)])

    async def __call__(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = await answer_of(self._app, method, f"/v1/loraplane/{path}", OURS | headers, content)
        assert isinstance(reply, Reply)
        return reply.status, json.loads(reply.body)

    async def models(self, **headers: str) -> list[str]:
        """The names in the list."""
        reply = await answer_of(self._app, "GET", "/v1/models", headers, b"")
        assert isinstance(reply, Reply)
        return [card["id"] for card in json.loads(reply.body)["data"]]
