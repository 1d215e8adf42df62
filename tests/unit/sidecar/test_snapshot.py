"""The snapshot as bytes, and on disk: whole or left out, never half."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.etcd3.ops import Event, KeyValue
from registry.model.placement import Member
from sidecar.journal import Journal
from sidecar.raw_records import RawRecord
from sidecar.snapshot import (
    AdaptersChanged,
    Base,
    MembersChanged,
    PoolChanged,
    SnapshotDamaged,
    decode_base,
    decode_entries,
    encode_base,
    encode_entry,
)

raw_records = st.builds(
    RawRecord, st.binary(max_size=40), st.integers(1, 99), st.one_of(st.none(), st.tuples(st.binary(), st.just(3)))
)


def members(name: str) -> st.SearchStrategy[Member]:
    labels = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
    return st.builds(Member, st.just(name), labels, st.one_of(st.none(), st.integers(1, 99)))


bases = st.builds(
    Base,
    pool=st.just("p"),
    cluster_id=st.integers(0, 2**64 - 1),
    revision=st.integers(0, 2**62),
    pool_record=st.one_of(st.none(), st.binary(max_size=20)),
    records=st.dictionaries(st.text(max_size=8), raw_records, max_size=5),
    members=st.dictionaries(st.text(max_size=3), st.none(), max_size=3).flatmap(
        lambda names: st.fixed_dictionaries({name: members(name) for name in names})
    ),
)


def bytes_of(base: Base) -> bytes:
    return b"".join(encode_base(base))


def base_of(data: bytes) -> Base:
    return decode_base(io.BytesIO(data))


def change(revision: int, value: bytes | None = b"v") -> AdaptersChanged:
    kv = None if value is None else KeyValue(b"a", value, 0, revision, 0)
    return AdaptersChanged(revision, (Event(b"a", revision, kv),))


entries = st.one_of(
    st.builds(change, st.integers(1, 99), st.one_of(st.none(), st.binary(max_size=20))),
    st.builds(PoolChanged, st.one_of(st.none(), st.binary(max_size=20))),
    st.builds(
        MembersChanged,
        st.lists(st.text(max_size=3).flatmap(members), max_size=3).map(tuple),
        st.lists(st.text(max_size=3), max_size=3).map(tuple),
    ),
)


@given(bases)
def test_a_base_is_read_as_it_was_written(base):
    assert base_of(bytes_of(base)) == base


@given(st.lists(entries, max_size=6))
def test_entries_are_read_as_they_were_written(written):
    assert list(decode_entries(b"".join(map(encode_entry, written)))) == written


@given(bases, st.data())
def test_a_base_with_any_byte_changed_or_lost_is_refused(base, data):
    """R12 crash-only: a damaged file never passes for another state."""
    good = bytes_of(base)
    at = data.draw(st.integers(0, len(good) - 1))
    for bad in (good[:at] + bytes([good[at] ^ 0x01]) + good[at + 1 :], good[:at], good[:at] + good[at + 1 :]):
        with pytest.raises(SnapshotDamaged):
            base_of(bad)


def with_checksum(lines: bytes) -> bytes:
    return lines + b'{"sha256":"%s"}\n' % hashlib.sha256(lines).hexdigest().encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]\n",
        b"\xff\n",
        with_checksum(b""),
        with_checksum(b"[]\n"),
        with_checksum(b'{"schema":2}\n'),
        with_checksum(b'{"schema":1}\n'),
    ],
)
def test_what_is_no_base_is_refused(data):
    with pytest.raises(SnapshotDamaged):
        base_of(data)


@given(st.lists(entries, min_size=1, max_size=4), st.data())
def test_a_torn_journal_gives_what_came_before_the_tear(written, data):
    """R12 crash-only."""
    whole = b"".join(map(encode_entry, written))
    torn = whole[: data.draw(st.integers(0, len(whole) - 1))]
    read = []
    try:
        for entry in decode_entries(torn):
            read.append(entry)  # noqa: PERF402 - what was read before the damage counts
    except SnapshotDamaged:
        pass
    assert read == written[: len(read)]
    assert b"".join(map(encode_entry, read)) == torn[: torn.rfind(b"\n") + 1]


def test_an_entry_of_an_unknown_form_is_damage():
    line = encode_entry(PoolChanged(None)).replace(b'"p"', b'"q"')
    with pytest.raises(SnapshotDamaged):
        list(decode_entries(line))
    import zlib

    body = b'{"q":1}\n'
    with pytest.raises(SnapshotDamaged):
        list(decode_entries(b"%08x %s" % (zlib.crc32(body), body)))


def base(revision: int) -> Base:
    return Base("p", 5, revision, b"pool", {"a": RawRecord(b"v", revision)})


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
    journal.close()


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
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write_base", full)
        await journal.rewrite(base(4))
    await journal.rewrite(base(4))
    journal.append(change(5))
    (tmp_path / next(p.name for p in tmp_path.iterdir() if p.name.startswith("snapshot"))).rename(tmp_path / "lost")
    (tmp_path / "snapshot-1").write_bytes(bytes_of(base(1)))
    (tmp_path / "journal-1").write_bytes(encode_entry(change(2)))
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
    monkeypatch.setattr("sidecar.journal.MIN_JOURNAL_BYTES", 10)
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    assert not journal.wants_base
    for revision in range(2, 20):
        journal.append(change(revision))
    assert journal.wants_base
    journal.close()


async def test_a_sync_that_fails_closes_the_journal_that_it_was_of_and_no_later_one(tmp_path, monkeypatch):
    """Guarantee R12: a new base and its journal may come while the disk still works on the old one."""
    journal = Journal(tmp_path)
    await journal.rewrite(base(1))
    replaced = asyncio.Event()
    loop = asyncio.get_running_loop()

    def failing(_: int) -> None:
        asyncio.run_coroutine_threadsafe(_replace(), loop).result(10)
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
    async with asyncio.timeout(30):
        await synced.wait()
    keeping.cancel()
    await asyncio.wait([keeping])
