"""What the plugin needs of the API server that it is in: vLLM's, or the simulated engine's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from sidecar.vllm_plugin.registered import Registered


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
    def registered(self) -> Registered[Adapter]:
        """By name, what the next request for that name is bound to."""
        ...

    def lock(self, name: str) -> asyncio.Lock:
        """Held by whoever loads, unloads or resolves `name`."""
        ...

    @property
    def limits(self) -> Mapping[str, int | None]:
        """`max_loras`, `max_cpu_loras` and `max_lora_rank` as the server was started; None: not known."""
        ...

    def make(self, name: str, path: str, like: Adapter | None) -> Adapter:
        """An adapter with a number that was never used; what is not said here it has of `like`."""
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
