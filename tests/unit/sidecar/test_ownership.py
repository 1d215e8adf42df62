"""What tells the owner of a replica id from every other one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar import ownership
from sidecar.ownership import HostLock


@pytest.fixture
def on_host(monkeypatch, tmp_path):
    """Makes this the host of a name: its clones have the same disk, and another boot."""

    def move(name: str) -> None:
        (tmp_path / name).write_text(f"{name}\n")
        monkeypatch.setattr(ownership, "_BOOT_ID", tmp_path / name)

    return move


def owner_of(path: Path) -> str:
    lock = HostLock(path)
    try:
        return lock.owner
    finally:
        lock.close()


def test_a_cloned_host_is_another_owner_although_its_disk_is_the_same(tmp_path, on_host):
    """R10: the lock file of a clone has the same device and inode."""
    on_host("a")
    ours = owner_of(tmp_path / "state" / "lock")
    assert owner_of(tmp_path / "state" / "lock") == ours
    on_host("b")
    assert owner_of(tmp_path / "state" / "lock") != ours


def test_two_locks_of_a_host_have_two_owners(tmp_path):
    """R10: two replicas that share a host, and may be started with one id."""
    assert owner_of(tmp_path / "a" / "lock") != owner_of(tmp_path / "b" / "lock")


def test_a_lock_is_held_once(tmp_path):
    """R10: a second process of the same state is told at once, and has it when the first one ends."""
    first, second = HostLock(tmp_path / "lock"), HostLock(tmp_path / "lock")
    assert first.try_acquire()
    assert not second.try_acquire()
    first.close()
    assert second.try_acquire()
    second.close()
