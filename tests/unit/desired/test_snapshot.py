"""The snapshot as bytes: whole or left out, never half."""

from __future__ import annotations

import hashlib
import io
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from registry.etcd3.ops import Event, KeyValue
from registry.model.placement import Member
from sidecar.desired.informer import RawRecord
from sidecar.desired.snapshot import (
    AdaptersChanged,
    MembersChanged,
    PoolChanged,
    SnapshotBase,
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
    SnapshotBase,
    pool=st.just("p"),
    cluster_id=st.integers(0, 2**64 - 1),
    revision=st.integers(0, 2**62),
    pool_record=st.one_of(st.none(), st.binary(max_size=20)),
    records=st.dictionaries(st.text(max_size=8), raw_records, max_size=5),
    members=st.dictionaries(st.text(max_size=3), st.none(), max_size=3).flatmap(
        lambda names: st.fixed_dictionaries({name: members(name) for name in names})
    ),
)


def bytes_of(base: SnapshotBase) -> bytes:
    return b"".join(encode_base(base))


def base_of(data: bytes) -> SnapshotBase:
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


ESCAPED = RawRecord(b"a\\n\\\nb", 7, (b"\n", 3))
MEMBER = Member("r1", {"zone": "a"}, 5)


@given(bases)
@example(SnapshotBase("p", 1, 2, b"p", {"a": ESCAPED}, members={"r1": MEMBER}))
def test_a_base_is_read_as_it_was_written(base):
    assert base_of(bytes_of(base)) == base


@given(st.lists(entries, max_size=6))
@example([change(1), change(2, None), PoolChanged(None), PoolChanged(b"p"), MembersChanged((MEMBER,), ("r2",))])
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


@pytest.mark.parametrize(
    "body",
    [
        b'{"m": [["r", {}, 1' + b"0" * 400 + b'], "g": []}',
        b'{"m": [["r", {}, 1' + b"0" * 400 + b']], "g": []}',
        b'{"m": [["r", {}, -1]], "g": []}',
        b'{"m": [["r", [], 1]], "g": []}',
        b'{"m": [["r"]], "g": []}',
        b'{"m": [7], "g": []}',
        b'{"r": 3, "e": [7]}',
        b'{"r": 3, "e": [["k", 1, 7]]}',
        b'{"r": 3, "e": [["k", 1]]}',
        b"[" * 30_000,
        b"7",
    ],
)
def test_an_entry_that_says_what_nobody_could_have_written_is_damage(body):
    """R12: whatever stands in a file, it can be read as far as it is good."""
    body += b"\n"
    with pytest.raises(SnapshotDamaged):
        list(decode_entries(b"%08x %s" % (zlib.crc32(body), body)))


@pytest.mark.parametrize("members", ['[["r", {}, 1' + "0" * 400 + "]]", "[7]", "7", "[" * 30_000])
def test_a_base_whose_members_nobody_could_have_written_is_damage(members):
    """R12."""
    fields = '"schema": 1, "pool": "p", "cluster_id": 1, "revision": 1, "pool_record": null'
    header = f'{{{fields}, "members": {members}}}\n'
    digest = hashlib.sha256(header.encode()).hexdigest()
    with pytest.raises(SnapshotDamaged):
        decode_base([header.encode(), b'{"sha256":"%s"}\n' % digest.encode()])
