"""Our plugin inside a simulated engine: the plugin's own code, on the simulated server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import cast

from starlette.routing import Route

from sidecar.engines.simulated.card import Card
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.registered import Registered
from sidecar.vllm_plugin.resolver import Resolver
from sidecar.vllm_plugin.routes import Plugin, routes
from sidecar.vllm_plugin.server import Adapter


class SimulatedServer:
    """Implements `sidecar.vllm_plugin.server.ApiServer`."""

    def __init__(self, engine: SimulatedVllm) -> None:
        self._engine = engine

    @property
    def registered(self) -> Registered[Adapter]:
        """See `ApiServer.registered`."""
        return cast("Registered[Adapter]", self._engine.cards)

    def lock(self, name: str) -> asyncio.Lock:
        """See `ApiServer.lock`."""
        return self._engine.name_lock(name)

    @property
    def limits(self) -> Mapping[str, int | None]:
        """See `ApiServer.limits`."""
        told = self._engine.options
        return {name: getattr(told, name) for name in ("max_loras", "max_cpu_loras", "max_lora_rank")}

    def make(self, name: str, path: str, like: Adapter | None) -> Adapter:  # noqa: ARG002 - a card has nothing else
        """See `ApiServer.make`."""
        return self._engine.card(name, path)

    async def add(self, adapter: Adapter) -> None:
        """See `ApiServer.add`."""
        await self._engine.add(cast("Card", adapter))

    async def remove(self, number: int) -> None:
        """See `ApiServer.remove`."""
        await self._engine.remove(number)

    async def resident(self) -> set[int]:
        """See `ApiServer.resident`."""
        return await self._engine.resident()

    def in_flight(self) -> Iterable[Adapter]:
        """See `ApiServer.in_flight`."""
        return self._engine.bound


def plugin_routes(engine: SimulatedVllm) -> list[Route]:
    """The plugin's routes, serving `engine`, which asks the plugin for names that it does not know."""
    socket = engine.options.resolver
    adapters = Adapters(SimulatedServer(engine), Resolver(socket) if socket else None)

    async def resolve(name: str) -> Card | None:
        return cast("Card | None", await adapters.resolve(name, engine.options.model))

    engine.resolve = resolve
    return routes(Plugin(adapters))
