"""Ranges of etcd that several streams look at, each mirrored once for as long as somebody looks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

from registry.etcd3.client import Client
from registry.etcd3.ops import Event, KeyValue
from registry.etcd3.reflections import Changed, Connected, Disconnected, Listed, Reflection
from registry.etcd3.reflector import Reflector

Value = TypeVar("Value")


class Folded(Protocol):
    """What is kept of a range."""

    def listed(self, kvs: tuple[KeyValue, ...], /) -> None: ...
    def changed(self, events: tuple[Event, ...], /) -> None: ...


FoldedT = TypeVar("FoldedT", bound=Folded)


class Values(Generic[Value]):
    """All values of a range by their keys, each read once."""

    def __init__(self, read: Callable[[KeyValue], Value]) -> None:
        self._read = read
        self.by_key: dict[bytes, Value] = {}

    def listed(self, kvs: tuple[KeyValue, ...]) -> None:
        """Takes a whole list."""
        self.by_key = {kv.key: self._read(kv) for kv in kvs}

    def changed(self, events: tuple[Event, ...]) -> None:
        """Takes all changes of one revision."""
        for event in events:
            if event.kv is None:
                self.by_key.pop(event.key, None)
            else:
                self.by_key[event.key] = self._read(event.kv)


class Mirror(Generic[FoldedT]):
    """The newest known state of a range. `is_whole` False: it has not been listed yet.

    `in_sight` False: what is known may be old. `losses` counts how often that was so, since of what happened meanwhile
    only the end may be known.
    """

    def __init__(self, state: FoldedT) -> None:
        self.state = state
        self.is_whole = False
        self.in_sight = False
        self.losses = 0
        self.wakes: set[asyncio.Event] = set()

    def take(self, reflection: Reflection) -> None:
        """Notes what the reflector tells, and wakes those who look."""
        match reflection:
            case Listed():
                self.losses += self.is_whole
                self.state.listed(reflection.kvs)
                self.is_whole = True
            case Changed():
                self.state.changed(reflection.events)
            case Connected():
                self.in_sight = True
            case Disconnected():
                self.in_sight = False
                self.losses += 1
            case _:
                return
        for event in self.wakes:
            event.set()


class Mirrors:
    """Hands out mirrors; one that nobody looks at any more is ended."""

    def __init__(self, client: Client, *, rng: random.Random) -> None:
        self._client = client
        self._rng = rng
        self._open: dict[tuple[bytes, bytes], tuple[Mirror[Any], asyncio.Task[None]]] = {}

    @asynccontextmanager
    async def look(
        self, key: bytes, range_end: bytes, wake: asyncio.Event, make: Callable[[], FoldedT]
    ) -> AsyncIterator[Mirror[FoldedT]]:
        """A mirror of the range; `wake` is set whenever it changes. All who look at a range must `make` the same."""
        mirror, task = self._open.get((key, range_end)) or self._start(key, range_end, make())
        mirror.wakes.add(wake)
        if mirror.is_whole:
            wake.set()
        try:
            yield mirror
        finally:
            mirror.wakes.discard(wake)
            if not mirror.wakes:
                del self._open[key, range_end]
                task.cancel()
                await asyncio.wait([task])

    def _start(self, key: bytes, range_end: bytes, state: FoldedT) -> tuple[Mirror[FoldedT], asyncio.Task[None]]:
        mirror = Mirror(state)
        task = asyncio.create_task(self._run(mirror, key, range_end), name=f"mirror {key!r}")
        self._open[key, range_end] = mirror, task
        return mirror, task

    async def _run(self, mirror: Mirror[Any], key: bytes, range_end: bytes) -> None:
        async with aclosing(Reflector(self._client, key, range_end, rng=self._rng).stream()) as reflections:
            async for reflection in reflections:
                mirror.take(reflection)
