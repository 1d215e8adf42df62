"""The snapshot on disk: what a kill, a power cut or a full disk leaves of it."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from registry.runtime.failpoints import Point, handling
from sidecar.desired import journal as journal_module
from sidecar.desired.journal import Journal
from sidecar.desired.packing import RawRecord
from sidecar.desired.snapshot import (
    AdaptersChanged,
    PoolChanged,
    SnapshotBase,
    SnapshotDamaged,
    decode_entries,
    encode_entry,
)
from tests.simulation.loop import VirtualLoop
from tests.unit.desired.test_snapshot import bytes_of, change


def base(revision: int) -> SnapshotBase:
    return SnapshotBase("p", 5, revision, b"pool", {"a": RawRecord(b"v", revision)})


async def test_a_boot_takes_the_base_and_what_came_after_it(tmp_path):
    """R1, R12: what was appended before a kill is there after it."""
    first = Journal(tmp_path)
    assert first.restore("p") is None
    assert first.wants_base
    await first.rewrite(base(1))
    first.append(change(2))
    await first.sync()
    first.append(PoolChanged(None))
    second = Journal(tmp_path)
    restored = second.restore("p")
    assert (restored.base, restored.entries) == (base(1), (change(2), PoolChanged(None)))
    second.append(change(3))
    assert Journal(tmp_path).restore("p").entries == (change(2), PoolChanged(None), change(3))
    assert Journal(tmp_path).restore("q") is None


async def test_a_new_base_removes_what_it_replaces(tmp_path):
    """R16 bounded."""
    journal = Journal(tmp_path)
    for revision in range(1, 6):
        await journal.rewrite(base(revision))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal-5", "snapshot-5"]
    assert open_below(tmp_path) == ["journal-5"]
    journal.close()
    assert open_below(tmp_path) == []


def open_below(folder: Path) -> list[str]:
    """Names of the files of a folder that this process has open."""
    found = (one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink())
    return sorted(path.name for path in found if path.is_relative_to(folder))


async def test_what_a_kill_left_half_is_gone_with_the_next_base(tmp_path):
    """R16 bounded: a file for each kill would fill the disk."""
    (tmp_path / "journal-1").write_bytes(b"")
    (tmp_path / "tmp-1").write_bytes(b"half")
    journal = Journal(tmp_path)
    assert journal.restore("p") is None
    await journal.rewrite(base(2))
    journal.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal-2", "snapshot-2"]


async def test_a_kill_between_journal_and_base_loses_nothing(tmp_path):
    """R12 crash-only: the new journal exists, the new base does not yet."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    journal.append(change(2))
    await journal.rewrite(base(2))
    journal.append(change(3))
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "snapshot-1").write_bytes(bytes_of(base(1)))
    (killed / "journal-1").write_bytes(encode_entry(change(2)))
    (killed / "journal-2").write_bytes(encode_entry(change(3)))
    (killed / "tmp-2").write_bytes(b"half")
    assert Journal(killed).restore("p").entries == (change(2), change(3))
    journal.close()


async def test_a_damaged_base_gives_way_to_the_one_before(tmp_path):
    """R12 crash-only: no local file can prevent the boot."""
    (tmp_path / "snapshot-1").write_bytes(bytes_of(base(1)))
    (tmp_path / "journal-1").write_bytes(encode_entry(change(2)))
    (tmp_path / "snapshot-2").write_bytes(bytes_of(base(2))[:-1])
    (tmp_path / "snapshot-3").mkdir()
    assert Journal(tmp_path).restore("p").base == base(1)


def breaks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A file stands on a bad sector."""
    whole = journal_module.open_file

    def broken(path, *, max_bytes):
        if path.name == name:
            raise OSError(errno.EIO, "bad sector")
        return whole(path, max_bytes=max_bytes)

    monkeypatch.setattr(journal_module, "open_file", broken)


async def test_a_base_that_the_disk_does_not_give_gives_way_to_the_one_before(tmp_path, monkeypatch):
    """R12 crash-only: as one on a bad sector."""
    for revision in (1, 2):
        (tmp_path / f"snapshot-{revision}").write_bytes(bytes_of(base(revision)))
    breaks(monkeypatch, "snapshot-2")
    journal = Journal(tmp_path)
    assert journal.restore("p").base == base(1)
    journal.close()


async def test_after_a_gap_nothing_is_folded_in(tmp_path, monkeypatch):
    """R1, R2: a lost entry ends the journal, and the next one is not read as its continuation."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    journal.append(change(2))

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        journal.append(change(3))
    assert journal.wants_base
    journal.append(change(4))

    def killed_before_it_is_whole(*_):
        journal.append(change(5))
        raise OSError(errno.EIO, "the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write_base", killed_before_it_is_whole)
        await journal.rewrite(base(4))
    assert sum(path.stat().st_size > 0 for path in tmp_path.glob("journal-*")) == 2, "nothing came after the gap"
    assert Journal(tmp_path).restore("p").entries == (change(2),)
    journal.close()


async def test_after_a_journal_that_is_missing_a_new_base_comes_first(tmp_path):
    """R1, R2: what a boot appends behind a gap would be found by no other."""
    left_by(tmp_path, encode_entry(change(2)))
    (tmp_path / "journal-3").write_bytes(encode_entry(change(9)))
    journal = Journal(tmp_path)
    assert journal.restore("p").entries == (change(2),)
    assert journal.wants_base
    await journal.rewrite(base(2))
    journal.append(change(3))
    journal.close()
    again = Journal(tmp_path)
    restored = again.restore("p")
    assert (restored.base, restored.entries) == (base(2), (change(3),))
    again.close()


async def test_a_short_write_is_a_gap(tmp_path, monkeypatch):
    """R12: a disk that takes only a part of an entry must not be trusted with the next."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: 3)
        journal.append(change(2))
    assert journal.wants_base
    journal.close()


async def test_a_damaged_journal_asks_for_a_new_base(tmp_path):
    (tmp_path / "snapshot-1").write_bytes(bytes_of(base(1)))
    (tmp_path / "journal-1").write_bytes(encode_entry(change(2)) + b"half")
    (tmp_path / "journal-2").write_bytes(encode_entry(change(3)))
    journal = Journal(tmp_path)
    assert journal.restore("p").entries == (change(2),)
    assert journal.wants_base
    await journal.rewrite(base(3))
    journal.append(change(4))
    again = Journal(tmp_path).restore("p")
    assert (again.base, again.entries) == (base(3), (change(4),))
    journal.close()


async def test_a_journal_that_outgrew_its_base_asks_for_a_new_one(tmp_path, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr("sidecar.desired.journal.MIN_JOURNAL_BYTES", 10)
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    assert not journal.wants_base
    for revision in range(2, 20):
        journal.append(change(revision))
    assert journal.wants_base
    journal.close()


async def test_how_much_has_come_since_the_base_outlives_a_restart(tmp_path, monkeypatch):
    """R16 bounded: else a sidecar that is often restarted would append to the same base for ever."""
    monkeypatch.setattr("sidecar.desired.journal.MIN_JOURNAL_BYTES", 10)
    first = Journal(tmp_path)
    await first.rewrite(base(1))
    for revision in range(2, 20):
        second = Journal(tmp_path)
        assert second.restore("p") is not None
        assert second.wants_base == first.wants_base
        first.append(change(revision))
        second.close()
    assert first.wants_base
    first.close()


async def test_while_the_first_base_is_written_no_second_one_is_wanted(tmp_path):
    """R16: what is appended meanwhile stands in the journal after it."""
    journal, wanted = Journal(tmp_path), list[bool]()
    with handling(lambda point: wanted.append(journal.wants_base) if point is Point.JOURNAL_OPENED else None):
        await journal.rewrite(base(1))
    assert wanted == [False]
    assert not journal.wants_base
    journal.close()


async def test_what_is_no_file_is_not_in_the_way_of_a_base(tmp_path):
    """R12 crash-only: somebody made folders of these names."""
    for name in ("snapshot-1", "tmp-1"):
        (tmp_path / name).mkdir()
    journal = Journal(tmp_path)
    assert journal.restore("p") is None
    await journal.rewrite(base(1))
    assert not journal.wants_base
    journal.append(change(2))
    journal.close()
    restored = Journal(tmp_path).restore("p")
    assert (restored.base, restored.entries) == (base(1), (change(2),))


async def test_a_sync_that_fails_closes_the_journal_that_it_was_of_and_no_later_one(tmp_path, monkeypatch):
    """Guarantee R12: a new base and its journal may come while the disk still works on the old one."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    replaced = asyncio.Event()
    loop = asyncio.get_running_loop()

    def failing(_: int) -> None:
        asyncio.run_coroutine_threadsafe(_replace(), loop).result(60)
        raise OSError(errno.EIO, "the disk failed")

    async def _replace() -> None:
        monkeypatch.setattr("os.fsync", lambda _: None)
        await journal.rewrite(base(2))
        replaced.set()

    monkeypatch.setattr("os.fsync", failing)
    journal.append(AdaptersChanged(2, ()))
    await journal.sync()
    assert replaced.is_set()
    assert not journal.wants_base
    monkeypatch.setattr("os.fsync", _refusing)
    await journal.sync()
    assert journal.wants_base
    assert open_below(tmp_path) == []


def _refusing(_: int) -> None:
    raise OSError(errno.EIO, "the disk failed")


async def test_what_is_appended_is_synced_without_anybody_asking(tmp_path, monkeypatch):
    """Guarantee R1: also after a power cut, but for the last moment."""
    journal, synced = Journal(tmp_path), asyncio.Event()
    await journal.rewrite(base(1))
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("os.fsync", lambda _: loop.call_soon_threadsafe(synced.set))
    keeping = asyncio.create_task(journal.keep_synced())
    journal.append(AdaptersChanged(2, ()))
    async with asyncio.timeout(60):
        await synced.wait()
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_what_is_being_synced_is_not_settled_yet(tmp_path, monkeypatch):
    """Guarantee R1: a base that is written before it would leave a gap at a power cut."""
    journal, loop = Journal(tmp_path), asyncio.get_running_loop()
    await journal.rewrite(base(1))
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
    journal.close()


def failing(_error: BaseException):
    def fail(*_arguments, **_options):
        raise _error

    return fail


def left_by(folder: Path, *entries: bytes, bases: int = 1) -> None:
    """A base at revision 1, and one journal for each of these."""
    for number in range(1, bases + 1):
        (folder / f"snapshot-{number}").write_bytes(bytes_of(base(number)))
    for number, entry in enumerate(entries, start=1):
        (folder / f"journal-{number}").write_bytes(entry)


def test_a_first_boot_finds_nothing_and_warns_of_nothing(tmp_path):
    with capture_logs() as logs:
        assert Journal(tmp_path / "state").restore("p") is None
    assert logs == []


def test_of_two_whole_bases_the_newer_one_is_taken(tmp_path):
    """R1 monotonic: a kill before the old ones were removed."""
    left_by(tmp_path, encode_entry(change(2)), encode_entry(change(3)), bases=2)
    journal = Journal(tmp_path)
    restored = journal.restore("p")
    assert (restored.base, restored.entries) == (base(2), (change(3),))
    journal.close()


def test_a_boot_appends_behind_the_last_journal_however_many_there_are(tmp_path):
    """R1, R12: nothing is written before what another process wrote, and no base is needed for it."""
    left_by(tmp_path, *(encode_entry(change(revision)) for revision in (2, 3, 4)))
    journal = Journal(tmp_path)
    assert journal.restore("p") is not None
    assert not journal.wants_base
    journal.append(change(5))
    journal.close()
    last = Journal(tmp_path)
    assert last.restore("p").entries == (change(2), change(3), change(4), change(5))
    last.close()


async def test_what_is_appended_while_a_base_is_written_that_never_comes_is_not_lost(tmp_path, monkeypatch):
    """R1: the journals of both go together with the old base, also after an earlier gap was mended."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(OSError(errno.ENOSPC, "no space left")))
        journal.append(change(2))
    await journal.rewrite(base(2))
    journal.append(change(3))

    def killed(*_):
        journal.append(change(4))
        raise OSError(errno.EIO, "the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write_base", killed)
        await journal.rewrite(base(4))
    assert journal.wants_base, "there is none for what is to come"
    restored = Journal(tmp_path).restore("p")
    assert (restored.base, restored.entries) == (base(2), (change(3), change(4)))


async def test_what_comes_after_a_list_is_folded_into_nothing_that_was_before_it(tmp_path, monkeypatch):
    """R2 replay-equal, R12: a kill before the base is whole; and what is followed then is found by the next boot."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    journal.append(change(2))

    def killed(*_):
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(asyncio.CancelledError):
            await journal.rewrite(base(9), is_list=True)
    journal.append(AdaptersChanged(9, ()))
    journal.close()
    again = Journal(tmp_path)
    restored = again.restore("p")
    assert (restored.base.revision, restored.entries) == (1, (change(2),))
    assert again.wants_base, "whatever is appended now would stand behind the gap"
    await again.rewrite(base(2))
    again.append(change(3))
    again.close()
    assert Journal(tmp_path).restore("p").entries == (change(3),)


async def test_a_new_base_is_wanted_once_the_journal_is_longer_than_the_base_and_no_more_then(tmp_path, monkeypatch):
    """R16 bounded: at most as much again as the base, over restarts as well."""
    monkeypatch.setattr("sidecar.desired.journal.MIN_JOURNAL_BYTES", 10)
    journal = Journal(tmp_path)
    await journal.rewrite(SnapshotBase("p", 5, 1, b"pool" * 100, {"a": RawRecord(b"v" * 400, 1)}))
    revision, longest = 1, (tmp_path / "snapshot-1").stat().st_size
    while not journal.wants_base:
        length = sum(one.stat().st_size for one in tmp_path.glob("journal-*"))
        assert length <= longest
        revision += 1
        journal.append(change(revision))
        if revision == 3:
            journal.close()
            journal = Journal(tmp_path)
            assert journal.restore("p") is not None
    assert sum(one.stat().st_size for one in tmp_path.glob("journal-*")) > longest
    await journal.rewrite(base(revision))
    assert not journal.wants_base
    journal.close()


async def test_beside_a_small_base_about_a_mebibyte_is_appended(tmp_path):
    """R16: in numbers, for a small pool must not write its base again and again, nor fill a disk."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    entry = PoolChanged(b"x" * 50_000)
    while not journal.wants_base:
        journal.append(entry)
    assert 0.9 * 2**20 < (tmp_path / "journal-1").stat().st_size < 1.2 * 2**20
    journal.close()


def test_what_comes_within_a_moment_is_synced_together_and_soon(tmp_path, monkeypatch):
    """R1, R16: a power cut costs a moment at the most; a disk is not asked for each of many changes, nor for none."""
    synced: list[tuple[float, int]] = []

    async def scene() -> None:
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

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(scene())


async def test_a_sync_keeps_no_file_open_and_what_is_set_aside_neither(tmp_path):
    """R16 bounded."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    for revision in range(2, 5):
        journal.append(change(revision))
        await journal.sync()
    assert open_below(tmp_path) == ["journal-1"]
    journal.set_aside()
    assert open_below(tmp_path) == []
    assert sorted(one.name for one in tmp_path.iterdir()) == ["damaged-journal-1", "damaged-snapshot-1"]


async def test_nobody_else_on_the_host_may_read_what_is_kept(tmp_path):
    """X1: records hold the places of weights and the names of customers."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    journal.append(change(2))
    journal.close()
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    assert modes == {"journal-1": 0o600, "snapshot-1": 0o600}


async def test_the_folder_is_made_with_all_above_it(tmp_path):
    """R12: a first start, and one after somebody removed it."""
    journal = Journal(tmp_path / "a" / "b")
    await journal.rewrite(base(1))
    assert not journal.wants_base
    journal.close()


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
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing(PermissionError(errno.EPERM, "not yours")))
        journal.set_aside()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", failing(PermissionError(errno.EPERM, "not yours")))
        assert Journal(blocked).restore("p") is None
    (blocked / "journal-3").write_bytes(encode_entry(change(3)))
    with monkeypatch.context() as patch:
        breaks(patch, "journal-3")
        again = Journal(blocked)
        restored = again.restore("p")
    assert (restored.base, restored.entries, again.wants_base) == (base(2), (), True)


async def test_an_old_file_that_somebody_removed_first_is_no_fault(tmp_path):
    """R12: the new base is whole all the same."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))

    def remove(point: Point) -> None:
        if point is Point.OLD_FORGOTTEN:
            for old in tmp_path.glob("*-1"):
                old.unlink()

    with handling(remove):
        await journal.rewrite(base(2))
    assert not journal.wants_base
    journal.close()


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
async def test_a_fault_of_our_own_is_not_taken_for_one_of_the_disk(tmp_path, monkeypatch, where, what):
    """Fail stop: whoever keeps the part has to know of it, and it is told as what it is."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
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
    journal.close()


async def test_entries_are_whole_lines_in_the_order_in_which_they_came(tmp_path):
    """R2: in one file until there is a new base."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    entries = [change(2), PoolChanged(b"x"), PoolChanged(None), change(3)]
    for entry in entries:
        journal.append(entry)
    journal.close()
    assert list(decode_entries((tmp_path / "journal-1").read_bytes())) == entries


SPARSE_BYTES = 8 << 30


@pytest.mark.parametrize("name", ["snapshot-9", "journal-1", "journal-2"])
async def test_a_file_of_8_gibibytes_is_refused_unread(tmp_path, name):
    """X3 given-back, R12: sparse, it costs whoever puts it there nothing; what is whole beside it is taken."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    journal.append(change(2))
    journal.close()
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, SPARSE_BYTES)
    tracemalloc.start()
    try:
        with capture_logs() as logs:
            restored = Journal(tmp_path).restore("p")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert restored.base == base(1)
    assert restored.entries == (() if name == "journal-1" else (change(2),))
    assert [one["file"] for one in logs if "more than" in one.get("error", "")] == [name]
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize(("bound", "name"), [("MAX_LINE_BYTES", "snapshot-1"), ("MAX_FILE_BYTES", "journal-1")])
async def test_a_line_or_a_growing_file_is_read_up_to_a_bound(tmp_path, monkeypatch, bound, name):
    """X3 given-back: what is found small may grow while it is read."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    journal.append(change(2))
    journal.close()
    monkeypatch.setattr(journal_module, bound, 10)
    whole = journal_module.open_file
    monkeypatch.setattr(journal_module, "open_file", lambda path, *, max_bytes: whole(path, max_bytes=1 << 20))
    with capture_logs() as logs, (tmp_path / name).open("rb") as file:
        with pytest.raises(SnapshotDamaged, match=r"more than"):
            list(journal_module._lines(file))
        assert Journal(tmp_path).restore("p") is None
    assert [one["file"] for one in logs] == ["snapshot-1"]
