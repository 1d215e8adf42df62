"""The snapshot as bytes: whole or left out, never half."""

from __future__ import annotations

import hashlib
import io
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from registry.etcd3.ops import Event, KeyValue
from registry.model.placement import Declined, Member
from sidecar.desired.last_good import GoodRecord, LastGood
from sidecar.desired.packing import RawRecord
from sidecar.desired.snapshot import (
    AdaptersChanged,
    GenerationsServed,
    GoodAdopted,
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
    ids = st.frozensets(st.text(max_size=3), max_size=2)
    declines = st.one_of(st.none(), st.dictionaries(st.text(max_size=3), st.builds(Declined, st.text(max_size=3), ids)))
    capacities = st.one_of(st.none(), st.integers(1, 99))
    return st.builds(Member, st.just(name), labels, capacities, declines=declines)


good = st.builds(GoodRecord, st.binary(max_size=20), st.integers(1, 99), st.integers(1, 99))
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
    last_good=st.builds(
        LastGood, st.frozensets(st.text(max_size=3), max_size=3), st.dictionaries(st.text(max_size=3), good, max_size=2)
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
        st.lists(st.text(max_size=3).flatmap(members), max_size=3, unique_by=lambda one: one.replica).map(tuple),
        st.lists(st.text(max_size=3), max_size=3).map(tuple),
    ),
    st.builds(
        GenerationsServed,
        st.integers(1, 99),
        st.lists(st.tuples(st.text(max_size=3), st.integers(0, 99)), max_size=3).map(tuple),
    ),
    st.builds(GoodAdopted, st.integers(1, 99), st.text(max_size=3), good),
)


ESCAPED = RawRecord(b"a\\n\\\nb", 7, (b"\n", 3))


MEMBER = Member("r1", {"zone": "a"}, 5)


@given(bases)
@example(SnapshotBase("p", 1, 2, b"p", {"a": ESCAPED}, members={"r1": MEMBER}))
def test_a_base_is_read_as_it_was_written(base):
    assert base_of(bytes_of(base)) == base


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


def header(schema: str = "1", cluster: str = "1", revision: str = "1", members: str = "[]") -> bytes:
    fields = f'"schema":{schema},"pool":"p","cluster_id":{cluster},"revision":{revision},"pool_record":null'
    return with_checksum(f'{{{fields},"members":{members}}}\n'.encode())


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"[]\n", b"\xff\n", with_checksum(b""), with_checksum(b"[]\n"), with_checksum(b'{"schema":1}\n')),
        *(header(schema=schema) for schema in ("2", "0", '"1"')),
        *(header(members=said) for said in ('[["r", {}, 1' + "0" * 400 + "]]", "[7]", "7", "[" * 30_000)),
        *(header(revision=number) for number in (f"{2**63}", "-1", "true", "1.0", "null")),
        *(header(cluster=number) for number in (f"{2**64}", "-1")),
    ],
    ids=lambda data: data[:60],
)
def test_what_is_no_base_of_ours_is_refused(data):
    """R12, R14, X2: what a later release means by the same fields is not known, nor what etcd cannot have."""
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


@pytest.mark.parametrize(
    "body",
    [
        b'{"m": [["r", {}, 1' + b"0" * 400 + b'], "g": []}',
        b'{"m": [["r", {}, 1' + b"0" * 400 + b']], "g": []}',
        b'{"m": [["r", {}, -1]], "g": []}',
        b'{"m": [["r", [], 1]], "g": []}',
        b'{"m": [["r"]], "g": []}',
        b'{"m": [7], "g": []}',
        b'{"m": [["\\ud800", {}, 1]], "g": []}',
        b'{"m": [["r", {"zone": "\\ud800"}, 1]], "g": []}',
        b'{"m": [["r", {}, 1]], "g": [], "d": {"r": ["by"]}}',
        b'{"m": [["r", {}, 1]], "g": [], "d": {"r": {"why": ["by"]}}}',
        b'{"m": [["r", {}, 1]], "g": [], "d": {"r": {"why": ["by", [2]]}}}',
        b'{"r": 3, "e": [7]}',
        b'{"r": 3, "e": [["k", 1, 7]]}',
        b'{"r": 3, "e": [["k", 1]]}',
        b'{"r": 3, "e": [], "s": [["k", -1]]}',
        b'{"r": 3, "e": [], "s": [7]}',
        b'{"r": 3, "e": [], "o": ["k", "v", 1]}',
        b'{"r": 3, "e": [], "o": ["k", 7, 1, 1]}',
        b"[" * 30_000,
        b"7",
        b'{"q":1}',
    ],
)
def test_an_entry_that_says_what_nobody_could_have_written_is_damage(body):
    """R12: whatever stands in a file, it can be read as far as it is good."""
    body += b"\n"
    with pytest.raises(SnapshotDamaged):
        list(decode_entries(b"%08x %s" % (zlib.crc32(body), body)))


def test_what_this_release_wrote_is_what_every_other_one_reads():
    """R12: files outlive an upgrade, and going back; so each byte of the form is written down here.

    An earlier release wrote neither epoch nor doubt nor members: these are as they were then.
    """
    earlier = b'{"schema":1,"pool":"p","cluster_id":5,"revision":9,"pool_record":null}\n'
    assert base_of(with_checksum(earlier)) == SnapshotBase("p", 5, 9)
    header = (
        b'{"schema":1,"pool":"p","cluster_id":5,"epoch":"e","revision":9,"doubted":true,"pool_record":"\\u00ff",'
        b'"members":[["r1",{"zone":"a"},5],["r2",{},null]]}\n'
    )
    written = with_checksum(header + b'["a",7,null]\tv1\\n\\\\\n' + b'["b",8,["old",6]]\t?\n')
    members = {"r1": MEMBER, "r2": Member("r2", {}, None)}
    records = {"a": RawRecord(b"v1\n\\", 7), "b": RawRecord(b"?", 8, (b"old", 6))}
    base = SnapshotBase("p", 5, 9, b"\xff", records, "e", is_doubted=True, members=members)
    assert bytes_of(base) == written
    assert base_of(written) == base
    lines = {
        AdaptersChanged(7, (Event(b"/x/y/a", 7, KeyValue(b"/x/y/a", b"v", 3, 7, 2)), Event(b"/x/y/b", 7, None))): (
            b'{"r":7,"e":[["a",7,"v"],["b",7,null]]}\n'
        ),
        PoolChanged(b"\xff"): b'{"p":"\\u00ff"}\n',
        PoolChanged(None): b'{"p":null}\n',
    }
    declining = Member("r1", {}, 5, declines={"why": Declined("by", frozenset({"2", "1"}))})
    come = MembersChanged((declining, Member("old", {}, declines=None), MEMBER), ("r2",))
    body = (
        b'{"m":[["r1",{},5],["old",{},null],["r1",{"zone":"a"},5]],"g":["r2"],'
        b'"d":{"r1":{"why":["by",["1","2"]]},"old":null}}\n'
    )
    assert encode_entry(come) == b"%08x %s" % (zlib.crc32(body), body)
    for entry, body in lines.items():
        assert encode_entry(entry) == b"%08x %s" % (zlib.crc32(body), body)
    read = list(decode_entries(b"".join(map(encode_entry, lines))))
    assert read == [
        AdaptersChanged(7, (Event(b"a", 7, KeyValue(b"a", b"v", 0, 7, 0)), Event(b"b", 7, None))),
        PoolChanged(b"\xff"),
        PoolChanged(None),
    ]


def test_a_fault_of_our_own_is_not_taken_for_a_damaged_file(monkeypatch):
    """Fail stop: what is whole must not be set aside for it."""

    def broken(_: object) -> None:
        raise RuntimeError

    good, entry = bytes_of(SnapshotBase("p", 5, 9)), encode_entry(PoolChanged(None))
    monkeypatch.setattr("sidecar.desired.snapshot.read_json", broken)
    with pytest.raises(RuntimeError):
        base_of(good)
    with pytest.raises(RuntimeError):
        list(decode_entries(entry))


def test_what_was_served_is_written_so_that_an_earlier_release_reads_the_rest():
    """R12: files outlive going back. To it nothing changed, and the header has fields that it does not look for."""
    header = (
        b'{"schema":1,"pool":"p","cluster_id":5,"epoch":"","revision":9,"doubted":false,"pool_record":null,"members":[],'
        b'"served":["a","b"],"good":[["c","\\u00ff",7,2]]}\n'
    )
    base = SnapshotBase("p", 5, 9, last_good=LastGood(frozenset("ab"), {"c": GoodRecord(b"\xff", 7, 2)}))
    assert bytes_of(base) == with_checksum(header)
    lines = {
        GenerationsServed(7, (("a", 2), ("b", 0))): b'{"r":7,"e":[],"s":[["a",2],["b",0]]}\n',
        GoodAdopted(7, "c", GoodRecord(b"v", 3, 1)): b'{"r":7,"e":[],"o":["c","v",3,1]}\n',
    }
    for entry, body in lines.items():
        assert encode_entry(entry) == b"%08x %s" % (zlib.crc32(body), body)
