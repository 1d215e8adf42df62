"""Streams of a pool's adapters and of a rollout."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from registry.errors import FailedPrecondition, NotFound, Reason
from registry.etcd3.client import Client
from registry.etcd3.ops import Event, KeyValue, prefix_end
from registry.etcd3.reflections import Changed, Listed, Progressed, Resume
from registry.etcd3.reflector import Reflector
from registry.keys import Keys
from registry.store.budget import Budget
from registry.store.mirror import Mirror, Mirrors, Values
from registry.store.pool_facts import Facts
from registry.store.pool_sight import PoolSight, read_facts, watched
from registry.store.reader import Reader
from registry.store.rollout import Question, Rollout, derive_rollout, needs_rooms

_LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Batch:
    """All changes of one revision; or, if `snapshot`, everything there is at it."""

    revision: int
    snapshot: bool
    events: tuple[Event, ...]


class Watcher:
    """Watches on behalf of callers. Streams end only when they are closed, or as their docstrings say."""

    def __init__(self, client: Client, keys: Keys, reader: Reader, mirrors: Mirrors, *, rng: random.Random) -> None:
        self._client = client
        self._keys = keys
        self._reader = reader
        self._rng = rng
        self._mirrors = mirrors

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
        last = await self._first_look(question, budget)
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

    async def _first_look(self, question: Question, budget: Budget) -> Rollout | None:
        """The first answer; None: it takes a longer look, since the adapter is placed by number."""
        facts = await read_facts(self._client, self._keys, question.pool, question.name, None, budget)
        if facts.record is None:
            await self._reader.pool(question.pool, budget)
            if not question.generation:
                raise NotFound(
                    Reason.ADAPTER_NOT_FOUND,
                    f"there is no adapter {question.name!r} in pool {question.pool!r}",
                    field="name",
                )
        return None if needs_rooms(question, facts) else derive_rollout(question, facts)

    async def _rollouts(self, question: Question) -> AsyncGenerator[Rollout, None]:
        """The rollout at each change of anything, until it is done."""
        wake, key = asyncio.Event(), self._keys.adapter(question.pool, question.name)
        async with (
            self._mirrors.look(key, b"", wake, partial(Values, _itself)) as record,
            watched(self._mirrors, self._keys, question.pool, wake) as sight,
        ):
            while True:
                await wake.wait()
                wake.clear()
                rollout = await self._derive(question, record, sight)
                if rollout is None:
                    continue
                yield rollout
                if rollout.done:
                    return
                question = replace(question, generation=rollout.generation)

    async def _derive(self, question: Question, record: Mirror[Values[KeyValue]], sight: PoolSight) -> Rollout | None:
        """The rollout as the mirrors have it; None while they do not have everything."""
        facts = sight.facts(next(iter(record.state.by_key.values()), None))
        if facts is None or not record.is_whole or await _lacks_rooms(question, facts, sight):
            return None
        rollout = derive_rollout(question, facts)
        if not rollout.done:
            return rollout
        # The mirrors may be of different revisions; the last word is said of a single one.
        budget = Budget.of(_LOOK_SECONDS)
        facts = await read_facts(self._client, self._keys, question.pool, question.name, sight.rooms, budget)
        return None if await _lacks_rooms(question, facts, sight) else derive_rollout(question, facts)


async def _lacks_rooms(question: Question, facts: Facts, sight: PoolSight) -> bool:
    """True while the room of the pool's adapters has to be known and is not; it is looked at then."""
    if not needs_rooms(question, facts):
        return False
    await sight.look_at_rooms()
    return True


def _itself(kv: KeyValue) -> KeyValue:
    return kv


def _as_events(kvs: Iterable[KeyValue]) -> tuple[Event, ...]:
    return tuple(Event(kv.key, kv.mod_revision, kv) for kv in kvs)


def _not_kept(asked: int, present: int) -> FailedPrecondition:
    return FailedPrecondition(
        Reason.REVISION_COMPACTED,
        f"etcd does not keep revision {asked} (it is at {present} now); watch from 0 to get the present state first",
        field="start_revision",
        metadata={"revision": str(present)},
    )
