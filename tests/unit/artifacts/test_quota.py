"""How a store with a budget finds out whether there is room, and what is removed when it is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from registry.model.status import ReportedStore
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.disk import RESERVE_DIVISOR
from sidecar.artifacts.files import locked
from sidecar.artifacts.types import Staged
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import GRACE, age, contents, pinned, release, stage


async def test_what_another_sidecar_staged_since_the_last_look_counts(open_store, sources):
    """R16: two sidecars share a budget, though neither lists the store for each arrival."""
    (first,) = await stage(open_store("r1"), sources, 1)
    one = size_of(first)
    first, second = (open_store(replica, budget_bytes=20 * one) for replica in ("r1", "r2"))
    await stage(first, sources, 2, 3)
    await stage(second, sources, *range(4, 20))
    await stage(first, sources, 20)
    for store in (first, second):
        with pytest.raises(ArtifactError) as refused:
            await stage(store, sources, 21)
        assert refused.value.reason == "store_full"


async def test_the_room_of_a_store_counts_what_no_engine_reads(open_store, sources, adapters, monkeypatch):
    """A store that fills its disk with what may go is as it should be."""
    first, second = await stage(open_store(), sources, 1, 2)
    one, store = size_of(first), open_store()
    free = 1 << 20

    def statvfs(_path):
        return os.statvfs_result((4096, 1, 10 * free, free, free, 0, 0, 0, 0, 255))

    monkeypatch.setattr("sidecar.artifacts.disk.os.statvfs", statvfs)
    left = free - 10 * free // RESERVE_DIVISOR
    told = store.maintenance.round(Stop()).room
    assert told == ReportedStore(room_bytes=left, in_use_bytes=2 * one, largest_bytes=one, bound="disk")
    release(store, second)
    store.maintenance.round(Stop())  # which writes that down
    told = store.maintenance.round(Stop()).room
    assert told == ReportedStore(room_bytes=left + one, in_use_bytes=one, largest_bytes=one, bound="disk")
    bounded = open_store("r2", budget_bytes=2 * one + 10).maintenance.round(Stop()).room
    assert bounded == ReportedStore(room_bytes=one + 10, in_use_bytes=one, largest_bytes=one, bound="budget")
    next((adapters.parent / "leases").iterdir()).write_bytes(b"?")
    assert open_store("r3").maintenance._in_use() is None
    sizes = {"a": 3, "b": 4}
    assert store.maintenance.quota.room(sizes, None).in_use_bytes == 7
    assert store.maintenance.quota.room({}, frozenset()) == ReportedStore(
        room_bytes=left, in_use_bytes=0, largest_bytes=0, bound="disk"
    )


def size_of(staged: Staged) -> int:
    return sum(path.stat().st_size for path in Path(staged.path).iterdir())


async def test_what_was_used_of_late_stays_and_what_was_let_go_of_may_go_at_once(open_store, sources, adapters):
    """R16: the disk keeps what somebody may ask for again; a use is noted whoever of the host it was."""
    first, second = await stage(open_store(), sources, 1, 2)
    store = open_store(budget_bytes=1, grace_seconds=GRACE)
    for one in (first, second):
        age(store, one)
    await open_store("r2").ensure(pinned(write_adapter(sources / "s1", seed=1)))
    (store._layout.leases / "r2").unlink()
    (store._layout.leases / "r1").unlink()
    assert store.maintenance.round(Stop()).artifacts == 1
    assert contents(adapters) == [Path(first.path).name]
    again = open_store(budget_bytes=1, grace_seconds=GRACE)
    again.lease({first.id})
    release(again, first)
    assert again.maintenance.round(Stop()).artifacts == 0


@pytest.mark.parametrize("why", ["leased", "leased by another", "young", "locked", "leases damaged"])
async def test_what_must_not_be_removed_stays_whatever_the_budget(open_store, sources, adapters, tmp_path, why):
    """R7 files-pinned, R16: leased ones are never removed."""
    (staged,) = await stage(open_store("r2" if why == "leased by another" else "r1"), sources, 1)
    store = open_store(budget_bytes=1)
    if why not in {"leased", "leased by another"}:
        release(store, staged)
    age(store, staged, 0.0 if why == "young" else 2 * GRACE)
    if why == "leases damaged":
        (tmp_path / "store" / "leases" / "r3").write_bytes(b"\x00\x00")
    with locked(store._layout.lock(staged.id if why == "locked" else "other"), Stop()):
        store.maintenance.round(Stop())
    assert digest_of(Path(staged.path)) == staged.digest


async def test_what_has_no_room_is_refused_for_now_and_what_is_leased_stays(open_store, sources, adapters):
    """R16, R8: under pressure new adapters wait."""
    (staged,) = await stage(open_store(), sources, 1)
    store = open_store(budget_bytes=size_of(staged) + 100)
    with pytest.raises(ArtifactError) as refused:
        await stage(store, sources, 2)
    assert (refused.value.reason, refused.value.permanent) == ("store_full", False)
    assert "--store-budget" in refused.value.message
    assert contents(adapters) == [Path(staged.path).name]
    assert not contents(adapters.parent / "tmp")
    release(store, staged)
    age(store, staged)
    (later,) = await stage(store, sources, 2)  # room is made for it on the way
    assert contents(adapters) == [Path(later.path).name]
    assert not contents(adapters.parent / "tmp"), "only files that are gone make room"
