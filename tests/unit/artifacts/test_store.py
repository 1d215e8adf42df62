"""The store on a real file system: what is staged, what is remembered, and what it says about both."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources.base import ArtifactError
from sidecar.artifacts.leases import ArtifactLeases, read_leases
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import WEIGHTS, contents, pinned, unpinned


def modes(folder: Path) -> dict[str, int]:
    """Permissions of a folder and of what is in it."""
    return {path: stat.S_IMODE((folder / path).stat().st_mode) for path in [".", *contents(folder)]}


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
    assert modes(directory) == {".": 0o750, "adapter_config.json": 0o444, WEIGHTS: 0o444}
    assert store.owns(staged.path) == staged.id
    assert not contents(tmp_path / "store" / "tmp")


async def test_an_adapter_of_many_chunks_is_copied_to_the_byte(store, sources):
    """R4 digest-true."""
    adapter = write_adapter(sources / "a", rank=64, hidden=4096, layers=1)
    staged = await store.ensure(pinned(adapter))
    assert (Path(staged.path) / WEIGHTS).stat().st_size > 3 << 20
    assert digest_of(Path(staged.path)) == adapter.digest


async def test_lookup_knows_what_was_staged_and_nothing_else(store, sources):
    adapter, other = write_adapter(sources / "a"), write_adapter(sources / "b", seed=1)
    assert store.lookup(pinned(adapter)) is None
    staged = await store.ensure(pinned(adapter))
    assert store.lookup(pinned(adapter)) == staged
    assert store.lookup(pinned(other)) is None
    assert store.lookup(unpinned(adapter)) is None


@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_a_restarted_sidecar_finds_what_it_had_without_the_source(open_store, sources, make_ref):
    """R13 static-stable: boot needs the local store alone."""
    adapter = write_adapter(sources / "a")
    staged = await open_store().ensure(make_ref(adapter))
    shutil.rmtree(sources / "a")
    restarted = open_store()
    assert restarted.lookup(make_ref(adapter)) == replace(staged, is_proven=False)
    assert await restarted.ensure(make_ref(adapter)) == staged


async def test_another_replica_of_the_host_leases_before_it_may_look(open_store, sources, tmp_path):
    """R7 files-pinned: what is in the store, but not leased to this replica, may be removed at any time."""
    adapter = write_adapter(sources / "a")
    staged = await open_store("r1").ensure(pinned(adapter))
    second = open_store("r2")
    assert second.lookup(pinned(adapter)) is None
    shutil.rmtree(sources / "a")
    assert await second.ensure(pinned(adapter)) == staged
    assert second.lookup(pinned(adapter)) == staged
    leases = {path.name: read_leases(path) for path in (tmp_path / "store" / "leases").iterdir()}
    assert leases == {"r1": {staged.id}, "r2": {staged.id}}


async def test_a_restarted_sidecar_does_not_look_while_the_artifact_is_locked(open_store, sources, tmp_path):
    """R7: a removal may have looked at the leases just before ours was written."""
    adapter = write_adapter(sources / "a")
    staged = await open_store().ensure(pinned(adapter))
    restarted = open_store()
    with (tmp_path / "store" / "locks" / staged.id).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert restarted.lookup(pinned(adapter)) is None
    assert restarted.lookup(pinned(adapter)) == replace(staged, is_proven=False)


async def test_the_lease_is_on_disk_before_the_directory_is_looked_for(store, sources, tmp_path):
    """R7: in this order, or a removal could come between."""
    seen: list[tuple[Point, bool]] = []

    def look(point: Point) -> None:
        seen.append((point, (tmp_path / "store" / "leases" / "r1").exists()))

    with handling(look):
        await store.ensure(pinned(write_adapter(sources / "a")))
    assert seen[0] == (Point.LEASED, True)
    assert seen[1] == (Point.LOCKED, True)


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


async def test_a_pinned_meaning_whose_copy_is_gone_is_not_replaced_by_another(open_store, sources, tmp_path):
    """R4: nothing else is served under a generation than what it was first seen to be."""
    adapter = write_adapter(sources / "a", seed=1)
    staged = await open_store().ensure(unpinned(adapter))
    changed = write_adapter(sources / "a", seed=2)
    shutil.rmtree(staged.path)
    with pytest.raises(ArtifactError) as refused:
        await open_store().ensure(unpinned(adapter))
    assert (refused.value.reason, refused.value.permanent) == ("digest_mismatch", False)
    assert adapter.digest in refused.value.message
    assert changed.digest in refused.value.message


async def test_the_same_generation_of_another_source_is_another_meaning(store, sources):
    """A store may outlive its etcd: a pin of the same name and number from before must not be taken for this one."""
    first, second = write_adapter(sources / "a"), write_adapter(sources / "b", seed=2)
    assert (await store.ensure(unpinned(first))).digest == first.digest
    assert (await store.ensure(unpinned(second))).digest == second.digest


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"digest": "sha256:x"}', b"\xff" * 99])
@pytest.mark.parametrize("file", ["leases/r1", "pins/*", "reports/*"])
async def test_no_damaged_file_of_the_store_prevents_staging(open_store, sources, tmp_path, file, damage):
    """R12 crash-only: no local file can prevent the boot."""
    adapter = write_adapter(sources / "a")
    staged = await open_store().ensure(unpinned(adapter))
    (path,) = (tmp_path / "store").glob(file)
    path.write_bytes(damage)
    restarted = open_store()
    assert await restarted.ensure(unpinned(adapter)) == staged
    assert restarted.lookup(unpinned(adapter)) == staged


@pytest.mark.parametrize("file", ["adapter_config.json", WEIGHTS])
async def test_a_directory_that_somebody_damaged_is_not_handed_out_until_it_is_whole(open_store, sources, file):
    """R4: the planner is never told of what is not."""
    adapter = write_adapter(sources / "a")
    staged = await open_store().ensure(pinned(adapter))
    (Path(staged.path) / file).unlink()
    restarted = open_store()
    assert restarted.lookup(pinned(adapter)) is None
    assert (await restarted.ensure(pinned(adapter))).path == staged.path
    assert digest_of(Path(staged.path)) == adapter.digest


async def test_a_changed_config_in_the_store_is_damage_and_no_bad_adapter(open_store, sources):
    """R4, R21."""
    adapter = write_adapter(sources / "a")
    staged = await open_store().ensure(pinned(adapter))
    path = Path(staged.path) / "adapter_config.json"
    path.chmod(0o644)
    path.write_bytes(b"{}")
    copy = await open_store().ensure(pinned(adapter))
    assert copy.path != staged.path
    assert digest_of(Path(copy.path)) == adapter.digest


async def test_what_is_forgotten_is_found_again(store, sources, monkeypatch):
    """R16 bounded: memory has a cap, and nothing depends on it."""
    monkeypatch.setattr("sidecar.artifacts.leases.MAX_REMEMBERED", 1)
    adapters = [write_adapter(sources / f"a{seed}", seed=seed) for seed in range(3)]
    staged = [await store.ensure(pinned(adapter)) for adapter in adapters]
    assert len(store._seen) == 1
    assert [store.lookup(pinned(adapter)) for adapter in adapters] == staged


async def test_leases_of_two_processes_for_one_replica_are_joined(open_store, sources, tmp_path):
    """R7, R10: a second process that takes itself for this replica removes none of its leases."""
    first, second = open_store(), open_store()
    ids = {
        (await store.ensure(pinned(write_adapter(sources / f"a{seed}", seed=seed)))).id
        for seed, store in enumerate([first, second, first])
    }
    assert read_leases(tmp_path / "store" / "leases" / "r1") == ids


async def test_a_lease_that_was_cut_off_does_not_swallow_the_next(open_store, sources, tmp_path):
    """R7, R12: a full disk may leave half a line; it was never relied upon, and what follows it is whole."""
    (tmp_path / "store" / "leases").mkdir(parents=True)
    (tmp_path / "store" / "leases" / "r1").write_text("0123456789abcdef")
    staged = await open_store().ensure(pinned(write_adapter(sources / "a")))
    assert read_leases(tmp_path / "store" / "leases" / "r1") == {staged.id}


def test_half_a_line_is_an_error_of_the_store(tmp_path, monkeypatch):
    """R7: what is not wholly written is not leased."""
    monkeypatch.setattr("sidecar.artifacts.files.os.write", lambda descriptor, content: len(content) - 1)
    leases = ArtifactLeases(tmp_path / "r1", lambda: ())
    with pytest.raises(OSError, match="No space"):
        leases.add("a" * 64)
    assert "a" * 64 not in leases


async def test_the_engine_can_read_whatever_our_umask_is(store, sources):
    """The engine may run as another user."""
    before = os.umask(0o077)
    try:
        staged = await store.ensure(pinned(write_adapter(sources / "a")))
    finally:
        os.umask(before)
    assert modes(Path(staged.path)) == {".": 0o750, "adapter_config.json": 0o444, WEIGHTS: 0o444}
