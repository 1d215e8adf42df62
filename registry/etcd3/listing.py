"""Pages of a whole range at one revision. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from registry.etcd3 import codec
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.errors import Compacted, FutureRevision, ResponseTooLarge
from registry.etcd3.ops import KeyValue, Range

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


class _OtherCluster(Exception):
    """A later page came from another cluster than the first."""


async def list_range(read: ReadPage, key: bytes, range_end: bytes, page_size: int, revision: int = 0) -> Listing:
    """Reads page after page, and starts over when the revision is lost on the way: a later one would mix two states.

    It also starts over, with smaller pages, where one is larger than a message may be: values that others than us wrote
    may have 1.5 MiB each.

    Raises:
        Compacted: that happened several times in a row.
        EtcdError: a page could not be read.
    """
    for _ in range(_TRIES - 1):
        try:
            return await _list_once(read, key, range_end, page_size, revision)
        except ResponseTooLarge:
            page_size = max(1, page_size // _SHRINK)
        except (Compacted, FutureRevision, _OtherCluster):
            continue
    return await _list_once(read, key, range_end, page_size, revision)


async def _list_once(read: ReadPage, key: bytes, range_end: bytes, page_size: int, revision: int) -> Listing:
    page = await read(Range(key, range_end, limit=page_size, revision=revision))
    header, at = page.header, revision or page.header.revision
    kvs = [codec.key_value(kv) for kv in page.kvs]
    while page.more:
        page = await read(Range(kvs[-1].key + b"\0", range_end, limit=page_size, revision=at))
        if page.header.cluster_id != header.cluster_id:
            raise _OtherCluster
        kvs.extend(codec.key_value(kv) for kv in page.kvs)
        if not page.more:
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
