"""Reads: single records, and listings whose pages all show one revision."""

from __future__ import annotations

from dataclasses import dataclass, replace

from registry.errors import FailedPrecondition, NotFound, Reason
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, ResponseTooLarge
from registry.etcd3.ops import KeyValue, Range, RangeResult, prefix_end
from registry.keys import Keys, last_part
from registry.model.base import Stored
from registry.model.records import AdapterRecord, PoolSpec, RetiredRecord, TenantRecord
from registry.store.budget import Budget
from registry.store.failures import refusal
from registry.store.filters import Filter
from registry.store.pages import Page, RecordPage, Sieve
from registry.store.paging import PageToken
from registry.transactions.stored import (
    Damaged,
    Present,
    generation_of_key,
    present_adapter,
    present_pool,
    read_adapter,
    read_pool,
    read_tenant,
    stored_adapter,
)
from registry.transactions.target import AdapterState
from registry.transactions.view import View

_SCANNED_AT_MOST = 5000
_SCAN_PAGE = 500
_SHRINK = 16
# A status may have 256 KiB, and a message 64 MiB.
_REPLICAS_AT_MOST = 100


@dataclass(frozen=True, slots=True)
class History:
    """An adapter's generations. `retired` is sorted, the newest first; `unreadable` are generations that are kept, or
    present, but cannot be read."""

    present: Present[AdapterRecord] | None
    retired: tuple[RetiredRecord, ...]
    unreadable: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaValues:
    """What stands in etcd of a live replica; `status` None: it has not reported yet."""

    presence: KeyValue
    status: KeyValue | None


class Reader:
    """Every method raises RegistryError and nothing else; all reads are linearizable.

    Nothing is read by transactions, which a full etcd refuses; what must be of one revision is pinned to the first.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def adapter(self, pool: str, name: str, budget: Budget) -> Present[AdapterRecord]:
        """One adapter.

        Raises:
            NotFound: there is no such pool, or no such adapter in it.
            FailedPrecondition: its record cannot be read.
        """
        found = await self._range(Range(self._keys.adapter(pool, name)), budget)
        if not found.kvs:
            raise await self._nothing(_no_adapter(pool, name), pool, budget)
        return present_adapter(View(0, (), {kv.key: kv for kv in found.kvs}), self._keys, pool, name)

    async def adapters(
        self, pool: str, wanted: Filter, size: int, token: PageToken | None, budget: Budget
    ) -> RecordPage[AdapterRecord]:
        """A page of a pool's adapters; it may hold fewer than `size`, and still not be the last.

        Raises:
            NotFound: there is no such pool.
            FailedPrecondition: etcd no longer keeps the revision that the first page was of.
        """
        if token is None:
            await self.pool(pool, budget)
        scanned = 0
        sieve = Sieve(lambda kv: read_adapter(pool, kv), wanted.takes, size)
        while True:
            page = await self._page(self._keys.adapters(pool), max(size, _SCAN_PAGE), token, budget)
            scanned += len(page.kvs)
            sieved = sieve.pass_through(page)
            # The ranges that follow show the revision of the first.
            token = sieved.token
            if token is None or sieve.is_full() or scanned >= _SCANNED_AT_MOST:
                return sieved

    async def history(self, pool: str, name: str, budget: Budget) -> History:
        """An adapter's generations.

        Raises:
            NotFound: there is none of that name, and never was as far as history goes.
            FailedPrecondition: its record is from a future schema.
        """
        prefix = self._keys.history_of(pool, name)
        found = await self._range(Range(self._keys.adapter(pool, name)), budget)
        past = await self._range(Range(prefix, prefix_end(prefix), revision=found.revision), budget)
        if not found.kvs and not past.kvs:
            raise await self._nothing(_no_adapter(pool, name), pool, budget)
        view = View(found.revision, (), {kv.key: kv for kv in found.kvs}, {prefix: past.kvs})
        return _history(stored_adapter(view, self._keys, pool, name), past.kvs)

    async def pool(self, pool: str, budget: Budget, *, field: str = "pool") -> Present[PoolSpec]:
        """One pool.

        Raises:
            NotFound: there is no such pool.
            FailedPrecondition: its record cannot be read.
        """
        key = self._keys.pool(pool)
        found = await self._range(Range(key), budget)
        return present_pool(View(0, (), {kv.key: kv for kv in found.kvs}), self._keys, pool, field=field)

    async def pools(self, size: int, token: PageToken | None, budget: Budget) -> RecordPage[PoolSpec]:
        """A page of pools."""
        page = await self._page(self._keys.pools(), size, token, budget)
        return Sieve(read_pool, _anything, size).pass_through(page)

    async def tenants(self, size: int, token: PageToken | None, budget: Budget) -> RecordPage[TenantRecord]:
        """A page of tenants."""
        page = await self._page(self._keys.tenants(), size, token, budget)
        return Sieve(read_tenant, _anything, size).pass_through(page)

    async def replica(self, pool: str, replica: str, budget: Budget) -> ReplicaValues:
        """One live replica.

        Raises:
            NotFound: there is no such pool, or no such replica lives in it.
        """
        found = await self._range(Range(self._keys.replica(pool, replica)), budget)
        if not found.kvs:
            raise await self._nothing(_no_replica(pool, replica), pool, budget)
        status = await self._range(Range(self._keys.status(pool, replica), revision=found.revision), budget)
        return ReplicaValues(found.kvs[0], next(iter(status.kvs), None))

    async def replicas(
        self, pool: str, size: int, token: PageToken | None, budget: Budget
    ) -> tuple[Page, list[ReplicaValues]]:
        """A page of live replicas with their statuses, all at one revision.

        Raises:
            NotFound: there is no such pool.
        """
        if token is None:
            await self.pool(pool, budget)
        page = await self._page(self._keys.replicas(pool), min(size, _REPLICAS_AT_MOST), token, budget)
        if not page.kvs:
            return page, []
        ids = [last_part(kv.key) for kv in page.kvs]
        span = Range(self._keys.status(pool, ids[0]), self._keys.status(pool, ids[-1]) + b"\0", revision=page.revision)
        statuses = {last_part(kv.key): kv for kv in (await self._range(span, budget)).kvs}
        return page, [ReplicaValues(kv, statuses.get(one)) for one, kv in zip(ids, page.kvs, strict=True)]

    async def _page(self, prefix: bytes, size: int, token: PageToken | None, budget: Budget) -> Page:
        """A page of the keys below a prefix."""
        start = token.after + b"\0" if token else prefix
        revision = token.revision if token else 0
        result = await self._in_one_message(Range(start, prefix_end(prefix), limit=size, revision=revision), budget)
        at = revision or result.revision
        return Page(at, result.kvs, PageToken(at, result.kvs[-1].key) if result.more else None)

    async def _in_one_message(self, read: Range, budget: Budget) -> RangeResult:
        """As many keys as one message takes: values that others than us wrote may have 1.5 MiB each."""
        while read.limit > 1:
            try:
                return await self._client.range(read, timeout_seconds=budget.spend())
            except ResponseTooLarge:
                read = replace(read, limit=max(1, read.limit // _SHRINK))
            except EtcdError as error:
                raise refusal(error) from error
        return await self._range(read, budget)

    async def _nothing(self, error: NotFound, pool: str, budget: Budget) -> NotFound:
        """The error to raise: that of the pool, if that is not there either."""
        await self.pool(pool, budget)
        return error

    async def _range(self, read: Range, budget: Budget) -> RangeResult:
        try:
            return await self._client.range(read, timeout_seconds=budget.spend())
        except EtcdError as error:
            raise refusal(error) from error


def _anything(_record: Stored) -> bool:
    return True


def _no_adapter(pool: str, name: str) -> NotFound:
    return NotFound(Reason.ADAPTER_NOT_FOUND, f"there is no adapter {name!r} in pool {pool!r}", field="name")


def _no_replica(pool: str, replica: str) -> NotFound:
    return NotFound(
        Reason.REPLICA_NOT_FOUND, f"no replica {replica!r} lives in pool {pool!r}; is its sidecar up?", field="name"
    )


def _history(state: AdapterState, kvs: tuple[KeyValue, ...]) -> History:
    retired: list[RetiredRecord] = []
    unreadable = [state.generation] if isinstance(state, Damaged) else []
    for kv in kvs:
        try:
            retired.append(RetiredRecord.parse(kv.value))
        except FailedPrecondition:
            unreadable.append(generation_of_key(kv))
    newest_first = sorted(retired, key=lambda record: record.generation, reverse=True)
    present = state if isinstance(state, Present) else None
    return History(present, tuple(newest_first), tuple(sorted(unreadable, reverse=True)))
