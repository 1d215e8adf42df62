"""Watcher of a pool's adapters, reflection by reflection: its states, and what it puts in force at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from registry.etcd3.ops import Event, KeyValue, Range, RangeResult
from registry.etcd3.reflector import Changed, Connected, Disconnected, ListCause, Listed, Progressed, Reflection
from registry.model.records import Meta
from registry.runtime.clock import Clock
from sidecar.desired import members
from sidecar.desired import watcher as module
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.desired.watcher import Booting, Following, Holding, Relisting, Watcher
from tests.support.records import KEYS, POOL, deletion, kv, put
from tests.support.residency_world import presence
from tests.support.waiting import eventually
from tests.support.worlds import pool

MANY = [kv(f"n{number}", 1) for number in range(40)]


class Client:
    """Knows the epoch of the store, and nothing else."""

    def __init__(self) -> None:
        self.epoch = "first"
        self.reads: list[bytes] = []

    async def range(self, op: Range) -> RangeResult:
        self.reads.append(op.key)
        found = KeyValue(op.key, Meta(epoch=self.epoch, created_at="").to_bytes(), 1, 1, 1)
        return RangeResult(1, (found,), more=False, count=1)


class Kept(Mailbox):
    """Keeps every snapshot that is posted."""

    def __init__(self) -> None:
        super().__init__()
        self.posted: list[Snapshot] = []

    def post(self, snapshot: Snapshot) -> None:
        super().post(snapshot)
        self.posted.append(snapshot)


class Scene:
    """A watcher that is told one reflection after another."""

    def __init__(self, folder: Path) -> None:
        self.client, self.mailbox, self.journal = Client(), Kept(), Journal(folder)
        self.watcher = Watcher(self.client, KEYS, POOL, "r1", self.mailbox, self.journal, Clock())  # type: ignore[arg-type]

    async def listed(self, revision: int, *kvs: KeyValue, cluster_id: int = 7) -> None:
        await self.watcher._take(Listed(revision, kvs, cluster_id, ListCause.FIRST, 1))

    async def pool(self, **terms: int) -> None:
        """The pool's record changes."""
        record = pool().model_copy(update=terms)
        self.watcher._pool_watcher._note(KeyValue(KEYS.pool(POOL), record.to_bytes(), 1, 1, 1), is_doubtful=False)
        await self.watcher._judge_again()

    @property
    def state(self) -> object:
        return self.watcher._state


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "state")
    yield scene
    scene.journal.close()


async def test_a_change_is_followed_without_another_read_of_etcd(scene):
    """R3 converge: an etcd that is slow after a fault holds up no deletion. Whose one was, no watch says."""
    await scene.listed(4, kv("a", 3), kv("b", 4))
    scene.client.reads.clear()
    told = []
    for revision, events in enumerate([(put("c", 5),), (deletion("a", 6),), (deletion("b", 7), put("d", 7))], 5):
        await scene.watcher._take(Changed(revision, events))
        told.append((scene.mailbox.snapshot.desired.revision, scene.mailbox.snapshot.last_request_id))
    assert told == [(5, "req-c-1"), (6, ""), (7, "req-d-1")]
    assert scene.client.reads == []


async def test_the_first_list_is_followed(scene):
    assert scene.state == Booting()
    assert scene.watcher._begin() is None
    await scene.listed(9, *MANY)
    assert scene.state == Following()
    assert scene.watcher._begin().revision == 9


async def test_a_watch_goes_on_from_the_progress_that_etcd_told(scene):
    """R2 replay-equal, R3: from the last change of this pool it might be compacted, and all would be listed anew."""
    await scene.listed(9, *MANY)
    await scene.watcher._take(Progressed(12))
    assert scene.watcher._begin().revision == 12
    assert scene.watcher._informer.state.revision == 12


async def test_each_list_is_counted(scene):
    """An alert tells of an etcd that has to be listed again and again."""
    before = module.RELISTS._value.get()
    await scene.listed(9, *MANY)
    await scene.listed(10, *MANY)
    assert module.RELISTS._value.get() == before + 2


async def test_what_changes_in_a_list_that_is_held_writes_no_base(scene, monkeypatch):
    """R16 bounded, R15: the doubt is on disk already, and what is in force does not change."""
    await scene.listed(50, *MANY)
    written: list[object] = []
    rewrite = scene.journal.rewrite

    async def noting(base: object) -> None:
        written.append(base)
        await rewrite(base)

    monkeypatch.setattr(scene.journal, "rewrite", noting)
    await scene.listed(60)
    assert len(written) == 1
    await scene.watcher._take(Changed(61, (put("late", 61),)))
    await scene.watcher._take(Progressed(62))
    assert isinstance(scene.state, Holding)
    assert len(written) == 1


async def test_what_is_held_comes_in_force_at_once_with_the_record_that_vouches_for_it(scene):
    """R15 brake, R2: nobody ever sees the new pool with the old adapters, or no reason to hold them with either."""
    await scene.listed(50, *MANY)
    await scene.pool()
    await scene.listed(60)
    assert isinstance(scene.state, Holding)
    assert scene.mailbox.snapshot.held
    await scene.watcher._take(Changed(61, (put("late", 61),)))
    await scene.watcher._take(Progressed(62))
    assert (scene.mailbox.snapshot.desired.revision, scene.mailbox.snapshot.desired.count) == (50, 40)
    scene.mailbox.posted.clear()
    await scene.pool(removals_confirmed_revision=60)
    assert scene.state == Following()
    (posted,) = scene.mailbox.posted
    assert (posted.held, posted.desired.revision, posted.desired.count) == ("", 62, 1)
    assert posted.pool.removals_confirmed_revision == 60


async def test_a_watch_that_ends_while_a_list_is_held_begins_with_a_list(scene):
    """R15 brake: what is held is not resumed, nor what was followed before it."""
    await scene.listed(50, *MANY)
    await scene.listed(60)
    assert scene.watcher._begin() is None
    assert scene.state == Relisting(is_begun=True)
    assert scene.mailbox.snapshot.held
    await scene.listed(61, *MANY)
    assert (scene.state, scene.mailbox.snapshot.held) == (Following(), "")


async def test_another_store_behind_the_same_address_is_listed_before_it_is_followed(scene):
    """R15 brake."""
    await scene.listed(50, *MANY)
    before = scene.mailbox.snapshot
    scene.client.epoch = "second"
    await scene.watcher._take(Connected("etcd-1"))
    assert scene.state == Relisting(is_begun=False)
    assert scene.mailbox.snapshot is before
    assert scene.watcher._begin() is None
    await scene.listed(70)
    assert isinstance(scene.state, Holding)
    assert scene.mailbox.snapshot.desired is before.desired


async def test_who_left_while_only_the_watch_on_adapters_was_down_is_gone_once_it_stands(scene, monkeypatch):
    """R3: nothing comes of replicas any more that would make anybody look again."""
    told: asyncio.Queue[Reflection] = asyncio.Queue()

    class Played:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        async def stream(self) -> AsyncGenerator[Reflection, None]:
            while True:
                yield await told.get()
                told.task_done()

    monkeypatch.setattr(members, "Reflector", Played)
    monkeypatch.setattr(members, "BELIEVE_SECONDS", 0.0)
    watcher = scene.watcher._members_watcher
    running = asyncio.create_task(watcher.run())
    await scene.listed(50, *MANY)
    await scene.watcher._take(Connected("etcd-1"))
    watcher.want(wanted=True)
    ours, others = (KeyValue(KEYS.replica(POOL, one), presence(one).to_bytes(), 1, 1, 1) for one in ("r1", "r2"))
    told.put_nowait(Listed(50, (ours, others), 7, ListCause.FIRST, 1))
    await eventually(lambda: set(scene.mailbox.snapshot.members or ()) == {"r1", "r2"})
    await scene.watcher._take(Disconnected("it is away", denied=False))
    told.put_nowait(Changed(51, (Event(others.key, 51, None),)))
    told.put_nowait(Progressed(52))
    await told.join()
    assert set(scene.mailbox.snapshot.members or ()) == {"r1", "r2"}, "whether this store may be followed is in doubt"
    await scene.watcher._take(Connected("etcd-1"))
    await eventually(lambda: set(scene.mailbox.snapshot.members or ()) == {"r1"})
    running.cancel()
    await asyncio.wait([running])


async def test_a_restart_while_a_list_is_held_lists_anew(scene, tmp_path):
    """R15 brake, R12: the doubt is on disk before anybody can rely on it."""
    await scene.listed(50, *MANY)
    await scene.listed(60)
    scene.journal.close()
    again = Scene(tmp_path / "state")
    again.watcher.restore()
    again.journal.close()
    assert again.state == Relisting(is_begun=False)
    assert again.watcher._begin() is None


async def test_what_refuses_progress_is_named_until_progress_comes(scene):
    """R2 replay-equal: it may lose events, whether or not the watch stands at the moment."""
    await scene.listed(50, *MANY)
    await scene.watcher._take(Disconnected("behind a proxy", refuses_progress=True))
    await scene.watcher._take(Disconnected("it is away"))
    await scene.watcher._take(Connected("proxy"))
    assert scene.mailbox.snapshot.proxied == "behind a proxy"
    await scene.watcher._take(Progressed(50))
    assert scene.mailbox.snapshot.proxied == ""
