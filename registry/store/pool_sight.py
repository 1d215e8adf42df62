"""Who lives in a pool and what they report, kept in sight or read at one revision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from registry.etcd3.client import Client
from registry.etcd3.errors import Compacted, EtcdError, FutureRevision
from registry.etcd3.ops import KeyValue, Range, prefix_end
from registry.keys import Keys, last_part
from registry.model.placement import Member
from registry.store.budget import Budget
from registry.store.failures import refusal
from registry.store.judgement import Said, said
from registry.store.mirror import Mirror, Mirrors, Values
from registry.store.pool_facts import Facts, Rooms, facts_of, member_of

# Compactions are minutes apart.
_TRIES = 3


class PoolSight:
    """Mirrors of one pool. Made by `watched`."""

    def __init__(
        self,
        mirrors: Mirrors,
        adapters: bytes,
        wake: asyncio.Event,
        stack: AsyncExitStack,
        members: Mirror[Values[Member]],
        statuses: Mirror[Values[Said]],
    ) -> None:
        self._mirrors = mirrors
        self._adapters = adapters
        self._wake = wake
        self._stack = stack
        self._members = members
        self._statuses = statuses
        self._rooms: Mirror[Rooms] | None = None

    @property
    def losses(self) -> int | None:
        """How often the sight of the replicas was lost; None: it is lost now."""
        if not (self._members.in_sight and self._statuses.in_sight):
            return None
        return self._members.losses + self._statuses.losses

    @property
    def rooms(self) -> Rooms | None:
        """The room that the pool's adapters take; None: it is not looked at, or not known yet."""
        return self._rooms.state if self._rooms is not None and self._rooms.is_whole else None

    async def look_at_rooms(self) -> None:
        """Looks at the pool's adapters as well, from now on."""
        if self._rooms is None:
            look = self._mirrors.look(self._adapters, prefix_end(self._adapters), self._wake, Rooms)
            self._rooms = await self._stack.enter_async_context(look)

    def facts(self, record: KeyValue | None) -> Facts | None:
        """The facts about one record; None while not everything is in sight."""
        if not (self._members.is_whole and self._statuses.is_whole):
            return None
        members = {last_part(key): member for key, member in self._members.state.by_key.items()}
        statuses = {last_part(key): status for key, status in self._statuses.state.by_key.items()}
        return Facts(record, members, statuses, self.rooms)


@asynccontextmanager
async def watched(mirrors: Mirrors, keys: Keys, pool: str, wake: asyncio.Event) -> AsyncIterator[PoolSight]:
    """A pool in sight; `wake` is set whenever something changes."""
    replicas, statuses = keys.replicas(pool), keys.statuses(pool)
    async with AsyncExitStack() as stack:
        yield PoolSight(
            mirrors,
            keys.adapters(pool),
            wake,
            stack,
            await stack.enter_async_context(
                mirrors.look(replicas, prefix_end(replicas), wake, partial(Values, member_of))
            ),
            await stack.enter_async_context(mirrors.look(statuses, prefix_end(statuses), wake, partial(Values, said))),
        )


async def read_facts(client: Client, keys: Keys, pool: str, name: str, rooms: Rooms | None, budget: Budget) -> Facts:
    """Everything but `rooms` at one revision; at a newer one if that is compacted, or set back, meanwhile.

    Raises:
        RegistryError: etcd does not answer, or refuses.
    """
    spans = [Range(prefix, prefix_end(prefix)) for prefix in (keys.replicas(pool), keys.statuses(pool))]
    reads = [Range(keys.adapter(pool, name)), *spans]
    tries_left = _TRIES
    while True:
        try:
            return facts_of(await _read_together(client, reads, budget), rooms)
        except EtcdError as error:
            tries_left -= 1
            if not tries_left or not isinstance(error, Compacted | FutureRevision):
                raise refusal(error) from error


async def _read_together(client: Client, reads: Sequence[Range], budget: Budget) -> list[tuple[KeyValue, ...]]:
    """The values of some ranges, all at the revision of the first. Raises EtcdError, Unavailable: no time is left."""
    first = await client.range(reads[0], timeout_seconds=budget.spend())
    pinned = [replace(read, revision=first.revision) for read in reads[1:]]
    return [first.kvs, *[(await client.range(read, timeout_seconds=budget.spend())).kvs for read in pinned]]
