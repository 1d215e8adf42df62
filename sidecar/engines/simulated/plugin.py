"""Our plugin inside a simulated engine: the plugin's own code, on the simulated server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableMapping
from typing import cast

from starlette.routing import Route

from sidecar.engines.simulated.engine import Card, SimulatedVllm
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.routes import Plugin, routes
from sidecar.vllm_plugin.server import Adapter


class SimulatedServer:
    """Implements `sidecar.vllm_plugin.server.ApiServer`."""

    def __init__(self, engine: SimulatedVllm) -> None:
        self._engine = engine

    @property
    def registered(self) -> MutableMapping[str, Adapter]:
        """See `ApiServer.registered`."""
        return cast("MutableMapping[str, Adapter]", self._engine.cards)

    def lock(self, name: str) -> asyncio.Lock:
        """See `ApiServer.lock`."""
        return self._engine.name_lock(name)

    def make(self, path: str, like: Adapter) -> Adapter:
        """See `ApiServer.make`."""
        return self._engine.card(like.lora_name, path)

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
    """The plugin's routes, serving `engine`."""
    return routes(Plugin(Adapters(SimulatedServer(engine))))
