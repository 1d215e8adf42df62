"""The client: each call has one deadline, finds a member that answers, and is repeated only where that is harmless."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from registry.etcd3 import codec
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.backoff import Backoff
from registry.etcd3.channel import Connection
from registry.etcd3.classify import may_repeat
from registry.etcd3.endpoints import Connections, Login
from registry.etcd3.errors import (
    Compacted,
    EtcdError,
    FutureRevision,
    LeaseExpired,
    PermissionDenied,
    TlsFailed,
    Unauthenticated,
)
from registry.etcd3.methods import (
    COMPACT,
    LEASE_GRANT,
    LEASE_KEEPALIVE,
    LEASE_REVOKE,
    RANGE,
    READ_TXN,
    STATUS,
    TXN,
    Method,
    Req,
    Res,
)
from registry.etcd3.ops import KeyValue, Range, RangeResult, Txn, TxnResult, prefix_end
from registry.etcd3.options import ClientOptions

_REPEAT = Backoff(base_seconds=0.05, cap_seconds=1.0)
_LIST_TRIES = 5


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys of a range at one revision, in the order of the keys."""

    revision: int
    kvs: tuple[KeyValue, ...]
    cluster_id: int
    raft_term: int


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What one member says about itself. `leader_id` 0: it knows of no leader."""

    endpoint: str
    version: str
    cluster_id: int
    member_id: int
    leader_id: int
    raft_term: int
    revision: int
    db_size_bytes: int


@dataclass(frozen=True, slots=True)
class MemberDown:
    """A member that did not answer."""

    endpoint: str
    error: EtcdError


class _Moved(Exception):
    """The store is not the one that the first page came from."""


class Client:
    """Speaks to one etcd cluster. Made inside a running event loop, and closed with `aclose`.

    Every call raises `EtcdError` and nothing else. `timeout_seconds` None means the options' default.
    """

    def __init__(self, options: ClientOptions, *, rng: random.Random | None = None) -> None:
        self.options = options
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._connections = Connections(options, self._rng)
        self._login = Login(options)

    async def range(self, op: Range, *, timeout_seconds: float | None = None) -> RangeResult:
        """Reads, linearizable.

        Raises:
            Compacted, FutureRevision: the pinned revision is not to be had.
            EtcdError: any other failure.
        """
        response = await self._call(RANGE, codec.range_request(op), timeout_seconds)
        return codec.range_result(response, response.header.revision)

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        """Commits a transaction. It is sent again only if it was certainly not applied.

        Raises:
            ValueError: a `Range` in it names a revision.
            Unavailable, Timeout: look at `maybe_applied`.
            EtcdError: any other failure; certainly not applied unless it says so.
        """
        method = TXN if codec.writes(txn) else READ_TXN
        return codec.txn_result(await self._call(method, codec.txn_request(txn), timeout_seconds))

    async def list_prefix(self, prefix: bytes, *, page_size: int = 1000) -> Listing:
        """All keys that start with `prefix`, at one revision. Each page has the default deadline.

        Raises:
            Compacted: the pages were overtaken by compactions several times in a row.
            EtcdError: any other failure.
        """
        return await self.list_range(prefix, prefix_end(prefix), page_size=page_size)

    async def list_range(self, key: bytes, range_end: bytes, *, page_size: int = 1000) -> Listing:
        """As `list_prefix`, for the keys from `key` up to `range_end` (empty: just `key`)."""
        for _ in range(_LIST_TRIES - 1):
            try:
                return await self._list_once(key, range_end, page_size)
            except (Compacted, FutureRevision, _Moved):
                continue
        return await self._list_once(key, range_end, page_size)

    async def lease_grant(self, ttl_seconds: int, *, timeout_seconds: float | None = None) -> int:
        """Grants a lease and returns its id.

        Raises:
            NoSpace: the store takes no more.
            EtcdError: any other failure.
        """
        reply = await self._call(LEASE_GRANT, rpc.LeaseGrantRequest(TTL=ttl_seconds), timeout_seconds)
        return reply.ID

    async def lease_revoke(self, lease: int, *, timeout_seconds: float | None = None) -> None:
        """Ends a lease and deletes its keys.

        Raises:
            LeaseExpired: there is no such lease (any more).
            EtcdError: any other failure.
        """
        await self._call(LEASE_REVOKE, rpc.LeaseRevokeRequest(ID=lease), timeout_seconds)

    async def lease_keepalive(self, lease: int, *, timeout_seconds: float | None = None) -> int:
        """Renews a lease and returns the seconds that it now has left.

        Raises:
            LeaseExpired: the server does not know it (any more).
            EtcdError: any other failure; says nothing about the lease.
        """
        request = rpc.LeaseKeepAliveRequest(ID=lease)
        reply = await self._call(LEASE_KEEPALIVE, request, timeout_seconds, stream=True)
        if reply.TTL <= 0:
            raise LeaseExpired(f"lease {lease:x} has expired")
        return reply.TTL

    async def compact(self, revision: int, *, timeout_seconds: float | None = None) -> None:
        """Forgets what keys were before `revision`.

        Raises:
            Compacted, FutureRevision: it is done already, or not yet possible.
            EtcdError: any other failure.
        """
        await self._call(COMPACT, rpc.CompactionRequest(revision=revision, physical=True), timeout_seconds)

    async def status(self, *, timeout_seconds: float | None = None) -> tuple[MemberStatus | MemberDown, ...]:
        """Asks every endpoint, in the order of the options; one that fails is part of the answer."""
        seconds = timeout_seconds or self.options.call_timeout_seconds
        return tuple(await asyncio.gather(*(self._status_of(one, seconds) for one in self.options.endpoints)))

    async def wait_until_reachable(self, *, key: bytes, on_wait: Callable[[EtcdError], None]) -> None:
        """Returns once a linearizable read of `key` is answered, be it by "permission denied".

        `on_wait` is called after each failed try, so that the waiting can be told. No deadline: a process that
        starts while etcd is down comes up when etcd does.

        Raises:
            TlsFailed, Unauthenticated: waiting would not help.
        """
        failures = 0
        while not await self._reached(key, on_wait):
            failures += 1
            await asyncio.sleep(_REPEAT.delay(failures, self._rng))

    async def aclose(self) -> None:
        """Closes all connections; calls that still run fail."""
        await self._connections.close()

    async def _list_once(self, key: bytes, range_end: bytes, page_size: int) -> Listing:
        first = await self._page(Range(key, range_end, limit=page_size))
        header, kvs, more = first.header, list(first.kvs), first.more
        while more:
            page = await self._page(Range(kvs[-1].key + b"\0", range_end, limit=page_size, revision=header.revision))
            if page.header.cluster_id != header.cluster_id:
                raise _Moved
            kvs.extend(page.kvs)
            more = page.more
        return Listing(header.revision, tuple(map(codec.key_value, kvs)), header.cluster_id, header.raft_term)

    async def _page(self, op: Range) -> rpc.RangeResponse:
        return await self._call(RANGE, codec.range_request(op), None)

    async def _status_of(self, endpoint: str, timeout_seconds: float) -> MemberStatus | MemberDown:
        try:
            async with self._connections.to(endpoint) as connection:
                reply = await self._attempt(connection, STATUS, rpc.StatusRequest(), timeout_seconds)
        except EtcdError as error:
            return MemberDown(endpoint, error)
        header = reply.header
        return MemberStatus(
            endpoint=endpoint,
            version=reply.version,
            cluster_id=header.cluster_id,
            member_id=header.member_id,
            leader_id=reply.leader,
            raft_term=header.raft_term,
            revision=header.revision,
            db_size_bytes=reply.db_size,
        )

    async def _reached(self, key: bytes, on_wait: Callable[[EtcdError], None]) -> bool:
        try:
            await self.range(Range(key, count_only=True))
        except PermissionDenied:
            return True
        except (TlsFailed, Unauthenticated):
            raise
        except EtcdError as error:
            on_wait(error)
            return False
        return True

    async def _call(
        self, method: Method[Req, Res], request: Req, timeout_seconds: float | None, *, stream: bool = False
    ) -> Res:
        deadline = time.monotonic() + (timeout_seconds or self.options.call_timeout_seconds)
        failures = 0
        while True:
            try:
                return await self._try(method, request, deadline - time.monotonic(), stream=stream)
            except EtcdError as error:
                failures += 1
                delay = _REPEAT.delay(failures, self._rng)
                if not may_repeat(error) or time.monotonic() + delay >= deadline:
                    raise
            await asyncio.sleep(delay)

    async def _try(self, method: Method[Req, Res], request: Req, left_seconds: float, *, stream: bool) -> Res:
        seconds = self._share(method, left_seconds)
        async with self._connections.current() as connection:
            try:
                return await self._attempt(connection, method, request, seconds, stream=stream)
            except EtcdError as error:
                await self._connections.failed(connection, error)
                raise

    def _share(self, method: Method[Req, Res], left_seconds: float) -> float:
        """How much of the time that is left one try may take: a read leaves some for the other members."""
        alone = method.writes or len(self.options.endpoints) == 1
        return left_seconds if alone else max(left_seconds / 2, min(left_seconds, 0.5))

    async def _attempt(
        self,
        connection: Connection,
        method: Method[Req, Res],
        request: Req,
        timeout_seconds: float,
        *,
        stream: bool = False,
    ) -> Res:
        send = connection.exchange if stream else connection.unary
        token = await self._login.token(connection, timeout_seconds=timeout_seconds)
        try:
            return await send(method, request, timeout_seconds=timeout_seconds, token=token)
        except (Unauthenticated, PermissionDenied):
            if token is None:
                raise
        # A token that the server has forgotten; old servers call that "permission denied".
        fresh = await self._login.token(connection, timeout_seconds=timeout_seconds, stale=token)
        return await send(method, request, timeout_seconds=timeout_seconds, token=fresh)
