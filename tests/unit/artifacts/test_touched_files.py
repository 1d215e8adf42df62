"""Files of a store that somebody removes, changes or damages while an engine may be reading them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import maintenance
from sidecar.artifacts.ingest import Ingest
from sidecar.artifacts.leases import read_leases
from sidecar.artifacts.maintenance import Holdings
from sidecar.artifacts.store import LocalStore
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import CONFIG, WEIGHTS, flip, pinned, release

Deed = Callable[[Path], None]


def empty(directory: Path) -> None:
    (directory / WEIGHTS).chmod(0o644)
    (directory / WEIGHTS).write_bytes(b"")


def remove_store(directory: Path) -> None:
    shutil.rmtree(directory.parent.parent)


def remove_both(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()


def lose_one_and_flip(directory: Path) -> None:
    flip(directory)
    (directory / CONFIG).unlink()


REMOVALS: dict[str, Deed] = {
    "its folder": shutil.rmtree,
    "all of the store": remove_store,
    "one file": lambda directory: (directory / WEIGHTS).unlink(),
    "the other file": lambda directory: (directory / CONFIG).unlink(),
    "both files": remove_both,
}
CHANGES: dict[str, Deed] = {
    "one file, and the other one changed": lose_one_and_flip,
    "emptied": empty,
    "a bit flipped": flip,
    "linked elsewhere": lambda directory: (
        directory.rename(directory.with_name("x")),
        directory.symlink_to(directory.with_name("x")),
    )[1],
}


def look(store: LocalStore) -> dict[str, str]:
    return dict(store.maintenance.look(Stop()))


async def test_what_was_removed_is_told_until_it_is_back_also_while_it_is_fetched(store, sources, monkeypatch):
    """R9 status-truth: it is leased and not there, as what comes for the first time, which nobody removed."""
    adapter, looks, place = write_adapter(sources / "s"), list[dict[str, str]](), Ingest.place

    def placed(ingest: Ingest, *arguments: Any) -> Any:
        looks.append(look(store))
        return place(ingest, *arguments)

    monkeypatch.setattr(Ingest, "place", placed)
    with capture_logs() as logged:
        staged = await store.ensure(pinned(adapter))
    assert (looks, store.troubles) == ([{}], {})
    assert [one for one in logged if one["event"] == "artifact_touched"] == []
    shutil.rmtree(staged.path)
    told = look(store)
    await store.ensure(pinned(adapter))
    assert (look(store), looks) == ({}, [{}, told])
    shutil.rmtree(staged.path)
    assert not store.is_intact(staged.path)
    await store.ensure(pinned(adapter))
    assert looks == [{}, told, told], "also where nobody looked before"
    assert told


@pytest.mark.parametrize("deed", REMOVALS.values(), ids=REMOVALS)
async def test_what_was_removed_is_told_and_comes_back_to_the_same_place(store, sources, deed):
    """R4, R7: an engine that answers from memory may have to read it at any moment."""
    adapter, other = write_adapter(sources / "s"), write_adapter(sources / "t", seed=2)
    staged, beside = await store.ensure(pinned(adapter)), await store.ensure(pinned(other))
    assert look(store) == store.troubles == {}
    deed(Path(staged.path))
    told = look(store)
    assert staged.path in told
    assert (beside.path in told) is (deed is remove_store)
    assert "removed" in told[staged.path]
    assert store.troubles == told
    assert store.lookup(pinned(adapter)) is None
    for one in (adapter, other):
        assert digest_of(Path((await store.ensure(pinned(one))).path)) == one.digest
    assert digest_of(Path(staged.path)) == adapter.digest
    assert look(store) == {}


@pytest.mark.parametrize("deed", CHANGES.values(), ids=CHANGES)
async def test_what_was_changed_is_told_and_no_engine_is_given_it_anew(store, sources, deed):
    """R4, R21: it may be read as it is; a copy takes its place."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    deed(Path(staged.path))
    for _ in range(2):
        assert look(store)[staged.path].startswith("was ")
        seen = store.lookup(pinned(adapter))
        assert seen is None or not seen.is_proven
    copy = await store.ensure(pinned(adapter))
    assert copy.path != staged.path
    assert digest_of(Path(copy.path)) == adapter.digest


async def test_what_is_missing_is_put_back_though_nothing_else_tells_what_stood_there(store, sources):
    """R21: its report went with it; what is beside it is what comes of the source."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    (Path(staged.path) / WEIGHTS).unlink()
    (Path(staged.path).parents[1] / "reports" / f"{staged.id}.json").unlink()
    look(store)
    assert (await store.ensure(pinned(adapter))).path == staged.path
    assert digest_of(Path(staged.path)) == adapter.digest


async def test_what_is_missing_is_no_damage_for_want_of_descriptors(store, sources, monkeypatch):
    """R12: a mark of damage stays; the next try puts the file back."""
    adapter, opened = write_adapter(sources / "s"), os.open
    staged = await store.ensure(pinned(adapter))
    (Path(staged.path) / WEIGHTS).unlink()
    look(store)

    def open_one(path: Any, *more: Any, **others: Any) -> int:
        if str(path) == f"{staged.path}/{CONFIG}":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return opened(path, *more, **others)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_one)
        with pytest.raises(ArtifactError, match=os.strerror(errno.EMFILE)):
            await store.ensure(pinned(adapter))
    assert (await store.ensure(pinned(adapter))).path == staged.path


async def test_nothing_is_put_beside_what_was_prepared_otherwise(store, sources):
    """R21: bytes that were never in the directory stay out of it, and a file is never looked for through a link."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    report = store._reports.read(staged.id)
    assert report is not None
    store._reports.write(report.model_copy(update={"prepared": f"sha256:{'0' * 64}", "mac": ""}))
    (Path(staged.path) / WEIGHTS).unlink()
    look(store)
    copy = await store.ensure(pinned(adapter))
    (Path(copy.path) / WEIGHTS).unlink()
    (Path(copy.path) / CONFIG).unlink()
    (Path(copy.path) / CONFIG).symlink_to(sources / "s" / CONFIG)
    look(store)
    last = await store.ensure(pinned(adapter))
    assert len({staged.path, copy.path, last.path}) == 3
    assert [(Path(one.path) / WEIGHTS).exists() for one in (staged, copy, last)] == [False, False, True]


async def test_without_its_source_it_stays_told(store, sources):
    """R13: nobody can put it back; what an engine has of it is not our store's to take."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    shutil.rmtree(sources / "s")
    shutil.rmtree(staged.path)
    assert list(look(store)) == [staged.path]
    with pytest.raises(ArtifactError):
        await store.ensure(pinned(adapter))
    assert list(look(store)) == [staged.path]
    assert staged.id in store.leased()


async def test_leases_that_somebody_removed_are_written_again(store, open_store, sources, tmp_path):
    """R7: else another sidecar of the host removes what our engine reads."""
    staged = await store.ensure(pinned(write_adapter(sources / "s")))
    (file,) = (tmp_path / "store/leases").iterdir()
    file.unlink()
    look(store)
    assert read_leases(file) == {staged.id}
    file.write_bytes(b"?\n")
    look(store)
    assert read_leases(file) == {staged.id}
    os.utime(file, (0, 0))
    look(store)
    assert file.stat().st_mtime == 0, "it says all that it has to"


@pytest.fixture
def at_once(monkeypatch) -> None:
    """Everything is read again in every round."""
    monkeypatch.setattr(maintenance, "PERIOD_SECONDS", -1.0)
    monkeypatch.setattr(maintenance, "BYTES_PER_SECOND", 1 << 60)


def look_after(store: LocalStore) -> Holdings:
    store.maintenance.scrub(Stop())
    return store.maintenance.round(Stop())


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
