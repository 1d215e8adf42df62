"""Artifacts that are not as they were written."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import maintenance, proof, requests
from sidecar.artifacts.maintenance import Holdings
from sidecar.artifacts.store import LocalStore
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import WEIGHTS, contents, flip, pinned, release, stage


@pytest.fixture
def at_once(monkeypatch) -> None:
    """Everything is read again in every round."""
    monkeypatch.setattr(maintenance, "PERIOD_SECONDS", -1.0)
    monkeypatch.setattr(maintenance, "BYTES_PER_SECOND", 1 << 60)


def look_after(store: LocalStore) -> Holdings:
    store.maintenance.scrub(Stop())
    return store.maintenance.round(Stop())


@pytest.mark.usefixtures("at_once")
async def test_a_damaged_artifact_that_nobody_leases_is_fetched_again(store, sources, adapters):
    """R4 digest-true."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    flip(staged.path)
    release(store, staged)
    assert look_after(store).damaged == 0
    assert not contents(adapters)
    assert digest_of(Path((await store.ensure(pinned(adapter))).path)) == adapter.digest


@pytest.mark.usefixtures("at_once")
async def test_a_damaged_artifact_that_is_leased_is_told_and_not_touched_and_fetched_as_a_copy(store, sources):
    """R4, R7, R21: an engine may be reading it; no engine is given it anew."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    flip(staged.path)
    before = (Path(staged.path) / WEIGHTS).read_bytes()
    for _ in range(3):
        assert look_after(store).damaged == 1
    assert store.lookup(pinned(adapter)) is None
    copy = await store.ensure(pinned(adapter))
    assert (Path(staged.path) / WEIGHTS).read_bytes() == before
    assert copy.path != staged.path
    assert store.owns(copy.path) == copy.id
    assert digest_of(Path(copy.path)) == adapter.digest
    assert store.leased() == {staged.id, copy.id}
    release(store, staged)
    assert look_after(store).damaged == 0
    assert staged.id not in store._layout.staged_ids()
    assert store.lookup(pinned(adapter)) == copy


@pytest.mark.usefixtures("at_once")
async def test_what_one_sidecar_finds_damaged_all_of_the_store_know(open_store, sources):
    """R4, R21: the others have it fetched anew too, and say so in `loraplane_store_damaged`."""
    adapter, first, second = write_adapter(sources / "s"), open_store("r1"), open_store("r2")
    staged = await first.ensure(pinned(adapter))
    assert await second.ensure(pinned(adapter)) == staged
    flip(staged.path)
    assert look_after(first).damaged == 1
    assert second.lookup(pinned(adapter)) == staged
    assert second.maintenance.round(Stop()).damaged == 1
    assert second.lookup(pinned(adapter)) is None
    assert not second.is_intact(staged.path)
    assert await second.ensure(pinned(adapter)) == await first.ensure(pinned(adapter)) != staged
    later = open_store("r3")
    assert (await later.ensure(pinned(adapter))).path != staged.path
    assert later.maintenance.round(Stop()).damaged == 1


async def test_a_disk_that_damages_every_copy_is_told(store, sources, monkeypatch):
    """R16: nothing is fetched without end."""
    monkeypatch.setattr(requests, "MAX_COPIES", 2)
    adapter = write_adapter(sources / "s")
    for _ in range(3):
        flip((await store.ensure(pinned(adapter))).path)
        assert not store.is_intact(
            store._layout.adapter(store._order(pinned(adapter)).artifact(adapter.digest)).as_posix()
        )
    with pytest.raises(ArtifactError) as refused:
        await store.ensure(pinned(adapter))
    assert (refused.value.reason, refused.value.permanent) == ("artifact_damaged", False)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("missing", ["report", "nothing"])
async def test_what_is_as_it_was_written_or_not_known_stays(store, sources, missing):
    (staged,) = await stage(store, sources, 1)
    release(store, staged)
    if missing == "report":
        store._layout.report(staged.id).write_bytes(b"{}")
    for _ in range(3):
        assert look_after(store).artifacts == 1
    assert digest_of(Path(staged.path)) == staged.digest


async def test_what_was_read_of_late_is_not_read_again(store, sources, monkeypatch):
    """R16: once a day, whichever of the host's sidecars does it."""
    (staged,) = await stage(store, sources, 1)
    read: list[Path] = []
    monkeypatch.setattr(proof, "hash_directory", lambda path, *_: read.append(path) or staged.digest)
    look_after(store)
    assert not read
    long_ago = time.time() - maintenance.PERIOD_SECONDS - 1
    os.utime(store._layout.report(staged.id), (long_ago, long_ago))
    store._scrub._next_at = 0.0
    look_after(store)
    assert read == [Path(staged.path)]


async def test_where_all_was_read_of_late_the_store_is_looked_through_again_after_a_while(
    store, sources, read, monkeypatch
):
    """R16: a listing of thousands takes as long as staging a small one; R4: and then it is looked through."""
    (staged,) = await stage(store, sources, 1)
    now = time.monotonic()
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(time=time.time, monotonic=lambda: now))
    read.clear()
    store.maintenance.scrub(Stop())
    os.utime(store._layout.report(staged.id), (1, 1))
    now += maintenance.IDLE_SECONDS - 1
    store.maintenance.scrub(Stop())
    assert not read
    now += 1
    store.maintenance.scrub(Stop())
    assert read == [staged.path]


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Paths of the artifacts that were hashed, in order."""
    paths, hash_directory = list[str](), proof.hash_directory

    def note(directory: Path, *rest) -> str:
        paths.append(str(directory))
        return hash_directory(directory, *rest)

    monkeypatch.setattr(proof, "hash_directory", note)
    return paths


@pytest.mark.usefixtures("at_once")
async def test_a_damaged_artifact_that_is_leased_keeps_no_other_from_being_read(store, sources, read):
    """R4, R8: it stays where it is, and once it is known it is not read again in place of the others."""
    bad, good = await stage(store, sources, 1, 2)
    flip(bad.path)
    os.utime(store._layout.report(bad.id), (1, 1))
    read.clear()
    for _ in range(4):
        look_after(store)
    assert read == [bad.path, good.path, good.path, good.path]


@pytest.mark.usefixtures("at_once")
async def test_an_artifact_whose_report_cannot_be_read_keeps_no_other_from_being_read(
    store, sources, read, monkeypatch
):
    """R4, R8: as one does on a disk with a bad sector."""
    bad, good = await stage(store, sources, 1, 2)
    os.utime(store._layout.report(bad.id), (1, 1))
    break_report(store, bad.id, monkeypatch)
    read.clear()
    with pytest.raises(OSError, match="bad sector"):
        store.maintenance.scrub(Stop())
    store.maintenance.scrub(Stop())
    assert read == [good.path]


@pytest.mark.usefixtures("at_once")
async def test_what_was_not_read_to_its_end_is_read_first_the_next_time(store, sources):
    """R4: else a sidecar that is often restarted would read the largest never."""
    (staged,) = await stage(store, sources, 1)
    report = store._layout.report(staged.id)
    os.utime(report, (1, 1))
    stop = Stop()
    stop.set()
    with pytest.raises(ArtifactError) as stopped:
        store.maintenance.scrub(stop)
    assert stopped.value.reason == "staging_stopped"
    assert report.stat().st_mtime == 1
    store.maintenance.scrub(Stop())
    assert report.stat().st_mtime > 1


async def test_what_cannot_be_proven_after_a_restart_keeps_no_other_from_being_proven(
    open_store, sources, read, monkeypatch
):
    """R21, R8: the next round proves what the engine served beside it."""
    refs = [pinned(write_adapter(sources / f"s{seed}", seed=seed)) for seed in (1, 2)]
    staged = [await open_store().ensure(ref) for ref in refs]
    store = open_store()
    assert [store.lookup(ref).is_proven for ref in refs] == [False, False]
    break_report(store, staged[0].id, monkeypatch)
    read.clear()
    with pytest.raises(OSError, match="bad sector"):
        store.maintenance.scrub(Stop())
    store.maintenance.scrub(Stop())
    assert store.lookup(refs[1]).is_proven
    assert read == [staged[1].path]


def break_report(store: LocalStore, artifact: str, monkeypatch) -> None:
    """Has the report of one artifact fail to be read."""
    whole = store._proofs._reports.read

    def broken(one: str):
        if one == artifact:
            raise OSError(errno.EIO, "bad sector")
        return whole(one)

    monkeypatch.setattr(store._proofs._reports, "read", broken)


async def test_a_clock_that_was_set_back_keeps_nothing_from_being_read(store, sources, read):
    """R4: what was read in a year that is yet to come counts as read long ago."""
    (staged,) = await stage(store, sources, 1)
    ahead = time.time() + maintenance.PERIOD_SECONDS + 60
    os.utime(store._layout.report(staged.id), (ahead, ahead))
    read.clear()
    look_after(store)
    look_after(store)
    assert read == [staged.path]


def stands_at(path: str, descriptor: int) -> bool:
    return os.path.samestat(os.fstat(descriptor), Path(path).stat())


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_torn_directory_makes_room_for_a_whole_one_unless_another_engine_reads_it(
    open_store, sources, is_shared
):
    """R4, R7: the lease is new, so our own engine does not read it. What another reads is made whole where it is."""
    adapter = write_adapter(sources / "s")
    staged = await open_store("r2").ensure(pinned(adapter))
    if not is_shared:
        release(open_store("r2"), staged)
    (Path(staged.path) / WEIGHTS).unlink()
    store, torn = open_store("r1"), os.open(staged.path, os.O_PATH)
    assert await store.ensure(pinned(adapter)) == staged
    assert stands_at(staged.path, torn) is is_shared
    os.close(torn)
    assert digest_of(Path(staged.path)) == adapter.digest
    assert store.leased() == {staged.id}


async def test_a_torn_directory_is_not_taken_for_a_damaged_one(store, sources):
    """R7: whoever has it read may have it put back, which marking it would prevent."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    (Path(staged.path) / WEIGHTS).unlink()
    os.utime(store._layout.report(staged.id), (0, 0))
    look_after(store)
    assert store._damage.ids == frozenset()
    assert await store.ensure(pinned(adapter)) == staged
