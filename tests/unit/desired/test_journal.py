"""The snapshot on disk: what a kill, a power cut or a full disk leaves of it."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from registry.runtime.failpoints import Point, handling
from sidecar.desired import journal as journal_module
from sidecar.desired.journal import Journal, SnapshotUnread
from sidecar.desired.packing import RawRecord
from sidecar.desired.snapshot import (
    AdaptersChanged,
    Entry,
    PoolChanged,
    SnapshotBase,
    SnapshotDamaged,
    decode_entries,
    encode_entry,
)
from tests.simulation.loop import virtual
from tests.unit.desired.test_snapshot import bytes_of, change


def base(revision: int) -> SnapshotBase:
    return SnapshotBase("p", 5, revision, b"pool", {"a": RawRecord(b"v", revision)})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """One with a base at revision 1."""
    journal = Journal(tmp_path)
    asyncio.run(journal.rewrite(base(1)))
    yield journal
    journal.close()


def restored(folder: Path) -> tuple[SnapshotBase, tuple[Entry, ...], bool]:
    """What a boot finds, and whether it wants a new base."""
    with closing(Journal(folder)) as journal:
        found = journal.restore("p")
        assert found is not None
        return found.base, found.entries, journal.wants_base


def left_by(folder: Path, *entries: bytes, bases: int = 1) -> None:
    """Bases at revisions from 1 on, and one journal for each of these."""
    for number in range(1, bases + 1):
        (folder / f"snapshot-{number}").write_bytes(bytes_of(base(number)))
    for number, entry in enumerate(entries, start=1):
        (folder / f"journal-{number}").write_bytes(entry)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def open_below(folder: Path) -> list[str]:
    """Names of the files of a folder that this process has open."""
    found = (one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink())
    return sorted(path.name for path in found if path.is_relative_to(folder))


def failing(error: BaseException):
    def fail(*_arguments, **_options):
        raise error

    return fail


def killed_amid(journal: Journal, entry: Entry):
    """Instead of a base that is written: something is appended, and the process ends."""

    def killed(*_):
        journal.append(entry)
        raise OSError(errno.EIO, "the process ends here")

    return killed


FULL = OSError(errno.ENOSPC, "no space left")


async def test_a_boot_takes_the_base_and_what_came_after_it(tmp_path):
    """R1, R12: what was appended before a kill is there after it, of its own pool. A first boot warns of nothing."""
    folder = tmp_path / "a" / "b"
    first = Journal(folder)
    with capture_logs() as logs:
        assert first.restore("p") is None
    assert (logs, first.wants_base) == ([], True)
    await first.rewrite(base(1))
    first.append(change(2))
    await first.sync()
    first.append(PoolChanged(None))
    with closing(Journal(folder)) as second:
        found = second.restore("p")
        assert found is not None
        assert (found.base, found.entries) == (base(1), (change(2), PoolChanged(None)))
        second.append(change(3))
    assert restored(folder)[1] == (change(2), PoolChanged(None), change(3))
    assert Journal(folder).restore("q") is None
    first.close()


async def test_a_new_base_removes_what_it_replaces_and_what_a_kill_left_half(tmp_path):
    """R16 bounded. What is removed by somebody else first, and what is no file, is in nobody's way (R12)."""
    (tmp_path / "journal-0").write_bytes(b"")
    (tmp_path / "tmp-0").write_bytes(b"half")
    for name in ("snapshot-1", "tmp-1"):
        (tmp_path / name).mkdir()
    journal = Journal(tmp_path)
    assert journal.restore("p") is None
    await journal.rewrite(base(1))
    assert not journal.wants_base
    assert names(tmp_path) == ["journal-1", "snapshot-1"]
    for revision in range(2, 6):
        await journal.rewrite(base(revision))
    assert names(tmp_path) == ["journal-5", "snapshot-5"]
    assert open_below(tmp_path) == ["journal-5"]

    def remove(point: Point) -> None:
        if point is Point.OLD_FORGOTTEN:
            for old in tmp_path.glob("*-5"):
                old.unlink()

    with handling(remove):
        await journal.rewrite(base(6))
    assert not journal.wants_base
    journal.close()
    assert open_below(tmp_path) == []


def test_a_kill_between_journal_and_base_loses_nothing(tmp_path):
    """R12 crash-only: the new journal exists, the new base does not yet; a boot appends behind the last."""
    left_by(tmp_path, *(encode_entry(change(revision)) for revision in (2, 3, 4)))
    (tmp_path / "tmp-2").write_bytes(b"half")
    with closing(Journal(tmp_path)) as journal:
        assert journal.restore("p") is not None
        assert not journal.wants_base
        journal.append(change(5))
    assert restored(tmp_path)[1] == (change(2), change(3), change(4), change(5))


@pytest.mark.parametrize("damage", ["half", "a folder", "a bad sector", ""])
def test_of_several_bases_the_newest_whole_one_is_taken(tmp_path, monkeypatch, damage):
    """R12 crash-only: no local file can prevent the boot. R1: a kill before the old ones were removed."""
    left_by(tmp_path, encode_entry(change(2)), encode_entry(change(3)), bases=2)
    newest = tmp_path / "snapshot-2"
    if damage == "half":
        newest.write_bytes(bytes_of(base(2))[:-1])
    elif damage == "a folder":
        newest.unlink()
        newest.mkdir()
    elif damage:
        breaks(monkeypatch, newest.name)
    expected = (base(1), (change(2), change(3))) if damage else (base(2), (change(3),))
    assert restored(tmp_path)[:2] == expected


def breaks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A file stands on a bad sector."""
    whole = journal_module.open_file

    def broken(path, *, max_bytes):
        if path.name == name:
            raise OSError(errno.EIO, "bad sector")
        return whole(path, max_bytes=max_bytes)

    monkeypatch.setattr(journal_module, "open_file", broken)


@pytest.mark.parametrize("write", [failing(FULL), lambda *_: 3], ids=["a full disk", "only a part of an entry"])
async def test_after_a_gap_nothing_is_folded_in(tmp_path, journal, monkeypatch, write):
    """R1, R2, R12: a lost entry ends the journal, and the next one is not read as its continuation."""
    journal.append(change(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        journal.append(change(3))
    assert journal.wants_base
    journal.append(change(4))
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write_base", killed_amid(journal, change(5)))
        await journal.rewrite(base(4))
    assert sum(path.stat().st_size > 0 for path in tmp_path.glob("journal-*")) == 2, "nothing came after the gap"
    assert restored(tmp_path)[1] == (change(2),)


@pytest.mark.parametrize("gap", ["missing", "damaged"])
async def test_after_a_journal_that_is_missing_or_damaged_a_new_base_comes_first(tmp_path, gap):
    """R1, R2: what a boot appends behind a gap would be found by no other."""
    left_by(tmp_path, encode_entry(change(2)) + (b"half" if gap == "damaged" else b""))
    (tmp_path / ("journal-3" if gap == "missing" else "journal-2")).write_bytes(encode_entry(change(9)))
    with closing(Journal(tmp_path)) as journal:
        found = journal.restore("p")
        assert found is not None
        assert (found.entries, journal.wants_base) == ((change(2),), True)
        await journal.rewrite(base(2))
        journal.append(change(3))
    assert restored(tmp_path)[:2] == (base(2), (change(3),))


async def test_what_is_appended_while_a_base_is_written_that_never_comes_is_not_lost(tmp_path, journal, monkeypatch):
    """R1: the journals of both go together with the old base, also after an earlier gap was mended."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(FULL))
        journal.append(change(2))
    await journal.rewrite(base(2))
    journal.append(change(3))
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write_base", killed_amid(journal, change(4)))
        await journal.rewrite(base(4))
    assert journal.wants_base, "there is none for what is to come"
    assert restored(tmp_path)[:2] == (base(2), (change(3), change(4)))


@pytest.mark.parametrize("is_killed", [True, False])
async def test_half_of_a_base_takes_no_room_from_the_next_one(tmp_path, journal, monkeypatch, is_killed):
    """R13, R16: a disk that is nearly full would stay so, and what shares it with the snapshot would find no room."""
    seen = list[list[str]]()

    def sync(_: int) -> None:
        seen.append(sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("tmp-")))
        raise FULL

    if is_killed:
        (tmp_path / "tmp-7").write_bytes(b"half of one")
    monkeypatch.setattr(journal_module.os, "fsync", sync)
    for number in (2, 3):
        await journal.rewrite(base(number))
    assert [len(names) for names in seen] == [1, 1], "but for what is just written"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tmp-")]


async def test_what_comes_after_a_list_is_folded_into_nothing_that_was_before_it(tmp_path, journal, monkeypatch):
    """R2 replay-equal, R12: a kill before the base is whole; and what is followed then is found by the next boot."""
    journal.append(change(2))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing(asyncio.CancelledError()))
        with pytest.raises(asyncio.CancelledError):
            await journal.rewrite(base(9), is_list=True)
    journal.append(AdaptersChanged(9, ()))
    journal.close()
    with closing(Journal(tmp_path)) as again:
        found = again.restore("p")
        assert found is not None
        assert (found.base.revision, found.entries) == (1, (change(2),))
        assert again.wants_base, "whatever is appended now would stand behind the gap"
        await again.rewrite(base(2))
        again.append(change(3))
    assert restored(tmp_path)[1] == (change(3),)


async def test_a_new_base_is_wanted_once_the_journal_is_longer_than_the_base_and_no_more_then(tmp_path, monkeypatch):
    """R16 bounded: at most as much again as the base, over restarts as well."""
    monkeypatch.setattr("sidecar.desired.journal.MIN_JOURNAL_BYTES", 10)
    journal = Journal(tmp_path)
    await journal.rewrite(SnapshotBase("p", 5, 1, b"pool" * 100, {"a": RawRecord(b"v" * 400, 1)}))
    revision, longest = 1, (tmp_path / "snapshot-1").stat().st_size
    while not journal.wants_base:
        assert sum(one.stat().st_size for one in tmp_path.glob("journal-*")) <= longest
        revision += 1
        journal.append(change(revision))
        if revision % 3 == 0:
            journal.close()
            journal = Journal(tmp_path)
            assert journal.restore("p") is not None
    assert sum(one.stat().st_size for one in tmp_path.glob("journal-*")) > longest
    await journal.rewrite(base(revision))
    assert not journal.wants_base
    journal.close()


async def test_beside_a_small_base_about_a_mebibyte_is_appended(tmp_path, journal):
    """R16: in numbers, for a small pool must not write its base again and again, nor fill a disk."""
    wanted = list[bool]()
    with handling(lambda point: wanted.append(journal.wants_base) if point is Point.JOURNAL_OPENED else None):
        await journal.rewrite(base(1))
    assert wanted == [False], "what is appended while a base is written stands in the journal after it"
    while not journal.wants_base:
        journal.append(PoolChanged(b"x" * 50_000))
    assert 0.9 * 2**20 < (tmp_path / "journal-2").stat().st_size < 1.2 * 2**20


async def test_a_sync_that_fails_closes_the_journal_that_it_was_of_and_no_later_one(tmp_path, journal, monkeypatch):
    """R12: a new base and its journal may come while the disk still works on the old one."""
    replaced, loop = asyncio.Event(), asyncio.get_running_loop()

    def fails(_: int) -> None:
        asyncio.run_coroutine_threadsafe(replace(), loop).result(60)
        raise OSError(errno.EIO, "the disk failed")

    async def replace() -> None:
        monkeypatch.setattr("os.fsync", lambda _: None)
        await journal.rewrite(base(2))
        replaced.set()

    monkeypatch.setattr("os.fsync", fails)
    journal.append(AdaptersChanged(2, ()))
    await journal.sync()
    assert replaced.is_set()
    assert not journal.wants_base
    monkeypatch.setattr("os.fsync", failing(OSError(errno.EIO, "the disk failed")))
    await journal.sync()
    assert journal.wants_base
    assert open_below(tmp_path) == []


async def test_the_names_of_new_files_are_on_the_disk_before_the_old_ones_go(tmp_path, journal, monkeypatch):
    """R12 crash-only, R1: also that of a journal which another process left, once something is appended to it."""
    synced = list[list[str]]()
    monkeypatch.setattr(journal_module, "sync_directory", lambda folder: synced.append(names(folder)))
    await journal.rewrite(base(2))
    assert synced == [["journal-1", "journal-2", "snapshot-1", "snapshot-2"]]
    with closing(Journal(tmp_path)) as again:
        again.restore("p")
        for revision in (3, 4):
            again.append(change(revision))
            await again.sync()
    assert synced[1:] == [["journal-2", "snapshot-2"]]


async def test_what_is_being_synced_is_not_settled_yet(journal, monkeypatch):
    """R1: a base that is written before it would leave a gap at a power cut."""
    loop = asyncio.get_running_loop()
    begun, may_end = asyncio.Event(), threading.Event()

    def slow(_: int) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(60)

    monkeypatch.setattr("os.fsync", slow)
    journal.append(change(2))
    syncing = asyncio.create_task(journal.sync())
    await begun.wait()
    settling = asyncio.create_task(journal.settle())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not settling.done()
    may_end.set()
    await asyncio.gather(syncing, settling)


async def test_what_is_appended_while_the_disk_is_at_work_is_synced_after_it(tmp_path, journal, monkeypatch):
    """R1, R12: a power cut would take it, for nobody asks for another sync."""
    loop, appended, synced = asyncio.get_running_loop(), threading.Event(), list[int]()

    def append() -> None:
        journal.append(change(3))
        appended.set()

    def slow(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        if not appended.is_set():
            loop.call_soon_threadsafe(append)
            assert appended.wait(60)

    monkeypatch.setattr("os.fsync", slow)
    journal.append(change(2))
    await journal.settle()
    assert synced[-1] == (tmp_path / "journal-1").stat().st_size


@virtual
async def test_what_comes_within_a_moment_is_synced_together_and_soon(tmp_path, monkeypatch):
    """R1, R16: a power cut costs a moment at the most; a disk is not asked for each of many changes, nor for none."""
    synced: list[tuple[float, int]] = []
    named: list[list[str]] = []
    monkeypatch.setattr(journal_module, "sync_directory", lambda folder: named.append(names(folder)))
    loop = asyncio.get_running_loop()
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    monkeypatch.setattr(
        journal_module, "_sync", lambda fd: (synced.append((loop.time(), os.fstat(fd).st_size)), os.close(fd))
    )
    keeping = asyncio.create_task(journal.keep_synced())
    await asyncio.sleep(10)
    assert synced == []
    for revision in range(2, 7):
        journal.append(change(revision))
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    ((_, size),) = synced
    assert size == (tmp_path / "journal-1").stat().st_size
    await asyncio.sleep(10)
    assert len(synced) == 1
    journal.append(change(7))
    await asyncio.sleep(0.5)
    assert len(synced) == 2
    keeping.cancel()
    await asyncio.wait([keeping])
    journal.close()
    await journal.sync()
    assert len(synced) == 2, "there is nothing to be synced any more"
    with closing(Journal(tmp_path)) as again:
        assert again.restore("p") is not None
        await again.sync()
    assert named == [["journal-1", "snapshot-1"]] * 2, "with its base, and by the next process, which cannot know"


async def test_what_is_kept_is_whole_lines_in_order_for_nobody_else_and_in_no_open_file(tmp_path, journal):
    """R2, R16, X1: records hold the places of weights and the names of customers."""
    entries = [change(2), PoolChanged(b"x"), PoolChanged(None), change(3)]
    for entry in entries:
        journal.append(entry)
        await journal.sync()
    assert open_below(tmp_path) == ["journal-1"]
    assert {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == {
        "journal-1": 0o600,
        "snapshot-1": 0o600,
    }
    assert list(decode_entries((tmp_path / "journal-1").read_bytes())) == entries
    journal.set_aside()
    assert open_below(tmp_path) == []
    assert names(tmp_path) == ["damaged-journal-1", "damaged-snapshot-1"]


async def test_what_the_disk_refuses_is_no_reason_to_end(tmp_path, monkeypatch):
    """R12, fail static: it goes on without a snapshot, and tries again with each change."""
    blocked = tmp_path / "state"
    blocked.write_bytes(b"")
    journal = Journal(blocked)
    assert journal.restore("p") is None
    await journal.rewrite(base(1))
    assert journal.wants_base
    journal.append(change(2))
    await journal.sync()
    blocked.unlink()
    await journal.rewrite(base(2))
    assert not journal.wants_base
    refused = failing(PermissionError(errno.EPERM, "not yours"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refused)
        journal.set_aside()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", refused)
        assert Journal(blocked).restore("p") is None
    (blocked / "journal-3").write_bytes(encode_entry(change(3)))
    with monkeypatch.context() as patch:
        breaks(patch, "journal-3")
        assert restored(blocked) == (base(2), (), True)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("name", ["", "snapshot-1", "journal-1"])
def test_without_descriptors_nobody_boots_from_less_than_there_is(tmp_path, journal, monkeypatch, name, number):
    """R1, R13, R15: what is served would be what was so before, or whatever is listed; and the next boot sees all."""
    journal.append(change(2))
    short, whole = OSError(number, os.strerror(number)), journal_module.open_file

    def opened(path, *, max_bytes):
        if path.name == name:
            raise short
        return whole(path, max_bytes=max_bytes)

    with monkeypatch.context() as patch, closing(Journal(tmp_path)) as second:
        patch.setattr(journal_module, "open_file", opened)
        if not name:
            patch.setattr(Path, "iterdir", failing(short))
        with pytest.raises(SnapshotUnread, match=os.strerror(number)):
            second.restore("p")
    assert names(tmp_path) == ["journal-1", "snapshot-1"]
    assert restored(tmp_path) == (base(1), (change(2),), False)


class Ours(Exception):
    """A fault in our own code."""


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("sidecar.desired.journal.decode_base", "restore"),
        ("sidecar.desired.journal.decode_entries", "restore"),
        ("pathlib.Path.iterdir", "restore"),
        ("pathlib.Path.replace", "set_aside"),
        ("os.write", "append"),
        ("sidecar.desired.journal.encode_base", "rewrite"),
        ("os.open", "rewrite"),
        ("os.fsync", "sync"),
    ],
)
async def test_a_fault_of_our_own_is_not_taken_for_one_of_the_disk(tmp_path, journal, monkeypatch, where, what):
    """Fail stop: whoever keeps the part has to know of it, and it is told as what it is."""
    journal.append(change(2))
    verbs = {
        "restore": lambda: Journal(tmp_path).restore("p"),
        "set_aside": journal.set_aside,
        "append": lambda: journal.append(change(3)),
        "rewrite": lambda: journal.rewrite(base(3)),
        "sync": journal.sync,
    }
    with monkeypatch.context() as patch:
        patch.setattr(where, failing(Ours()))
        with pytest.raises(Ours):
            await found if (found := verbs[what]()) is not None else None


@pytest.mark.parametrize("name", ["snapshot-9", "journal-1", "journal-2"])
def test_a_file_of_8_gibibytes_is_refused_unread(tmp_path, journal, name):
    """X3 given-back, R12: sparse, it costs whoever puts it there nothing; what is whole beside it is taken."""
    journal.append(change(2))
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 8 << 30)
    tracemalloc.start()
    try:
        with capture_logs() as logs:
            found = restored(tmp_path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found[:2] == (base(1), () if name == "journal-1" else (change(2),))
    assert [one["file"] for one in logs if "more than" in one.get("error", "")] == [name]
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize(("bound", "name"), [("MAX_LINE_BYTES", "snapshot-1"), ("MAX_FILE_BYTES", "journal-1")])
def test_a_line_or_a_growing_file_is_read_up_to_a_bound(tmp_path, journal, monkeypatch, bound, name):
    """X3 given-back: what is found small may grow while it is read."""
    journal.append(change(2))
    monkeypatch.setattr(journal_module, bound, 10)
    whole = journal_module.open_file
    monkeypatch.setattr(journal_module, "open_file", lambda path, *, max_bytes: whole(path, max_bytes=1 << 20))
    with capture_logs() as logs, (tmp_path / name).open("rb") as file:
        with pytest.raises(SnapshotDamaged, match=r"more than"):
            list(journal_module._lines(file))
        assert Journal(tmp_path).restore("p") is None
    assert [one["file"] for one in logs] == ["snapshot-1"]
