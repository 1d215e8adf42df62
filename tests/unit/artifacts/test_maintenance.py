"""The store in order: what is removed when room is needed, what is swept, what is read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import ingest
from sidecar.artifacts.files import locked
from sidecar.artifacts.types import Staged
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import GRACE, WEIGHTS, age, contents, pinned, release, stage, unpinned


def size_of(staged: Staged) -> int:
    return sum(path.stat().st_size for path in Path(staged.path).iterdir())


async def test_within_the_budget_nothing_is_removed(open_store, sources, adapters):
    store = open_store(budget_bytes=1 << 20)
    staged = await stage(store, sources, 1, 2)
    release(store, *staged)
    holdings = store.maintenance.round(Stop())
    assert (holdings.artifacts, holdings.leased, holdings.damaged) == (2, 0, 0)
    assert holdings.size_bytes == sum(map(size_of, staged))
    assert len(contents(adapters)) == 2


async def test_over_the_budget_what_was_unused_for_the_longest_time_goes_and_no_more(open_store, sources, adapters):
    """R16 bounded."""
    staged = await stage(open_store(), sources, 1, 2, 3)
    store = open_store(budget_bytes=2 * size_of(staged[0]))
    release(store, *staged)
    for one, hours in zip(staged, (2, 3, 1), strict=True):
        age(store, one, hours * 3600)
    assert store.maintenance.round(Stop()).artifacts == 2
    assert contents(adapters) == sorted(Path(one.path).name for one in (staged[0], staged[2]))
    assert not store._layout.report(staged[1].id).exists()
    assert store._layout.lock(staged[1].id).exists()  # somebody may wait for it


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


async def test_a_use_that_is_yet_to_come_keeps_nothing(open_store, sources, adapters):
    """R16: a clock that was set back would else keep what was used before it for as long, whatever the budget."""
    (staged,) = await stage(open_store(), sources, 1)
    store = open_store(budget_bytes=1)
    release(store, staged)
    age(store, staged, -2 * GRACE)
    assert store.maintenance.round(Stop()).artifacts == 0
    assert not contents(adapters)


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


async def test_reservations_end_with_their_stagings(open_store, sources):
    """R16: neither a failure nor a repetition takes room for ever."""
    store = open_store(budget_bytes=5000)
    for _ in range(20):
        with pytest.raises(ArtifactError):
            await store.ensure(unpinned(write_adapter(sources / "bad", rank=0)))
    assert store._quota._reserved_bytes == 0
    await stage(store, sources, 1)
    assert store._quota._reserved_bytes == 0


async def test_a_disk_that_others_fill_up_meanwhile_ends_the_download(open_store, sources, tmp_path, monkeypatch):
    """R16, fault 25: it is looked at before and during the download, and something is kept free."""
    free_bytes = iter([1 << 30, 1 << 30, 1 << 30])

    def statvfs(_path):
        free = next(free_bytes, 100)
        return os.statvfs_result((4096, 1, 1 << 30, free, free, 0, 0, 0, 0, 255))

    monkeypatch.setattr(ingest, "CHECK_BYTES", 1 << 20)
    monkeypatch.setattr("sidecar.artifacts.disk.os.statvfs", statvfs)
    big = write_adapter(sources / "big", rank=64, hidden=4096)
    with pytest.raises(ArtifactError) as refused:
        await open_store().ensure(pinned(big))
    assert (refused.value.reason, refused.value.permanent) == ("disk_full", False)
    assert "kept free" in refused.value.message
    assert not contents(tmp_path / "store" / "tmp")


async def test_only_leftovers_of_the_dead_are_swept(store, tmp_path):
    """R12, R16: what a living process works on has a lock that is held."""
    tmp = tmp_path / "store" / "tmp"
    (tmp / "dead.1").mkdir()
    (tmp / "dead.1" / WEIGHTS).write_bytes(b"half")
    (tmp / "dead.report").write_bytes(b"half")
    (tmp / "alive.1").mkdir()
    (tmp / f"{store._leases.key}.1").write_bytes(b"half")
    with locked(store._layout.lock("alive"), Stop()):
        store.maintenance.round(Stop())
        assert contents(tmp) == ["alive.1"]
    store.maintenance.round(Stop())
    assert not contents(tmp)
