"""The last-known-good snapshot as bytes: a base file with a checksum, and a journal of the changes since. Pure.

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
from registry.model.placement import Member
from sidecar.raw_records import AnyRecord, RawRecord

SCHEMA = 1
_ESCAPED = re.compile(rb"\\[\\n]")


@dataclass(frozen=True, slots=True)
class Base:
    """Everything a sidecar needs of etcd, as of `revision` of the store `cluster_id` at `epoch`.

    `members` are the live replicas that were known last; none: nobody had to know them.
    `is_doubted`: the store was no longer the one that this came from, so that its watch must not be resumed.
    """

    pool: str
    cluster_id: int
    revision: int
    pool_record: bytes | None = None
    records: Mapping[str, AnyRecord] = field(default_factory=dict)
    epoch: str = ""
    is_doubted: bool = False
    members: Mapping[str, Member] = field(default_factory=dict)


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


Entry = AdaptersChanged | PoolChanged | MembersChanged


class SnapshotDamaged(Exception):
    """A file is not what was written; the message says which part is not."""


def encode_base(base: Base) -> Iterator[bytes]:
    """The lines of a base file: a header, one line a record, and the checksum of all lines before it."""
    header = {
        "schema": SCHEMA,
        "pool": base.pool,
        "cluster_id": base.cluster_id,
        "epoch": base.epoch,
        "revision": base.revision,
        "doubted": base.is_doubted,
        "pool_record": None if base.pool_record is None else _text(base.pool_record),
        "members": [_fields(member) for member in base.members.values()],
    }
    digest = hashlib.sha256()
    for line in chain([_line(header)], (_record_line(key, record) for key, record in base.records.items())):
        digest.update(line)
        yield line
    yield _line({"sha256": digest.hexdigest()})


def decode_base(lines: Iterable[bytes]) -> Base:
    """Reads the lines of a base file.

    Raises:
        SnapshotDamaged: it is not whole, or not of a schema known here.
    """
    whole = _whole(lines)
    try:
        header = json.loads(next(whole, b""))
        if header["schema"] != SCHEMA:
            raise SnapshotDamaged(f"the snapshot has schema {header['schema']}, {SCHEMA} is known here")
        record = header["pool_record"]
        return Base(
            pool=header["pool"],
            cluster_id=header["cluster_id"],
            revision=header["revision"],
            pool_record=None if record is None else _bytes(record),
            records=dict(map(_record, whole)),
            epoch=header.get("epoch", ""),
            is_doubted=header.get("doubted", False),
            members={fields[0]: Member(*fields) for fields in header.get("members", [])},
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
        case MembersChanged(come, gone):  # pragma: no branch - mypy knows that this is the last case
            body = _line({"m": [_fields(member) for member in come], "g": gone})
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
        yield _entry(json.loads(body))


def _entry(fields: dict[str, object]) -> Entry:
    match fields:
        case {"r": int(revision), "e": list(events)}:
            return AdaptersChanged(revision, tuple(_decode_events(events)))
        case {"p": str() | None as value}:
            return PoolChanged(None if value is None else _bytes(value))
        case {"m": list(come), "g": list(gone)}:
            return MembersChanged(tuple(Member(*fields) for fields in come), tuple(gone))
        case _:
            raise SnapshotDamaged("the journal holds an entry of a form that is not known here")


def _fields(member: Member) -> list[object]:
    return [member.replica, dict(member.labels), member.capacity]


def _decode_events(events: Iterable[tuple[str, int, str | None]]) -> Iterator[Event]:
    for key, revision, value in events:
        kv = None if value is None else KeyValue(key.encode(), _bytes(value), 0, revision, 0)
        yield Event(key.encode(), revision, kv)


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
    key, revision, good = json.loads(head)
    if b"\\" in value:
        value = _ESCAPED.sub(lambda found: b"\n" if found[0] == b"\\n" else b"\\", value)
    return key, RawRecord(value, revision, None if good is None else (_bytes(good[0]), good[1]))


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _text(value: bytes) -> str:
    """Any bytes as a string that JSON can hold; latin-1 gives each byte one character."""
    return value.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
