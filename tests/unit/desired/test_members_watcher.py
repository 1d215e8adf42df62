"""The live replicas as a watcher follows them: what is in force, and what a restart finds of it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import structlog

from registry.etcd3.errors import EtcdUnavailable
from registry.etcd3.ops import Event, KeyValue, Range, RangeResult
from registry.etcd3.stream import Changed, Connected, Disconnected, ListCause, Listed, Progressed
from registry.model.keys import last_part
from registry.model.placement import Member
from registry.model.records import Placement
from registry.model.status import ReportedLimits
from registry.runtime.process import Repeats
from sidecar.desired import members as module
from sidecar.desired.snapshot import MembersChanged
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import LEASE, engine_status, presence, replica_status
from tests.support.waiting import eventually
from tests.support.worlds import fleet
from tests.unit.desired.test_watcher import MANY, Played, Scene, end, taken_up

PLACED = [kv(f"n{number}", 1, placement=Placement(replicas=1)) for number in range(40)]

ONE_MORE = kv("z", 53, placement=Placement(replicas=1))


def card(replica: str, value: bytes | None = None, **fields: object) -> KeyValue:
    made = value or presence(replica, by_reports=True, **fields).to_bytes()
    return KeyValue(KEYS.replica(POOL, replica), made, 1, 1, 1, LEASE)


def put(replica: str, value: bytes | None = None, **fields: object) -> Changed:
    written = card(replica, value, **fields)
    return Changed(51, (Event(written.key, 51, written),))


def gone(replica: str) -> Changed:
    return Changed(51, (Event(KEYS.replica(POOL, replica), 51, None),))


class Told(Played):
    """A members watcher of a scene, which is told what its own watch says."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        super().__init__()
        self.scene, self.watcher = scene, scene.watcher._members_watcher
        self._folder = folder
        self._copies = 0
        self.silent: set[str] = set()
        self.slow: set[str] = set()
        self.held: dict[str, int] = {}
        self.unread: set[str] = set()
        self.is_away = False
        scene.client.range = self.range  # type: ignore[method-assign]

    async def range(self, op: Range) -> RangeResult:
        """Of presences none but those that were told; beside them a status of each that is not silent."""
        if self.is_away or last_part(op.key) in self.unread:
            raise EtcdUnavailable("away", maybe_applied=False)
        name, found = last_part(op.key), tuple[KeyValue, ...]()
        await asyncio.sleep(name in self.slow)
        self.scene.client.reads.append(op.key)
        if op.key.startswith(KEYS.statuses(POOL)) and name not in self.silent:
            engine = engine_status(limits=ReportedLimits(max_cpu_loras=self.held.get(name)))
            found = (KeyValue(op.key, replica_status(name, 1, engine=engine).to_bytes(), 1, 1, 1, LEASE),)
        if op.key.startswith(KEYS.replicas(POOL)) and name in self.watcher._attendance._present:
            found = (self.watcher._attendance._present[name][0],)
        return RangeResult(1, found, more=False, count=len(found))

    @property
    def members(self) -> dict[str, Member] | None:
        found = self.scene.mailbox.snapshot.members
        return None if found is None else dict(found)

    async def become(self, members: dict[str, Member] | None) -> None:
        """In force, and what a restart would find."""
        await eventually(lambda: self.members == members)
        if members is not None:
            assert self.after_a_restart() == members

    def restarted(self) -> Scene:
        """What another process would find, to which this one's files are left."""
        self._copies += 1
        return taken_up(shutil.copytree(self._folder, self._folder.with_name(f"copy-{self._copies}")))

    def after_a_restart(self) -> dict[str, Member] | None:
        found = self.restarted().mailbox.snapshot.members
        return None if found is None else dict(found)


@pytest.fixture
async def told(tmp_path, monkeypatch) -> AsyncIterator[Told]:
    """A replica that follows its pool, and believes in who is there at once."""
    monkeypatch.setattr(module, "BELIEVE_SECONDS", 0.0)
    scene = Scene(tmp_path / "state")
    told = Told(scene, tmp_path / "state")
    monkeypatch.setattr(module, "Reflector", lambda *_, **__: told)
    running = asyncio.create_task(told.watcher.run())
    await scene.listed(50, *PLACED)
    await scene.watcher._take(Connected("etcd-1"))
    yield told
    await end(running)
    scene.journal.close()


async def turns() -> None:
    """Lets everybody do what there is to do."""
    for _ in range(10):
        await asyncio.sleep(0)


def listed(*cards: KeyValue) -> Listed:
    return Listed(50, cards, 7, ListCause.FIRST, 1)


async def test_who_comes_goes_or_changes_is_in_force_and_found_after_a_restart(told):
    """R3 converge, R13 static-stable: a share is found among the same replicas before a restart and after it."""
    await told.hear(listed(card("r1"), card("r2", capacity=4)))
    await told.become(fleet("r1") | fleet("r2", capacity=4))
    await told.hear(put("r3"))
    await told.become(fleet("r1", "r3") | fleet("r2", capacity=4))
    await told.hear(put("r2", labels={"zone": "x"}))
    await told.become(fleet("r1", "r3") | fleet("r2", zone="x"))
    await told.hear(gone("r3"), Progressed(52), Connected("etcd-1"), Disconnected("it is away"))
    await told.become(fleet("r1") | fleet("r2", zone="x"))
    await told.hear(put("r2", leaving=True))
    await told.become(fleet("r1"))
    await told.hear(listed(card("r1"), card("r4")))
    await told.become(fleet("r1", "r4"))
    assert told.watcher._attendance._proofs.keys() == {"r1", "r4"}, "R16: of who is gone nothing is kept"


async def test_a_presence_that_nobody_can_read_is_nobodys_and_one_line_a_minute(told):
    """R14, X3: it is left out, in a list as in a change; the others are not. No engine holds 2^62 adapters."""
    with structlog.testing.capture_logs() as lines:
        await told.hear(listed(card("r1"), card("r2"), card("r3", b"?")))
        await told.become(fleet("r1", "r2"))
        await told.hear(*(put("r2", b"?") for _ in range(50)))
        await told.become(fleet("r1"))
        endless = json.dumps(presence("r2").model_dump(by_alias=True) | {"capacity": 2**62})
        await told.hear(put("r2"), put("r2", endless.encode()))
        await told.become(fleet("r1"))
    assert [line["times"] for line in lines if line["event"] == "presence_refused"] == [1, 1]


async def test_who_does_not_report_is_nobody_and_who_does_has_what_its_engine_holds(told, monkeypatch):
    """X3 given-back, R3: a presence that anybody wrote drew adapters; what is read late counts late, and not never."""
    monkeypatch.setattr(module, "ASK_SECONDS", 0.01)
    told.silent, told.held = {"ghost"}, {"r2": 2, "r3": 900}
    fields = {"capacity": 1_000_000}
    await told.hear(listed(card("r1"), card("r2", **fields), card("r3", capacity=4), card("ghost", **fields)))
    await told.become(fleet("r1") | fleet("r2", capacity=2) | fleet("r3", capacity=4))
    told.silent.clear()
    await told.become(fleet("r1") | fleet("r2", capacity=2) | fleet("r3", capacity=4) | fleet("ghost", **fields))
    told.scene.client.reads.clear()
    await told.hear(put("ghost", leaving=True, **fields))
    await told.become(fleet("r1") | fleet("r2", capacity=2) | fleet("r3", capacity=4))
    assert told.scene.client.reads == [], "one read for each lease and each capacity"


async def test_nobody_is_believed_in_before_it_was_read_of_all_who_reports(told, monkeypatch):
    """R13 static-stable: reads that fail at the first list leave nobody out."""
    monkeypatch.setattr(module, "ASK_SECONDS", 0.01)
    told.is_away, asked = True, mock.Mock(wraps=told.watcher._roll.call)
    monkeypatch.setattr(told.watcher._roll, "call", asked)
    with structlog.testing.capture_logs() as lines:
        await told.hear(listed(card("r1"), card("r2")))
        await eventually(lambda: len([one for one in lines if one["event"] == "members_not_followed"]) > 2)
    assert (asked.mock_calls, told.members) == ([], None)
    told.is_away = False
    await told.become(fleet("r1", "r2"))


async def test_who_is_silent_holds_up_nobody_who_reports(told, monkeypatch):
    """X3 given-back: however many presences anybody wrote, and however long a read of each takes."""
    monkeypatch.setattr(module, "ASK_SECONDS", 0.01)
    told.silent = ghosts = {f"ghost{number}" for number in range(64)}
    await told.hear(listed(card("r1"), *map(card, ghosts)))
    await told.become(fleet("r1"))
    told.slow = ghosts
    await told.hear(put("r2"))
    await told.become(fleet("r1", "r2"))


async def test_who_stays_silent_is_asked_more_and_more_seldom_until_somebody_comes(told, monkeypatch):
    """R16 bounded: reads are etcd's budget, from each second to each minute."""
    pauses, heard_within = list[float | None](), module.heard_within

    async def hastened(seconds: float | None, news: asyncio.Event) -> bool:
        pauses.append(seconds)
        return await heard_within(seconds and seconds / 1000, news)

    monkeypatch.setattr(module, "heard_within", hastened)
    told.silent = {"ghost"}
    for came in (listed(card("r1"), card("ghost")), put("r2")):
        pauses.clear()
        await told.hear(came)
        await eventually(lambda: pauses.count(60.0) > 1)
        assert pauses[pauses.index(1.0) :][:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


async def test_who_comes_while_it_is_read_who_reports_is_asked_for_at_once(told, monkeypatch):
    """R3 converge."""
    monkeypatch.setattr(module, "ASK_SECONDS", 3600.0)
    await told.hear(listed(card("r1")))
    await told.become(fleet("r1"))
    read = told.scene.client.range

    async def reading(op: Range) -> RangeResult:
        if last_part(op.key) == "r2":
            await told.hear(put("r3"))
        return await read(op)

    told.scene.client.range = reading
    told.says.put_nowait(put("r2"))
    await told.become(fleet("r1", "r2", "r3"))


async def test_while_it_cannot_be_read_who_reports_they_are_those_of_before(told, monkeypatch):
    """R13 static-stable: also at a restart of theirs, under another lease; who goes is gone all the same."""
    monkeypatch.setattr(module, "ASK_SECONDS", 0.01)
    await told.hear(listed(card("r1"), card("r2", capacity=4), card("r3")))
    await told.become(fleet("r1", "r3") | fleet("r2", capacity=4))
    told.is_away = True
    other = card("r2", capacity=5)
    await told.hear(Changed(51, (Event(other.key, 51, replace(other, lease=LEASE + 1)),)), put("r4"), gone("r3"))
    await told.become(fleet("r1") | fleet("r2", capacity=4))
    told.is_away = False
    await told.become(fleet("r1", "r4"))
    await told.hear(Changed(51, (Event(other.key, 51, other),)))
    await told.become(fleet("r1", "r4") | fleet("r2", capacity=5))


async def test_who_restarts_while_it_is_read_is_not_taken_for_silent(told):
    """R3: its status stands under its new lease, of which the watch has not told yet."""
    await told.hear(listed(card("r1"), card("r2")))
    await told.become(fleet("r1", "r2"))
    posted, read = len(told.scene.mailbox.posted), told.scene.client.range

    async def newer(op: Range) -> RangeResult:
        found = await read(op)
        lease = LEASE + (last_part(op.key) == "r2")
        return replace(found, kvs=tuple(replace(one, lease=lease) for one in found.kvs))

    told.scene.client.range = newer
    told.scene.client.reads.clear()
    await told.hear(put("r2", capacity=4))
    await eventually(lambda: KEYS.status(POOL, "r2") in told.scene.client.reads)
    await turns()
    other = replace(card("r2", capacity=4), lease=LEASE + 1)
    await told.hear(Changed(52, (Event(other.key, 52, other),)))
    await told.become(fleet("r1") | fleet("r2", capacity=4))
    assert all("r2" in (one.members or ()) for one in told.scene.mailbox.posted[posted:])


async def test_it_ends_though_etcd_goes_away_at_that_moment(told):
    """Else a sidecar that is told to stop together with its etcd would call the roll for ever."""
    is_away = asyncio.Event()

    async def reading(_: Range) -> RangeResult:
        await is_away.wait()
        raise EtcdUnavailable("away", maybe_applied=False)

    told.scene.client.range = reading
    await told.hear(listed(card("r1")))
    await turns()
    (calling,) = (task for task in asyncio.all_tasks() if task.get_name() == "roll call")
    is_away.set()
    calling.cancel()
    await turns()
    assert calling.cancelled()


async def test_members_are_followed_only_while_somebody_has_to_know_them(told):
    """R16: no watch for nothing, nor for doubt about a store. What was known is kept for a restart."""
    await told.hear(listed(card("r1"), card("r2")))
    await told.become(fleet("r1", "r2"))
    told.watcher.want(wanted=True)
    await turns()
    assert told.watches == 1
    await told.scene.listed(52, *MANY)
    await told.become(None)
    assert told.after_a_restart() == fleet("r1", "r2")
    posted = len(told.scene.mailbox.posted)
    for _ in range(3):
        told.watcher.look_again()
        await turns()
    assert (told.watches, told.members, len(told.scene.mailbox.posted)) == (1, None, posted)
    await told.scene.watcher._take(Changed(53, (Event(ONE_MORE.key, 53, ONE_MORE),)))
    await eventually(lambda: told.watches == 2)
    assert told.watcher._attendance.members == {}, "who was alive when they were followed before"
    told.watcher.look_again()
    await turns()
    assert told.members is None
    await told.hear(listed(card("r1"), card("r2")))
    await told.become(fleet("r1", "r2"))


async def test_what_was_heard_when_nobody_had_to_know_is_no_list_of_when_somebody_has_to(told, monkeypatch):
    """R13 static-stable: of a first list, whoever cannot be read is not left out then either."""
    monkeypatch.setattr(module, "ASK_SECONDS", 0.01)
    await told.hear(listed(card("r1"), card("r2")))
    await told.become(fleet("r1", "r2"))
    told.says.put_nowait(put("r3"))
    told.watcher.want(wanted=False)
    await told.become(None)
    told.unread = {"r2"}
    with structlog.testing.capture_logs() as lines:
        told.watcher.want(wanted=True)
        await eventually(lambda: told.watches == 2)
        await told.hear(listed(card("r1"), card("r2")))
        await eventually(lambda: len([one for one in lines if one["event"] == "members_not_followed"]) > 2)
    assert told.members is None
    told.unread = set()
    await told.become(fleet("r1", "r2"))


async def test_after_a_restart_who_comes_counts_at_once_beside_those_who_were_known(told, monkeypatch):
    """R3 converge, R13: nobody waits until the others had the time to come."""
    await told.hear(listed(card("r1"), card("r2")))
    await told.become(fleet("r1", "r2"))
    monkeypatch.setattr(module, "BELIEVE_SECONDS", 3600.0)
    again = Told(told.restarted(), Path())
    monkeypatch.setattr(module, "Reflector", lambda *_, **__: again)
    running = asyncio.create_task(again.watcher.run())
    await again.scene.take(Connected("etcd-1"))
    again.watcher.want(wanted=True)
    await again.hear(listed(card("r1"), card("r3")))
    await eventually(lambda: again.members == fleet("r1", "r2", "r3"))
    await end(running)


async def test_who_lives_is_written_and_told_once(told):
    """R16: a presence is renewed again and again, which is no news; and all of it is on disk before it is told."""
    await told.hear(listed(card("r1"), card("r2")))
    await told.become(fleet("r1", "r2"))
    written: list[tuple[list[str], tuple[str, ...], set[str]]] = []
    append, mailbox = told.scene.journal.append, told.scene.mailbox

    def noting(entry: MembersChanged) -> None:
        written.append(([one.replica for one in entry.come], entry.gone, {*(mailbox.snapshot.members or ())}))
        append(entry)

    told.scene.journal.append = noting
    posted = len(mailbox.posted)
    for _ in range(3):
        await told.hear(put("r2"), listed(card("r1"), card("r2")))
        told.watcher.look_again()
        await turns()
    assert (written, len(mailbox.posted)) == ([], posted)
    await told.hear(put("r3"))
    await told.become(fleet("r1", "r2", "r3"))
    await told.hear(gone("r2"))
    await told.become(fleet("r1", "r3"))
    assert written == [(["r3"], (), {"r1", "r2"}), ([], ("r2",), {"r1", "r2", "r3"})]
    assert len(mailbox.posted) == posted + 2


async def test_a_fault_of_our_own_is_not_taken_for_a_presence_that_cannot_be_read(told, monkeypatch):
    """Fail stop: all others would be taken to be gone."""

    def broken(_: bytes) -> None:
        raise RuntimeError

    monkeypatch.setattr(module.Presence, "parse", broken)
    with pytest.raises(RuntimeError):
        module.Attendance(Repeats()).note("r2", card("r2"))
