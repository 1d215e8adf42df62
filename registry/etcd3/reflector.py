"""Reflector: list and watch without end.

In three storeys: tries without end / one list and then watches / one connection.

Every change reaches the caller once, in order, and whole; what is lost to a compaction is made good by a list.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

from registry.etcd3.backoff import Backoff
from registry.etcd3.calls import Rotation
from registry.etcd3.client import Client
from registry.etcd3.errors import (
    Compacted,
    EtcdError,
    EtcdPermissionDenied,
    EtcdUnauthenticated,
    OtherCluster,
    ResponseTooLarge,
    Timeout,
)
from registry.etcd3.stream import Connected, Disconnected, ListCause, Listed, Mark, Reflection, Resume, WatchProtocol

_RETRY = Backoff(base_seconds=0.1, cap_seconds=3.0)
_MAX_PATIENCE = 8.0


class Reflector:
    """Lists and watches a range of keys.

    Args:
        key, range_end: a prefix and its `prefix_end`, or a single key and an empty `range_end`.
        resume: a state that the caller has; without one the first reflection is a `Listed`.
        denied_retry_seconds: between tries while etcd refuses us, which time alone seldom heals.
        compare_every_seconds: how often, give or take a quarter, to list although nothing demands it; None: never.
    """

    def __init__(
        self,
        client: Client,
        key: bytes,
        range_end: bytes,
        *,
        resume: Resume | None = None,
        rng: random.Random,
        denied_retry_seconds: float = 30.0,
        compare_every_seconds: float | None = None,
    ) -> None:
        self._client = client
        self._key = key
        self._range_end = range_end
        self._rng = rng
        self._denied_retry_seconds = denied_retry_seconds
        self._compare_every_seconds = compare_every_seconds
        self._rotation = Rotation(client.options.endpoints, rng)
        self._mark = Mark(resume.revision, resume.cluster_id, resume.raft_term) if resume else Mark(0, 0, 0)
        self._due = None if resume else ListCause.FIRST
        self._failures = 0
        self._silences = 0
        self._denials = 0
        self._strangers = 0
        self._in_fragments = False
        self._token: str | None = None
        self._refused_token: str | None = None
        self._compare_at = self._next_comparison()

    async def stream(self) -> AsyncGenerator[Reflection, None]:
        """Reflections without end; to be closed with `contextlib.aclosing`. Raises nothing but cancellation."""
        while True:
            await asyncio.sleep(self._delay_seconds())
            try:
                async with aclosing(self._list_and_watch()) as reflections:
                    async for reflection in reflections:
                        yield reflection
            except Compacted:
                self._failures += 1
                self._due = self._due or ListCause.COMPACTED
            except EtcdError as error:
                if self._count(error):
                    refuses = isinstance(error, Timeout) and error.refuses_progress
                    yield Disconnected(str(error), denied=self._denials > 0, refuses_progress=refuses)

    async def _list_and_watch(self) -> AsyncGenerator[Reflection, None]:
        """One list if one is due, then one watch after it. Ends when another list is due."""
        if self._due is not None:
            yield await self._list(self._due)
        async with aclosing(self._watch()) as reflections:
            async for reflection in reflections:
                yield reflection

    async def _list(self, cause: ListCause) -> Listed:
        listing = await self._client.list_range(self._key, self._range_end)
        now = Mark(listing.revision, listing.cluster_id, listing.raft_term)
        if self._mark.went_back(now):
            cause = ListCause.WENT_BACK
        elif cause is ListCause.WENT_BACK:  # a suspicion that this read refutes
            cause = ListCause.COMPARISON
        self._mark, self._due = now, None
        self._compare_at = self._next_comparison()
        return Listed(listing.revision, listing.kvs, listing.cluster_id, cause, listing.raft_term)

    async def _watch(self) -> AsyncGenerator[Reflection, None]:
        """One connection. Ends when a list is due."""
        endpoint = self._rotation.current
        async with self._client.watch(endpoint, refused_token=self._refused_token) as stream:
            self._token = stream.token
            protocol = WatchProtocol(self._mark, endpoint=endpoint, server_version=stream.server_version)
            await stream.send(protocol.create_request(self._key, self._range_end, in_fragments=self._in_fragments))
            protocol.receive(await stream.receive())
            if not self._same_store(await stream.mark(self._key)):
                return
            yield Connected(endpoint)
            while self._due is None:
                for reflection in protocol.receive(await stream.receive(self._patience())):
                    yield reflection
                self._healthy()

    def _same_store(self, now: Mark) -> bool:
        """Read once the watch stands, since a watch on a store that was set back would wait in silence."""
        if self._mark.went_back(now):
            self._due = ListCause.WENT_BACK
            return False
        self._mark.cluster_id, self._mark.raft_term = now.cluster_id, now.raft_term
        self._strangers = 0
        return True

    def _healthy(self) -> None:
        self._failures = self._silences = self._denials = 0
        self._refused_token = None
        if asyncio.get_running_loop().time() >= self._compare_at:
            self._due = ListCause.COMPARISON

    def _count(self, error: EtcdError) -> bool:
        """Notes a failure. False if the caller need not know yet: a refusal may mean that our token is too old."""
        denied = isinstance(error, EtcdUnauthenticated | EtcdPermissionDenied)
        self._denials = self._denials + 1 if denied else 0
        self._refused_token = self._token if denied else None
        self._silences += isinstance(error, Timeout)
        self._in_fragments |= isinstance(error, ResponseTooLarge)
        self._note_stranger(error)
        self._failures += 1
        self._rotation.leave(self._rotation.current)
        return self._denials != 1

    def _note_stranger(self, error: EtcdError) -> None:
        """One wrong address is a mistake; as many strangers as there are endpoints are the store's replacement."""
        self._strangers += isinstance(error, OtherCluster)
        if self._strangers >= len(self._client.options.endpoints):
            self._due = ListCause.WENT_BACK

    def _delay_seconds(self) -> float:
        if self._denials > 1:
            return self._rng.uniform(0.5, 1.0) * self._denied_retry_seconds
        return _RETRY.delay(self._failures, self._rng.uniform)

    def _patience(self) -> float:
        """Grows when silence repeats: a member that reads much history for a watch is slow, but not dead."""
        return min(2.0**self._silences, _MAX_PATIENCE)

    def _next_comparison(self) -> float:
        if self._compare_every_seconds is None:
            return math.inf
        return asyncio.get_running_loop().time() + self._rng.uniform(0.75, 1.25) * self._compare_every_seconds
