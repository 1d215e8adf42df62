"""What an export begins with and where it ends, on a store that keeps what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from registry.etcd3.errors import Compacted, EtcdUnavailable
from registry.etcd3.ops import Event, KeyValue, Range, RangeResult
from registry.etcd3.stream import Changed, Connected, ListCause, Listed, Progressed, Reflection, Resume
from registry.tools.verify import export
from registry.tools.verify.export import read_history
from registry.tools.verify.history import HistoryBase, Revision, Step
from tests.support.changes import KEYS, Author


@dataclass
class KeptStore:
    """What stood at each revision from `compacted` on; `lists` are the pages that were asked for."""

    history: list[tuple[int, tuple[Event, ...]]]
    compacted: int = 0
    lists: list[Range] = field(default_factory=list)

    @property
    def revision(self) -> int:
        return self.history[-1][0]

    def at(self, revision: int) -> dict[bytes, KeyValue]:
        stands: dict[bytes, KeyValue] = {}
        for _, events in (one for one in self.history if one[0] <= revision):
            for event in events:
                stands.pop(event.key, None)
                stands |= {event.key: event.kv} if event.kv else {}
        return dict(sorted(stands.items()))

    async def list_prefix(self, key: bytes) -> RangeResult:
        assert key == f"{KEYS.prefix}/".encode()
        kvs = tuple(self.at(self.revision).values())
        return RangeResult(self.revision, kvs, more=False, count=len(kvs))

    async def range(self, op: Range) -> RangeResult:
        self.lists.append(op)
        if op.revision < self.compacted:
            raise Compacted("no longer kept", compact_revision=self.compacted)
        found = [kv for key, kv in self.at(op.revision).items() if op.key <= key < op.range_end]
        shown = tuple(found[: op.limit])
        return RangeResult(self.revision, shown, more=len(found) > len(shown), count=len(found))


class Watch:
    """A reflector over such a store. It tells no more once there is no more."""

    def __init__(self, store: KeptStore, key: bytes, range_end: bytes, *, resume: Resume, rng: object) -> None:
        assert (key, range_end, resume.cluster_id) == (f"{KEYS.prefix}/".encode(), f"{KEYS.prefix}0".encode(), 0)
        self._store, self._mark = store, resume.revision

    async def stream(self) -> AsyncGenerator[Reflection, None]:
        yield Connected("m")
        store = self._store
        if self._mark < store.compacted:
            self._mark = store.compacted
            yield Listed(self._mark, tuple(store.at(self._mark).values()), 1, ListCause.COMPACTED)
        for revision, events in (one for one in store.history if one[0] > self._mark):
            yield Changed(revision, events)
            yield Progressed(revision)
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _watched(monkeypatch) -> None:
    monkeypatch.setattr(export, "Reflector", Watch)


async def read(store: Any, first: int) -> list[Step]:
    return await asyncio.wait_for(read_history(store, KEYS.prefix, from_revision=first), 120)


def expected(store: KeptStore, first: int) -> list[Step]:
    """What stood before, where anything did, and each revision since."""
    before = tuple(store.at(first - 1).values())
    base: list[Step] = [HistoryBase(first - 1, before)] if before else []
    return [*base, *(Revision(revision, events) for revision, events in store.history if revision >= first)]


@pytest.fixture
def store(author: Author) -> KeptStore:
    return KeptStore(list(author.etcd.history))


async def test_a_history_begins_with_what_stood_before(store):
    """W2, W5: so that nothing is found missing that is only older."""
    for first in range(2, store.revision + 2):
        assert await read(store, first) == expected(store, first)
    assert await read(store, 1) == expected(store, 2), "nothing stands at the first revision of an etcd"
    with pytest.raises(ValueError, match=f"no revision 8 yet; the newest is {store.revision}"):
        await read(store, store.revision + 2)


async def test_it_begins_right_behind_what_is_compacted(store):
    for compacted in range(1, store.revision + 1):
        store.compacted = compacted
        for first in range(1, store.revision + 1):
            assert await read(store, first) == expected(store, max(first, compacted + 1))


@pytest.mark.parametrize("first", [1, 4, 7])
async def test_a_deletion_at_the_end_is_a_part_of_it(store, first):
    """W7: as of somebody who deletes past the admin service what had stood for long."""
    key = next(key for key in store.at(6) if b"/adapters/" in key)
    store.history += [(7, (Event(key, 7, None),))]
    assert (await read(store, first))[-1] == Revision(7, (Event(key, 7, None),))


async def test_what_stood_is_read_in_pages(store, monkeypatch):
    """R16 bounded: of a store of any size."""
    monkeypatch.setattr(export, "_PAGE", 2)
    assert await read(store, 6) == expected(store, 6)
    pages = [one for one in store.lists if one.limit == 2]
    assert len(pages) == (len(store.at(5)) + 1) // 2
    assert {one.revision for one in pages} == {5}


@pytest.mark.parametrize("at", ["first kept", "stood before"])
async def test_an_etcd_that_is_away_meanwhile_is_no_compaction(store, monkeypatch, at):
    """It would begin later than it could, and nobody would know why."""
    answered = store.range

    async def away(op: Range) -> RangeResult:
        if (op.limit == 1) is (at == "first kept"):
            raise EtcdUnavailable("away", maybe_applied=False)
        return await answered(op)

    monkeypatch.setattr(store, "range", away)
    with pytest.raises(EtcdUnavailable):
        await read(store, 4)


async def test_a_compaction_meanwhile_begins_it_later(store, monkeypatch):
    """What stood before is gone by now: what is listed instead takes its place."""
    answered = store.range

    async def overtaken(op: Range) -> RangeResult:
        if op.limit != 1:
            store.compacted = 5
        return await answered(op)

    monkeypatch.setattr(store, "range", overtaken)
    assert await read(store, 3) == expected(store, 6)


async def test_what_was_told_before_a_compaction_is_no_part_of_what_begins_behind_it(store, monkeypatch):
    """A hole amid a history would be found as a change without a record."""

    async def listed_anew(_: Watch) -> AsyncGenerator[Reflection, None]:
        yield Changed(*store.history[0])
        yield Listed(5, tuple(store.at(5).values()), 1, ListCause.COMPACTED)
        yield Changed(*store.history[-1])
        await asyncio.Event().wait()

    monkeypatch.setattr(Watch, "stream", listed_anew)
    assert await read(store, 1) == expected(store, 6)


async def test_a_watch_that_never_ends_is_given_up(store, monkeypatch):
    """It tells nothing of what stands: as where somebody has restored a backup meanwhile."""
    monkeypatch.setattr(store, "history", [*store.history, (7, ())])
    monkeypatch.setattr(Watch, "stream", lambda _: _nothing())
    with pytest.raises(TimeoutError):
        await read_history(store, KEYS.prefix, from_revision=1, seconds=0.01)


async def _nothing() -> AsyncGenerator[Reflection, None]:
    yield Connected("m")
    await asyncio.Event().wait()


async def test_what_is_written_while_it_is_read_is_of_the_next_export(store):
    """Also where what it began with is compacted by then: else a busy store would never be exported."""

    class Busy(KeptStore):
        async def list_prefix(self, key: bytes) -> RangeResult:
            self.compacted = 6
            return await KeptStore(self.history[:5]).list_prefix(key)

    key = next(iter(store.at(6)))
    busy = Busy([*store.history, (7, (Event(key, 7, None),))])
    assert await read(busy, 1) == [HistoryBase(6, tuple(store.at(6).values()))]
