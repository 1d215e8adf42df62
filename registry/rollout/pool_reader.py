"""Reads a pool from etcd: with shared informers, or all of it at one revision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from registry.etcd3.client import Client
from registry.etcd3.errors import Compacted, EtcdError, FutureRevision
from registry.etcd3.informer import SharedInformer, SharedInformerFactory
from registry.etcd3.ops import KeyValue, prefix_end
from registry.model.keys import Keys
from registry.rollout.pool import PoolSnapshot, PoolValues, renew
from registry.runtime.clock import Deadline
from registry.store.failures import refusal

# Compactions are minutes apart.
_TRIES = 3
# Each may have 256 KiB, and a message 64 MiB.
STATUSES_OF_A_PAGE = 100


class PoolReader:
    """Follows one pool. Made by `follow_pool`."""

    def __init__(
        self,
        pool: str,
        presences: SharedInformer,
        statuses: SharedInformer,
        expected: tuple[SharedInformer, SharedInformer],
        look_at_adapters: Callable[[], Awaitable[SharedInformer]],
    ) -> None:
        self._presences = presences
        self._statuses = statuses
        self._members, self._record = expected
        self._look_at_adapters = look_at_adapters
        self._adapters: SharedInformer | None = None
        self._snapshot = PoolSnapshot(pool)
        self._versions = (-1, -1, -1, -1, -1)

    @property
    def losses(self) -> int | None:
        """The number of times that changes may have passed unseen; None: they may now."""
        if not (self._presences.connected and self._statuses.connected):
            return None
        return self._presences.losses + self._statuses.losses

    async def follow_adapters(self) -> None:
        """Follows the pool's adapters as well, from now on: the room that they take."""
        if self._adapters is None:
            self._adapters = await self._look_at_adapters()

    def snapshot(self) -> PoolSnapshot | None:
        """The pool as it is known; None before its replicas were listed."""
        presences, statuses = self._presences, self._statuses
        if not all(one.is_listed for one in (presences, statuses, self._members, self._record)):
            return None
        adapters = self._adapters if self._adapters is not None and self._adapters.is_listed else None
        versions = (
            presences.version,
            statuses.version,
            adapters.version if adapters else -1,
            self._members.version,
            self._record.version,
        )
        if versions != self._versions:
            members, record = (next(iter(one.kvs.values()), None) for one in (self._members, self._record))
            values = PoolValues(presences.kvs, statuses.kvs, members=members, spec=record)
            if adapters is not None:
                changed = adapters.changed_since(self._versions[2])
                values = replace(values, records=adapters.kvs, changed=changed, revision=adapters.revision)
            self._snapshot, self._versions = renew(self._snapshot, values), versions
        return self._snapshot


@asynccontextmanager
async def follow_pool(
    informers: SharedInformerFactory, keys: Keys, pool: str, wake: asyncio.Event
) -> AsyncIterator[PoolReader]:
    """A reader of a pool; `wake` is set whenever something changes."""
    async with AsyncExitStack() as stack:

        async def look(prefix: bytes) -> SharedInformer:
            return await stack.enter_async_context(informers.look(prefix, prefix_end(prefix), wake))

        async def look_at_key(key: bytes) -> SharedInformer:
            return await stack.enter_async_context(informers.look(key, b"", wake))

        presences, statuses = await look(keys.replicas(pool)), await look(keys.statuses(pool))
        expected = await look_at_key(keys.members(pool)), await look_at_key(keys.pool(pool))
        yield PoolReader(pool, presences, statuses, expected, partial(look, keys.adapters(pool)))


async def read_pool(
    client: Client, keys: Keys, name: str, base: PoolSnapshot, deadline: Deadline
) -> tuple[KeyValue | None, PoolSnapshot]:
    """An adapter's record and its pool's replicas at one revision.

    At a newer one if that is compacted or set back.
    """
    single = [keys.adapter(base.pool, name), keys.members(base.pool), keys.pool(base.pool)]
    spans = [(key, b"") for key in single]
    spans += [(prefix, prefix_end(prefix)) for prefix in (keys.replicas(base.pool), keys.statuses(base.pool))]
    tries_left = _TRIES
    while True:
        try:
            records, members, pools, presences, statuses = await _read_together(client, spans, deadline)
        except EtcdError as error:
            tries_left -= 1
            if not tries_left or not isinstance(error, Compacted | FutureRevision):
                raise refusal(error) from error
        else:
            values = PoolValues(
                {kv.key: kv for kv in presences},
                {kv.key: kv for kv in statuses},
                members=next(iter(members), None),
                spec=next(iter(pools), None),
            )
            return next(iter(records), None), renew(base, values)


async def _read_together(
    client: Client, spans: Sequence[tuple[bytes, bytes]], deadline: Deadline
) -> list[tuple[KeyValue, ...]]:
    """The values of some spans of keys, all at the revision of the first.

    Raises EtcdError, Unavailable: no time is left.
    """
    found = list[tuple[KeyValue, ...]]()
    revision = 0
    for key, end in spans:
        listing = await client.list_range(
            key, end, page_size=STATUSES_OF_A_PAGE, revision=revision, timeout_seconds=deadline.spend()
        )
        revision = listing.revision
        found.append(listing.kvs)
    return found
