"""The store in order: what is removed when room is needed, what is swept, what is read again."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from threading import Event

import pytest

from registry.sources.errors import ArtifactError
from registry.sources.stop import Stop
from sidecar.artifacts import incoming, scrub
from sidecar.artifacts.files import locked
from sidecar.artifacts.steps import Step
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import Staged
from sidecar.artifacts.upkeep import Holdings
from tests.support.adapters import digest_of, write_adapter
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import pinned, unpinned
from tests.unit.artifacts.test_store import contents

WEIGHTS = "adapter_model.safetensors"
GRACE = 600.0


@pytest.fixture
def adapters(tmp_path) -> Path:
    return tmp_path / "store" / "adapters"


def age(store: LocalStore, staged: Staged, seconds: float = 2 * GRACE) -> None:
    """As if it was used so long ago."""
    at = time.time() - seconds
    os.utime(store._layout.lock(staged.id), (at, at))


def release(store: LocalStore, *staged: Staged) -> None:
    assert store.let_go({one.id for one in staged}) == {one.id for one in staged}
    store.upkeep.write_leases(Stop())


def size_of(staged: Staged) -> int:
    return sum(path.stat().st_size for path in Path(staged.path).iterdir())


async def stage(store: LocalStore, sources: Path, *seeds: int) -> list[Staged]:
    return [await store.ensure(pinned(write_adapter(sources / f"s{seed}", seed=seed))) for seed in seeds]


async def test_within_the_budget_nothing_is_removed(open_store, sources, adapters):
    store = open_store(budget_bytes=1 << 20)
    staged = await stage(store, sources, 1, 2)
    release(store, *staged)
    holdings = store.upkeep.round(Stop())
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
    assert store.upkeep.round(Stop()).artifacts == 2
    assert contents(adapters) == sorted(Path(one.path).name for one in (staged[0], staged[2]))
    assert not store._layout.report(staged[1].id).exists()
    assert store._layout.lock(staged[1].id).exists()  # somebody may wait for it


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
        store.upkeep.round(Stop())
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


async def test_reservations_end_with_their_stagings(open_store, sources):
    """R16: neither a failure nor a repetition takes room for ever."""
    store = open_store(budget_bytes=5000)
    for _ in range(20):
        with pytest.raises(ArtifactError):
            await store.ensure(unpinned(write_adapter(sources / "bad", rank=0)))
    assert store._room._reserved_bytes == 0
    await stage(store, sources, 1)
    assert store._room._reserved_bytes == 0


async def test_a_disk_that_others_fill_up_meanwhile_ends_the_download(open_store, sources, tmp_path, monkeypatch):
    """R16, fault 25: it is looked at before and during the download, and something is kept free."""
    free_bytes = iter([1 << 30, 1 << 30, 1 << 30])

    def statvfs(_path):
        free = next(free_bytes, 100)
        return os.statvfs_result((4096, 1, 1 << 30, free, free, 0, 0, 0, 0, 255))

    monkeypatch.setattr(incoming, "CHECK_BYTES", 1 << 20)
    monkeypatch.setattr("sidecar.artifacts.room.os.statvfs", statvfs)
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
        store.upkeep.round(Stop())
        assert contents(tmp) == ["alive.1"]
    store.upkeep.round(Stop())
    assert not contents(tmp)


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
    assert second.lookup(pinned(adapter)) == staged
    release(first, staged)
    second.take_over()
    assert not second.leased()
    assert second.lookup(pinned(adapter)) is None


async def test_what_is_being_staged_is_not_let_go(open_store, sources):
    """R7: a worker thread is about to hand it out, and a plan to load it."""
    reached, go_on = Event(), Event()

    def on_step(step: object) -> None:
        if step is Step.LOCKED:
            reached.set()
            go_on.wait()

    adapter, store = write_adapter(sources / "s"), open_store(on_step=on_step)
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
    now.upkeep.round(Stop())
    assert digest_of(Path(staged.path)) == staged.digest


async def test_a_lease_file_that_nobody_understands_leases_everything(open_store, sources, tmp_path):
    """R7, R12: until the engine is proven not to read it; then the file is whole again."""
    staged = await stage(open_store(), sources, 1, 2)
    file = tmp_path / "store" / "leases" / "r1"
    file.write_bytes(b"no id\n")
    store = open_store(budget_bytes=1)
    assert store.leased() == {one.id for one in staged}
    for one in staged:
        age(store, one)
    assert store.upkeep.round(Stop()).artifacts == 2
    assert file.read_text().split() == sorted(one.id for one in staged)


async def test_leases_that_cannot_be_written_are_written_later(store, sources, monkeypatch):
    """R7, fault 25: the file says at least what is leased."""
    first, second = await stage(store, sources, 1, 2)
    store.let_go({first.id})
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            store.upkeep.write_leases(Stop())
    assert len(store._lease_file.read_text().split()) == 2
    store.upkeep.write_leases(Stop())
    assert store._lease_file.read_text().split() == [second.id]


@pytest.fixture
def at_once(monkeypatch) -> None:
    """Everything is read again in every round."""
    monkeypatch.setattr(scrub, "PERIOD_SECONDS", -1.0)
    monkeypatch.setattr(scrub, "BYTES_PER_SECOND", 1 << 60)


def look_after(store: LocalStore) -> Holdings:
    store.upkeep.scrub(Stop())
    return store.upkeep.round(Stop())


def damage(staged: Staged) -> None:
    """Flips a bit of a number, which only a digest finds."""
    path = Path(staged.path) / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


@pytest.mark.usefixtures("at_once")
async def test_a_damaged_artifact_that_nobody_leases_is_fetched_again(store, sources, adapters):
    """R4 digest-true."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    damage(staged)
    release(store, staged)
    assert look_after(store).damaged == 0
    assert not contents(adapters)
    assert digest_of(Path((await store.ensure(pinned(adapter))).path)) == adapter.digest


@pytest.mark.usefixtures("at_once")
async def test_a_damaged_artifact_that_is_leased_is_told_and_not_touched(store, sources):
    """R4, R7: an engine may be reading it; no engine is given it anew."""
    adapter = write_adapter(sources / "s")
    staged = await store.ensure(pinned(adapter))
    damage(staged)
    before = (Path(staged.path) / WEIGHTS).read_bytes()
    for _ in range(3):
        assert look_after(store).damaged == 1
    assert (Path(staged.path) / WEIGHTS).read_bytes() == before
    assert store.lookup(pinned(adapter)) is None
    with pytest.raises(ArtifactError) as refused:
        await store.ensure(pinned(adapter))
    assert (refused.value.reason, refused.value.permanent) == ("artifact_damaged", False)
    release(store, staged)
    assert await store.ensure(pinned(adapter)) == staged
    assert digest_of(Path(staged.path)) == adapter.digest
    assert look_after(store).damaged == 0


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
    monkeypatch.setattr(scrub, "_read", lambda path, _stop: str(read.append(path)))
    look_after(store)
    assert not read
    long_ago = time.time() - scrub.PERIOD_SECONDS - 1
    os.utime(store._layout.report(staged.id), (long_ago, long_ago))
    store._scrub._next_at = 0.0
    look_after(store)
    assert read == [Path(staged.path)]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_torn_directory_makes_room_for_a_new_copy_unless_another_engine_reads_it(
    open_store, sources, is_shared
):
    """R4, R7: the lease is new, so our own engine does not read it."""
    adapter = write_adapter(sources / "s")
    staged = await open_store("r2").ensure(pinned(adapter))
    if not is_shared:
        release(open_store("r2"), staged)
    (Path(staged.path) / WEIGHTS).unlink()
    store = open_store("r1")
    if is_shared:
        with pytest.raises(ArtifactError):
            await store.ensure(pinned(adapter))
    else:
        assert await store.ensure(pinned(adapter)) == staged
        assert digest_of(Path(staged.path)) == adapter.digest
