"""The pool's record as a watcher follows it: what is in force, what waits, and what a restart finds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from registry.etcd3.errors import Compacted, EtcdError, EtcdUnavailable, FutureRevision
from registry.etcd3.ops import Event, KeyValue, Range
from registry.etcd3.stream import Changed, Connected, Disconnected, ListCause, Listed, Progressed
from registry.runtime.clock import Clock
from sidecar.desired import pool as module
from sidecar.desired.informer import DesiredState
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Snapshot
from sidecar.desired.pool import PoolWatcher
from sidecar.desired.pool_cache import Holding, PoolCache, Relisting
from sidecar.desired.removal_guard import ListCandidate, StoreId
from sidecar.desired.snapshot import PoolChanged, SnapshotBase, decode_entries
from tests.support.records import KEYS, POOL
from tests.support.worlds import pool
from tests.unit.desired.test_watcher import Kept, Played, end

FOLLOWED = 50  # the revision of the adapters


def record(confirmed: int) -> bytes:
    return pool().model_copy(update={"removals_confirmed_revision": confirmed}).to_bytes()


def kv(value: bytes) -> KeyValue:
    return KeyValue(KEYS.pool(POOL), value, 1, FOLLOWED, 1)


def listed(*values: bytes, revision: int = FOLLOWED, cluster_id: int = 7) -> Listed:
    return Listed(revision, tuple(map(kv, values)), cluster_id, ListCause.FIRST, 1)


def changed(*values: bytes | None) -> Changed:
    """All that happened to the record in one revision; None: it was deleted."""
    return Changed(51, tuple(Event(KEYS.pool(POOL), 51, None if one is None else kv(one)) for one in values))


class Store:
    """Says whether it keeps a revision, and was asked of which ones.

    Attributes:
        answers: what it says in turn, and what happens meanwhile; nothing: it keeps it.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: list[tuple[EtcdError, Callable[[], None]]] = []

    async def range(self, op: Range) -> None:
        assert (op.key, op.keys_only) == (KEYS.pool(POOL), True)
        self.asked.append(op.revision)
        if self.answers:
            error, meanwhile = self.answers.pop(0)
            meanwhile()
            raise error


class Told(Played):
    """A pool watcher that is told what its own watch says."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.mailbox, self.folder, self.changes = Kept(), folder, 0
        self.journal = Journal(folder)
        self.cache, self.store = PoolCache(KEYS, POOL, self.mailbox, self.journal), Store()
        self.cache.store = StoreId(7)
        self.watcher = PoolWatcher(self.store, KEYS, self.cache, Clock(random.Random(0)))  # type: ignore[arg-type]
        self.follow(FOLLOWED)

    def follow(self, revision: int) -> None:
        """The adapters are followed up to there."""
        self.cache.informer.restore(revision, {})

    async def note_change(self) -> None:
        self.changes += 1

    @property
    def in_force(self) -> tuple[bool, int | None]:
        """Whether it is known if there is a record, and up to which revision the one in force vouches."""
        spec = self.mailbox.snapshot.pool
        return self.mailbox.snapshot.pool_read, None if spec is None else spec.removals_confirmed_revision

    @property
    def written(self) -> list[bytes | None]:
        """What a restart would take up, in order."""
        entries = decode_entries((self.folder / "journal-1").read_bytes())
        return [one.value for one in entries if isinstance(one, PoolChanged)]


@pytest.fixture
async def told(tmp_path, monkeypatch) -> AsyncIterator[Told]:
    told = Told(tmp_path / "state")
    await told.journal.rewrite(SnapshotBase(POOL, 7, 1))
    asked: list[tuple[bytes, bytes]] = []

    def made(_client: object, key: bytes, end: bytes, **_: object) -> Told:
        asked.append((key, end))
        return told

    monkeypatch.setattr(module, "Reflector", made)
    running = asyncio.create_task(told.watcher.run(told.note_change))
    yield told
    assert asked == [(KEYS.pool(POOL), KEYS.pool(POOL) + b"\0")], "one key, and no other pool's"
    await end(running)
    told.journal.close()


async def test_the_newest_record_is_in_force_and_found_after_a_restart(told):
    """R1, R3, R16: of several changes in one revision the last; the same again wakes nobody. All else stays."""
    before = Snapshot(connected=True, last_request_id="req-1", proxied="a proxy")
    told.mailbox.post(before)
    await told.hear(listed(record(1)))
    assert (told.in_force, told.cache.pool_record, told.written) == ((True, 1), record(1), [record(1)])
    assert told.mailbox.snapshot == replace(before, pool=told.mailbox.snapshot.pool, pool_read=True)
    posted = len(told.mailbox.posted)
    await told.hear(listed(record(1)), changed(record(1)))
    assert (len(told.mailbox.posted), told.written, told.changes) == (posted, [record(1)], 3)
    await told.hear(changed(record(2), record(3), record(4)))
    assert (told.in_force, told.watcher.confirmed_revision) == ((True, 4), 4)
    await told.hear(changed(None))
    assert (told.in_force, told.cache.pool_record, told.watcher.confirmed_revision) == ((True, None), None, 0)
    assert (told.written, told.changes) == ([record(1), record(4), None], 5)


async def test_a_pool_that_never_was_says_nothing_and_neither_does_silence(told):
    """R13, R15: nothing is planned, or all would be unloaded after a slip in --pool, or compared with no base."""
    await told.hear(Progressed(9), Connected("etcd-1"), Disconnected("it is away"))
    assert (told.changes, told.in_force, told.mailbox.posted) == (0, (False, None), [])
    assert told.watcher.confirmed_revision == 0, "nor is any list vouched for"
    assert told.watcher.settled(told.mailbox.snapshot) is told.mailbox.snapshot
    await told.hear(listed())
    assert (told.in_force, told.written) == ((True, None), [None])
    states = None, DesiredState(), DesiredState(changes=1)
    plannable = [replace(told.mailbox.snapshot, desired=one).actionable for one in states]
    assert plannable == [None, None, states[2]], "adapters that somebody put there are served all the same"
    await told.hear(changed(record(1)))
    assert replace(told.mailbox.snapshot, desired=states[1]).actionable is states[1]


@pytest.mark.parametrize(
    ("doubtful", "becomes"),
    [(listed(), None), (listed(revision=FOLLOWED - 1), None), (listed(record(2), revision=FOLLOWED - 1), 2)],
    ids=["it is missing", "it is missing from an older list", "an older list has another"],
)
async def test_a_list_that_may_be_of_a_lost_store_waits_for_that_of_the_adapters(told, doubtful, becomes):
    """R15 brake: what runs stays as it is; only an event deletes a pool."""
    await told.hear(listed(record(1)))
    await told.hear(doubtful)
    assert (told.in_force, told.written, told.cache.pool_record) == ((True, 1), [record(1)], record(1))
    assert told.watcher.confirmed_revision == (becomes or 0), "it may vouch for the list that it waits for"
    settled = told.watcher.settled(told.mailbox.snapshot)
    assert (settled.pool_read, settled.pool and settled.pool.removals_confirmed_revision) == (True, becomes)
    assert told.written == [record(1), record(becomes) if becomes else None]
    assert told.watcher.settled(settled) is settled, "nothing waits any more"


HELD = Holding(ListCandidate(FOLLOWED, StoreId(7), [], ()))


@pytest.mark.parametrize("state", [HELD, Relisting(is_begun=False)], ids=["is held", "is to be listed"])
async def test_what_a_process_finds_whose_store_is_in_doubt_waits(told, state):
    """R15 brake: also before it has listed the adapters itself, and found that it has to hold them."""
    told.cache.state = state
    await told.hear(listed(record(1)))
    assert (told.in_force, told.written) == ((False, None), [])
    assert told.watcher.settled(told.mailbox.snapshot).pool_read


LOST: list[Callable[[], EtcdError]] = [lambda: Compacted("", compact_revision=60), lambda: FutureRevision("")]


@pytest.mark.parametrize("lost", LOST, ids=["restored", "set back"])
async def test_the_record_waits_for_the_adapters_where_they_have_to_be_listed(told, lost):
    """R15 brake: of another cluster, or of a store that no longer keeps what was followed; else nothing is in doubt."""
    await told.hear(listed(record(1)))
    await told.hear(listed(record(2), cluster_id=8))
    assert (told.in_force, told.written) == ((True, 1), [record(1)])
    await told.hear(listed(record(2)))
    assert told.in_force == (True, 2)
    told.store.answers = [(lost(), lambda: None)]
    await told.hear(listed(record(3)))
    assert (told.in_force, told.written) == ((True, 2), [record(1), record(2)])
    told.store.answers = [(lost(), lambda: told.follow(FOLLOWED + 9))]
    await told.hear(listed(record(4), revision=FOLLOWED + 9))
    assert (told.in_force, told.store.asked[-2:]) == ((True, 4), [FOLLOWED, FOLLOWED + 9])


async def test_what_etcd_does_not_answer_is_asked_again(told, monkeypatch):
    """R3 converge: its watch stands, so it will."""
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.001)
    told.store.answers = [(EtcdUnavailable("", maybe_applied=False), lambda: None)] * 2
    await told.hear(listed(record(1)))
    assert (told.in_force, told.store.asked) == ((True, 1), [FOLLOWED] * 3)


async def test_the_record_waits_if_the_store_comes_in_doubt_while_etcd_is_asked(told, monkeypatch):
    """R15 brake: the watch on the adapters may find meanwhile that the store is another one."""
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.001)
    doubt = lambda: setattr(told.cache, "state", Relisting(is_begun=False))  # noqa: E731 - what happens meanwhile
    told.store.answers = [(EtcdUnavailable("", maybe_applied=False), doubt)]
    await told.hear(listed(record(1)))
    assert (told.in_force, told.written) == ((False, None), [])


async def test_while_a_list_is_held_the_record_waits_too(told):
    """R15, R2: nobody ever sees a new pool with old adapters."""
    await told.hear(listed(record(1)))
    told.mailbox.post(replace(told.mailbox.snapshot, held="it lacks too much"))
    await told.hear(changed(record(60)))
    assert (told.in_force, told.watcher.confirmed_revision, told.written) == ((True, 1), 60, [record(1)])
    settled = told.watcher.settled(replace(told.mailbox.snapshot, held=""))
    assert settled.pool is not None
    assert settled.pool.removals_confirmed_revision == 60
    assert told.written == [record(1), record(60)]


async def test_a_list_is_not_in_doubt_because_the_adapters_moved_on_while_it_was_under_way(told):
    """R3, R19: with nothing else to come it would wait for ever, and the sidecar would make no plan."""
    told.follow(FOLLOWED + 1)
    await told.hear(listed(record(1), revision=FOLLOWED))
    assert (told.in_force, told.written) == ((True, 1), [record(1)])
    await told.hear(Disconnected("it is away"), listed(record(2), revision=FOLLOWED))
    assert told.in_force == (True, 1), "this one began when more was known"


async def test_a_record_that_cannot_be_read_is_named_and_the_last_good_one_stays(told):
    """R14 nack, R5: what was read before vouches for nothing any more, and a first one is not taken for none."""
    await told.hear(listed(b"?"))
    assert (told.in_force, bool(told.mailbox.snapshot.pool_refusal)) == ((False, None), True)
    await told.hear(changed(record(7)))
    with capture_logs() as logs:
        await told.hear(changed(b"?"))
        assert (told.in_force, told.cache.pool_record, told.watcher.confirmed_revision) == ((True, 7), record(7), 0)
        assert told.mailbox.snapshot.pool_refusal.startswith("the pool's record cannot be followed: ")
        await told.hear(changed(record(8)))
        assert (told.in_force, told.mailbox.snapshot.pool_refusal) == ((True, 8), "")
        await told.hear(changed(b"?"), changed(record(8)))
        assert (told.in_force, told.mailbox.snapshot.pool_refusal) == ((True, 8), ""), "it is the one in force again"
        await told.hear(changed(None))
    assert [one["event"] for one in logs] == ["pool_record_refused"] * 2 + ["pool_absent"]
