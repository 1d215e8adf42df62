"""Shared informers: what a range is known to hold, and how long it is followed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import pytest

from registry.etcd3 import informer
from registry.etcd3.informer import SharedInformer, SharedInformerFactory
from registry.etcd3.ops import Event, KeyValue
from registry.etcd3.stream import Changed, Connected, Disconnected, ListCause, Listed, Progressed, Reflection
from tests.simulation.loop import virtual

RANGE = (b"/p/", b"/p0")


def kv(key: bytes, revision: int) -> KeyValue:
    return KeyValue(key, b"v%d" % revision, revision, revision, 1)


def listed(revision: int, *keys: bytes) -> Listed:
    return Listed(revision, tuple(kv(key, revision) for key in keys), 1, ListCause.FIRST, 1)


def changed(revision: int, *keys: bytes, gone: tuple[bytes, ...] = ()) -> Changed:
    puts = tuple(Event(key, revision, kv(key, revision)) for key in keys)
    return Changed(revision, (*puts, *(Event(key, revision, None) for key in gone)))


def test_the_newest_values_and_what_changed_since():
    one = SharedInformer()
    assert (one.is_listed, one.changed_since(-1)) == (False, None)
    one.apply(listed(5, b"a", b"b"))
    assert (one.is_listed, one.revision, {*one.kvs}) == (True, 5, {b"a", b"b"})
    assert one.changed_since(one.version) == frozenset()
    before = one.version
    one.apply(changed(6, b"c", gone=(b"a",)))
    one.apply(changed(7, b"b"))
    assert ({*one.kvs}, one.kvs[b"b"].mod_revision) == ({b"b", b"c"}, 7)
    assert one.changed_since(before) == {b"a", b"b", b"c"}
    assert one.changed_since(before + 1) == {b"b"}
    assert one.changed_since(-1) is None, "what was listed may be anything"
    version = one.version
    one.apply(Progressed(9))
    assert (one.revision, one.version) == (9, version)
    one.apply(listed(12))
    assert (one.kvs, one.revision, one.changed_since(version)) == ({}, 12, None)


def test_a_thousand_changes_are_kept():
    """R16 bounded: a reader of a busy range that was away for a moment need not compare all of it."""
    one = SharedInformer()
    one.apply(listed(1))
    before = one.version
    for revision in range(2, 1002):
        one.apply(changed(revision, b"%d" % revision))
    assert one.changed_since(before) == {b"%d" % revision for revision in range(2, 1002)}
    one.apply(changed(1002, b"1002"))
    assert one.changed_since(before) is None


async def test_readers_hear_of_all_but_that_nothing_changed():
    """And what may have passed unseen is counted. A wake-up for each sign of life would be one a second."""
    one, wakes = SharedInformer(), [asyncio.Event(), asyncio.Event()]
    one.wakes.update(wakes)
    for reflection, is_heard, connected, losses in (
        (listed(1), True, False, 0),
        (changed(2, b"a"), True, False, 0),
        (Connected("e"), True, True, 0),
        (Progressed(3), False, True, 0),
        (Disconnected("gone"), True, False, 1),
        (Connected("e"), True, True, 1),
        (listed(9), True, True, 2),
    ):
        one.apply(reflection)
        assert (all(wake.is_set() for wake in wakes), one.connected, one.losses) == (is_heard, connected, losses)
        for wake in wakes:
            wake.clear()


class PlayedReflector:
    """Lists an empty range once, unless it is silent, and then says nothing; those that are followed are counted."""

    running = started = 0
    is_silent = False

    def __init__(self, *_: object, **__: object) -> None:
        PlayedReflector.started += 1

    async def stream(self) -> AsyncGenerator[Reflection, None]:
        PlayedReflector.running += 1
        try:
            if not self.is_silent:
                yield listed(1)
            await asyncio.Event().wait()
        finally:
            PlayedReflector.running -= 1


def counted() -> tuple[int, int]:
    return PlayedReflector.started, PlayedReflector.running


@pytest.fixture
def informers(monkeypatch) -> SharedInformerFactory:
    for name, value in (("running", 0), ("started", 0), ("is_silent", False)):
        monkeypatch.setattr(PlayedReflector, name, value)
    monkeypatch.setattr(informer, "Reflector", PlayedReflector)
    return SharedInformerFactory(None, rng=random.Random(0))  # type: ignore[arg-type]


async def read(informers: SharedInformerFactory, key: bytes = RANGE[0], end: bytes = RANGE[1]) -> None:
    """Somebody who reads a range once, and goes."""
    async with informers.look(key, end, wake := asyncio.Event()):
        await wake.wait()


@virtual
async def test_all_readers_of_a_range_share_one_list_and_watch(informers):
    wakes = [asyncio.Event(), asyncio.Event()]
    async with informers.look(*RANGE, wakes[0]) as one:
        await wakes[0].wait()
        async with informers.look(*RANGE, wakes[1]) as other:
            assert other is one
            assert wakes[1].is_set(), "what is known already has to be looked at"
        wakes[0].clear()
        wakes[1].clear()
        one.apply(changed(2, b"a"))
        assert (wakes[0].is_set(), wakes[1].is_set()) == (True, False)
    await informers.aclose()
    assert counted() == (1, 0)


@virtual
async def test_a_range_is_kept_for_a_while_after_its_last_reader_and_a_key_is_not(informers):
    """R16 bounded: and not for longer; also where whoever read it hung up."""
    for _ in range(2):
        await read(informers)
        await asyncio.sleep(9.9)
    assert counted() == (1, 1)
    await asyncio.sleep(0.2)
    assert counted() == (1, 0)
    await read(informers)
    assert counted() == (2, 1)
    await informers.aclose()
    with suppress(ConnectionError):
        async with informers.look(b"/p/a", b"", wake := asyncio.Event()):
            await wake.wait()
            raise ConnectionError
    await asyncio.sleep(0.1)
    assert counted() == (3, 0)


@virtual
async def test_the_end_of_all_informers_ends_those_that_linger_and_those_that_are_read(informers):
    """R16 bounded: and who looks afterwards begins anew."""
    await read(informers)
    async with informers.look(b"/q/", b"/q0", wake := asyncio.Event()):
        await wake.wait()
        assert counted() == (2, 2)
        await informers.aclose()
        assert counted() == (2, 0)
        await read(informers, b"/q/", b"/q0")
        assert counted() == (3, 1)
    await informers.aclose()
    assert counted() == (3, 0)


@virtual
async def test_who_reads_again_is_not_ended_by_those_who_left_before(informers):
    """An old reader that leaves late ends its own informer, not the one that took its place."""
    async with informers.look(*RANGE, wake := asyncio.Event()):
        await wake.wait()
        await informers.aclose()
        await read(informers)
        await read(informers)
    async with informers.look(*RANGE, asyncio.Event()):
        await asyncio.sleep(50.0)
        await read(informers)
        assert counted() == (2, 1), "nor is it followed twice"
    await informers.aclose()


@virtual
async def test_each_informer_is_kept_by_name_as_whoever_supervises_it_says(informers):
    """X2: a part that fails is told by its range, and run again; nobody keeps it where nobody is said to."""
    kept: list[str] = []

    async def keep(name: str, work: Callable[[], Awaitable[None]]) -> None:
        kept.append(name)
        await work()

    supervised = SharedInformerFactory(None, rng=random.Random(0), keep=keep)  # type: ignore[arg-type]
    await read(supervised)
    assert kept == ["informer of b'/p/'"]
    await supervised.aclose()
