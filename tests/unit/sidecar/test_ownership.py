"""What tells the owner of a replica id from every other one."""

from __future__ import annotations

import asyncio
import errno
import fcntl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sidecar import ownership
from sidecar.ownership import HostLock, Seat


@pytest.fixture
def on_host(monkeypatch, tmp_path):
    """Makes this the host of a name: its clones have the same disk, and another boot."""

    def move(name: str) -> None:
        (tmp_path / f"boot-{name}").write_text(f"{name}\n")
        monkeypatch.setattr(ownership, "_BOOT_ID", tmp_path / f"boot-{name}")

    return move


def owner_of(path: Path) -> str:
    lock = HostLock(path)
    try:
        return lock.owner
    finally:
        lock.close()


def test_a_cloned_host_is_another_owner_although_its_disk_is_the_same(tmp_path, on_host):
    """R10: the lock file of a clone has the same device and inode; two replicas of one host have two."""
    on_host("a")
    assert owner_of(tmp_path / "a" / "lock") != owner_of(tmp_path / "b" / "lock")
    ours = owner_of(tmp_path / "state" / "lock")
    assert owner_of(tmp_path / "state" / "lock") == ours
    on_host("b")
    assert owner_of(tmp_path / "state" / "lock") != ours


def test_a_host_that_tells_no_boot_has_owners_all_the_same(tmp_path, monkeypatch):
    """R10: as in some sandboxes."""
    monkeypatch.setattr(ownership, "_BOOT_ID", tmp_path / "nowhere")
    assert owner_of(tmp_path / "a") == owner_of(tmp_path / "a") != owner_of(tmp_path / "b")


def test_nothing_that_stands_in_the_way_of_a_lock_keeps_a_sidecar_from_its_start(tmp_path):
    """R12 crash-only: it is set aside."""
    (tmp_path / "state").write_text("?")
    assert owner_of(tmp_path / "state" / "lock")
    (tmp_path / "state" / "lock").unlink()
    (tmp_path / "state" / "lock").mkdir()
    assert owner_of(tmp_path / "state" / "lock")


def test_a_disk_that_knows_no_locks_is_told_and_not_waited_for(tmp_path, monkeypatch):
    """R10: as some network file systems; nobody holds what cannot be held."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    lock = HostLock(tmp_path / "lock")
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks"):
        lock.try_acquire()
    lock.close()


def test_a_seat_is_one_process_and_the_next_has_the_same(on_host, tmp_path, monkeypatch):
    """R10: without any file of a store; a second one at the same time has none, nor one of an unknown host."""
    on_host("a")
    first, twin, other = Seat("etcd", str(tmp_path)), Seat("etcd", str(tmp_path)), Seat("etcd", f"{tmp_path}2")
    assert (first.place != "", twin.place) == (True, "")
    assert other.place == first.place, "it is told apart by the replica whose presence it stands in"
    first.close()
    after = Seat("etcd", str(tmp_path))
    assert after.place == first.place
    on_host("b")
    elsewhere = Seat("etcd", f"{tmp_path}3")
    assert elsewhere.place not in {"", first.place}
    monkeypatch.setattr(ownership, "_BOOT_ID", tmp_path / "none")
    nowhere = Seat("etcd", f"{tmp_path}4")
    assert nowhere.place == ""
    for one in (twin, other, after, elsewhere, nowhere):
        one.close()


async def test_who_finds_the_lock_taken_waits_for_it_and_says_so_once(tmp_path, monkeypatch):
    """R10: a lock is held once; whoever started two of one id sees why the second does nothing."""
    monkeypatch.setattr(ownership, "LOCK_RETRY_SECONDS", 0.0)
    first, second = HostLock(tmp_path / "lock"), HostLock(tmp_path / "lock")
    assert (tmp_path / "lock").stat().st_mode & 0o077 == 0, "who can open it can hold it"
    with capture_logs() as logs:
        await first.acquire("r1")
        assert logs == []
        waiting = asyncio.create_task(second.acquire("r1"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        first.close()
        async with asyncio.timeout(60):
            await waiting
    assert [(log["event"], log["log_level"], log["replica"]) for log in logs] == [("replica_id_taken", "error", "r1")]
    third = HostLock(tmp_path / "lock")
    assert not third.try_acquire()
    third.close()
    second.close()
