"""What an engine may be reading: leases that are given up, found, and written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources.base import Stop
from tests.support.adapters import digest_of, write_adapter
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import age, pinned, release, stage


async def test_let_go_means_that_lookup_knows_it_no_more(store, sources):
    """R7: a plan that is made from now on stages it anew, with a lease of its own."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    release(store, staged)
    assert store.lookup(pinned(adapter)) is None
    assert staged.id not in store.leased()
    assert await store.ensure(pinned(adapter)) == staged
    assert store.leased() == {staged.id}


async def test_leases_that_another_process_left_are_read_when_it_has_ended(open_store, sources):
    """R7, R10: what it let go of in the meantime may have been removed."""
    first, second = open_store(), open_store()
    adapter = write_adapter(sources / "s")
    staged = await first.ensure(pinned(adapter))
    second.take_over()
    assert second.leased() == {staged.id}
    assert second.lookup(pinned(adapter)) == replace(staged, is_proven=False)
    release(first, staged)
    second.take_over()
    assert not second.leased()
    assert second.lookup(pinned(adapter)) is None


async def test_what_is_being_staged_is_not_let_go(open_store, sources):
    """R7: a worker thread is about to hand it out, and a plan to load it."""
    reached, go_on = Event(), Event()

    def wait(point: Point) -> None:
        if point is Point.LOCKED:
            reached.set()
            go_on.wait()

    adapter, store = write_adapter(sources / "s"), open_store()
    with handling(wait):
        staging = asyncio.create_task(store.ensure(pinned(adapter)))
        await eventually(reached.is_set)
        (artifact,) = store.leased()
        assert not store.let_go({artifact})
        go_on.set()
        staged = await staging
    assert store.leased() == {staged.id}
    assert store.lookup(pinned(adapter)) == staged
    assert store.let_go({artifact}) == {artifact}


async def test_leases_for_another_address_stay_and_are_told(open_store, sources, capsys):
    """R7: nothing is known of an engine that a replica had before."""
    before = open_store(engine="http://127.0.0.1:1")
    (staged,) = await stage(before, sources, 1)
    now = open_store(engine="http://127.0.0.1:2", budget_bytes=1)
    now.take_over()
    assert not now.leased()
    assert before._lease_file.name in capsys.readouterr().out
    age(now, staged)
    now.maintenance.round(Stop())
    assert digest_of(Path(staged.path)) == staged.digest


async def test_leases_of_its_own_engine_are_told_to_nobody(open_store, sources, capsys):
    """R7: they are taken over; who removed that file would have what the engine reads removed."""
    await stage(open_store(engine="http://127.0.0.1:1"), sources, 1)
    capsys.readouterr()
    again = open_store(engine="http://127.0.0.1:1")
    again.take_over()
    assert again.leased()
    assert "leases_of_another_engine" not in capsys.readouterr().out


async def test_a_lease_file_that_nobody_understands_leases_everything(open_store, sources, tmp_path):
    """R7, R12: until the engine is proven not to read it; then the file is whole again."""
    staged = await stage(open_store(), sources, 1, 2)
    file = tmp_path / "store" / "leases" / "r1"
    file.write_bytes(b"no id\n")
    store = open_store(budget_bytes=1)
    assert store.leased() == {one.id for one in staged}
    for one in staged:
        age(store, one)
    assert store.maintenance.round(Stop()).artifacts == 2
    assert file.read_text().split() == sorted(one.id for one in staged)


async def test_leases_that_cannot_be_written_are_written_later(store, sources, monkeypatch):
    """R7, fault 25: the file says at least what is leased."""
    first, second = await stage(store, sources, 1, 2)
    store.let_go({first.id})
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            store.maintenance.write_leases(Stop())
    assert len(store._lease_file.read_text().split()) == 2
    store.maintenance.write_leases(Stop())
    assert store._lease_file.read_text().split() == [second.id]
