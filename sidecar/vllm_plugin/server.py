"""Interface of the API server that the plugin runs in, and the plugin's errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from .protocol import Step
from .usage import Usage


class EngineAdapter(Protocol):
    """Adapter that a request is bound to as it comes, and keeps until its end. `lora_int_id` is new with each load."""

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


class Prober(Protocol):
    """Answers a short prompt, greedily, bound to an adapter or to the base."""

    async def __call__(self, adapter: EngineAdapter | None, prompt: Sequence[int], tokens: int) -> tuple[Step, ...]:
        """So many next tokens with a few likely ones beside each; raises what the engine says."""
        ...


class Lister(Protocol):
    """Writes the list ``/v1/models`` as the server would if it had these adapters alone, by name."""

    async def __call__(self, adapters: Mapping[str, EngineAdapter]) -> dict[str, Any]:
        """The list, with its cards as ``data``: first those of the base models."""
        ...


class ApiServer(Protocol):
    """The API server, in whose event loop all of this happens."""

    @property
    def registered(self) -> Usage[EngineAdapter]:
        """By name, what the next request for that name is bound to."""
        ...

    def lock(self, name: str) -> asyncio.Lock:
        """Held by whoever loads, unloads or resolves `name`."""
        ...

    @property
    def limits(self) -> Mapping[str, int | None]:
        """`max_loras`, `max_cpu_loras` and `max_lora_rank` as the server was started; None: not known."""
        ...

    @property
    def kv_connectors(self) -> list[str]:
        """Names of those through which the engine shares what it computed, with modules where these are not vLLM's."""
        ...

    def make(self, name: str, path: str, like: EngineAdapter | None) -> EngineAdapter:
        """An adapter with a number that was never used; what is not said here it has of `like`."""
        ...

    async def add(self, adapter: EngineAdapter) -> None:
        """Loads it into the engine, and raises whatever the engine says against it."""
        ...

    async def remove(self, number: int) -> None:
        """Makes the engine forget the weights, if it has them."""
        ...

    async def resident(self) -> set[int]:
        """Numbers of the weights in the engine's memory."""
        ...

    @property
    def ask_workers(self) -> Callable[[], Awaitable[list[dict[str, Any]]]] | None:
        """Asks each worker what it applies of adapters, see `coverage.coverage`; None: they cannot be asked."""
        ...

    @property
    def ask_memory(self) -> Callable[[], Awaitable[list[dict[str, Any]]]] | None:
        """Asks each worker what it has in its memory, see `gauges.memory`; None: not all of them can be asked."""
        ...

    @property
    def model_name(self) -> str:
        """Name of the base model in the engine's metrics; empty: not known."""
        ...

    @property
    def read_base(self) -> Callable[[], dict[str, Any]] | None:
        """Reads the base model's files, see `base_files.base_files`, and may take a while; None: there are none."""
        ...

    @property
    def prober(self) -> Prober | None:
        """Lets the engine answer short prompts; None: it cannot be asked."""
        ...

    @property
    def lister(self) -> Lister | None:
        """Writes the list of models; None: it cannot be asked to."""
        ...

    @property
    def is_full(self) -> bool:
        """True while so many requests are with the engine that one more may have to wait."""
        ...

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens of the base model, numbered from 0; None: not known."""
        ...

    def in_flight(self) -> Iterable[EngineAdapter]:
        """For each request that is with the engine, what it is bound to."""
        ...


class PluginError(Exception):
    """A request was not carried out; unless it is `DeadlinePassed`, nothing was changed."""

    reason = "internal"
    status = 500

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidRequest(PluginError):
    """The request is malformed; `field` says where."""

    reason, status = "invalid_argument", 400


class UnsupportedBody(InvalidRequest):
    """The body is not said to be JSON."""

    status = 415


class Forbidden(PluginError):
    """The caller may not call, or may not name that path; the message says what to change."""

    reason, status = "forbidden", 403


class NotLoaded(PluginError):
    """No adapter is registered under that name."""

    reason, status = "not_loaded", 404


class FilesMissing(PluginError):
    """There is no adapter in that directory."""

    reason, status = "path_missing", 404


class NameConflict(PluginError):
    """The name is bound to something else than the caller believes."""

    reason, status = "conflict", 409


class EngineRefused(PluginError):
    """The engine does not take the adapter; the message is the engine's."""

    reason, status = "refused", 500


class Busy(PluginError):
    """Somebody else loads or unloads that name, or too much is still draining."""

    reason, status = "busy", 503


class DeadlinePassed(PluginError):
    """The engine did not answer in time. The name is still bound to what it was bound to."""

    reason, status = "deadline", 504
