"""Watcher of a pool's adapters, reflection by reflection: its states, and what it puts in force at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from unittest import mock

import pytest
from structlog.testing import capture_logs

from registry.etcd3.errors import EtcdPermissionDenied
from registry.etcd3.ops import Event, KeyValue, Range, RangeResult
from registry.etcd3.stream import Changed, Connected, Disconnected, ListCause, Listed, Progressed, Reflection
from registry.model.keys import last_part
from registry.model.placement import Member
from registry.model.records import Meta
from registry.runtime.clock import Clock
from sidecar.desired import members
from sidecar.desired import watcher as module
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.desired.pool_cache import Booting, Following, Holding, PoolCache, Relisting
from sidecar.desired.snapshot import SnapshotBase
from sidecar.desired.watcher import Watcher, request_of
from tests.support.records import KEYS, POOL, deletion, kv, put
from tests.support.residency_world import LEASE, presence, replica_status
from tests.support.waiting import eventually
from tests.support.worlds import pool

MANY = [kv(f"n{number}", 1) for number in range(40)]


class Client:
    """Knows the epoch of the store, that all replicas report, and nothing else."""

    def __init__(self) -> None:
        self.epoch = "first"
        self.reads: list[bytes] = []

    async def range(self, op: Range) -> RangeResult:
        self.reads.append(op.key)
        if op.key.startswith(KEYS.statuses(POOL)):
            told = KeyValue(op.key, replica_status(last_part(op.key), 1).to_bytes(), 1, 1, 1, LEASE)
            return RangeResult(1, (told,), more=False, count=1)
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
        self.cache = PoolCache(KEYS, POOL, self.mailbox, self.journal)
        self.watcher = Watcher(self.client, KEYS, "r1", self.cache, Clock(random.Random(0)))  # type: ignore[arg-type]

    async def listed(self, revision: int, *kvs: KeyValue, cluster_id: int = 7) -> None:
        await self.take(Listed(revision, kvs, cluster_id, ListCause.FIRST, 1))

    async def take(self, *reflections: Reflection) -> None:
        for one in reflections:
            await self.watcher._take(one)

    def note_bases(self) -> list[int]:
        """The revisions of the bases that are written from now on."""
        written, rewrite = list[int](), self.journal.rewrite

        async def noting(base: SnapshotBase, **how: bool) -> None:
            written.append(base.revision)
            await rewrite(base, **how)

        self.journal.rewrite = noting  # type: ignore[method-assign]
        return written

    async def pool(self, **terms: int) -> None:
        """The pool's record changes."""
        record = pool().model_copy(update=terms)
        self.watcher._pool_watcher._note(KeyValue(KEYS.pool(POOL), record.to_bytes(), 1, 1, 1), is_doubtful=False)
        await self.watcher._judge_again()

    @property
    def state(self) -> object:
        return self.cache.state


def taken_up(folder: Path) -> Scene:
    """What a boot finds there; it goes on with nothing."""
    scene = Scene(folder)
    scene.cache.restore()
    scene.journal.close()
    return scene


class Played:
    """A watch that says what it is told."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[Reflection] = asyncio.Queue()
        self.watches = 0

    async def stream(self) -> AsyncGenerator[Reflection, None]:
        self.watches += 1
        while True:
            yield await self.says.get()
            self.says.task_done()

    async def hear(self, *reflections: Reflection) -> None:
        for one in reflections:
            self.says.put_nowait(one)
        await self.says.join()


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "state")
    yield scene
    scene.journal.close()


async def test_the_first_list_and_each_change_are_followed_without_another_read_of_etcd(scene):
    """R3 converge: an etcd that is slow after a fault holds up no deletion. Whose one was, no watch says."""
    assert (scene.state, scene.watcher._begin()) == (Booting(), None)
    await scene.listed(4, kv("a", 3), kv("b", 4))
    assert (scene.state, scene.watcher._begin().revision) == (Following(), 4)
    scene.client.reads.clear()
    told = []
    for revision, events in enumerate([(put("c", 5),), (deletion("a", 6),), (deletion("b", 7), put("d", 7))], 5):
        await scene.take(Changed(revision, events))
        told.append((scene.mailbox.snapshot.desired.revision, scene.mailbox.snapshot.last_request_id))
    assert told == [(5, "req-c-1"), (6, ""), (7, "req-d-1")]
    assert scene.client.reads == []


async def test_what_somebody_wrote_further_down_is_no_record_of_another_adapter(scene):
    """R14 nack, R3: as a name with its slash, whose end may be another's; to take it away again unloads nothing."""
    nested = KEYS.adapters(POOL) + b"acme/a"
    await scene.listed(4, KeyValue(nested, b"?", 1, 3, 1), kv("a", 2), KeyValue(nested + b"/a", b"?", 1, 4, 1))
    before = scene.mailbox.snapshot.desired
    assert ([*before.adapters], [*before.refused]) == (["a"], [])
    await scene.take(
        Changed(5, (Event(nested, 5, KeyValue(nested, b"?", 1, 5, 2)),)), Changed(6, (Event(nested, 6, None),))
    )
    assert (scene.mailbox.snapshot.desired, scene.watcher._begin().revision) == (before, 6)
    await scene.take(Changed(7, (Event(nested, 7, None), put("b", 7))))
    assert {*scene.mailbox.snapshot.desired.adapters} == {"a", "b"}


async def test_how_far_the_watch_has_come_is_told_and_it_goes_on_from_there(scene):
    """R2, R3: from the last change of this pool it might be compacted. An alert compares it, and counts lists."""
    lists, losses, told = module.RELISTS._value.get(), module.ETCD_RECONNECTS._value.get(), []
    reflections = Listed(9, (kv("a", 3),), 7, ListCause.FIRST, 1), Changed(11, (put("b", 11),)), Progressed(15)
    for reflection in reflections:
        await scene.take(reflection)
        told.append(module.OBSERVED_REVISION._value.get())
    assert told == [9, 11, 15]
    assert scene.watcher._begin().revision == scene.watcher._informer.state.revision == 15
    await scene.listed(16)
    await scene.take(Disconnected("it is away"), Disconnected("it is away"))
    counted = module.RELISTS._value.get() - lists, module.ETCD_RECONNECTS._value.get() - losses
    assert counted == (2, 2)


async def test_a_held_list_comes_in_force_at_once_with_the_record_that_vouches_for_it(scene):
    """R15 brake, R2, R16: it is told, logged and written once, and nobody ever sees half of it."""
    with capture_logs() as logs:
        await scene.listed(50, *MANY)
        await scene.pool()
        bases = scene.note_bases()
        await scene.listed(60)
        assert isinstance(scene.state, Holding)
        assert "lacks 40 of 40" in (first := scene.mailbox.snapshot.held)
        scene.mailbox.posted.clear()
        await scene.take(Progressed(61), Changed(62, (put("late", 62),)))
        assert (scene.mailbox.posted, scene.mailbox.snapshot.held, len(bases)) == ([], first, 1)
        await scene.take(Changed(63, (put("n1", 63),)))
        assert "lacks 39 of 40" in scene.mailbox.snapshot.held
        assert (scene.mailbox.snapshot.desired.revision, scene.mailbox.snapshot.desired.count) == (50, 40)
        scene.mailbox.posted.clear()
        await scene.pool(removals_confirmed_revision=60)
        await scene.listed(70, kv("a", 65))
    posted = scene.mailbox.posted[0]
    assert (posted.held, posted.desired.revision, posted.desired.count) == ("", 63, 2)
    assert posted.pool.removals_confirmed_revision == 60
    assert (scene.state, len(scene.mailbox.posted)) == (Following(), 2)
    told = [(one["event"], one["revision"], one.get("cause", one.get("reason"))) for one in logs if "revision" in one]
    assert told == [
        ("listed", 50, "FIRST"),
        ("list_held", 60, "mass_removal"),
        ("listed", 63, "HELD"),
        ("removals_confirmed", 63, None),
        ("listed", 70, "FIRST"),
    ]


async def test_of_lazy_adapters_a_list_may_lack_as_many_as_of_others(scene):
    """R15 brake: its share is of all records, whatever is loaded of them."""
    lazy = [kv(f"n{number}", 1, load="lazy") for number in range(40)]
    for revision, count in ((50, 40), (60, 28)):
        await scene.listed(revision, *lazy[:count])
        assert (scene.state, scene.mailbox.snapshot.desired.count) == (Following(), count)
    await scene.listed(70, *lazy[:17])
    assert "lacks 11 of 28" in scene.mailbox.snapshot.held


async def test_a_watch_or_a_process_that_ends_while_a_list_is_held_begins_with_a_list(scene, tmp_path):
    """R15 brake, R12: what is held is not resumed, nor what was followed before it. The doubt is on disk at once."""
    await scene.listed(50, *MANY)
    await scene.listed(60)
    scene.journal.close()
    again = taken_up(tmp_path / "state")
    assert (again.state, again.watcher._begin()) == (Relisting(is_begun=False), None)
    assert scene.watcher._begin() is None
    assert scene.state == Relisting(is_begun=True)
    assert scene.mailbox.snapshot.held
    await scene.listed(61, *MANY)
    assert (scene.state, scene.mailbox.snapshot.held) == (Following(), "")


async def test_another_store_behind_the_same_address_is_listed_before_it_is_followed(scene, monkeypatch):
    """R15 brake, R3: at once, although nothing more comes of it."""
    played = Played()
    monkeypatch.setattr(module, "Reflector", lambda *_, **__: played)
    await scene.listed(50, *MANY)
    await scene.take(Disconnected("it is away"))
    before = scene.mailbox.snapshot
    scene.client.epoch = "second"
    played.says.put_nowait(Connected("etcd-1"))
    async with asyncio.timeout(60):
        await scene.watcher._follow_one_store()
    assert scene.state == Relisting(is_begun=False)
    assert scene.mailbox.snapshot is before
    assert scene.watcher._begin() is None
    await scene.listed(70)
    assert isinstance(scene.state, Holding)
    assert scene.mailbox.snapshot.desired is before.desired


async def test_what_comes_while_a_list_that_was_held_is_written_comes_in_force_after_it(scene, monkeypatch):
    """R1 monotonic: a kill meanwhile would bring back what was followed before the list."""
    played, is_writing, may_go_on = Played(), asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(module, "Reflector", lambda *_, **__: played)
    following = asyncio.create_task(scene.watcher._follow_one_store())
    await played.hear(*(Listed(at, tuple(kvs), 7, ListCause.FIRST, 1) for at, kvs in ((50, MANY), (60, []))))
    assert isinstance(scene.state, Holding)
    rewrite = scene.journal.rewrite

    async def held(base: SnapshotBase, **how: bool) -> None:
        is_writing.set()
        await may_go_on.wait()
        await rewrite(base, **how)

    monkeypatch.setattr(scene.journal, "rewrite", held)
    vouched = asyncio.create_task(scene.pool(removals_confirmed_revision=60))
    await is_writing.wait()
    played.says.put_nowait(Changed(61, (put("late", 61),)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert scene.mailbox.snapshot.desired.revision == 50
    may_go_on.set()
    await eventually(lambda: scene.mailbox.snapshot.desired.revision == 61)
    await end(following, vouched)


async def test_a_list_that_could_not_be_written_is_listed_anew(scene, monkeypatch):
    """R3 converge, R1: it is neither followed nor in force before it is on disk."""
    await scene.listed(50, *MANY)
    with monkeypatch.context() as patched:
        patched.setattr(scene.journal, "rewrite", mock.AsyncMock(side_effect=RuntimeError))
        with pytest.raises(RuntimeError):
            await scene.listed(51, *MANY, kv("late", 51))
    assert scene.mailbox.snapshot.desired.revision == 50
    assert scene.watcher._begin() is None
    await scene.listed(52, *MANY, kv("late", 51))
    assert scene.mailbox.snapshot.desired.revision == scene.watcher._begin().revision == 52


async def test_who_left_while_only_the_watch_on_adapters_was_down_is_gone_once_it_stands(scene, monkeypatch):
    """R3: nothing comes of replicas any more that would make anybody look again."""
    played = Played()
    monkeypatch.setattr(members, "Reflector", lambda *_, **__: played)
    monkeypatch.setattr(members, "BELIEVE_SECONDS", 0.0)
    watcher = scene.watcher._members_watcher
    running = asyncio.create_task(watcher.run())
    await scene.listed(50, *MANY)
    await scene.take(Connected("etcd-1"))
    watcher.want(wanted=True)
    ours, others = (KeyValue(KEYS.replica(POOL, one), presence(one).to_bytes(), 1, 1, 1, LEASE) for one in ("r1", "r2"))
    await played.hear(Listed(50, (ours, others), 7, ListCause.FIRST, 1))
    await eventually(lambda: set(scene.mailbox.snapshot.members or ()) == {"r1", "r2"})
    await scene.take(Disconnected("it is away", denied=False))
    await played.hear(Changed(51, (Event(others.key, 51, None),)), Progressed(52))
    await eventually(lambda: set(watcher._roll._listed) == {"r1"} and not watcher._news.is_set())
    assert set(scene.mailbox.snapshot.members or ()) == {"r1", "r2"}, "whether this store may be followed is in doubt"
    await scene.take(Connected("etcd-1"))
    await eventually(lambda: set(scene.mailbox.snapshot.members or ()) == {"r1"})
    await end(running)


async def test_a_connection_and_its_loss_are_told_once_and_what_refuses_progress_until_it_comes(scene):
    """R16, R9, R2: who reads the snapshot is woken by news alone. A list is an answer, too."""
    await scene.listed(9, kv("a", 3))
    assert scene.mailbox.snapshot.connected
    scene.mailbox.posted.clear()
    await scene.take(Connected("etcd-1"), Connected("etcd-2"), Progressed(10), Progressed(11))
    assert scene.mailbox.posted == []
    await scene.take(Disconnected("it is away"), Disconnected("it is away"))
    assert [one.connected for one in scene.mailbox.posted] == [False]
    refusal = Disconnected("behind a proxy", refuses_progress=True)
    await scene.take(refusal, Disconnected("it is away"), Connected("proxy"))
    assert scene.mailbox.snapshot.proxied == "behind a proxy"
    await scene.take(Progressed(50))
    assert scene.mailbox.snapshot.proxied == ""


async def test_an_epoch_that_may_not_be_read_any_more_is_still_the_one_that_it_was(scene):
    """R15 brake: a right that was taken away is no sign of another store, and hides none later."""
    await scene.listed(50, *MANY)
    with mock.patch.object(scene.client, "range", mock.AsyncMock(side_effect=EtcdPermissionDenied("no"))):
        await scene.listed(60, *MANY[:39])
        await scene.take(Connected("etcd-1"))
    assert (scene.state, scene.cache.store.epoch) == (Following(), "first")


async def test_a_connection_while_a_list_is_held_lets_go_of_nothing(scene):
    """R15 brake: the next list is held against the store that was followed, whichever is there by now."""
    await scene.listed(50, *MANY)
    await scene.listed(60)
    await scene.take(Disconnected("it is away"))
    scene.client.epoch = "second"
    await scene.take(Connected("etcd-1"))
    assert isinstance(scene.state, Holding)
    assert (scene.mailbox.snapshot.connected, scene.cache.store.epoch) == (True, "first")


async def test_changes_are_written_to_the_journal_until_it_has_outgrown_its_base(scene, monkeypatch):
    """R16 bounded: what a change costs does not grow with the pool, and the journal not without end."""
    await scene.listed(50, *MANY)
    bases = scene.note_bases()
    await scene.take(*(Changed(revision, (put("n1", revision),)) for revision in range(51, 61)))
    assert bases == []
    monkeypatch.setattr("sidecar.desired.journal.MIN_JOURNAL_BYTES", 10)
    await scene.take(*(Changed(revision, (put("n1", revision),)) for revision in range(61, 161)))
    assert 1 <= len(bases) <= 20
    assert all(revision > 60 for revision in bases)


async def test_a_snapshot_that_breaks_us_leaves_nothing_behind(scene, tmp_path):
    """R12 crash-only: of its adapters, its pool, its replicas and its store."""
    await scene.listed(50, *MANY)
    await scene.pool()
    scene.cache.members = {"r1": Member("r1", {}, None)}
    scene.cache.forget()
    assert (scene.mailbox.snapshot, scene.state, scene.watcher._begin()) == (Snapshot(), Booting(), None)
    assert (scene.watcher._informer.state.revision, scene.watcher._informer.raw) == (0, {})
    assert (scene.cache.pool_record, dict(scene.cache.members)) == (None, {})
    assert Journal(tmp_path / "state").restore(POOL) is None
    await scene.listed(5, kv("a", 3), cluster_id=9)
    assert (scene.state, scene.mailbox.snapshot.desired.count) == (Following(), 1)


@pytest.mark.parametrize(
    ("events", "request_id"),
    [
        ((), ""),
        ((deletion("a", 7),), ""),
        ((deletion("a", 7), put("b", 7), put("c", 7)), "req-b-1"),
        ((put("a", 7, b"?"), put("b", 7)), ""),
    ],
    ids=["none", "only a deletion", "the first that wrote", "it cannot be read"],
)
def test_a_revision_is_of_the_request_that_any_of_its_records_names(events, request_id):
    assert request_of(events) == request_id


@pytest.mark.parametrize("caught_up", [Progressed(55), Changed(55, (put("n1", 55),))], ids=["progress", "a change"])
async def test_a_store_that_has_caught_up_is_followed_with_what_shows_it(scene, caught_up):
    """R1, R3: nothing more may come for hours."""
    await scene.listed(50, *MANY)
    await scene.listed(40, *MANY)
    assert isinstance(scene.state, Holding)
    await scene.take(caught_up)
    assert (scene.state, scene.mailbox.snapshot.held) == (Following(), "")
    assert scene.mailbox.snapshot.desired.revision == 55
