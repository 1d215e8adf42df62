"""That records take less memory once they are packed, and are the same records."""

from __future__ import annotations

import asyncio
import os

from bench.etcd import catalogue
from bench.usage import rss_bytes
from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import Keys
from sidecar.desired.informer import Informer
from sidecar.desired.packing import PackedRecord, Packing, RawRecord, give_back, packed
from tests.simulation.loop import virtual
from tests.support.fleet import POOL

PIECES, PIECE_BYTES = 100_000, 640


def _records(count: int) -> list[KeyValue]:
    return [KeyValue(put.key, put.value, 1, 7, 1) for put in catalogue(Keys(), count)]


def test_a_usual_record_takes_a_third_at_most():
    """Guarantee R16."""
    (record,) = _records(1)
    small = packed(RawRecord(record.value, 7))
    assert isinstance(small, PackedRecord)
    assert len(small.packed) < len(record.value) / 3
    assert (small.value, small.revision, small.good) == (record.value, 7, None)
    assert packed(small) is small


def test_a_record_with_an_older_good_value_stays_as_it_is():
    """Guarantee R14."""
    record = RawRecord(b"x" * 1000, 3, (b"y", 2))
    assert packed(record) is record


def test_packing_changes_nothing_that_is_desired():
    """Guarantee R2: the state, its hash, a comparison with a list, a change and a deletion are as without it."""
    plain, small = Informer(POOL), Informer(POOL)
    listed = _records(9)
    for informer in (plain, small):
        informer.replace(7, listed)
    while small.pack(4):
        pass
    assert all(isinstance(record, PackedRecord) for record in small.raw.values())
    assert small.replace(7, listed) == []
    changed = [
        Event(listed[0].key, 8, KeyValue(listed[0].key, listed[1].value, 1, 8, 2)),
        Event(listed[2].key, 8, None),
    ]
    for informer in (plain, small):
        informer.apply(8, changed)
        assert not informer.pack(100)
    assert small.state == plain.state
    assert {key: one.value for key, one in small.raw.items()} == {key: one.value for key, one in plain.raw.items()}
    restored = Informer(POOL)
    restored.restore(8, small.raw)
    assert restored.state == plain.state


def test_what_a_list_was_made_of_goes_back_to_the_system():
    """Guarantee R16: every hundredth piece stays, as records stay, so the heap's end cannot simply move back."""
    pieces = [bytes(PIECE_BYTES) for _ in range(PIECES)]
    kept = pieces[::100]
    del pieces
    before = rss_bytes(os.getpid())
    give_back()
    assert len(kept) == PIECES // 100
    assert before - rss_bytes(os.getpid()) > PIECES * PIECE_BYTES // 2


@virtual
async def test_where_nothing_came_nothing_is_packed():
    """R16: a sidecar of a quiet pool sleeps."""
    packs: list[float] = []

    class Noting(Informer):
        def pack(self, count: int) -> bool:
            packs.append(asyncio.get_running_loop().time())
            return super().pack(count)

    packing = Packing(Noting(POOL))
    running = asyncio.create_task(packing.run())
    await asyncio.sleep(60)
    assert packs == []
    packing.wake()
    await asyncio.sleep(60)
    assert len(packs) == 1
    running.cancel()
