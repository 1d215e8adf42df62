"""Shared informers: one list and watch for each range, for all its readers."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from registry.etcd3.client import Client
from registry.etcd3.ops import Event, KeyValue
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Connected, Disconnected, Listed, Progressed, Reflection, Resume

LINGER_SECONDS = 10.0
# A reader that is further behind compares everything.
_CHANGES_KEPT = 1000
# A reader that does not take so many goes without.
_EVENTS_KEPT = 5000


class EventTap:
    """Every event of a range, in order, for a reader to whom the values in between matter too.

    Attributes:
        is_whole: False while events may have passed unseen since the last `take`.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.is_whole = True

    def put(self, events: tuple[Event, ...]) -> None:
        """Adds the events of a revision."""
        self._events.extend(events)
        if len(self._events) > _EVENTS_KEPT:
            self.lose()

    def lose(self) -> None:
        """Says that events may have passed unseen."""
        self._events.clear()
        self.is_whole = False

    def take(self) -> tuple[Event, ...]:
        """All since the last call; none if any of them may be lacking."""
        events = tuple(self._events) if self.is_whole else ()
        self._events.clear()
        self.is_whole = True
        return events


class SharedInformer:
    """The newest known values of a range.

    Attributes:
        kvs: the values by key; only the informer changes them.
        is_listed: False until the range was listed once; `kvs` is empty before.
        revision: up to which the range is known.
        version: rises with each change of `kvs`.
        connected: False while the values may be old.
        losses: how often etcd was out of reach or had to be listed again: of what happened then only the end is known.
        wakes: set at each change of anything but `revision`.
        taps: get each event.
    """

    def __init__(self) -> None:
        self.kvs: dict[bytes, KeyValue] = {}
        self.is_listed = False
        self.revision = 0
        self.version = 0
        self.connected = False
        self.losses = 0
        self.wakes: set[asyncio.Event] = set()
        self.taps: set[EventTap] = set()
        self._changes: deque[frozenset[bytes]] = deque(maxlen=_CHANGES_KEPT)

    def changed_since(self, version: int) -> frozenset[bytes] | None:
        """The keys written or deleted since a version; None: perhaps all of them."""
        kept, steps = len(self._changes), self.version - version
        return None if steps > kept else frozenset().union(*islice(self._changes, kept - steps, None))

    def apply(self, reflection: Reflection) -> None:
        """Takes in what the reflector found, and wakes the readers."""
        match reflection:
            case Listed():
                self.losses += self.is_listed
                self.kvs = {kv.key: kv for kv in reflection.kvs}
                self.is_listed = True
                self._changes.clear()
                for tap in self.taps:
                    tap.lose()
                self._advance(reflection.revision)
            case Changed():
                self._apply_events(reflection.events)
                self._advance(reflection.revision)
            case Connected():
                self.connected = True
            case Disconnected():
                self.connected = False
                self.losses += 1
            case Progressed():
                self.revision = reflection.revision
                return
        for wake in self.wakes:
            wake.set()

    def _advance(self, revision: int) -> None:
        self.revision = revision
        self.version += 1

    def _apply_events(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if event.kv is None:
                self.kvs.pop(event.key, None)
            else:
                self.kvs[event.key] = event.kv
        self._changes.append(frozenset(event.key for event in events))
        for tap in self.taps:
            tap.put(events)


@dataclass(slots=True)
class _RunningInformer:
    """An informer, the task that follows etcd for it, and the timer that ends it."""

    informer: SharedInformer
    task: asyncio.Task[None]
    end: asyncio.TimerHandle | None = None


async def _run_once(_name: str, work: Callable[[], Awaitable[None]]) -> None:
    await work()


class SharedInformerFactory:
    """Hands out the informers of ranges.

    Args:
        keep: runs an informer's task, and runs it again if it fails: its readers would see old values for ever.
    """

    def __init__(
        self,
        client: Client,
        *,
        rng: random.Random,
        keep: Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]] = _run_once,
    ) -> None:
        self._client = client
        self._rng = rng
        self._keep = keep
        self._running: dict[tuple[bytes, bytes], _RunningInformer] = {}

    @asynccontextmanager
    async def look(self, key: bytes, range_end: bytes, wake: asyncio.Event) -> AsyncIterator[SharedInformer]:
        """The informer of a range; sets `wake` at each change, and now if it is known."""
        running = self._running.get((key, range_end)) or self._start(key, range_end)
        informer = running.informer
        if running.end is not None:
            running.end.cancel()
        informer.wakes.add(wake)
        if informer.is_listed:
            wake.set()
        try:
            yield informer
        finally:
            informer.wakes.discard(wake)
            if not informer.wakes:
                delay = LINGER_SECONDS if range_end else 0.0
                running.end = asyncio.get_running_loop().call_later(delay, self._end, key, range_end, running)

    def replay(self, key: bytes, range_end: bytes, revision: int) -> AsyncGenerator[Reflection, None]:
        """Events of a range since a revision, and from now on; to be closed.

        It begins with a list where etcd does not keep all that any more.
        """
        return Reflector(self._client, key, range_end, resume=Resume(revision, 0), rng=self._rng).stream()

    async def aclose(self) -> None:
        """Ends all informers."""
        ending = list(self._running.items())
        for (key, range_end), running in ending:
            self._end(key, range_end, running)
        await asyncio.gather(*(running.task for _, running in ending), return_exceptions=True)

    def _start(self, key: bytes, range_end: bytes) -> _RunningInformer:
        informer = SharedInformer()
        follow = partial(self._run, informer, key, range_end)
        task = asyncio.create_task(self._keep(f"informer of {key!r}", follow), name=f"informer {key!r}")
        self._running[key, range_end] = _RunningInformer(informer, task)
        return self._running[key, range_end]

    def _end(self, key: bytes, range_end: bytes, running: _RunningInformer) -> None:
        if self._running.get((key, range_end)) is running:
            del self._running[key, range_end]
        if running.end is not None:
            running.end.cancel()
        running.task.cancel()

    async def _run(self, informer: SharedInformer, key: bytes, range_end: bytes) -> None:
        async with aclosing(Reflector(self._client, key, range_end, rng=self._rng).stream()) as reflections:
            async for reflection in reflections:
                informer.apply(reflection)
