"""What a watcher takes up from the snapshot of an earlier process, and when it acts upon it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from registry.etcd3.stream import Connected, Progressed, Resume
from registry.model.records import PoolSpec
from sidecar.desired import watcher as module
from sidecar.desired.journal import Journal
from sidecar.desired.last_good import GoodRecord
from sidecar.desired.packing import RawRecord
from sidecar.desired.pool_cache import Booting, Following, Relisting
from sidecar.desired.snapshot import AdaptersChanged, MembersChanged, PoolChanged, SnapshotBase
from sidecar.desired.watcher import BOOT_WAIT_SECONDS, CATCH_UP_SECONDS
from tests.simulation.loop import VirtualLoop
from tests.support.records import POOL, kv, put, record
from tests.support.waiting import eventually
from tests.support.worlds import fleet, pool
from tests.unit.desired.test_watcher import Played, Scene, end, taken_up

RECORDS = {name: RawRecord(record(name).to_bytes(), 5) for name in ("a", "b")}
TRIO = fleet("r1", "r2", "r3")


def pool_of(revision: int) -> bytes:
    return pool().model_copy(update={"removals_confirmed_revision": revision}).to_bytes()


def written(folder: Path, *entries: AdaptersChanged | PoolChanged | MembersChanged, **base: Any) -> None:
    """What an earlier process left."""

    async def write() -> None:
        journal = Journal(folder)
        fields = {"pool_record": pool_of(1), "records": RECORDS, "members": TRIO, "epoch": "first"} | base
        await journal.rewrite(SnapshotBase(POOL, 7, 9, **fields))
        for entry in entries:
            journal.append(entry)
        journal.close()

    asyncio.run(write())


def booted(folder: Path) -> Scene:
    scene = Scene(folder)
    scene.cache.restore()
    return scene


def test_all_that_was_followed_is_taken_up_and_nothing_of_adapters_is_acted_upon_yet(tmp_path):
    """R1, R13: adapters, the pool's record and the live replicas, with what changed after the base."""
    written(
        tmp_path,
        AdaptersChanged(10, (put("c", 10),)),
        PoolChanged(pool_of(2)),
        MembersChanged(tuple(fleet("r2", zone="x").values()), ("r3",)),
    )
    scene = taken_up(tmp_path)
    snapshot, informer = scene.mailbox.snapshot, scene.watcher._informer
    assert (snapshot.desired, informer.state.revision) == (None, 10)
    assert set(informer.state.adapters) == set(informer.raw) == {"a", "b", "c"}
    assert snapshot.members == fleet("r1") | fleet("r2", zone="x") == scene.cache.members
    assert isinstance(snapshot.pool, PoolSpec)
    assert snapshot.pool.removals_confirmed_revision == 2
    assert scene.state == Following()
    assert scene.watcher._begin() == Resume(10, 7)


@pytest.mark.parametrize("record", [None, pool_of(1)], ids=["from before there was a pool", "with a pool"])
def test_a_base_alone_is_enough(tmp_path, record):
    """R13, R5: whether there is a pool is known only where it says so, else all would be compared with no base."""
    written(tmp_path, pool_record=record)
    scene = taken_up(tmp_path)
    assert scene.mailbox.snapshot.members == TRIO
    assert (scene.mailbox.snapshot.pool is None, scene.mailbox.snapshot.pool_read) == (not record, bool(record))
    assert scene.watcher._informer.state.count == 2


@pytest.mark.parametrize(("left", "state"), [({"is_doubted": True}, Relisting(is_begun=False)), (None, Booting())])
def test_without_a_snapshot_that_may_be_followed_there_is_a_list_first(tmp_path, left, state):
    """R15 brake."""
    if left is not None:
        written(tmp_path, **left)
    scene = taken_up(tmp_path)
    assert scene.state == state
    assert scene.watcher._begin() is None


async def test_without_a_snapshot_nothing_is_acted_upon_nor_written_before_the_first_list(tmp_path, monkeypatch):
    """R5, R15: nothing is known, which is not that nothing is wanted; a base of it would be one of an empty pool."""
    scene = booted(tmp_path / "state")
    await scene.watcher._act_upon_snapshot()
    running = following(scene, monkeypatch)
    for _ in range(10):
        await asyncio.sleep(0)
    assert scene.mailbox.snapshot.desired is None
    assert not (tmp_path / "state").exists()
    await end(running)


def played(script: Callable[[Scene], Coroutine[Any, Any, None]], folder: Path) -> None:
    """A boot on virtual time: what is posted from its beginning on is kept."""
    with closing(VirtualLoop()) as loop:
        scene = booted(folder)
        scene.mailbox.posted.clear()
        loop.run_until_complete(script(scene))
        scene.journal.close()


def test_without_etcd_the_snapshot_is_acted_upon_after_a_moment(tmp_path):
    """R13 static-stable, and R1: not before etcd had the time to say what is newer."""

    async def script(scene: Scene) -> None:
        boot = asyncio.create_task(scene.watcher._act_upon_snapshot())
        await asyncio.sleep(BOOT_WAIT_SECONDS - 0.01)
        assert not scene.mailbox.posted
        await boot
        assert asyncio.get_running_loop().time() <= BOOT_WAIT_SECONDS + 0.01
        (posted,) = scene.mailbox.posted
        assert posted.actionable is not None
        assert (posted.actionable.count, posted.members) == (2, TRIO)

    written(tmp_path)
    played(script, tmp_path)


def test_once_connected_what_changed_since_has_the_time_to_come(tmp_path):
    """R1: what was deleted meanwhile is not loaded for a moment."""

    async def script(scene: Scene) -> None:
        boot = asyncio.create_task(scene.watcher._act_upon_snapshot())
        await asyncio.sleep(BOOT_WAIT_SECONDS / 2)
        await scene.take(Connected("etcd-1"))
        assert all(one.desired is None for one in scene.mailbox.posted)
        await asyncio.sleep(CATCH_UP_SECONDS - 0.01)
        assert all(one.desired is None for one in scene.mailbox.posted)
        await boot
        assert asyncio.get_running_loop().time() < BOOT_WAIT_SECONDS
        assert scene.mailbox.snapshot.desired.count == 2

    written(tmp_path)
    played(script, tmp_path)


async def is_told_of_a_boot(scene: Scene) -> None:
    scene.watcher._heard.set()
    await scene.watcher._act_upon_snapshot()


async def is_told_what_is_served(scene: Scene) -> None:
    scene.cache.note_served([("a", 1)])


@pytest.mark.parametrize("news", [is_told_of_a_boot, is_told_what_is_served])
@pytest.mark.parametrize("acts", [True, False], ids=["it acted before", "it does not act yet"])
def test_nothing_of_a_list_is_acted_upon_before_it_is_on_disk(tmp_path, monkeypatch, news, acts):
    """R2, R12: a slow disk; a kill amid the write leaves what was followed before, and no claim to know more."""

    async def script(scene: Scene) -> None:
        if acts:
            await scene.watcher._act_upon_snapshot()
        scene.mailbox.posted.clear()
        write = asyncio.Event()

        async def slow(work: Callable[..., object], *arguments: object) -> object:
            if work == scene.journal._write_base:
                await write.wait()
            return work(*arguments)

        monkeypatch.setattr(asyncio, "to_thread", slow)
        listing = asyncio.create_task(scene.listed(20, kv("a", 18, generation=2)))
        await asyncio.sleep(1.0)
        await news(scene)
        assert all(one.desired is None or one.desired.revision < 20 for one in scene.mailbox.posted)
        killed = taken_up(tmp_path)
        assert (killed.watcher._informer.state.revision, killed.watcher._informer.state.count) == (9, 2)
        write.set()
        await listing
        assert (scene.mailbox.snapshot.desired.revision, scene.mailbox.snapshot.desired.count) == (20, 1)

    written(tmp_path)
    played(script, tmp_path)


async def hears_of_progress(scene: Scene) -> None:
    boot = asyncio.create_task(scene.watcher._act_upon_snapshot())
    await scene.take(Connected("etcd-1"))
    await scene.take(Progressed(20))
    await boot


async def serves_after_progress(scene: Scene) -> None:
    await hears_of_progress(scene)
    await scene.watcher._take_events(31, (put("a", 31, generation=2),))
    await scene.take(Progressed(40))
    scene.cache.note_served([("a", 2)])


async def adopts_after_progress(scene: Scene) -> None:
    await hears_of_progress(scene)
    await scene.watcher._take_events(31, (put("a", 31, generation=2),))
    await scene.take(Progressed(50))
    scene.cache.adopt("a", GoodRecord(kv("a", 1).value, 1, 1))


@pytest.mark.parametrize("script", [hears_of_progress, serves_after_progress, adopts_after_progress])
def test_a_restart_goes_on_from_the_revision_that_was_acted_upon(tmp_path, script):
    """R1 monotonic: also from one up to which etcd merely said that nothing changed, when there is no etcd any more."""
    written(tmp_path)
    acted_upon: list[int] = []

    async def note(scene: Scene) -> None:
        await script(scene)
        assert scene.mailbox.snapshot.desired is not None
        acted_upon.append(scene.mailbox.snapshot.desired.revision)

    played(note, tmp_path)
    again = taken_up(tmp_path)
    assert [again.watcher._informer.state.revision] == acted_upon


def following(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[None]:
    """A watch of which nothing comes."""
    monkeypatch.setattr(module, "Reflector", lambda *_, **__: Played())
    return asyncio.create_task(scene.watcher._follow_adapters())


async def test_what_is_left_of_a_damaged_snapshot_is_written_whole_before_anything_is_followed(tmp_path, monkeypatch):
    """R12, R2: else nothing would be on disk until the next change, and what came then not behind the damage."""
    await asyncio.to_thread(written, tmp_path)
    (tmp_path / "journal-1").write_bytes(b"half")
    scene = booted(tmp_path)
    assert scene.journal.wants_base
    running = following(scene, monkeypatch)
    await eventually(lambda: not scene.journal.wants_base)
    await eventually(lambda: not (tmp_path / "snapshot-1").exists())
    await end(running)
    scene.journal.close()
    restored = Journal(tmp_path).restore(POOL)
    assert restored is not None
    assert (restored.base.revision, dict(restored.base.members), restored.entries) == (9, TRIO, ())
    assert {name: one.value for name, one in restored.base.records.items()} == {
        name: one.value for name, one in RECORDS.items()
    }


async def test_the_first_list_is_acted_upon_at_once_and_a_later_one_once_it_is_on_disk(tmp_path):
    """R13, R1: nobody waited for the disk; a kill in between must not bring back what was followed before it."""
    scene, order = booted(tmp_path), list[str]()
    rewrite, post = scene.journal.rewrite, scene.watcher._post

    async def noting_rewrite(base: SnapshotBase, **how: bool) -> None:
        await rewrite(base, **how)
        order.append("on disk")

    def noting_post(snapshot: Any) -> None:
        post(snapshot)
        order.append("in force")

    scene.journal.rewrite, scene.watcher._post = noting_rewrite, noting_post  # type: ignore[method-assign]
    await scene.listed(9, kv("a", 3), kv("b", 4))
    again = taken_up(tmp_path)
    state = again.watcher._informer.state
    assert (again.state, state.revision, state.count) == (Following(), 9, 2)
    await scene.listed(10, kv("a", 3), kv("b", 10))
    assert order == ["in force", "on disk", "on disk", "in force"]
    scene.journal.close()


async def test_a_store_whose_epoch_comes_later_is_known_by_it_from_then_on(tmp_path):
    """R15 brake: another store behind the same address is noticed by what the first one came to say of itself."""
    scene = booted(tmp_path)
    scene.client.epoch = ""
    await scene.listed(9, kv("a", 3))
    scene.client.epoch = "first"
    await scene.take(Connected("etcd-1"))
    assert (scene.state, scene.mailbox.snapshot.connected) == (Following(), True)
    scene.client.epoch = "second"
    await scene.take(Connected("etcd-1"))
    assert scene.state == Relisting(is_begun=False)
    scene.journal.close()
