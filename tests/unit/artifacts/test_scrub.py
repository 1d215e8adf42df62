"""Artifacts that are not as they were written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from registry.sources.base import Stop
from sidecar.artifacts import maintenance
from sidecar.artifacts.maintenance import Holdings
from sidecar.artifacts.store import LocalStore
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import WEIGHTS, contents, flip, pinned, release


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
