"""The live replicas as a watcher follows them: what is in force, and what a restart finds of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from registry.etcd3.ops import Event, KeyValue
from registry.etcd3.reflector import Changed, Connected, Disconnected, ListCause, Listed, Progressed, Reflection
from registry.model.placement import Member
from registry.model.records import Placement
from sidecar.desired import members as module
from sidecar.desired.snapshot import MembersChanged
from sidecar.desired.watcher import Holding
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import presence
from tests.support.waiting import eventually
from tests.support.worlds import fleet
from tests.unit.desired.test_watcher import MANY, Scene

PLACED = [kv(f"n{number}", 1, placement=Placement(replicas=1)) for number in range(40)]

ONE_MORE = kv("z", 53, placement=Placement(replicas=1))


def card(replica: str, value: bytes | None = None, **fields: object) -> KeyValue:
    return KeyValue(KEYS.replica(POOL, replica), value or presence(replica, **fields).to_bytes(), 1, 1, 1)


def put(replica: str, value: bytes | None = None, **fields: object) -> Changed:
    written = card(replica, value, **fields)
    return Changed(51, (Event(written.key, 51, written),))


def gone(replica: str) -> Changed:
    return Changed(51, (Event(KEYS.replica(POOL, replica), 51, None),))


class Told:
    """A members watcher of a scene, which is told what its own watch says."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene, self.watcher = scene, scene.watcher._members_watcher
        self._folder = folder
        self.says: asyncio.Queue[Reflection] = asyncio.Queue()
        self.watches = self._copies = 0

    async def stream(self) -> AsyncGenerator[Reflection, None]:
        self.watches += 1
        while True:
            yield await self.says.get()
            self.says.task_done()

    async def hear(self, *reflections: Reflection) -> None:
        for one in reflections:
            self.says.put_nowait(one)
        await self.says.join()

    @property
    def members(self) -> dict[str, Member] | None:
        found = self.scene.mailbox.snapshot.members
        return None if found is None else dict(found)

    async def become(self, members: dict[str, Member] | None) -> None:
        """In force, and what a restart would find."""
        await eventually(lambda: self.members == members)
        if members is not None:
            assert self.after_a_restart() == members

    def after_a_restart(self) -> dict[str, Member] | None:
        """What another process would find, to which this one's files are left."""
        self._copies += 1
        again = Scene(shutil.copytree(self._folder, self._folder.with_name(f"copy-{self._copies}")))
        again.watcher.restore()
        again.journal.close()
        found = again.mailbox.snapshot.members
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
    running.cancel()
    await asyncio.wait([running])
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


async def test_a_presence_that_nobody_can_read_is_nobodys(told):
    """R14: it is left out, in a list as in a change; the others are not."""
    await told.hear(listed(card("r1"), card("r2"), card("r3", b"?")))
    await told.become(fleet("r1", "r2"))
    await told.hear(put("r2", b"?"))
    await told.become(fleet("r1"))


async def test_members_are_followed_only_while_somebody_has_to_know_them(told):
    """R16: no watch for nothing. What was known is kept for a restart."""
    await told.hear(listed(card("r1"), card("r2")))
    await told.become(fleet("r1", "r2"))
    await told.scene.listed(52, *MANY)
    await told.become(None)
    assert told.after_a_restart() == fleet("r1", "r2")
    await turns()
    assert (told.watches, told.members) == (1, None)
    await told.scene.watcher._take(Changed(53, (Event(ONE_MORE.key, 53, ONE_MORE),)))
    await eventually(lambda: told.watches == 2)
    await told.hear(listed(card("r1"), card("r2")))
    await told.become(fleet("r1", "r2"))


async def test_while_a_list_is_held_nobody_is_believed_gone(told):
    """R15 brake: who lives is said by the same store, which may be another one."""
    await told.hear(listed(card("r1"), card("r2")))
    await told.become(fleet("r1", "r2"))
    await told.scene.listed(60)
    assert isinstance(told.scene.state, Holding)
    assert told.scene.mailbox.snapshot.connected
    await told.hear(gone("r2"), Progressed(61))
    await turns()
    assert told.members == fleet("r1", "r2")
    await told.scene.listed(61, *PLACED)
    await told.become(fleet("r1"))


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
        module._member(card("r2"))


async def test_nobody_is_waited_for_who_is_not_wanted(told):
    """R16: what is said of it again changes nothing, and wakes nobody."""
    posted = len(told.scene.mailbox.posted)
    told.watcher.want(wanted=True)
    await turns()
    assert (told.watches, len(told.scene.mailbox.posted)) == (1, posted)


async def test_doubt_about_a_store_has_nobody_followed_who_is_not_wanted(told):
    """R16: most pools place nothing by number, and their stores come and go as well."""
    await told.scene.listed(52, *MANY)
    await told.become(None)
    await turns()
    posted, watches = len(told.scene.mailbox.posted), told.watches
    for _ in range(3):
        told.watcher.look_again()
        await turns()
    assert (len(told.scene.mailbox.posted), told.watches) == (posted, watches)
