"""Watcher of a pool's adapters, reflection by reflection: its states, and what it puts in force at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from unittest import mock

import pytest
from structlog.testing import capture_logs

from registry.etcd3.ops import Event, KeyValue, Range, RangeResult
from registry.etcd3.reflector import Changed, Connected, Disconnected, ListCause, Listed, Progressed, Reflection
from registry.model.keys import last_part
from registry.model.placement import Member
from registry.model.records import Meta
from registry.runtime.clock import Clock
from sidecar.desired import members
from sidecar.desired import watcher as module
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.desired.snapshot import SnapshotBase
from sidecar.desired.watcher import Booting, Following, Holding, Relisting, Watcher, request_of
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
        self.watcher = Watcher(self.client, KEYS, POOL, "r1", self.mailbox, self.journal, Clock(random.Random(0)))  # type: ignore[arg-type]

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


class Played:
    """A watch that says what it is told."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[Reflection] = asyncio.Queue()

    async def stream(self) -> AsyncGenerator[Reflection, None]:
        while True:
            yield await self.says.get()
            self.says.task_done()


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

    async def noting(base: object, **how: bool) -> None:
        written.append(base)
        await rewrite(base, **how)

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


async def test_another_store_is_listed_at_once_although_nothing_more_comes_of_it(scene, monkeypatch):
    """R15 brake, R3."""
    played = Played()
    monkeypatch.setattr(module, "Reflector", lambda *_, **__: played)
    await scene.listed(50, *MANY)
    scene.client.epoch = "second"
    played.says.put_nowait(Connected("etcd-1"))
    async with asyncio.timeout(60):
        await scene.watcher._follow_one_store()
    assert scene.state == Relisting(is_begun=False)


async def test_what_comes_while_a_list_that_was_held_is_written_comes_in_force_after_it(scene, monkeypatch):
    """R1 monotonic: a kill meanwhile would bring back what was followed before the list."""
    played, is_writing, may_go_on = Played(), asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(module, "Reflector", lambda *_, **__: played)
    following = asyncio.create_task(scene.watcher._follow_one_store())
    for revision, kvs in ((50, MANY), (60, [])):
        played.says.put_nowait(Listed(revision, tuple(kvs), 7, ListCause.FIRST, 1))
    await played.says.join()
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
    following.cancel()
    await asyncio.wait([following, vouched])


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
    told = played.says
    monkeypatch.setattr(members, "Reflector", lambda *_, **__: played)
    monkeypatch.setattr(members, "BELIEVE_SECONDS", 0.0)
    watcher = scene.watcher._members_watcher
    running = asyncio.create_task(watcher.run())
    await scene.listed(50, *MANY)
    await scene.watcher._take(Connected("etcd-1"))
    watcher.want(wanted=True)
    ours, others = (KeyValue(KEYS.replica(POOL, one), presence(one).to_bytes(), 1, 1, 1, LEASE) for one in ("r1", "r2"))
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


async def test_how_far_the_watch_has_come_is_told(scene):
    """An alert compares it with etcd's: by each list, each change, and what etcd says of others' changes."""
    told = []
    for reflection in (
        Listed(9, (kv("a", 3),), 7, ListCause.FIRST, 1),
        Changed(11, (put("b", 11),)),
        Progressed(15),
    ):
        await scene.watcher._take(reflection)
        told.append(module.OBSERVED_REVISION._value.get())
    assert told == [9, 11, 15]


async def test_each_lost_connection_is_counted(scene):
    before = module.ETCD_RECONNECTS._value.get()
    await scene.watcher._take(Disconnected("it is away"))
    await scene.watcher._take(Disconnected("it is away"))
    assert module.ETCD_RECONNECTS._value.get() == before + 2


async def test_a_connection_is_told_once_and_so_is_its_loss(scene):
    """R16, R9: who reads the snapshot is woken by news alone. A list is an answer, too."""
    await scene.listed(9, kv("a", 3))
    assert scene.mailbox.snapshot.connected
    posted = len(scene.mailbox.posted)
    for reflection in (Connected("etcd-1"), Connected("etcd-2"), Progressed(10), Progressed(11)):
        await scene.watcher._take(reflection)
    assert len(scene.mailbox.posted) == posted
    for _ in range(2):
        await scene.watcher._take(Disconnected("it is away"))
    assert (len(scene.mailbox.posted), scene.mailbox.snapshot.connected) == (posted + 1, False)


async def test_a_connection_while_a_list_is_held_lets_go_of_nothing(scene):
    """R15 brake: the next list is held against the store that was followed, whichever is there by now."""
    await scene.listed(50, *MANY)
    await scene.listed(60)
    await scene.watcher._take(Disconnected("it is away"))
    scene.client.epoch = "second"
    await scene.watcher._take(Connected("etcd-1"))
    assert isinstance(scene.state, Holding)
    assert scene.mailbox.snapshot.connected
    assert scene.watcher._store.epoch == "first"


async def test_what_is_held_is_told_once_with_what_it_lacks_now(scene):
    """R15: an operator reads why; the same again wakes nobody."""
    with capture_logs() as logs:
        await scene.listed(50, *MANY)
        await scene.listed(60)
        first = scene.mailbox.snapshot.held
        posted = len(scene.mailbox.posted)
        await scene.watcher._take(Progressed(61))
        await scene.watcher._take(Changed(62, (put("late", 62),)))
        assert (len(scene.mailbox.posted), scene.mailbox.snapshot.held) == (posted, first)
        await scene.watcher._take(Changed(63, (put("n1", 63),)))
    assert "lacks 40 of 40" in first
    assert "lacks 39 of 40" in scene.mailbox.snapshot.held
    assert [(one["reason"], one["revision"]) for one in logs if one["event"] == "list_held"] == [("mass_removal", 60)]


async def test_the_log_says_why_a_list_was_followed_and_whether_somebody_vouched_for_it(scene):
    """R1, R15: the checkers of a run read it; a revision goes back only where that was allowed."""
    with capture_logs() as logs:
        await scene.listed(50, *MANY)
        await scene.listed(60)
        await scene.pool(removals_confirmed_revision=60)
        await scene.listed(70, kv("a", 65))
    told = [
        (one["event"], one["revision"], one.get("cause"))
        for one in logs
        if one["event"] in {"listed", "removals_confirmed"}
    ]
    assert told == [
        ("listed", 50, "FIRST"),
        ("listed", 60, "HELD"),
        ("removals_confirmed", 60, None),
        ("listed", 70, "FIRST"),
    ]


async def test_changes_are_written_to_the_journal_until_it_has_outgrown_its_base(scene, monkeypatch):
    """R16 bounded: what a change costs does not grow with the pool, and the journal not without end."""
    await scene.listed(50, *MANY)
    bases: list[int] = []
    rewrite = scene.journal.rewrite

    async def noting(base: SnapshotBase, **how: bool) -> None:
        bases.append(base.revision)
        await rewrite(base, **how)

    monkeypatch.setattr(scene.journal, "rewrite", noting)
    for revision in range(51, 61):
        await scene.watcher._take(Changed(revision, (put("n1", revision),)))
    assert bases == []
    monkeypatch.setattr("sidecar.desired.journal.MIN_JOURNAL_BYTES", 10)
    for revision in range(61, 161):
        await scene.watcher._take(Changed(revision, (put("n1", revision),)))
    assert 1 <= len(bases) <= 20
    assert all(revision > 60 for revision in bases)


async def test_a_snapshot_that_breaks_us_leaves_nothing_behind(scene, tmp_path):
    """R12 crash-only: of its adapters, its pool, its replicas and its store."""
    await scene.listed(50, *MANY)
    await scene.pool()
    scene.watcher._members_watcher.restore({"r1": Member("r1", {}, None)})
    scene.watcher.forget()
    assert (scene.mailbox.snapshot, scene.state, scene.watcher._begin()) == (Snapshot(), Booting(), None)
    assert (scene.watcher._informer.state.revision, scene.watcher._informer.raw) == (0, {})
    assert (scene.watcher._pool_watcher.record, dict(scene.watcher._members_watcher.members)) == (None, {})
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
    await scene.watcher._take(caught_up)
    assert (scene.state, scene.mailbox.snapshot.held) == (Following(), "")
    assert scene.mailbox.snapshot.desired.revision == 55
