"""Streams of a pool's adapters and of a rollout."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace

from registry.etcd3.client import Client
from registry.etcd3.informer import SharedInformer, SharedInformerFactory
from registry.etcd3.ops import Event, KeyValue, prefix_end
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Listed, Progressed, Resume
from registry.model.keys import Keys, is_adapter_key
from registry.rollout.pool import PoolSnapshot
from registry.rollout.pool_reader import PoolReader, follow_pool, read_pool
from registry.rollout.status import Question, Rollout, derive_rollout, needs_room
from registry.runtime.clock import Deadline
from registry.store.failures import compacted
from registry.store.reader import Reader
from registry.transactions.decode import no_adapter

_LOOK_SECONDS = 10.0
_FROM_NOW = "watch from 0 to get the present state first"


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All changes of one revision; or, if `snapshot`, everything there is at it."""

    revision: int
    snapshot: bool
    events: tuple[Event, ...]


class AdapterStreams:
    """Streams of changes; they end only when closed, or as their docstrings say."""

    def __init__(
        self, client: Client, keys: Keys, reader: Reader, informers: SharedInformerFactory, *, rng: random.Random
    ) -> None:
        self._client = client
        self._keys = keys
        self._reader = reader
        self._rng = rng
        self._informers = informers

    async def adapters(self, pool: str, start_revision: int, deadline: Deadline) -> AsyncGenerator[WatchBatch, None]:
        """Changes of a pool's adapters from a revision on; 0: the present state first.

        Raises:
            NotFound: there is no such pool.
            FailedPrecondition: etcd does not keep the revisions from there on.
        """
        await self._reader.pool(pool, deadline)
        prefix = self._keys.adapters(pool)
        resume = Resume(start_revision - 1, 0) if start_revision else None
        reflector = Reflector(self._client, prefix, prefix_end(prefix), resume=resume, rng=self._rng)
        delivered = resume is None
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed() if not delivered:
                        raise compacted(start_revision, reflection.revision, _FROM_NOW)
                    case Listed():
                        yield WatchBatch(
                            reflection.revision, snapshot=True, events=_of(pool, _as_events(reflection.kvs))
                        )
                    case Changed():
                        yield WatchBatch(reflection.revision, snapshot=False, events=_of(pool, reflection.events))
                    case Progressed():
                        pass
                    case _:
                        continue
                delivered = True

    async def rollout(self, question: Question, deadline: Deadline) -> AsyncGenerator[Rollout, None]:
        """A rollout whenever it has changed, until it is done.

        Raises:
            NotFound: there is no such pool, or there is no such adapter, and no generation is given.
        """
        last = await self._first_look(question, deadline)
        if last is not None:
            yield last
            if last.done:
                return
            question = replace(question, generation=last.generation)
        async with aclosing(self._rollouts(question)) as rollouts:
            async for rollout in rollouts:
                if rollout != last:
                    last = rollout
                    yield rollout

    async def _first_look(self, question: Question, deadline: Deadline) -> Rollout | None:
        """The first answer; None: it takes a longer look, for an adapter placed by number."""
        record, pool = await read_pool(self._client, self._keys, question.name, PoolSnapshot(question.pool), deadline)
        if record is None:
            await self._reader.pool(question.pool, deadline)
            if not question.generation:
                raise no_adapter(question.pool, question.name)
        return None if needs_room(question, record, pool) else derive_rollout(question, record, pool)

    async def _rollouts(self, question: Question) -> AsyncGenerator[Rollout, None]:
        """The rollout at each change of anything, until it is done."""
        wake, key = asyncio.Event(), self._keys.adapter(question.pool, question.name)
        async with (
            self._informers.look(key, b"", wake) as record,
            follow_pool(self._informers, self._keys, question.pool, wake) as reader,
        ):
            while True:
                await wake.wait()
                wake.clear()
                rollout = await self._derive(question, record, reader)
                if rollout is None:
                    continue
                yield rollout
                if rollout.done:
                    return
                question = replace(question, generation=rollout.generation)

    async def _derive(self, question: Question, record: SharedInformer, reader: PoolReader) -> Rollout | None:
        """The rollout as the informers have it; None while they do not have everything."""
        pool, kv = reader.snapshot(), next(iter(record.kvs.values()), None)
        if pool is None or not record.is_listed:
            return None
        if needs_room(question, kv, pool):
            await reader.follow_adapters()
            return None
        rollout = derive_rollout(question, kv, pool)
        if not rollout.done:
            return rollout
        # The informers may be of different revisions; whether it is done is derived at a single one.
        kv, pool = await read_pool(self._client, self._keys, question.name, pool, Deadline.of(_LOOK_SECONDS))
        return None if needs_room(question, kv, pool) else derive_rollout(question, kv, pool)


def _of(pool: str, events: Iterable[Event]) -> tuple[Event, ...]:
    """Those of the keys of adapters."""
    return tuple(event for event in events if is_adapter_key(event.key, pool))


def _as_events(kvs: Iterable[KeyValue]) -> tuple[Event, ...]:
    return tuple(Event(kv.key, kv.mod_revision, kv) for kv in kvs)
