"""Encoding of the last-known-good snapshot: a base, and a journal since. Pure.

A base is written and read line by line, since all of it at once would take as much memory again as the records.

A sidecar that boots without etcd must come back to the newest state that it acted upon, or it would move its
engine back in time (guarantee R1). So each change is in the journal before it is acted upon, and the base is
written anew only now and then: what a change costs does not depend on the number of records.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from registry.etcd3.ops import Event, KeyValue
from registry.model.placement import Declined, Member
from registry.model.stored import read_json
from sidecar.desired.last_good import NOTHING_GOOD, GoodRecord, LastGood
from sidecar.desired.packing import AnyRecord, RawRecord

SCHEMA = 1
_ESCAPED = re.compile(rb"\\[\\n]")


@dataclass(frozen=True, slots=True)
class SnapshotBase:
    """Everything a sidecar needs of etcd, as of `revision` of the store `cluster_id` at `epoch`.

    `members` are the live replicas that were known last; none: nobody had to know them.
    `is_doubted`: the store was no longer the one that this came from, so that its watch must not be resumed.
    `last_good`: what this replica served of the adapters.
    """

    pool: str
    cluster_id: int
    revision: int
    pool_record: bytes | None = None
    records: Mapping[str, AnyRecord] = field(default_factory=dict)
    epoch: str = ""
    is_doubted: bool = False
    members: Mapping[str, Member] = field(default_factory=dict)
    last_good: LastGood = NOTHING_GOOD


@dataclass(frozen=True, slots=True)
class AdaptersChanged:
    """All events of one revision; none: the revision was reached without a change."""

    revision: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """The pool's record changed; None: it was deleted."""

    value: bytes | None


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """Replicas came, or are others now; replicas are gone, by name."""

    come: tuple[Member, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GenerationsServed:
    """This replica serves generations by name key; 0: it is not to serve that any more."""

    revision: int
    generations: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class GoodAdopted:
    """Others serve this of an adapter of which this replica served nothing yet."""

    revision: int
    key: str
    good: GoodRecord


Entry = AdaptersChanged | PoolChanged | MembersChanged | GenerationsServed | GoodAdopted


class SnapshotDamaged(Exception):
    """A file is not what was written; the message says which part is not."""


def encode_base(base: SnapshotBase) -> Iterator[bytes]:
    """The lines of a base file: a header, one line a record, and the checksum of all lines before it."""
    header: dict[str, object] = {
        "schema": SCHEMA,
        "pool": base.pool,
        "cluster_id": base.cluster_id,
        "epoch": base.epoch,
        "revision": base.revision,
        "doubted": base.is_doubted,
        "pool_record": None if base.pool_record is None else _text(base.pool_record),
        "members": [_fields(member) for member in base.members.values()],
    }
    if declines := _declines(base.members.values()):
        header["declines"] = declines
    if base.last_good != NOTHING_GOOD:
        header["served"] = sorted(base.last_good.served)
        header["good"] = [_good_fields(key, good) for key, good in base.last_good.records.items()]
    digest = hashlib.sha256()
    for line in chain([_line(header)], (_record_line(key, record) for key, record in base.records.items())):
        digest.update(line)
        yield line
    yield _line({"sha256": digest.hexdigest()})


def decode_base(lines: Iterable[bytes]) -> SnapshotBase:
    """Reads the lines of a base file.

    Raises:
        SnapshotDamaged: it is not whole, or not of a schema known here.
    """
    whole = _whole(lines)
    try:
        header = read_json(next(whole, b""))
        if header["schema"] != SCHEMA:
            raise SnapshotDamaged(f"the snapshot has schema {header['schema']}, {SCHEMA} is known here")
        return SnapshotBase(
            pool=_text_of(header["pool"]),
            cluster_id=_number(header["cluster_id"], bits=64),
            revision=_number(header["revision"]),
            pool_record=_value(header["pool_record"]),
            records=dict(map(_record, whole)),
            epoch=_text_of(header.get("epoch", "")),
            is_doubted=bool(header.get("doubted", False)),
            members={one.replica: one for one in _members_of(header.get("members", []), header.get("declines", {}))},
            last_good=LastGood(
                frozenset(map(_text_of, header.get("served", []))), dict(map(_good_record, header.get("good", [])))
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotDamaged(f"the snapshot cannot be read: {error}") from error


def _whole(lines: Iterable[bytes]) -> Iterator[bytes]:
    """All lines but the last, which is their checksum. What was taken before it is judged is not to be used."""
    rest = iter(lines)
    digest = hashlib.sha256()
    last = next(rest, b"")
    for line in rest:
        digest.update(last)
        yield last
        last = line
    if last != _line({"sha256": digest.hexdigest()}):
        raise SnapshotDamaged("the checksum of the snapshot is not as expected")


def encode_entry(entry: Entry) -> bytes:
    """One line of the journal: checksum, space, JSON."""
    match entry:
        case AdaptersChanged(revision, events):
            body = _line({"r": revision, "e": [_event(event) for event in events]})
        case PoolChanged(value):
            body = _line({"p": None if value is None else _text(value)})
        case MembersChanged(come, gone):
            declines = _declines(come)
            body = _line({"m": list(map(_fields, come)), "g": gone} | ({"d": declines} if declines else {}))
        # To releases that know nothing of the last two, nothing changed at that revision.
        case GenerationsServed(revision, generations):
            body = _line({"r": revision, "e": [], "s": generations})
        case GoodAdopted(revision, key, good):  # pragma: no branch - mypy knows that this is the last case
            body = _line({"r": revision, "e": [], "o": _good_fields(key, good)})
    return b"%08x %s" % (zlib.crc32(body), body)


def decode_entries(data: bytes) -> Iterator[Entry]:
    """The entries of a journal.

    Raises:
        SnapshotDamaged: at the first line that is not whole; what came before it is good.
    """
    for line in data.splitlines(keepends=True):
        checksum, _, body = line.partition(b" ")
        if checksum != b"%08x" % zlib.crc32(body) or not body.endswith(b"\n"):
            raise SnapshotDamaged("the journal ends in the middle of a line")
        try:
            entry = _entry(read_json(body))
        except (ValueError, TypeError) as error:
            raise SnapshotDamaged(f"the journal holds an entry that cannot be read: {error}") from error
        yield entry


def _entry(fields: dict[str, object]) -> Entry:
    match fields:
        case {"r": int(revision), "e": [], "s": list(generations)}:
            return GenerationsServed(_number(revision), tuple(map(_generation, generations)))
        case {"r": int(revision), "e": [], "o": list(good)}:
            return GoodAdopted(_number(revision), *_good_record(good))
        case {"r": int(revision), "e": list(events)}:
            return AdaptersChanged(_number(revision), tuple(_decode_events(events)))
        case {"p": value}:
            return PoolChanged(_value(value))
        case {"m": list(come), "g": list(gone), "d": dict(declines)}:
            return MembersChanged(tuple(_members_of(come, declines)), tuple(map(str, gone)))
        case {"m": list(come), "g": list(gone)}:
            return MembersChanged(tuple(_members_of(come, {})), tuple(map(str, gone)))
        case _:
            raise SnapshotDamaged("the journal holds an entry of a form that is not known here")


def _members_of(fields: Iterable[list[object]], declines: dict[str, object]) -> Iterator[Member]:
    """Members from `_fields` and `_declines`; what no presence could say is none.

    Raises ValueError, TypeError.
    """
    for one in fields:
        match one:
            case [str(replica), dict(labels), int() | None as capacity]:
                known = {name: _text_of(value) for name, value in labels.items()}
                room = None if capacity is None else _number(capacity)
                yield Member(_text_of(replica), known, room, declines=_declined(declines.get(replica, {})))
            case _:
                raise ValueError("a member is not of the form of a presence")


def _declined(fields: object) -> dict[str, Declined] | None:
    match fields:
        case None:
            return None
        case dict():
            return {_text_of(reason): _group(one) for reason, one in fields.items()}
        case _:
            raise ValueError("what a member declines is not of the form of a presence")


def _group(fields: object) -> Declined:
    match fields:
        case [str(by), list(adapters)]:
            return Declined(_text_of(by), frozenset(map(_text_of, adapters)))
        case _:
            raise ValueError("what a member declines is not of the form of a presence")


def _fields(member: Member) -> list[object]:
    return [member.replica, dict(member.labels), member.capacity]


def _declines(members: Iterable[Member]) -> dict[str, object]:
    """Declines of members, beside their fields, which earlier releases read alone."""
    found = {one.replica: one.declines for one in members if one.declines != {}}
    return {
        name: of and {reason: [one.by, sorted(one.adapters)] for reason, one in of.items()}
        for name, of in found.items()
    }


def _decode_events(events: Iterable[tuple[object, object, object]]) -> Iterator[Event]:
    for text, number, value in events:
        key, revision, content = _text_of(text).encode(), _number(number), _value(value)
        yield Event(key, revision, None if content is None else KeyValue(key, content, 0, revision, 0))


def _event(event: Event) -> list[object]:
    # Only the last part of a key counts to the informer, and only that is kept.
    key = event.key.rsplit(b"/", 1)[-1].decode(errors="backslashreplace")
    return [key, event.mod_revision, None if event.kv is None else _text(event.kv.value)]


def _record_line(key: str, record: AnyRecord) -> bytes:
    """Key, revision and last good value as JSON, a tab, and the value itself: most of a base is never decoded."""
    good = None if record.good is None else [_text(record.good[0]), record.good[1]]
    head = json.dumps([key, record.revision, good], separators=(",", ":")).encode()
    return b"%s\t%s\n" % (head, record.value.replace(b"\\", b"\\\\").replace(b"\n", b"\\n"))


def _record(line: bytes) -> tuple[str, RawRecord]:
    head, _, value = line.removesuffix(b"\n").partition(b"\t")
    text, number, good = read_json(head)
    key, revision = _text_of(text), _number(number)
    if b"\\" in value:
        value = _ESCAPED.sub(lambda found: b"\n" if found[0] == b"\\n" else b"\\", value)
    return key, RawRecord(value, revision, None if good is None else _good(*good))


def _good(value: object, revision: object) -> tuple[bytes, int]:
    """The last good value of a record. Raises ValueError, TypeError."""
    return _bytes(_text_of(value)), _number(revision)


def _generation(fields: list[object]) -> tuple[str, int]:
    """A name key and a generation. Raises ValueError, TypeError."""
    key, generation = fields
    return _text_of(key), _number(generation)


def _good_fields(key: str, good: GoodRecord) -> list[object]:
    return [key, _text(good.value), good.revision, good.generation]


def _good_record(fields: list[object]) -> tuple[str, GoodRecord]:
    """Record from `_good_fields`. Raises ValueError, TypeError."""
    key, value, revision, generation = fields
    return _text_of(key), GoodRecord(_bytes(_text_of(value)), _number(revision), _number(generation))


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _text(value: bytes) -> str:
    """Any bytes as a string that JSON can hold; latin-1 gives each byte one character."""
    return value.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _value(text: object) -> bytes | None:
    """A value that may be absent. Raises ValueError, TypeError."""
    return None if text is None else _bytes(_text_of(text))


def _text_of(value: object) -> str:
    """A text that can be written again. Raises ValueError, TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    value.encode()
    return value


def _number(value: object, *, bits: int = 63) -> int:
    """A number as etcd and its records may have it. Raises ValueError."""
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise ValueError(f"{value!r:.40} is no whole number of at most {bits} bits")
    return value
