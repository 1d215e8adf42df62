"""Ranges of etcd that several streams look at, each mirrored once for as long as somebody looks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue
from registry.etcd3.reflections import Changed, Listed, Reflection
from registry.etcd3.reflector import Reflector


class Mirror:
    """The newest known state of a range. `kvs` None: it has not been listed yet."""

    def __init__(self) -> None:
        self.kvs: dict[bytes, KeyValue] | None = None
        self.wakes: set[asyncio.Event] = set()

    def take(self, reflection: Reflection) -> None:
        """Notes what the reflector tells, and wakes those who look."""
        match reflection:
            case Listed():
                self.kvs = {kv.key: kv for kv in reflection.kvs}
            case Changed():
                self._change(reflection)
            case _:
                return
        self.wake()

    def wake(self) -> None:
        """Wakes everybody who looks."""
        for event in self.wakes:
            event.set()

    def _change(self, changed: Changed) -> None:
        kvs = self.kvs if self.kvs is not None else {}
        for event in changed.events:
            if event.kv is None:
                kvs.pop(event.key, None)
            else:
                kvs[event.key] = event.kv


class Mirrors:
    """Hands out mirrors; one that nobody looks at any more is ended."""

    def __init__(self, client: Client, *, rng: random.Random) -> None:
        self._client = client
        self._rng = rng
        self._open: dict[tuple[bytes, bytes], tuple[Mirror, asyncio.Task[None]]] = {}

    @asynccontextmanager
    async def look(self, key: bytes, range_end: bytes, wake: asyncio.Event) -> AsyncIterator[Mirror]:
        """A mirror of the range; `wake` is set whenever it changes."""
        mirror, task = self._open.get((key, range_end)) or self._start(key, range_end)
        mirror.wakes.add(wake)
        try:
            yield mirror
        finally:
            mirror.wakes.discard(wake)
            if not mirror.wakes:
                del self._open[key, range_end]
                task.cancel()
                await asyncio.wait([task])

    def _start(self, key: bytes, range_end: bytes) -> tuple[Mirror, asyncio.Task[None]]:
        mirror = Mirror()
        task = asyncio.create_task(self._run(mirror, key, range_end), name=f"mirror {key!r}")
        self._open[key, range_end] = mirror, task
        return mirror, task

    async def _run(self, mirror: Mirror, key: bytes, range_end: bytes) -> None:
        async with aclosing(Reflector(self._client, key, range_end, rng=self._rng).stream()) as reflections:
            async for reflection in reflections:
                mirror.take(reflection)
