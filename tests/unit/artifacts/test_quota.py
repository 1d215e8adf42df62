"""How a store with a budget finds out whether there is room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from registry.model.status import ReportedStore
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.disk import RESERVE_DIVISOR
from sidecar.artifacts.layout import StoreLayout
from tests.unit.artifacts.conftest import release, stage
from tests.unit.artifacts.test_maintenance import size_of


async def test_a_store_with_room_is_not_listed_for_each_arrival(open_store, sources, monkeypatch):
    """R16: with thousands of artifacts that would take longer than fetching a small one."""
    listed, staged_ids = list[StoreLayout](), StoreLayout.staged_ids

    def counted(layout: StoreLayout) -> set[str]:
        listed.append(layout)
        return staged_ids(layout)

    store = open_store(budget_bytes=1 << 30)
    monkeypatch.setattr(StoreLayout, "staged_ids", counted)
    await stage(store, sources, 1, 2, 3, 4)
    assert len(listed) == 1
    await stage(open_store("r2", budget_bytes=1 << 30), sources, 5)
    await stage(store, sources, 6)
    assert len(listed) == 3


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
    assert store._quota.room(sizes, None).in_use_bytes == 7
    assert store._quota.room({}, frozenset()) == ReportedStore(
        room_bytes=left, in_use_bytes=0, largest_bytes=0, bound="disk"
    )


@pytest.mark.parametrize("change", ["came", "went"])
async def test_close_to_the_budget_nothing_is_believed_that_was_not_just_seen(open_store, sources, change):
    """R16: what nobody told us of, a hand or a sidecar of an earlier version, is counted too."""
    count = 19 if change == "came" else 20
    staged = await stage(open_store(), sources, *range(count))
    store = open_store(budget_bytes=20 * size_of(staged[0]) + 500)
    assert store._quota.excess_bytes() == 0
    if change == "came":
        shutil.copytree(staged[0].path, Path(staged[0].path).with_name("sha256-" + "0" * 64))
        with pytest.raises(ArtifactError) as refused:
            await stage(store, sources, 20)
        assert refused.value.reason == "store_full"
    else:
        shutil.rmtree(staged[0].path)
        await stage(store, sources, 20)


async def test_old_ones_make_room_for_each_that_comes(open_store, sources, tmp_path):
    """R16: the account follows what goes as it follows what comes."""
    staged = await stage(open_store(), sources, *range(5))
    budget_bytes = 5 * size_of(staged[0]) + 500
    store = open_store(budget_bytes=budget_bytes, grace_seconds=0.0)
    for seed in range(5, 15):
        release(store, staged.pop(0))
        staged += await stage(store, sources, seed)
        assert store.maintenance.round(Stop()).artifacts == 5
        assert sorted((tmp_path / "store" / "adapters").iterdir()) == sorted(Path(one.path) for one in staged)
