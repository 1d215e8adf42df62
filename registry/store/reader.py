"""Reads: single records, and listings whose pages all show one revision."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, ResponseTooLarge
from registry.etcd3.ops import KeyValue, Range, RangeResult, prefix_end
from registry.model.errors import FailedPrecondition, NotFound, Reason
from registry.model.keys import Keys, last_part
from registry.model.records import AdapterRecord, PoolSpec, RetiredRecord, TenantRecord
from registry.model.replica_state import status_of
from registry.model.stored import Stored
from registry.runtime.clock import Deadline
from registry.store.failures import refusal
from registry.store.pages import (
    Filter,
    Page,
    PageToken,
    RecordPage,
    Sieve,
    UnseenPlaces,
    everything,
    name_below,
    no_page_token,
)
from registry.transactions.context import AdapterState
from registry.transactions.decode import (
    Damaged,
    Present,
    ReadSet,
    RecordT,
    engine_hosts_of,
    generation_of_key,
    no_adapter,
    present_adapter,
    present_pool,
    read_adapter,
    read_pool,
    read_tenant,
    stored_adapter,
    stored_tenant,
)
from registry.transactions.repair import AuditTrail, is_of_tenant

_SCANNED_AT_MOST = 5000
_SCAN_PAGE = 500
# Keys alone, of records that the caller does not see. Each may be of a tenant of its own, about which to decide.
_PASSED_AT_MOST, _PASSED_AT_ONCE = 20_000, 1000
_SMALL_PAGE = 50  # of pools and tenants
_SHRINK = 16
# Of a backup: so little that no other call waits long while a page is made. Its values may have 64 KiB, and those that
# others than us wrote more, so that it is read in pieces, of which each may be some times as long as the one before.
_BACKUP_PAGE_BYTES = 1 << 20
_FIRST_PIECE, _PIECE_GROWTH = 8, 4
# A status may have 256 KiB, and a message 64 MiB.
# Audit records may be as large as a transaction.
_AUDITS_AT_MOST = 100
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
    """Records of a live replica; `status` None: it has not reported yet, see `status_of`.

    `engine_hosts`: what its pool allows its engine's URL to name, see `engine_hosts_of`.
    """

    presence: KeyValue
    status: KeyValue | None
    engine_hosts: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ExpectedValues:
    """Members remembered of a pool, its record, and the presences in it; of the statuses the keys alone."""

    members: KeyValue | None
    pool: KeyValue | None
    presences: list[KeyValue]
    statuses: list[KeyValue]


class Reader:
    """Every method raises RegistryError and nothing else; all reads are linearizable.

    Nothing is read by transactions, which a full etcd refuses; what must be of one revision is pinned to the first.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._places = UnseenPlaces()

    @property
    def prefix(self) -> str:
        """Prefix of all keys, without a slash at its end."""
        return self._keys.prefix

    async def adapter(self, pool: str, name: str, deadline: Deadline) -> Present[AdapterRecord]:
        """One adapter.

        Raises:
            NotFound: there is no such pool, or no such adapter in it.
            FailedPrecondition: its record cannot be read.
        """
        found = await self._range(Range(self._keys.adapter(pool, name)), deadline)
        if not found.kvs:
            raise await self._nothing(no_adapter(pool, name), pool, deadline)
        return present_adapter(ReadSet(0, (), {kv.key: kv for kv in found.kvs}), self._keys, pool, name)

    async def adapters(
        self,
        pool: str,
        wanted: Filter,
        size: int,
        token: PageToken | None,
        deadline: Deadline,
        sees: Callable[[str], bool] = everything,
    ) -> RecordPage[AdapterRecord]:
        """A page of a pool's adapters; it may hold fewer than `size`, and still not be the last.

        Raises:
            NotFound: there is no such pool.
            FailedPrecondition: etcd no longer keeps the revision that the first page was of.
        """
        if token is None:
            await self.pool(pool, deadline)
        sieve = Sieve(self._keys.adapters(pool), lambda kv: read_adapter(pool, kv), wanted.takes, size, sees)
        return await self._sieved(sieve, max(size, _SCAN_PAGE), token, deadline)

    async def history(self, pool: str, name: str, deadline: Deadline) -> History:
        """An adapter's generations.

        Raises:
            NotFound: there is none of that name, and never was as far as history goes.
            FailedPrecondition: its record is from a future schema.
        """
        prefix = self._keys.history_of(pool, name)
        found = await self._range(Range(self._keys.adapter(pool, name)), deadline)
        past = await self._range(Range(prefix, prefix_end(prefix), revision=found.revision), deadline)
        if not found.kvs and not past.kvs:
            raise await self._nothing(no_adapter(pool, name), pool, deadline)
        view = ReadSet(found.revision, (), {kv.key: kv for kv in found.kvs}, {prefix: past.kvs})
        return _history(stored_adapter(view, self._keys, pool, name), past.kvs)

    async def pool(self, pool: str, deadline: Deadline, *, field: str = "pool") -> Present[PoolSpec]:
        """One pool.

        Raises:
            NotFound: there is no such pool.
            FailedPrecondition: its record cannot be read.
        """
        key = self._keys.pool(pool)
        found = await self._range(Range(key), deadline)
        return present_pool(ReadSet(0, (), {kv.key: kv for kv in found.kvs}), self._keys, pool, field=field)

    async def pools(
        self, size: int, token: PageToken | None, deadline: Deadline, sees: Callable[[str], bool] = everything
    ) -> RecordPage[PoolSpec]:
        """A page of pools."""
        sieve = Sieve(self._keys.pools(), read_pool, _anything, size, sees)
        return await self._sieved(sieve, max(size, _SMALL_PAGE), token, deadline)

    async def tenants(
        self, size: int, token: PageToken | None, deadline: Deadline, sees: Callable[[str], bool] = everything
    ) -> RecordPage[TenantRecord]:
        """A page of tenants."""
        sieve = Sieve(self._keys.tenants(), read_tenant, _anything, size, sees)
        return await self._sieved(sieve, max(size, _SMALL_PAGE), token, deadline)

    async def is_named(self, kind: str, name: str, deadline: Deadline) -> bool:
        """True if there is such a ``pool`` or ``tenant``, whether or not its record can be read."""
        key = self._keys.pool(name) if kind == "pool" else self._keys.tenant(name.lower())
        return bool((await self._range(Range(key, keys_only=True), deadline)).kvs)

    async def _sieved(
        self, sieve: Sieve[RecordT], limit: int, token: PageToken | None, deadline: Deadline
    ) -> RecordPage[RecordT]:
        """A page of what a sieve takes. Its token names no key that the reader does not see."""
        scanned, passed, prefix = 0, 0, sieve.prefix
        known = token.after if token else prefix
        token = self._places.found(token) if token else None
        while True:
            page = await self._page(prefix, limit, token, deadline)
            scanned += len(page.kvs)
            sieved = sieve.pass_through(page)
            # The ranges that follow show the revision of the first.
            token = sieved.token
            if token is None or sieve.is_full() or (scanned >= _SCANNED_AT_MOST and sieve.ended_seen):
                return sieved
            if not sieve.ended_seen:
                token, count = await self._next_seen(prefix, token, sieve.sees, deadline)
                passed += count
                if token is None:
                    return replace(sieved, token=None)
                if passed >= _PASSED_AT_MOST or scanned >= _SCANNED_AT_MOST:
                    number = secrets.randbits(62) + 1
                    return replace(sieved, token=self._places.keep(token, sieve.last_seen or known, number))

    async def _next_seen(
        self, prefix: bytes, token: PageToken, sees: Callable[[str], bool], deadline: Deadline
    ) -> tuple[PageToken | None, int]:
        """The place before the next key that is seen, and how many were passed by; None: there is none.

        It is a place before that where very many were passed by. Who does not see an adapter sees none of its tenant.
        """
        passed, last = 0, token.after
        while passed < _PASSED_AT_MOST:
            read = Range(
                last + b"\0", prefix_end(prefix), limit=_PASSED_AT_ONCE, revision=token.revision, keys_only=True
            )
            found = await self.some(read, deadline)
            for kv in found.kvs:
                if sees(name_below(prefix, kv.key)):
                    return replace(token, after=last), passed
                passed, last = passed + 1, kv.key
            if not found.more:
                return None, passed
            tenant, slash, _ = last.partition(b"%2F")
            last = tenant + slash + b"\xff" if slash else last
        return replace(token, after=last), passed

    async def stored(self, size: int, token: PageToken | None, deadline: Deadline) -> Page:
        """A page of desired state as it is stored, all at one revision; it ends early where its values are large.

        Raises:
            FailedPrecondition: etcd no longer keeps the revision that the first page was of.
        """
        kvs: list[KeyValue] = []
        size_bytes = 0
        count = min(size, _FIRST_PIECE)
        while True:
            piece = await self._stored_piece(count, token, deadline)
            token = piece.token
            kvs += piece.kvs
            size_bytes += sum(len(kv.value) for kv in piece.kvs)
            if token is None or len(kvs) >= size or size_bytes >= _BACKUP_PAGE_BYTES:
                return Page(piece.revision, tuple(kvs), token)
            fitting = (_BACKUP_PAGE_BYTES - size_bytes) * len(kvs) // max(1, size_bytes)
            count = min(size - len(kvs), _PIECE_GROWTH * count, max(1, fitting))

    async def _stored_piece(self, count: int, token: PageToken | None, deadline: Deadline) -> Page:
        prefixes = self._keys.backed_up()
        left = [one for one in prefixes if token is None or prefix_end(one) > token.after]
        if not left:
            raise no_page_token()
        page = await self._page(left[0], count, token, deadline)
        if page.token is None and len(left) > 1:
            return replace(page, token=PageToken(page.revision, left[1]))
        return page

    async def audit(self, pool: str, since_id: str, size: int, token: PageToken | None, deadline: Deadline) -> Page:
        """A page of a pool's audit records as they are stored, from an id on, the oldest first.

        Raises:
            NotFound: there is none, and no such pool.
            FailedPrecondition: etcd no longer keeps the revision that the first page was of.
        """
        prefix = self._keys.audit(pool, "")
        start = self._keys.audit(pool, since_id)
        page = await self._page(prefix, min(size, _AUDITS_AT_MOST), token, deadline, start)
        if not page.kvs:
            await self.pool(pool, deadline)
        return page

    async def replica(self, pool: str, replica: str, deadline: Deadline) -> ReplicaValues:
        """One live replica.

        Raises:
            NotFound: there is no such pool, or no such replica lives in it.
        """
        found = await self._range(Range(self._keys.replica(pool, replica)), deadline)
        if not found.kvs:
            raise await self._nothing(_no_replica(pool, replica), pool, deadline)
        status = await self._range(Range(self._keys.status(pool, replica), revision=found.revision), deadline)
        hosts = await self._engine_hosts(pool, found.revision, deadline)
        return _replica_values(found.kvs[0], next(iter(status.kvs), None), hosts)

    async def replicas(
        self, pool: str, size: int, token: PageToken | None, deadline: Deadline
    ) -> tuple[Page, list[ReplicaValues]]:
        """A page of live replicas with their statuses, all at one revision.

        Raises:
            NotFound: there is no such pool.
        """
        if token is None:
            await self.pool(pool, deadline)
        page = await self._page(self._keys.replicas(pool), min(size, _REPLICAS_AT_MOST), token, deadline)
        if not page.kvs:
            return page, []
        ids = [last_part(kv.key) for kv in page.kvs]
        span = Range(self._keys.status(pool, ids[0]), self._keys.status(pool, ids[-1]) + b"\0", revision=page.revision)
        statuses = {last_part(kv.key): kv for kv in (await self._range(span, deadline)).kvs}
        hosts = await self._engine_hosts(pool, page.revision, deadline)
        return page, [_replica_values(kv, statuses.get(one), hosts) for one, kv in zip(ids, page.kvs, strict=True)]

    async def _engine_hosts(self, pool: str, revision: int, deadline: Deadline) -> tuple[str, ...] | None:
        found = await self._range(Range(self._keys.pool(pool), revision=revision), deadline)
        return engine_hosts_of(next(iter(found.kvs), None))

    async def expected(self, pool: str, revision: int, deadline: Deadline) -> ExpectedValues:
        """Expected and living replicas of a pool, at a revision."""
        members = await self._range(Range(self._keys.members(pool), revision=revision), deadline)
        record = await self._range(Range(self._keys.pool(pool), revision=revision), deadline)
        presences = [kv async for kv in self._everything(self._keys.replicas(pool), revision, deadline)]
        told = self._everything(self._keys.statuses(pool), revision, deadline, keys_only=True)
        statuses = [kv async for kv in told]
        return ExpectedValues(next(iter(members.kvs), None), next(iter(record.kvs), None), presences, statuses)

    async def replicas_without_pool(self, revision: int, deadline: Deadline) -> dict[str, list[str]]:
        """The names of live replicas by their pool, of pools that do not exist."""
        pools = self._everything(self._keys.pools(), revision, deadline, keys_only=True)
        known, found = {last_part(kv.key) async for kv in pools}, dict[str, list[str]]()
        async for kv in self._everything(self._keys.all_replicas(), revision, deadline, keys_only=True):
            pool = last_part(kv.key.rpartition(b"/")[0])
            if pool not in known:
                found.setdefault(pool, []).append(last_part(kv.key))
        return found

    async def lost_adapters(self, tenant: str, deadline: Deadline) -> tuple[AdapterRecord, ...]:
        """A tenant's records that were deleted past the admin service.

        The audit trail tells how they stood. It is long, so it is read only if the tenant's counter is not the number
        of its adapters.

        Raises:
            FailedPrecondition: the tenant's record cannot be read.
        """
        key = self._keys.tenant(tenant)
        found = await self._range(Range(key), deadline)
        view = ReadSet(found.revision, (), {kv.key: kv for kv in found.kvs})
        stored = stored_tenant(view, self._keys, tenant)
        adapters = self._everything(self._keys.all_adapters(), found.revision, deadline, keys_only=True)
        standing = {kv.key async for kv in adapters if is_of_tenant(kv.key, tenant, self._keys)}
        if len(standing) == (stored.record.adapters if isinstance(stored, Present) else 0):
            return ()
        trail = AuditTrail(tenant)
        async for kv in self._everything(self._keys.audits(), found.revision, deadline):
            trail.take(kv)
        return trail.lost(standing, self._keys)

    async def _everything(
        self, prefix: bytes, revision: int, deadline: Deadline, *, keys_only: bool = False
    ) -> AsyncIterator[KeyValue]:
        """All keys below a prefix as they stood at a revision."""
        read = Range(prefix, prefix_end(prefix), limit=_SCAN_PAGE, revision=revision, keys_only=keys_only)
        while True:
            found = await self.some(read, deadline)
            for kv in found.kvs:
                yield kv
            if not found.more:
                return
            read = replace(read, key=found.kvs[-1].key + b"\0", limit=len(found.kvs))

    async def _page(
        self, prefix: bytes, size: int, token: PageToken | None, deadline: Deadline, first: bytes = b""
    ) -> Page:
        """A page of the keys below a prefix; `first`: from this key on.

        Raises:
            InvalidArgument: the token, which anybody can make, is of a place that is not below it.
        """
        if token is not None and not token.after.startswith(prefix):
            raise no_page_token()
        start = token.after + b"\0" if token else first or prefix
        revision = token.revision if token else 0
        result = await self.some(Range(start, prefix_end(prefix), limit=size, revision=revision), deadline)
        at = revision or result.revision
        return Page(at, result.kvs, PageToken(at, result.kvs[-1].key) if result.more else None)

    async def some(self, read: Range, deadline: Deadline) -> RangeResult:
        """The first keys of a range, as many as are asked for and one message takes.

        Of an earlier revision the last of them may be missing without an error, if it was compacted while they were
        read (etcd#19179): so etcd is asked whether it still keeps that. Of those before the next read tells.

        Raises:
            FailedPrecondition: etcd no longer keeps the revision.
        """
        found = await self._some(read, deadline)
        if read.revision and not found.more:
            await self._range(Range(read.key, limit=1, revision=read.revision, keys_only=True), deadline)
        return found

    async def _some(self, read: Range, deadline: Deadline) -> RangeResult:
        """The same without that question. Values that others than us wrote may have 1.5 MiB each."""
        while read.limit > 1:
            try:
                return await self._client.range(read, timeout_seconds=deadline.spend())
            except ResponseTooLarge:
                read = replace(read, limit=max(1, read.limit // _SHRINK))
            except EtcdError as error:
                raise refusal(error) from error
        return await self._range(read, deadline)

    async def _nothing(self, error: NotFound, pool: str, deadline: Deadline) -> NotFound:
        """The error to raise: that of the pool, if that is not there either."""
        await self.pool(pool, deadline)
        return error

    async def _range(self, read: Range, deadline: Deadline) -> RangeResult:
        try:
            return await self._client.range(read, timeout_seconds=deadline.spend())
        except EtcdError as error:
            raise refusal(error) from error


def _replica_values(presence: KeyValue, status: KeyValue | None, hosts: tuple[str, ...] | None) -> ReplicaValues:
    return ReplicaValues(presence, status_of(presence, status), hosts)


def _anything(_record: Stored) -> bool:
    return True


def _no_replica(pool: str, replica: str) -> NotFound:
    return NotFound(
        Reason.REPLICA_NOT_FOUND,
        f"no replica {replica!r} lives in pool {pool!r}; is its sidecar up? See loraplane get replicas",
        field="name",
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
