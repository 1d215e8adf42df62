"""Streams of a pool's adapters and of a rollout."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace

from registry.errors import FailedPrecondition, NotFound, Reason
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError
from registry.etcd3.ops import Event, KeyValue, Range, prefix_end
from registry.etcd3.reflections import Changed, Listed, Progressed, Resume
from registry.etcd3.reflector import Reflector
from registry.keys import Keys
from registry.store.budget import Budget
from registry.store.failures import refusal
from registry.store.mirror import Mirror, Mirrors
from registry.store.reader import Reader
from registry.store.rollout import Facts, Question, Rollout, derive_rollout, facts_of

_LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Batch:
    """All changes of one revision; or, if `snapshot`, everything there is at it."""

    revision: int
    snapshot: bool
    events: tuple[Event, ...]


class Watcher:
    """Watches on behalf of callers. Streams end only when they are closed, or as their docstrings say."""

    def __init__(self, client: Client, keys: Keys, reader: Reader, *, rng: random.Random) -> None:
        self._client = client
        self._keys = keys
        self._reader = reader
        self._rng = rng
        self._mirrors = Mirrors(client, rng=rng)

    async def adapters(self, pool: str, start_revision: int, budget: Budget) -> AsyncGenerator[Batch, None]:
        """Changes of a pool's adapters from a revision on; from 0: the present state first.

        Raises:
            NotFound: there is no such pool.
            FailedPrecondition: etcd does not keep the revisions from there on.
        """
        await self._reader.pool(pool, budget)
        prefix = self._keys.adapters(pool)
        resume = Resume(start_revision - 1, 0) if start_revision else None
        reflector = Reflector(self._client, prefix, prefix_end(prefix), resume=resume, rng=self._rng)
        delivered = resume is None
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed() if not delivered:
                        raise _not_kept(start_revision, reflection.revision)
                    case Listed():
                        yield Batch(reflection.revision, snapshot=True, events=_as_events(reflection.kvs))
                    case Changed():
                        yield Batch(reflection.revision, snapshot=False, events=reflection.events)
                    case Progressed():
                        pass
                    case _:
                        continue
                delivered = True

    async def rollout(self, question: Question, budget: Budget) -> AsyncGenerator[Rollout, None]:
        """A rollout whenever it has changed, until it is done.

        Raises:
            NotFound: there is no such pool, or nobody says which generation of an adapter that does not exist.
        """
        question, first = await self._first_look(question, budget)
        yield first
        if first.done:
            return
        async with AsyncExitStack() as stack:
            wake = asyncio.Event()
            mirrors = [
                await stack.enter_async_context(self._mirrors.look(read.key, read.range_end, wake))
                for read in _reads(self._keys, question)
            ]
            last = first
            while not last.done:
                await wake.wait()
                wake.clear()
                rollout = await self._derive(question, mirrors)
                if rollout not in (None, last):
                    last = rollout
                    yield rollout

    async def _first_look(self, question: Question, budget: Budget) -> tuple[Question, Rollout]:
        """The question with its generation, and the first answer."""
        facts = await self._facts(question, budget)
        if facts.record is None:
            await self._reader.pool(question.pool, budget)
            if not question.generation:
                raise NotFound(
                    Reason.ADAPTER_NOT_FOUND,
                    f"there is no adapter {question.name!r} in pool {question.pool!r}",
                    field="name",
                )
        rollout = derive_rollout(question, facts)
        return replace(question, generation=rollout.generation), rollout

    async def _derive(self, question: Question, mirrors: list[Mirror]) -> Rollout | None:
        """The rollout as the mirrors have it; None while they do not have everything."""
        seen = [mirror.kvs for mirror in mirrors]
        if any(kvs is None for kvs in seen):
            return None
        rollout = derive_rollout(question, facts_of([tuple(kvs.values()) for kvs in seen if kvs is not None]))
        if not rollout.done:
            return rollout
        # The mirrors may be of different revisions; the last word is said of a single one.
        return derive_rollout(question, await self._facts(question, Budget.of(_LOOK_SECONDS)))

    async def _facts(self, question: Question, budget: Budget) -> Facts:
        """Everything at one revision."""
        try:
            record, *others = _reads(self._keys, question)
            first = await self._client.range(record, timeout_seconds=budget.spend())
            rest = [
                await self._client.range(replace(read, revision=first.revision), timeout_seconds=budget.spend())
                for read in others
            ]
        except EtcdError as error:
            raise refusal(error) from error
        return facts_of([result.kvs for result in (first, *rest)])


def _reads(keys: Keys, question: Question) -> tuple[Range, ...]:
    replicas, statuses = keys.replicas(question.pool), keys.statuses(question.pool)
    return (
        Range(keys.adapter(question.pool, question.name)),
        Range(replicas, prefix_end(replicas)),
        Range(statuses, prefix_end(statuses)),
    )


def _as_events(kvs: Iterable[KeyValue]) -> tuple[Event, ...]:
    return tuple(Event(kv.key, kv.mod_revision, kv) for kv in kvs)


def _not_kept(asked: int, present: int) -> FailedPrecondition:
    return FailedPrecondition(
        Reason.REVISION_COMPACTED,
        f"etcd does not keep revision {asked} (it is at {present} now); watch from 0 to get the present state first",
        field="start_revision",
        metadata={"revision": str(present)},
    )
