"""The client of an etcd cluster, in etcd's own terms."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from registry.etcd3 import codec
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.calls import MemberCalls
from registry.etcd3.codec import LEASE_GRANT, LEASE_KEEPALIVE, LEASE_REVOKE, MEMBER_LIST, RANGE, READ_TXN, STATUS, TXN
from registry.etcd3.errors import Compacted, EtcdError, FutureRevision, LeaseExpired, OtherCluster, ResponseTooLarge
from registry.etcd3.ops import KeyValue, Range, RangeResult, Txn, TxnResult, prefix_end
from registry.etcd3.options import ClientOptions
from registry.etcd3.watch import WatchStream, open_watch

# A member that is killed under load may lose or corrupt what it has.
UNSAFE_RELEASES = frozenset({"3.5.0", "3.5.1", "3.5.2"})
SAFE_RELEASES = "3.6.14 or 3.5.33"


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Status of one member. `leader_id` 0: it knows of no leader."""

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


@dataclass(frozen=True, slots=True)
class ListedMember:
    """Member as etcd lists it. `urls`: where clients reach it; none: it was added, and has not started."""

    member_id: int
    name: str
    urls: tuple[str, ...]


class Client:
    """Speaks to one etcd cluster. Made inside a running event loop, and closed with `aclose`.

    Every call raises `EtcdError` and nothing else. `timeout_seconds` None means the options' default.
    """

    def __init__(self, options: ClientOptions, *, rng: random.Random | None = None) -> None:
        self.options = options
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._calls = MemberCalls(options, self._rng)

    async def range(self, op: Range, *, timeout_seconds: float | None = None) -> RangeResult:
        """Reads, linearizable.

        Raises:
            Compacted, FutureRevision: the pinned revision is not to be had.
            EtcdError: any other failure.
        """
        response = await self._calls.call(RANGE, codec.range_request(op), timeout_seconds)
        return codec.range_result(response, response.header.revision)

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        """Commits a transaction. It is sent again only if it was certainly not applied.

        Raises:
            ValueError: a `Range` in it names a revision.
            Unavailable, Timeout, ResponseTooLarge: look at `maybe_applied`.
            EtcdError: any other failure; certainly not applied.
        """
        method = TXN if codec.writes(txn) else READ_TXN
        return codec.txn_result(await self._calls.call(method, codec.txn_request(txn), timeout_seconds))

    async def list_prefix(self, prefix: bytes, *, page_size: int = 1000) -> Listing:
        """All keys that start with `prefix`, at one revision. Each page has the default deadline.

        Raises:
            ValueError: the prefix is empty or all 0xff.
            Compacted: the pages were overtaken by compactions several times in a row.
            EtcdError: any other failure.
        """
        return await self.list_range(prefix, prefix_end(prefix), page_size=page_size)

    async def list_range(
        self,
        key: bytes,
        range_end: bytes,
        *,
        page_size: int = 1000,
        revision: int = 0,
        timeout_seconds: float | None = None,
    ) -> Listing:
        """As `list_prefix`, for the keys from `key` up to `range_end` (empty: just `key`).

        `revision` 0: as they stand now. `timeout_seconds`: of each page.
        """
        read = partial(self._page, timeout_seconds=timeout_seconds)
        return await list_range(read, key, range_end, page_size, revision)

    async def lease_grant(self, ttl_seconds: int, *, timeout_seconds: float | None = None) -> int:
        """Grants a lease and returns its id.

        Raises:
            NoSpace: the store takes no more.
            EtcdError: any other failure.
        """
        reply = await self._calls.call(LEASE_GRANT, rpc.LeaseGrantRequest(TTL=ttl_seconds), timeout_seconds)
        return reply.ID

    async def lease_revoke(self, lease: int, *, timeout_seconds: float | None = None) -> None:
        """Ends a lease and deletes its keys.

        Raises:
            LeaseExpired: there is no such lease (any more).
            EtcdError: any other failure.
        """
        await self._calls.call(LEASE_REVOKE, rpc.LeaseRevokeRequest(ID=lease), timeout_seconds)

    async def lease_keepalive(self, lease: int) -> int:
        """Renews a lease and returns the seconds that it now has left.

        Raises:
            LeaseExpired: the server does not know it (any more).
            EtcdError: any other failure; says nothing about the lease.
        """
        request = rpc.LeaseKeepAliveRequest(ID=lease)
        reply = await self._calls.call(LEASE_KEEPALIVE, request, None)
        if reply.TTL <= 0:
            raise LeaseExpired(f"lease {lease:x} has expired")
        return reply.TTL

    async def status(self, *, timeout_seconds: float | None = None) -> tuple[MemberStatus | MemberDown, ...]:
        """Asks every endpoint, in the order of the options; one that fails is part of the answer."""
        seconds = timeout_seconds or self.options.call_timeout_seconds
        return tuple(await asyncio.gather(*(self.status_of(one, seconds) for one in self.options.endpoints)))

    async def members(self, *, timeout_seconds: float | None = None) -> tuple[ListedMember, ...]:
        """Members of the cluster as any of them lists them, a majority or not.

        Raises:
            EtcdPermissionDenied: the list is for root alone, as from 3.5.28 on.
            EtcdError: any other failure.
        """
        reply = await self._calls.call(MEMBER_LIST, rpc.MemberListRequest(), timeout_seconds)
        return tuple(ListedMember(one.ID, one.name, tuple(one.clientURLs)) for one in reply.members)

    @asynccontextmanager
    async def watch(self, endpoint: str, *, refused_token: str | None = None) -> AsyncIterator[WatchStream]:
        """A watch stream to one member, for `registry.etcd3.reflector`; `refused_token` is one to be replaced.

        Raises:
            EtcdError: the member does not answer, or refuses us.
        """
        async with open_watch(endpoint, self._calls.connections.tls, self._calls.login, refused_token) as stream:
            yield stream

    async def aclose(self) -> None:
        """Closes all connections; calls that still run, and later ones, fail with `Unavailable`."""
        await self._calls.connections.close()

    async def _page(self, op: Range, *, timeout_seconds: float | None = None) -> rpc.RangeResponse:
        return await self._calls.call(RANGE, codec.range_request(op), timeout_seconds)

    async def status_of(self, endpoint: str, timeout_seconds: float) -> MemberStatus | MemberDown:
        """Asks one member, which need not be one of the options."""
        try:
            reply = await self._calls.ask(endpoint, STATUS, rpc.StatusRequest(), timeout_seconds)
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


_TRIES = 5
_SHRINK = 16

ReadPage = Callable[[Range], Awaitable[rpc.RangeResponse]]


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys of a range at one revision, in the order of the keys."""

    revision: int
    kvs: tuple[KeyValue, ...]
    cluster_id: int
    raft_term: int


async def list_range(read: ReadPage, key: bytes, range_end: bytes, page_size: int, revision: int = 0) -> Listing:
    """Reads page after page, and starts over when the revision is lost on the way: a later one would mix two states.

    Where that was asked for, it is lost for good. It also starts over, with smaller pages, where one is larger than a
    message may be: values that others than us wrote may have 1.5 MiB each.

    Raises:
        Compacted, OtherCluster: that happened several times in a row.
        EtcdError: a page could not be read.
    """
    for _ in range(_TRIES - 1):
        try:
            return await _list_once(read, key, range_end, page_size, revision)
        except ResponseTooLarge:
            page_size = max(1, page_size // _SHRINK)
        except (Compacted, FutureRevision):
            if revision:
                raise
        except OtherCluster:
            continue
    return await _list_once(read, key, range_end, page_size, revision)


async def _list_once(read: ReadPage, key: bytes, range_end: bytes, page_size: int, revision: int) -> Listing:
    page = await read(Range(key, range_end, limit=page_size, revision=revision))
    header, at, is_pinned = page.header, revision or page.header.revision, bool(revision or page.more)
    kvs = [codec.key_value(kv) for kv in page.kvs]
    while page.more:
        page = await read(Range(kvs[-1].key + b"\0", range_end, limit=page_size, revision=at))
        if page.header.cluster_id != header.cluster_id:
            raise OtherCluster(
                "a page of a list came from another cluster than the first: look at the addresses of etcd"
            )
        kvs.extend(codec.key_value(kv) for kv in page.kvs)
    if is_pinned:
        await _check_kept(read, key, at)
    return Listing(at, tuple(kvs), header.cluster_id, header.raft_term)


async def _check_kept(read: ReadPage, key: bytes, revision: int) -> None:
    """A page that was read while its revision was being compacted may lack keys, without an error (etcd#19179).

    etcd refuses a compacted revision before it begins to remove anything of it, so what it still serves after the last
    page was whole on all of them.

    Raises:
        Compacted: nobody knows what the pages lack.
    """
    await read(Range(key, limit=1, revision=revision, keys_only=True))
