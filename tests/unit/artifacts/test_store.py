"""The store on a real file system: what is staged, what is remembered, and what it says about both."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources.base import Stop
from tests.support.adapters import digest_of, write_adapter
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import WEIGHTS, age, contents, pinned, recalled, refusal, release, stage, unpinned


@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_what_is_staged_is_a_copy_that_nobody_writes_to(store, sources, tmp_path, make_ref):
    """R4 digest-true, R7: the engine is given a read-only copy whose bytes hash to its digest."""
    adapter = write_adapter(sources / "a", rank=8)
    staged = await store.ensure(make_ref(adapter))
    directory = Path(staged.path)
    assert (staged.digest, staged.rank) == (adapter.digest, 8)
    assert directory == tmp_path / "store" / "adapters" / f"sha256-{staged.id}"
    assert digest_of(directory) == adapter.digest
    assert contents(directory) == ["adapter_config.json", WEIGHTS]
    assert store.owns(staged.path) == staged.id
    assert not contents(tmp_path / "store" / "tmp")


@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_a_restarted_sidecar_finds_what_it_had_without_the_source(open_store, sources, make_ref):
    """R13 static-stable: boot needs the local store alone."""
    adapter = write_adapter(sources / "a")
    staged = await open_store().ensure(make_ref(adapter))
    shutil.rmtree(sources / "a")
    restarted = open_store()
    assert recalled(restarted, make_ref(adapter)) == replace(staged, is_proven=False)
    assert await restarted.ensure(make_ref(adapter)) == staged


async def test_two_names_for_the_same_files_share_a_directory(store, sources, tmp_path):
    first, second = write_adapter(sources / "a"), write_adapter(sources / "b")
    staged = await asyncio.gather(
        *(store.ensure(ref) for ref in (pinned(first), pinned(second), unpinned(first), unpinned(second)))
    )
    assert len(set(staged)) == 1
    assert len(contents(tmp_path / "store" / "adapters")) == 1


async def test_a_reference_without_digest_keeps_its_meaning(open_store, sources, tmp_path):
    """R4, W6: what a generation was first seen to be is what it is on this host, for every replica."""
    adapter = write_adapter(sources / "a", seed=1)
    staged = await open_store("r1").ensure(unpinned(adapter))
    changed = write_adapter(sources / "a", seed=2)
    assert await open_store("r2").ensure(unpinned(adapter)) == staged
    later = await open_store("r1").ensure(unpinned(adapter, generation=2))
    assert later.digest == changed.digest != staged.digest


@pytest.mark.parametrize(
    ("make_ref", "remedy"), [(pinned, "put the right files there"), (unpinned, "the source changed after")]
)
async def test_what_is_meant_and_gone_is_not_replaced_by_another(open_store, sources, tmp_path, make_ref, remedy):
    """R4, fault 27: neither by its digest, nor under a generation that was first seen to be it."""
    adapter = write_adapter(sources / "a", seed=1)
    staged = await open_store().ensure(make_ref(adapter))
    changed = write_adapter(sources / "a", seed=2)
    shutil.rmtree(staged.path)
    error = await refusal(open_store(), make_ref(adapter))
    assert (error.reason, error.permanent) == ("digest_mismatch", False)
    assert f"the digest {changed.digest}, expected {adapter.digest}; {remedy}" in error.message
    assert not contents(tmp_path / "store" / "tmp")
    assert not contents(tmp_path / "store" / "adapters")


async def test_leases_that_another_process_left_are_read_when_it_has_ended(open_store, sources):
    """R7, R10: what it let go of in the meantime may have been removed."""
    first, second = open_store(), open_store()
    adapter = write_adapter(sources / "s")
    staged = await first.ensure(pinned(adapter))
    second.take_over()
    assert second.leased() == {staged.id}
    assert recalled(second, pinned(adapter)) == replace(staged, is_proven=False)
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
    assert before._leases.file.name in capsys.readouterr().out
    age(now, staged)
    now.maintenance.round(Stop())
    assert digest_of(Path(staged.path)) == staged.digest
