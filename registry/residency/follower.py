"""Follower of one pool: keeps a view of it as etcd is.

It begins with one revision, and goes on by informers.

A status speaks of a moment: of the records at its revision, and of the replicas that lived then. What is told at once
to readers may have happened in several steps, so the view takes each step by itself: a replica is understood wherever
between them it is (guarantee R24). For the same reason a view begins a little in the past, where statuses do. Where
etcd no longer keeps that, nothing is told for a moment: sidecars soon write what can be understood.

Presences and statuses come by two watches, and a sidecar writes both by one transaction. So no answer is made while one
of them may lack what the other has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import groupby

from registry.etcd3.client import Client
from registry.etcd3.errors import Compacted, EtcdError
from registry.etcd3.informer import EventTap, SharedInformer, SharedInformerFactory
from registry.etcd3.ops import Event, KeyValue, Range, SortTarget
from registry.etcd3.stream import Changed, Listed
from registry.residency.derive import changed
from registry.residency.view import (
    PoolView,
    is_apart,
    is_held_back,
    is_understood,
    known_to,
    not_understood,
    renew_view,
)
from registry.rollout.pool import PoolSnapshot, PoolValues, alone
from registry.rollout.pool_reader import STATUSES_OF_A_PAGE

# Changes within this time are told together: one change of an adapter is followed by a status of each replica.
_COALESCE_SECONDS = 0.1
# Between two looks for what does not come, as for the revision of a status that never was.
_LONGEST_PAUSE_SECONDS = 0.5
# So many steps are taken one by one; of more, the first ones together.
_MOST_STEPS = 200
# So far back a view begins at most: a fleet of 200 replicas at rest writes as many statuses in five minutes.
_PAST_REVISIONS = 2000
_PAST_SECONDS = 2.0
# What is known is told after so long, though a status cannot be understood yet.
_PROOF_SECONDS, _PATIENCE_SECONDS = 1.0, 3.0
Post = Callable[[PoolView, frozenset[str]], None]


class FollowedRange:
    """A followed range; if read at one revision first, earlier values do not count.

    Attributes:
        tap: gets its events.
    """

    def __init__(self, prefix: bytes, end: bytes, informer: SharedInformer) -> None:
        self.prefix = prefix
        self.end = end
        self.informer = informer
        self.tap = EventTap()
        self._first: tuple[int, dict[bytes, KeyValue]] | None = None
        self._seen = self._proven = self._read = 0

    async def begin(self, client: Client, revision: int) -> None:
        """Reads the range as it was at a revision.

        Raises:
            EtcdError: etcd does not answer.
        """
        read = await client.list_range(self.prefix, self.end, page_size=STATUSES_OF_A_PAGE, revision=revision)
        self._first, self._read = (revision, {kv.key: kv for kv in read.kvs}), revision

    async def prove(self, client: Client) -> int:
        """A revision at which the informer has the values; 0: it does not yet.

        An informer alone does not know how far it is while nothing changes. An equal number of keys and an equal newest
        change prove it: what is created or changed is newer, and what is deleted is missing.

        Raises:
            EtcdError: etcd does not answer.
        """
        newest = Range(self.prefix, self.end, limit=1, keys_only=True, descending_by=SortTarget.MOD)
        found, informer = await client.range(newest), self.informer
        if not informer.is_listed or len(informer.kvs) != found.count:
            return 0
        last = max((kv.mod_revision for kv in informer.kvs.values()), default=0)
        if any(kv.mod_revision != last for kv in found.kvs):
            return 0
        self._proven = found.revision
        return found.revision

    @property
    def revision(self) -> int:
        """Up to which the newest values are known."""
        self._notice()
        return max(self.informer.revision, self._proven, self._first[0] if self._first else 0)

    def _notice(self) -> None:
        """Forgets what was read and proven of a store that was set back."""
        if self.informer.revision < self._seen:
            self._first, self._proven, self._read = None, 0, 0
        self._seen = self.informer.revision

    def events(self) -> list[Event]:
        """Events since the last call, without those that were read before they were told."""
        return [event for event in self.tap.take() if event.mod_revision > self._read]

    def kvs(self) -> dict[bytes, KeyValue]:
        """The newest values."""
        self._notice()
        informer = self.informer
        if self._first is not None and (not informer.is_listed or informer.revision < self._first[0]):
            return self._first[1]
        self._first = None
        return dict(informer.kvs)


class PoolFollower:
    """Posts each view of one pool, with the adapters that are elsewhere by it.

    Args:
        told: the view that was posted last, as by a follower that failed; one of nothing: none was.
    """

    def __init__(
        self, client: Client, informers: SharedInformerFactory, ranges: list[FollowedRange], told: PoolView, post: Post
    ) -> None:
        self._client = client
        self._informers = informers
        self._records, self._presences, self._statuses, self._spec, self._members = ranges
        self._post = post
        self._view, self._told = PoolView(PoolSnapshot(told.snapshot.pool)), told
        self._values = PoolValues({}, {})
        self._version = -1
        self._known_since = 0
        self._unclear_since: float | None = None

    async def run(self, wake: asyncio.Event) -> None:
        """Follows until it is cancelled."""
        await _until(self._begin)
        while True:
            wake.clear()
            await _until(self._step, longest_seconds=_LONGEST_PAUSE_SECONDS)
            await wake.wait()
            await asyncio.sleep(_COALESCE_SECONDS)

    async def _begin(self) -> bool:
        """The first view, of one revision; False: the informers are not there yet."""
        try:
            revision = await self._records.prove(self._client)
            if not revision:
                return False
            for read in (self._presences, self._statuses, self._spec, self._members):
                await read.begin(self._client, revision)
        except EtcdError:
            return False
        if not await self._is_together():
            return False
        self._take_values()
        blank = self._view
        await self._advance(())
        since = not_understood(self._view)
        if since is not None and (past := await self._past(max(since, revision - _PAST_REVISIONS))):
            self._view, self._known_since = blank, past[0].revision
            await self._advance(past)
        return True

    async def _step(self) -> bool:
        """Takes over what the informers have; False: it cannot be yet, or some status cannot be understood yet."""
        if not await self._is_together():
            return False
        await self._advance(self._take_values())
        if is_held_back(self._view, self._values):
            with suppress(EtcdError, TimeoutError):
                async with asyncio.timeout(_PROOF_SECONDS):
                    await self._records.prove(self._client)
            if await self._is_together():
                await self._advance(self._take_values())
        if not self._is_clear():
            return False
        await self._tell()
        return not is_held_back(self._view, self._values)

    def _is_clear(self) -> bool:
        """True if each status can be understood, or none can any more for longer than a sidecar takes to write one."""
        now = asyncio.get_running_loop().time()
        if is_understood(self._view, self._known_since):
            self._unclear_since = None
        elif self._unclear_since is None:
            self._unclear_since = now
        return self._unclear_since is None or now - self._unclear_since >= _PATIENCE_SECONDS

    async def _is_together(self) -> bool:
        """True if no presence is known without the status that was written with it, nor the other way round.

        Where one informer is behind the other for longer than it takes to prove that it is not, both ranges are read.
        """
        both = self._presences, self._statuses
        try:
            async with asyncio.timeout(_PROOF_SECONDS):
                if self._is_apart():
                    for one in both:
                        await one.prove(self._client)
                if self._is_apart():
                    revision = (await self._client.range(Range(self._statuses.prefix, keys_only=True))).revision
                    for one in both:
                        await one.begin(self._client, revision)
        except (EtcdError, TimeoutError):
            return False
        return not self._is_apart()

    def _is_apart(self) -> bool:
        known = min(self._presences.revision, self._statuses.revision)
        return is_apart(self._presences.kvs(), self._statuses.kvs(), known)

    async def _advance(self, steps: Sequence[PoolValues]) -> None:
        # In a thread, since a view of very many adapters takes long and other calls are to be answered meanwhile.
        self._view = await asyncio.to_thread(_advanced, self._view, [*steps, self._values])

    async def _tell(self) -> None:
        keys = await asyncio.to_thread(changed, self._told, self._view)
        self._told = self._view
        self._post(self._view, keys)

    def _take_values(self) -> Sequence[PoolValues]:
        """Takes the newest values, and gives those in between: all are to be advanced by."""
        before, informer = self._values, self._records.informer
        is_whole = self._records.tap.is_whole and before.records is not None
        events = [*self._records.events(), *self._presences.events()]
        changed_keys = informer.changed_since(self._version)
        is_new = self._version != informer.version  # there may be very many
        self._version = informer.version
        if not is_whole:  # what happened before was not heard of
            self._known_since = max((kv.mod_revision for kv in informer.kvs.values()), default=0)
        self._values = PoolValues(
            self._presences.kvs(),
            self._statuses.kvs(),
            dict(informer.kvs) if is_new else before.records,
            changed_keys,
            self._records.revision,
            holds_back=True,
            spec=next(iter(self._spec.kvs().values()), None),
            members=next(iter(self._members.kvs().values()), None),
        )
        return () if before.records is None else list(self._steps(before, events))

    def _steps(self, before: PoolValues, events: Sequence[Event]) -> Iterator[PoolValues]:
        """The values after each revision of some events."""
        revisions = sorted({event.mod_revision for event in events})
        first = revisions[-_MOST_STEPS:][:1]
        # Statuses are not followed step by step: of who stands now they tell whether it reports; who came and went did.
        at = replace(before, alone=alone(self._values.presences, self._values.statuses))
        by_revision = sorted(events, key=lambda event: event.mod_revision)
        for revision, group in groupby(by_revision, lambda event: max(event.mod_revision, *first)):
            records, others = list[Event](), list[Event]()
            for event in group:
                (records if event.key.startswith(self._records.prefix) else others).append(event)
            at = replace(
                at,
                presences=_amended(at.presences, others),
                records=_amended(at.records or {}, records),
                changed=frozenset(event.key for event in records),
                revision=revision if records else at.revision,
            )
            yield at

    async def _past(self, revision: int) -> Sequence[PoolValues]:
        """The values from a revision up to now, as far as etcd keeps them; none if it does not answer soon."""
        with suppress(EtcdError, TimeoutError):
            async with asyncio.timeout(_PAST_SECONDS):
                try:
                    return await self._steps_since(revision)
                except Compacted:
                    return await self._steps_since(await self._kept_since(revision))
        return ()

    async def _kept_since(self, revision: int) -> int:
        """The first revision after this one that etcd still keeps: of a read it does not say which that is.

        Raises:
            EtcdError: etcd does not answer.
        """
        last = self._values.revision
        while revision < last:
            middle = (revision + last) // 2
            try:
                await self._client.range(Range(self._records.prefix, revision=middle, keys_only=True))
            except Compacted:
                revision = middle + 1
            else:
                last = middle
        return last

    async def _steps_since(self, revision: int) -> Sequence[PoolValues]:
        """The values from a revision up to now; raises as `_happened`."""
        records, events = await self._happened(self._records, revision, self._values.records or {})
        presences, others = await self._happened(self._presences, revision, self._values.presences)
        silent = alone(self._values.presences, self._values.statuses)
        past = replace(self._values, presences=presences, statuses={}, records=records, revision=revision)
        begin = replace(past, alone=silent)
        return [begin, *self._steps(begin, [*events, *others])]

    async def _happened(
        self, read: FollowedRange, revision: int, now: Mapping[bytes, KeyValue]
    ) -> tuple[Mapping[bytes, KeyValue], Sequence[Event]]:
        """The values of a range at a revision, and what happened to it until it came to stand as it does now.

        Raises:
            EtcdError: etcd does not keep that, or does not answer.
        """
        then = {kv.key: kv for kv in (await self._client.list_range(read.prefix, read.end, revision=revision)).kvs}
        behind = {key for key in {*then, *now} if then.get(key) != now.get(key)}
        events: list[Event] = []
        if not behind:
            return then, events
        async with aclosing(self._informers.replay(read.prefix, read.end, revision)) as reflections:
            async for reflection in reflections:
                if isinstance(reflection, Listed):
                    raise EtcdError("what happened in between is not kept")
                if isinstance(reflection, Changed):
                    events += reflection.events
                    behind -= {event.key for event in reflection.events if event.kv == now.get(event.key)}
                if not behind:
                    break
        return then, events


def _amended(kvs: Mapping[bytes, KeyValue], events: Sequence[Event]) -> Mapping[bytes, KeyValue]:
    """The values after some events."""
    if not events:
        return kvs
    after = dict(kvs)
    for event in events:
        if event.kv is None:
            after.pop(event.key, None)
        else:
            after[event.key] = event.kv
    return after


async def _until(succeeds: Callable[[], Awaitable[bool]], longest_seconds: float = _COALESCE_SECONDS) -> None:
    pause = _COALESCE_SECONDS
    while not await succeeds():
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest_seconds)


def _advanced(view: PoolView, steps: Sequence[PoolValues]) -> PoolView:
    """The view of what etcd holds after each of these."""
    for values in steps:
        is_next = values.changed and values is not steps[-1]
        view = renew_view(known_to(view, values.revision - 1) if is_next else view, values)
    return view
