"""A thousand sidecars' feeds are restarted at once, beside a thousand bare watches on the same etcd.

The feeds resume from snapshots that lack the newest changes. They share this one process, so the times are those of a
host a thousand times too small; the ratio, the lists and the bytes are what counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from bench.etcd import Store, catalogue, etcd
from bench.figures import Figure, check
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.client import Client
from registry.etcd3.ops import prefix_end
from registry.etcd3.options import ClientOptions
from registry.model.keys import Keys
from tests.support.fleet import POOL
from tests.support.herd import AT_ONCE, Herd, bytes_sent, lists_read, patient

SIDECARS = 1000
RECORDS = 300
CHANGED = 20
MOST_LISTS = 5
MAX_SECONDS = 150.0


async def herd(folder: Path) -> list[Figure]:
    """Lists, bytes and time until every feed has the newest state."""
    async with etcd(folder, fsync=False) as store:
        keys, records = Keys(), list(catalogue(Keys(), RECORDS))
        await store.put_pool(keys)
        await store.put(*records)
        # A watch begins with the last revision that is known, which is not to be all of the catalogue.
        listed = await store.put(records[-1])
        feeds = Herd(store.endpoint, keys, POOL, folder)
        try:
            with _quiet(), patient():
                await feeds.start(1, listed, timeout_seconds=30)
                await feeds.stop()
                feeds.copy_snapshot(SIDECARS)
                newest = await store.put(*records[:CHANGED])
                floor = await _bare(store, keys, listed, newest)
                ours, lists = await _feeds(store, feeds, newest)
        finally:
            await feeds.stop()
    (floor_seconds, floor_bytes), (seconds, size) = floor, ours
    note = f"{SIDECARS} feeds, {RECORDS} records, {CHANGED} changed meanwhile"
    return [
        Figure("herd_time", seconds / floor_seconds, "", f"floor {floor_seconds:.1f} s, ours {seconds:.1f} s; {note}"),
        Figure("herd_bytes", size / floor_bytes, "<= 2", f"etcd sent {floor_bytes} and {size} bytes; {note}"),
        Figure("herd_lists", lists / MOST_LISTS, "<= 1", f"{lists} whole lists, at most {MOST_LISTS}; {note}"),
    ]


async def _feeds(store: Store, feeds: Herd, revision: int) -> tuple[tuple[float, int], int]:
    sent, lists, started = await bytes_sent(store.endpoint), lists_read(), time.monotonic()
    await feeds.start(SIDECARS, revision, timeout_seconds=MAX_SECONDS)
    seconds = time.monotonic() - started
    return (seconds, await bytes_sent(store.endpoint) - sent), lists_read() - lists


async def _bare(store: Store, keys: Keys, start: int, last: int) -> tuple[float, int]:
    """As many bare watches, each on its own connection, until each has seen the last change."""
    sent, started = await bytes_sent(store.endpoint), time.monotonic()
    room = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(SIDECARS):
            tasks.create_task(_watch(store.endpoint, keys.adapters(POOL), start, last, room))
    size = await bytes_sent(store.endpoint) - sent
    check(size > 0, "etcd does not tell how much it sent")
    return time.monotonic() - started, size


async def _watch(endpoint: str, prefix: bytes, start: int, last: int, room: asyncio.Semaphore) -> None:
    client = Client(ClientOptions((endpoint,), call_timeout_seconds=60.0))
    create = rpc.WatchCreateRequest(key=prefix, range_end=prefix_end(prefix), start_revision=start)
    async with room, client.watch(endpoint) as stream:
        await stream.send(rpc.WatchRequest(create_request=create))
        while not any(event.kv.mod_revision >= last for event in (await stream.receive()).events):
            continue
    await client.aclose()


@contextmanager
def _quiet() -> Iterator[None]:
    """A thousand logs would be what is measured."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent
