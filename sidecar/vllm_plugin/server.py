"""What the plugin needs of the API server that it is in: vLLM's, or the simulated engine's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableMapping
from typing import Protocol


class Adapter(Protocol):
    """What a request is bound to when it comes in, and keeps until its end. `lora_int_id` is new with each load."""

    @property
    def lora_name(self) -> str:
        """Name under which it is asked for."""
        ...

    @property
    def lora_int_id(self) -> int:
        """Number by which the engine knows it."""
        ...

    @property
    def lora_path(self) -> str:
        """Directory with its files."""
        ...


class ApiServer(Protocol):
    """The API server, in whose event loop all of this happens."""

    @property
    def registered(self) -> MutableMapping[str, Adapter]:
        """By name, what the next request for that name is bound to."""
        ...

    def lock(self, name: str) -> asyncio.Lock:
        """Held by whoever loads or unloads `name`. Asked only for names that are registered: it is never forgotten."""
        ...

    def make(self, path: str, like: Adapter) -> Adapter:
        """Another version under the name of `like`, with a number that was never used."""
        ...

    async def add(self, adapter: Adapter) -> None:
        """Loads it into the engine, and raises whatever the engine says against it."""
        ...

    async def remove(self, number: int) -> None:
        """Makes the engine forget the weights, if it has them."""
        ...

    async def resident(self) -> set[int]:
        """Numbers of the weights in the engine's memory."""
        ...

    def in_flight(self) -> Iterable[Adapter]:
        """For each request that is with the engine, what it is bound to."""
        ...
