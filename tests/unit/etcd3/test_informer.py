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
from tests.support.played_etcd import virtual

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


def test_a_reader_that_is_far_behind_compares_everything(monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(informer, "_CHANGES_KEPT", 2)
    one = SharedInformer()
    one.apply(listed(1))
    before = one.version
    for revision in (2, 3, 4):
        one.apply(changed(revision, b"%d" % revision))
    assert one.changed_since(before) is None
    assert one.changed_since(before + 1) == {b"3", b"4"}


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


def test_what_may_have_passed_unseen_is_counted():
    one = SharedInformer()
    for reflection, connected, losses in (
        (listed(1), False, 0),
        (Connected("e"), True, 0),
        (Disconnected("gone"), False, 1),
        (Connected("e"), True, 1),
        (listed(9), True, 2),
    ):
        one.apply(reflection)
        assert (one.connected, one.losses) == (connected, losses)


class PlayedReflector:
    """Lists an empty range once, and then says nothing; `running` counts those that are followed."""

    running = started = 0

    def __init__(self, *_: object, **__: object) -> None:
        type(self).started += 1

    async def stream(self) -> AsyncGenerator[Reflection, None]:
        type(self).running += 1
        try:
            yield listed(1)
            await asyncio.Event().wait()
        finally:
            type(self).running -= 1

    async def silent(self) -> AsyncGenerator[Reflection, None]:
        await asyncio.Event().wait()
        yield listed(1)


@pytest.fixture
def reflectors(monkeypatch):
    class Reflectors(PlayedReflector):
        running = started = 0

    monkeypatch.setattr(informer, "Reflector", Reflectors)
    return Reflectors


def factory(linger_seconds: float = 0.05) -> SharedInformerFactory:
    return SharedInformerFactory(None, rng=random.Random(0), linger_seconds=linger_seconds)  # type: ignore[arg-type]


async def test_all_readers_of_a_range_share_one_list_and_watch(reflectors):
    informers, wakes = factory(), [asyncio.Event(), asyncio.Event()]
    async with informers.look(*RANGE, wakes[0]) as one:
        await wakes[0].wait()
        async with informers.look(*RANGE, wakes[1]) as other:
            assert other is one
            assert wakes[1].is_set(), "what is known already has to be looked at"
        wakes[0].clear()
        wakes[1].clear()
        one.apply(changed(2, b"a"))
        assert (wakes[0].is_set(), wakes[1].is_set()) == (True, False)
    assert reflectors.started == 1
    await informers.aclose()
    assert reflectors.running == 0


@virtual
async def test_a_range_is_kept_for_a_while_after_its_last_reader(reflectors):
    """R16 bounded: and not for longer."""
    informers = SharedInformerFactory(None, rng=random.Random(0))  # type: ignore[arg-type]
    for _ in range(2):
        async with informers.look(*RANGE, wake := asyncio.Event()):
            await wake.wait()
        await asyncio.sleep(9.9)
    assert (reflectors.started, reflectors.running) == (1, 1)
    await asyncio.sleep(0.2)
    assert reflectors.running == 0
    async with informers.look(*RANGE, wake := asyncio.Event()):
        await wake.wait()
    assert reflectors.started == 2
    await informers.aclose()


async def test_a_single_key_is_not_kept(reflectors):
    informers = factory(linger_seconds=60)
    with suppress(ConnectionError):
        async with informers.look(b"/p/a", b"", wake := asyncio.Event()):
            await wake.wait()
            raise ConnectionError("whoever reads it hung up")
    for _ in range(5):
        await asyncio.sleep(0)
    assert reflectors.running == 0
    await informers.aclose()


async def test_readers_hear_of_all_but_that_nothing_changed():
    """A wake-up for each sign of life would be one a second, of each range."""
    one, wakes = SharedInformer(), [asyncio.Event(), asyncio.Event()]
    one.wakes.update(wakes)
    heard: list[bool] = []
    for reflection in (listed(1), changed(2, b"a"), Connected("e"), Progressed(3), Disconnected("gone")):
        one.apply(reflection)
        heard.append(all(wake.is_set() for wake in wakes))
        for wake in wakes:
            wake.clear()
    assert heard == [True, True, True, False, True]


async def test_a_reader_of_a_range_that_is_not_listed_yet_is_woken_when_it_is(reflectors, monkeypatch):
    """It has nothing to look at before."""
    monkeypatch.setattr(reflectors, "stream", PlayedReflector.silent)
    informers, wake = factory(), asyncio.Event()
    async with informers.look(*RANGE, wake) as one:
        await asyncio.sleep(0)
        assert not wake.is_set()
        one.apply(listed(1))
        assert wake.is_set()
    await informers.aclose()


async def test_the_end_of_all_informers_ends_those_that_linger_and_those_that_are_read(reflectors):
    """R16 bounded: and who looks afterwards begins anew."""
    informers = factory(linger_seconds=3600)
    async with informers.look(*RANGE, wake := asyncio.Event()):
        await wake.wait()
    async with informers.look(b"/q/", b"/q0", wake := asyncio.Event()):
        await wake.wait()
        assert reflectors.running == 2
        await informers.aclose()
        assert reflectors.running == 0
        async with informers.look(b"/q/", b"/q0", again := asyncio.Event()):
            await again.wait()
            assert (reflectors.running, reflectors.started) == (1, 3)
    await informers.aclose()
    assert reflectors.running == 0


@virtual
async def test_who_reads_again_is_not_ended_by_those_who_left_before(reflectors):
    """An old reader that leaves late ends its own informer, not the one that took its place."""
    informers = factory(linger_seconds=1.0)
    async with informers.look(*RANGE, wake := asyncio.Event()):
        await wake.wait()
        await informers.aclose()
        async with informers.look(*RANGE, new := asyncio.Event()):
            await new.wait()
            old_leaves = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() == old_leaves
        async with informers.look(*RANGE, new):
            leaving = asyncio.create_task(asyncio.sleep(0))
            await leaving
    async with informers.look(*RANGE, wake := asyncio.Event()):
        await asyncio.sleep(5.0)
        assert reflectors.running == 1
    await informers.aclose()


async def test_each_informer_is_kept_by_name_as_whoever_supervises_it_says(reflectors):
    """X2: a part that fails is told by its range, and run again; nobody keeps it where nobody is said to."""
    kept: list[str] = []

    async def keep(name: str, work: Callable[[], Awaitable[None]]) -> None:
        kept.append(name)
        await work()

    informers = SharedInformerFactory(None, rng=random.Random(0), keep=keep)  # type: ignore[arg-type]
    async with informers.look(*RANGE, wake := asyncio.Event()):
        await wake.wait()
    assert kept == ["informer of b'/p/'"]
    await informers.aclose()
