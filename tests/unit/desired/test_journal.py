"""The snapshot on disk: what a kill, a power cut or a full disk leaves of it."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

from registry.runtime.failpoints import Point, handling
from sidecar.desired import journal as journal_module
from sidecar.desired.informer import RawRecord
from sidecar.desired.journal import Journal
from sidecar.desired.snapshot import AdaptersChanged, PoolChanged, SnapshotBase, encode_entry
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


async def test_a_power_cut_finds_the_old_base_or_the_new_one_whole(tmp_path, monkeypatch):
    """R12 crash-only, R13: the bytes are on disk before they get their name, and the name before the old ones go."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    done: list[str] = []

    def noting(verb, call):
        def noted(what, *arguments, **options):
            path = Path(f"/proc/self/fd/{what}").readlink() if isinstance(what, int) else what
            done.append(f"{verb} {path.name}")
            return call(what, *arguments, **options)

        return noted

    monkeypatch.setattr(os, "fsync", noting("sync", os.fsync))
    monkeypatch.setattr(Path, "rename", noting("rename", Path.rename))
    monkeypatch.setattr(Path, "unlink", noting("unlink", Path.unlink))
    await journal.rewrite(base(2))
    journal.close()
    written = ["sync tmp-2", "rename tmp-2", f"sync {tmp_path.name}"]
    assert done[:3] == written
    assert sorted(done[3:]) == ["unlink journal-1", "unlink snapshot-1"]


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


async def test_a_base_that_the_disk_does_not_give_gives_way_to_the_one_before(tmp_path, monkeypatch):
    """R12 crash-only: as one on a bad sector."""
    for revision in (1, 2):
        (tmp_path / f"snapshot-{revision}").write_bytes(bytes_of(base(revision)))
    whole = journal_module.decode_base

    def broken(file):
        if file.name.endswith("snapshot-2"):
            raise OSError(errno.EIO, "bad sector")
        return whole(file)

    monkeypatch.setattr(journal_module, "decode_base", broken)
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
