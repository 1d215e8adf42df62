"""What is let in within the budget and the disk: to the byte, with an index and a disk that are played."""

from __future__ import annotations

import os
import stat
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import disk
from sidecar.artifacts.disk import Quota, SizeIndex
from tests.unit.artifacts.conftest import MIB, raising


class PlayedIndex:
    """What is said to be in the store, and what really is."""

    def __init__(self, said: int = 0, found: int | None = None) -> None:
        self.said, self.found = said, said if found is None else found
        self.listings = 0

    def used_bytes(self) -> int:
        return self.said

    def sizes(self) -> dict[str, int]:
        self.listings += 1
        return {"a": self.found - 1, "b": 1}


class Host:
    """A quota with its index and its disk; what is collected is noted, and frees `frees` bytes."""

    def __init__(self, monkeypatch, *, used: int = 0, found: int | None = None, budget: int | None = None) -> None:
        self.index = PlayedIndex(used, found)
        self.free, self.blocks, self.frees = 1 << 30, 1 << 22, 0
        self.wanted: list[int] = []
        self.quota = Quota(Path("/store"), self.index, budget, self._collect)  # type: ignore[arg-type]
        monkeypatch.setattr(disk.os, "statvfs", self._statvfs)

    def _collect(self, wanted: int) -> None:
        self.wanted.append(wanted)
        self.index.said -= self.frees
        self.index.found -= self.frees

    def _statvfs(self, root: Path) -> os.statvfs_result:
        assert root == Path("/store")
        return os.statvfs_result((1024, 4096, self.blocks, 0, self.free // 4096, 0, 0, 0, 0, 255))

    def refusal(self, size_bytes: int) -> str:
        before = self.quota._reserved_bytes
        with pytest.raises(ArtifactError) as refused:
            self.quota.admit(size_bytes, "weights")
        assert self.quota._reserved_bytes == before, "what is not admitted holds no room"
        assert not refused.value.permanent
        return refused.value.reason


def test_a_budget_is_used_to_its_last_byte_and_only_what_is_lacking_is_asked_for(monkeypatch):
    """R16 bounded: with what was admitted and has not arrived yet; what was removed for it makes room."""
    host = Host(monkeypatch, used=600, budget=1000)
    host.quota.admit(300, "one")
    host.quota.admit(100, "two")
    assert host.wanted == []
    assert host.refusal(1) == "store_full"
    assert host.wanted == [1]
    host.quota.give_back(100)
    host.quota.admit(100, "three")
    assert host.refusal(7) == "store_full"
    assert host.wanted == [1, 7]
    host = Host(monkeypatch, used=900, budget=1000)
    host.frees = 150
    host.quota.admit(250, "one")
    assert host.wanted == [150]
    host.frees = 149
    assert host.refusal(150) == "store_full"


def test_the_store_is_listed_only_where_less_than_a_tenth_of_the_budget_would_be_left(monkeypatch):
    """R16: what nobody told of counts then; a listing of thousands takes longer than staging a small one."""
    host = Host(monkeypatch, used=500, found=990, budget=1000)
    host.quota.admit(399, "one")
    assert host.index.listings == 0
    host.quota.give_back(399)
    assert host.refusal(400) == "store_full"
    assert host.wanted == [390]
    empty = Host(monkeypatch, used=1000, found=0, budget=1000)
    empty.quota.admit(1000, "one")
    assert (empty.wanted, empty.index.listings) == ([], 1)


def test_without_a_budget_only_the_disk_counts(monkeypatch):
    host = Host(monkeypatch, used=1 << 40)
    host.quota.admit(1000, "one")
    assert (host.wanted, host.index.listings) == ([], 0)
    assert host.quota.excess_bytes() == 0


@pytest.mark.parametrize(
    ("total_mib", "reserve_bytes"), [(50 * 64, 64 * MIB), (50 * 64 + 50, 64 * MIB), (50 * 32, 32 * MIB)]
)
def test_64_mib_of_a_disk_or_a_fiftieth_of_it_are_kept_free(monkeypatch, total_mib, reserve_bytes):
    """R16: for whatever else writes there."""
    host = Host(monkeypatch)
    host.blocks, host.free = total_mib * MIB // 4096, reserve_bytes + 4096
    host.quota.admit(4096, "one")
    host.quota.check_disk(4096, "one")
    assert host.wanted == []
    assert host.refusal(4097) == "disk_full"
    assert host.wanted == [1]
    with pytest.raises(ArtifactError, match=f"{reserve_bytes} are kept free") as refused:
        host.quota.check_disk(4097, "one")
    assert (refused.value.reason, refused.value.permanent) == ("disk_full", False)
    assert host.quota.excess_bytes() == 0
    host.free = reserve_bytes - 8192
    assert host.quota.excess_bytes() == 8192


def test_as_much_is_asked_for_as_both_lack(monkeypatch):
    """R16: the more of the budget and the disk."""
    for used, free, wanted in ((950, 64 * MIB, 4096), (9000, 64 * MIB + 4096, 12_096)):
        host = Host(monkeypatch, used=used, budget=1000)
        host.free = free
        host.refusal(4096)
        assert host.wanted == [max(wanted, used + 4096 - 1000)]
    host = Host(monkeypatch, used=1500, budget=1000)
    host.free = 64 * MIB - 4096
    assert host.quota.excess_bytes() == 4096
    host.free = 64 * MIB
    assert host.quota.excess_bytes() == 500


def test_a_reservation_is_of_files_and_ends_with_its_body_or_a_failure(monkeypatch):
    """R16: a file that comes again has the room of what came of it."""
    host = Host(monkeypatch, budget=1000)
    with host.quota.reservation() as reservation:
        reservation.admit(400, "config")
        reservation.admit(500, "weights")
        reservation.admit(600, "weights")
        assert host.quota._reserved_bytes == 1000
        with pytest.raises(ArtifactError):
            reservation.admit(601, "weights")
        assert host.quota._reserved_bytes == 400
        reservation.end()
        assert host.quota._reserved_bytes == 0
    with suppress(ZeroDivisionError), host.quota.reservation() as reservation:
        reservation.admit(400, "config")
        raise ZeroDivisionError
    assert host.quota._reserved_bytes == 0
    host.quota._collect = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        host.quota.admit(1001, "one")
    assert host.quota._reserved_bytes == 0


@pytest.mark.parametrize(
    ("budget", "left", "sizes", "in_use", "room"),
    [
        (1000, MIB, {"a": 100, "b": 200}, {"b"}, (500, 200, 200, "budget")),
        (1000, -4096, {"a": 100, "b": 200}, {"b"}, (0, 200, 200, "disk")),
        (1000, 4096, {"a": 4000}, {"a"}, (0, 4000, 4000, "budget")),
        (4096 + 600, 4096, {"a": 300}, set(), (4396, 0, 300, "disk")),
        (None, 8192, {"a": 100, "b": 200}, {"b"}, (8292, 200, 200, "disk")),
        (None, 8192, {"a": 3, "b": 4}, None, (8192, 7, 4, "disk")),
        (None, 8192, {}, set(), (8192, 0, 0, "disk")),
    ],
)
def test_the_room_counts_what_no_engine_reads_and_what_is_on_its_way(monkeypatch, budget, left, sizes, in_use, room):
    """A store that fills its disk with what may go is as it should be; where nobody can tell, nothing may."""
    host = Host(monkeypatch, budget=budget)
    host.quota.admit(300, "one")
    host.free = 64 * MIB + left
    found = host.quota.room(sizes, in_use)
    assert (found.room_bytes, found.in_use_bytes, found.largest_bytes, found.bound) == room


def test_a_mebibyte_of_changes_is_kept(layout):
    """R16 bounded: then the file begins anew, and whoever saw it longer lists the store again."""
    index, changes = SizeIndex(layout), layout.lock("changes")
    for size_bytes, left in ((MIB, MIB), (MIB + 1, 0)):
        changes.write_bytes(b"." * size_bytes)
        assert index.used_bytes() == 0
        assert changes.stat().st_size == left


@pytest.mark.usefixtures("no_umask")
def test_changes_are_told_in_a_file_that_other_users_of_the_group_may_read(layout):
    with SizeIndex(layout).adding("0" * 64, 10):
        pass
    changes = layout.lock("changes")
    assert stat.S_IMODE(changes.stat().st_mode) == 0o644
    assert changes.stat().st_size == 2
    with SizeIndex(layout).removing("0" * 64):
        assert changes.stat().st_size == 2
    assert changes.stat().st_size == 3


@pytest.mark.parametrize("what", ["adding", "removing"])
def test_that_a_change_is_done_cannot_always_be_told(layout, monkeypatch, what):
    """R16: it was announced, or makes the store look fuller than it is; what is our own fault is told."""
    index, more = SizeIndex(layout), (10,) if what == "adding" else ()
    opened, write = [*Path("/proc/self/fd").iterdir()], os.write
    for error in (OSError(28, "No space left on device"), ZeroDivisionError()):
        first, fail = [write] * len(more), raising(error)
        monkeypatch.setattr(
            disk.os, "write", lambda *how, first=first, fail=fail: (first.pop() if first else fail)(*how)
        )
        told = nullcontext() if isinstance(error, OSError) else pytest.raises(ZeroDivisionError)
        with told, getattr(index, what)("0" * 64, *more):
            pass
    monkeypatch.setattr(disk.os, "write", write)
    assert len([*Path("/proc/self/fd").iterdir()]) == len(opened)


def test_what_is_no_directory_or_vanishes_has_no_size_and_a_store_that_cannot_be_read_is_told(layout, monkeypatch):
    """R12, R9: whatever somebody put there; an unreadable directory is not an empty one."""
    ids = [digit * 64 for digit in "abc"]
    layout.adapter(ids[0]).write_bytes(b"no directory")
    layout.adapter(ids[1]).mkdir()
    for name, content in (("one", b"123"), ("two", b"4567")):
        (layout.adapter(ids[1]) / name).write_bytes(content)
    layout.adapter(ids[2]).symlink_to("nowhere")
    index = SizeIndex(layout)
    assert index.sizes() == {ids[0]: 0, ids[1]: 7, ids[2]: 0}
    assert index.used_bytes() == 7
    monkeypatch.setattr(Path, "iterdir", raising(PermissionError(13, "Permission denied")))
    with pytest.raises(PermissionError):
        SizeIndex(layout).sizes()


def test_changes_that_cannot_be_seen_are_told(layout, monkeypatch):
    """R16: only a file that is not there says that nothing has changed yet."""
    index, whole, fail = SizeIndex(layout), Path.stat, raising(PermissionError(13, "Permission denied"))
    assert index.used_bytes() == 0
    changes = layout.lock("changes")
    monkeypatch.setattr(Path, "stat", lambda path, **how: fail() if path == changes else whole(path, **how))
    with pytest.raises(PermissionError):
        index.used_bytes()


def test_what_is_measured_once_is_not_measured_again(layout, monkeypatch):
    """R16: a directory never changes."""
    for digit in "ab":
        layout.adapter(digit * 64).mkdir()
        (layout.adapter(digit * 64) / "f").write_bytes(b"123")
    index, measured = SizeIndex(layout), list[Path]()
    monkeypatch.setattr(disk, "_size", lambda path: measured.append(path) or 3)
    assert index.sizes() == index.sizes() == {digit * 64: 3 for digit in "ab"}
    assert len(measured) == 2
    with index.removing("a" * 64):
        layout.adapter("a" * 64).rename(layout.temporary("a", "removed"))
    assert index.used_bytes() == 3
    with index.adding("c" * 64, 5):
        layout.adapter("c" * 64).mkdir()
    assert index.used_bytes() == 8
    with index.adding("c" * 64, 6):
        pass
    assert index.used_bytes() == 9
    assert len(measured) == 2


@pytest.mark.parametrize(("size_bytes", "reason"), [(16 << 30, "store_full"), ((16 << 30) + 1, "too_large")])
async def test_weights_have_16_gib_at_most_unless_more_is_allowed(open_store, size_bytes, reason):
    """R16: judged before a byte of it comes, and before it is asked whether there is room."""
    store = open_store(budget_bytes=1)
    with store._obtainer.ingest.incoming("key", Stop()) as arriving, pytest.raises(ArtifactError) as refused:
        arriving.take("adapter_model.safetensors", size_bytes, iter([b"x"]))
    assert refused.value.reason == reason
