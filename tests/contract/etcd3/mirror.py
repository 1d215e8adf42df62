"""A consumer of a reflector that a test can look at: what it was told, and the state that follows from it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, KeyValue, Put, Txn, prefix_end
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Connected, Disconnected, Listed, Progressed, Reflection
from tests.support.waiting import eventually

Kind = TypeVar("Kind", Listed, Changed, Progressed, Connected, Disconnected)


class FirstEndpoint(random.Random):
    """Chance that always begins at the first endpoint."""

    def randrange(self, *_args: object, **_named: object) -> int:
        return 0


class Mirror:
    """Folds reflections, and checks that revisions only rise between lists."""

    def __init__(self) -> None:
        self.told: list[Reflection] = []
        self.state: dict[bytes, KeyValue] = {}
        self.revision = 0

    def take(self, reflection: Reflection) -> None:
        self.told.append(reflection)
        match reflection:
            case Listed(revision, kvs):
                self.state = {kv.key: kv for kv in kvs}
                self.revision = revision
            case Changed(revision, events):
                assert revision > self.revision, "a revision came twice or late"
                assert {event.mod_revision for event in events} == {revision}
                self.revision = revision
                for event in events:
                    if event.kv is None:
                        self.state.pop(event.key, None)
                    else:
                        self.state[event.key] = event.kv
            case Progressed(revision):
                assert revision > self.revision
                self.revision = revision
            case Connected() | Disconnected():
                pass

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [one for one in self.told if isinstance(one, kind)]

    def values(self) -> dict[bytes, bytes]:
        return {key: kv.value for key, kv in self.state.items()}

    async def first(self, kind: type[Kind], after: int = 0) -> Kind:
        """Waits for one of this kind among what is told from the index `after` on."""
        found = await eventually(lambda: [one for one in self.told[after:] if isinstance(one, kind)])
        return found[0]


@asynccontextmanager
async def mirroring(reflector: Reflector) -> AsyncIterator[Mirror]:
    """Runs a reflector into a mirror; an error of the consumer fails the test at the end."""
    mirror = Mirror()

    async def follow() -> None:
        async with aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                mirror.take(reflection)

    task = asyncio.create_task(follow())
    try:
        yield mirror
    finally:
        if not task.done():
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


def put(*pairs: tuple[bytes, bytes], lease: int = 0) -> Txn:
    """A transaction that writes keys and asks nothing."""
    return Txn((), tuple(Put(key, value, lease) for key, value in pairs))


def delete(key: bytes, range_end: bytes = b"") -> Txn:
    """A transaction that deletes keys and asks nothing."""
    return Txn((), (Delete(key, range_end),))


async def fill(client: Client, etcd, count: int) -> int:
    """Writes `count` keys below the test's prefix and returns the revision."""
    revision = 0
    for start in range(0, count, 500):
        pairs = ((etcd.key(f"{i:05}"), b"%d" % i) for i in range(start, min(count, start + 500)))
        revision = (await client.txn(put(*pairs))).revision
    return revision


def reflect(client: Client, etcd, rng, **named) -> Reflector:
    prefix = etcd.key("")
    return Reflector(client, prefix, prefix_end(prefix), rng=rng, **named)


async def values(client: Client, etcd) -> dict[bytes, bytes]:
    return {kv.key: kv.value for kv in (await client.list_prefix(etcd.key(""))).kvs}
