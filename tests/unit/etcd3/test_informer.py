"""Shared informers: what a range is known to hold, and how long it is followed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import closing

import pytest

from registry.etcd3 import informer
from registry.etcd3.informer import SharedInformer, SharedInformerFactory
from registry.etcd3.ops import Event, KeyValue
from registry.etcd3.stream import Changed, Connected, Disconnected, ListCause, Listed, Progressed, Reflection
from tests.simulation.loop import VirtualLoop

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


def test_a_range_is_kept_for_a_while_after_its_last_reader(reflectors):
    """R16 bounded: and not for longer."""

    async def scenario() -> None:
        informers = factory(linger_seconds=10.0)
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

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(scenario())


async def test_a_single_key_is_not_kept(reflectors):
    informers = factory(linger_seconds=60)
    async with informers.look(b"/p/a", b"", wake := asyncio.Event()):
        await wake.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert reflectors.running == 0
    await informers.aclose()
