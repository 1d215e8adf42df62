"""The pool's record as a watcher follows it: what is in force, what waits, and what a restart finds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from registry.etcd3.ops import Event, KeyValue
from registry.etcd3.reflector import Changed, Connected, Disconnected, ListCause, Listed, Progressed, Reflection
from registry.runtime.clock import Clock
from sidecar.desired import pool as module
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Snapshot
from sidecar.desired.pool import PoolWatcher
from sidecar.desired.snapshot import PoolChanged, SnapshotBase, decode_entries
from tests.support.records import KEYS, POOL
from tests.support.worlds import pool
from tests.unit.desired.test_watcher import Kept

FOLLOWED = 50  # the revision of the adapters


def record(confirmed: int) -> bytes:
    return pool().model_copy(update={"removals_confirmed_revision": confirmed}).to_bytes()


def kv(value: bytes) -> KeyValue:
    return KeyValue(KEYS.pool(POOL), value, 1, FOLLOWED, 1)


def listed(*values: bytes, revision: int = FOLLOWED) -> Listed:
    return Listed(revision, tuple(map(kv, values)), 7, ListCause.FIRST, 1)


def changed(*values: bytes | None) -> Changed:
    """All that happened to the record in one revision; None: it was deleted."""
    return Changed(51, tuple(Event(KEYS.pool(POOL), 51, None if one is None else kv(one)) for one in values))


class Told:
    """A pool watcher that is told what its own watch says."""

    def __init__(self, folder: Path) -> None:
        self.mailbox, self.folder, self.changes, self.followed = Kept(), folder, 0, FOLLOWED
        self.journal = Journal(folder)
        self.watcher = PoolWatcher(None, KEYS, POOL, self.mailbox, self.journal, Clock(random.Random(0)))  # type: ignore[arg-type]
        self.says: asyncio.Queue[Reflection] = asyncio.Queue()

    async def stream(self) -> AsyncGenerator[Reflection, None]:
        while True:
            yield await self.says.get()
            self.says.task_done()

    async def hear(self, *reflections: Reflection) -> None:
        for one in reflections:
            self.says.put_nowait(one)
        await self.says.join()

    async def note_change(self) -> None:
        self.changes += 1

    def hold(self, why: str) -> None:
        self.mailbox.post(replace(self.mailbox.snapshot, held=why))

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
    running = asyncio.create_task(told.watcher.run(lambda: told.followed, told.note_change))
    yield told
    assert asked == [(KEYS.pool(POOL), KEYS.pool(POOL) + b"\0")], "one key, and no other pool's"
    running.cancel()
    await asyncio.wait([running])
    told.journal.close()


async def test_the_newest_record_is_in_force_and_found_after_a_restart(told):
    """R1, R3: of several changes in one revision the last one."""
    await told.hear(listed(record(1)))
    assert (told.in_force, told.watcher.record, told.written) == ((True, 1), record(1), [record(1)])
    await told.hear(changed(record(2), record(3), record(4)))
    assert (told.in_force, told.watcher.confirmed_revision) == ((True, 4), 4)
    await told.hear(changed(None))
    assert (told.in_force, told.watcher.record, told.watcher.confirmed_revision) == ((True, None), None, 0)
    assert told.written == [record(1), record(4), None]
    assert told.changes == 3


async def test_a_pool_that_there_is_not_is_known_not_to_be(told):
    """R13: until then nothing is planned, for adapters would be compared with no base."""
    assert told.in_force == (False, None)
    assert told.watcher.confirmed_revision == 0, "nor is any list vouched for"
    assert told.watcher.settled(told.mailbox.snapshot) is told.mailbox.snapshot
    await told.hear(listed())
    assert (told.in_force, told.written) == ((True, None), [None])


async def test_what_is_in_force_is_not_put_in_force_again(told):
    """R16: it would wake the reconciler, and fill the disk."""
    await told.hear(listed(record(1)))
    posted = len(told.mailbox.posted)
    await told.hear(listed(record(1)), changed(record(1)))
    assert (len(told.mailbox.posted), told.written, told.changes) == (posted, [record(1)], 3)


async def test_silence_is_no_change(told):
    await told.hear(Progressed(9), Connected("etcd-1"), Disconnected("it is away"))
    assert (told.changes, told.in_force, told.mailbox.posted) == (0, (False, None), [])


@pytest.mark.parametrize(
    ("doubtful", "becomes"),
    [(listed(), None), (listed(revision=FOLLOWED - 1), None), (listed(record(2), revision=FOLLOWED - 1), 2)],
    ids=["it is missing", "it is missing from an older list", "an older list has another"],
)
async def test_a_list_that_may_be_of_a_lost_store_waits_for_that_of_the_adapters(told, doubtful, becomes):
    """R15 brake: what runs stays as it is; only an event deletes a pool."""
    await told.hear(listed(record(1)))
    await told.hear(doubtful)
    assert (told.in_force, told.written, told.watcher.record) == ((True, 1), [record(1)], record(1))
    assert told.watcher.confirmed_revision == (becomes or 0), "it may vouch for the list that it waits for"
    settled = told.watcher.settled(told.mailbox.snapshot)
    assert (settled.pool_read, settled.pool and settled.pool.removals_confirmed_revision) == (True, becomes)
    assert told.written == [record(1), record(becomes) if becomes else None]
    assert told.watcher.settled(settled) is settled, "nothing waits any more"


async def test_while_a_list_is_held_the_record_waits_too(told):
    """R15, R2: nobody ever sees a new pool with old adapters."""
    await told.hear(listed(record(1)))
    told.hold("it lacks too much")
    await told.hear(changed(record(60)))
    assert (told.in_force, told.watcher.confirmed_revision, told.written) == ((True, 1), 60, [record(1)])
    settled = told.watcher.settled(replace(told.mailbox.snapshot, held=""))
    assert settled.pool is not None
    assert settled.pool.removals_confirmed_revision == 60
    assert told.written == [record(1), record(60)]


async def test_a_list_at_the_revision_of_the_adapters_waits_for_nothing(told):
    """R3: the first record to come is not one that comes late."""
    await told.hear(listed(record(1), revision=FOLLOWED))
    assert told.in_force == (True, 1)


async def test_a_list_is_not_in_doubt_because_the_adapters_moved_on_while_it_was_under_way(told):
    """R3, R19: with nothing else to come it would wait for ever, and the sidecar would make no plan."""
    told.followed = FOLLOWED + 1
    await told.hear(listed(record(1), revision=FOLLOWED))
    assert (told.in_force, told.written) == ((True, 1), [record(1)])
    await told.hear(Disconnected("it is away"), listed(record(2), revision=FOLLOWED))
    assert told.in_force == (True, 1), "this one began when more was known"


async def test_a_record_that_cannot_be_read_is_named_and_the_last_good_one_stays(told):
    """R14 nack: what was read before vouches for nothing any more."""
    await told.hear(listed(record(7)))
    await told.hear(changed(b"?"))
    snapshot = told.mailbox.snapshot
    assert (told.in_force, told.watcher.record, told.watcher.confirmed_revision) == ((True, 7), record(7), 0)
    assert snapshot.pool_refusal.startswith("the pool's record cannot be followed: ")
    await told.hear(changed(record(8)))
    assert (told.in_force, told.mailbox.snapshot.pool_refusal) == ((True, 8), "")


async def test_a_first_record_that_cannot_be_read_is_not_taken_for_none(told):
    """R14, R5: adapters would be compared with no base."""
    await told.hear(listed(b"?"))
    assert (told.in_force, bool(told.mailbox.snapshot.pool_refusal)) == ((False, None), True)


async def test_all_else_of_the_snapshot_stays_as_it_is(told):
    before = Snapshot(connected=True, last_request_id="req-1", proxied="a proxy")
    told.mailbox.post(before)
    await told.hear(listed(record(1)))
    spec = told.mailbox.snapshot.pool
    assert told.mailbox.snapshot == replace(before, pool=spec, pool_read=True)


async def test_the_log_names_a_pool_that_there_is_not_and_a_record_that_cannot_be_read(told):
    """R14: with what to do about it; a pool that there is is no news."""
    with capture_logs() as logs:
        await told.hear(listed(record(1)), changed(b"?"))
        assert [one["event"] for one in logs] == ["pool_record_refused"]
        await told.hear(changed(None))
    assert [one["event"] for one in logs] == ["pool_record_refused", "pool_absent"]
