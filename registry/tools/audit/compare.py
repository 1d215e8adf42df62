"""Comparison of audit lines with etcd: tampering with either shows. Pure.

Concept: each record of the audit is told three times: by its line, by its key in etcd, and by what it says of other
keys. Whoever changes one of these leaves the others. A line and its key are compared, as long as the key has to stand;
each change begins with what the one before left; and what stands now is what the last record left.

Invariant: nothing is told of an untouched store, also while records expire, etcd is compacted, or lines are a moment
behind.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from registry.etcd3.ops import KeyValue
from registry.model.names import name_key
from registry.tools.audit.lines import AuditLine, BeginLine, HoleLine, RecordLine, RubbishLine, SeenLine
from registry.tools.verify.history import (
    Document,
    HistoryBase,
    Revision,
    Step,
    Violation,
    document,
    objects_of,
    text_of,
)

GUARANTEE = "A5"
_DENIED = "audit/_/denied/"
_ID = re.compile(r"([0-9]{8}T[0-9]{6}\.[0-9]{6})Z-[0-9a-f]{16}")
# Clocks of two admin services may differ so much.
_SKEW = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class AuditedStore:
    """State of etcd that lines are compared with.

    Attributes:
        prefix: of all keys, with a slash at its end.
        revision: at which everything stood.
        kvs: by key below the prefix: records of the audit, and what they are about.
        steps: all that etcd keeps of what happened to these.
        now: the time.
        retention: for how long at least a record of a change stays, and the record of a refusal.
        lag: how old a record is that has to have a line.
    """

    prefix: str
    revision: int
    kvs: Mapping[str, KeyValue]
    steps: Sequence[Step]
    now: datetime
    retention: tuple[timedelta, timedelta] = (timedelta(days=30), timedelta(days=7))
    lag: timedelta = timedelta(minutes=1)

    def shown(self, key: bytes) -> str:
        """A key below the prefix."""
        return key.decode(errors="backslashreplace").removeprefix(self.prefix)

    def must_stand(self, key: str, record: Document) -> bool:
        """True if a record of the audit has not lived long enough to be gone."""
        at = _time(text_of(record, "at"))
        return at is None or self.now - at < self.retention[key.startswith(_DENIED)]


@dataclass(frozen=True, slots=True)
class _Told:
    """A record of the audit, and where it is told: a line, or etcd alone."""

    revision: int
    key: str
    record: Document
    where: str


@dataclass
class _File:
    """Records that lines tell, and what is wrong with the lines themselves.

    `whole_from`: behind this revision each record has a line; None: behind none, since what expired before has none.
    """

    begins_after: int = 0
    whole_from: int | None = None
    reaches: int = 0
    records: dict[str, _Told] = field(default_factory=dict)
    findings: list[Violation] = field(default_factory=list)
    newest: datetime | None = None

    def find(self, number: int, message: str, revision: int = 0) -> None:
        self.findings.append(Violation(GUARANTEE, revision, f"line {number}", message))


def compare(lines: Iterable[AuditLine], after: int, store: AuditedStore) -> list[Violation]:
    """Findings on lines and etcd.

    Args:
        lines: of all files, the oldest first.
        after: behind which revision they are to begin.
        store: etcd.
    """
    file = _read(lines, after)
    findings = [*file.findings, *_lines_faults(file, store), *_missing(file, store), *_rewritten(store)]
    audits = sorted({**_of_store(store), **file.records}.values(), key=lambda one: (one.revision, one.key))
    changes = [one for one in audits if not one.key.startswith(_DENIED)]
    return [
        *findings,
        *_chain_faults(changes, file, store),
        *_state_faults(changes, file, store),
        *_history_faults(store),
    ]


def _read(lines: Iterable[AuditLine], after: int) -> _File:
    file, number = _File(after, after or None, after), 0
    for number, line in enumerate(lines, start=1):
        if number == 1 and line != BeginLine(after):
            file.find(1, f"it is not the beginning behind revision {after}: lines before it were removed")
        if isinstance(line, RecordLine):
            _take(file, number, line)
        else:
            _note(file, number, line)
    if not number:
        file.find(1, "there are no lines")
    return file


def _note(file: _File, number: int, line: BeginLine | SeenLine | HoleLine | RubbishLine) -> None:
    match line:
        case BeginLine(revision) if number > 1 and revision != file.reaches:
            file.find(number, f"it begins behind revision {revision}, and the lines before end at {file.reaches}")
        case SeenLine(revision):
            file.reaches = max(file.reaches, revision)
            file.whole_from = file.whole_from or revision
        case RubbishLine(why):
            file.find(number, f"it is none of loraplane-audit: {why}")
        case _:
            pass


def _take(file: _File, number: int, line: RecordLine) -> None:
    if line.key in file.records:
        file.find(number, f"{line.key} has a line already, which is {file.records[line.key].where}", line.revision)
        return
    if line.revision < file.reaches or line.revision <= file.begins_after:
        file.find(number, f"revision {line.revision} does not come behind {file.reaches}", line.revision)
    file.reaches = max(file.reaches, line.revision)
    for message in _time_faults(line, file.newest):
        file.find(number, message, line.revision)
    at = _time(text_of(line.record, "at"))
    if at is not None and not line.key.startswith(_DENIED):
        file.newest = max(at, file.newest or at)
    file.records[line.key] = _Told(line.revision, line.key, line.record, f"line {number}")


def _time_faults(line: RecordLine, newest: datetime | None) -> Iterator[str]:
    """Findings on the time of a record, by which it may be gone: its id and the records before tell it, too."""
    told, at = _made(line.key), _time(text_of(line.record, "at"))
    if told is None or at is None:
        yield f"{line.key} has no id or no time of ours"
        return
    if line.key.startswith(_DENIED):
        return
    if told.replace(microsecond=told.microsecond // 1000 * 1000) != at:
        yield f"{line.key} says that it was made at {text_of(line.record, 'at')}"
    elif newest is not None and at < newest - _SKEW:
        yield f"{line.key} is older than the record before it"


def _made(key: str) -> datetime | None:
    """The time at which a record was written, by its id; None: the id is none of ours."""
    found = _ID.fullmatch(key.rpartition("/")[2])
    return datetime.strptime(found[1], "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC) if found else None


def _lines_faults(file: _File, store: AuditedStore) -> Iterator[Violation]:
    """Findings on records with a line: what stands in etcd instead, or why nothing does."""
    kept, put = _history_of(store)
    for one in file.records.values():
        kv = store.kvs.get(one.key)
        where = f"{one.where}, {one.key}"
        if kv is not None and kv.mod_revision != one.revision:
            yield Violation(GUARANTEE, one.revision, where, f"etcd has it as of revision {kv.mod_revision}: rewritten")
        elif kv is not None and document(kv.value) != one.record:
            yield Violation(GUARANTEE, one.revision, where, "etcd has it with another content: rewritten")
        elif kv is None and kept <= one.revision <= store.revision and (one.key, one.revision) not in put:
            yield Violation(GUARANTEE, one.revision, where, "etcd never had it: invented")
        elif kv is None and store.must_stand(one.key, one.record):
            what = "removed" if (one.key, one.revision) in put else "removed, or invented"
            yield Violation(GUARANTEE, one.revision, where, f"etcd does not have it, and its time is not up: {what}")


def _history_of(store: AuditedStore) -> tuple[int, set[tuple[str, int]]]:
    """The first revision of which etcd keeps what happened, and which key was put at which revision."""
    first, put = 1, set[tuple[str, int]]()
    for step in store.steps:
        match step:
            case HistoryBase(revision, kvs):
                first = revision + 1
                put |= {(store.shown(kv.key), kv.mod_revision) for kv in kvs}
            case Revision(revision, events):
                put |= {(store.shown(event.key), revision) for event in events if event.kv is not None}
    return first, put


def _missing(file: _File, store: AuditedStore) -> Iterator[Violation]:
    """Findings on records of etcd that have no line, though they were written long enough ago."""
    for one in _of_store(store).values():
        made = _made(one.key)  # the record of a refusal may be written long after it
        is_late = one.revision > file.reaches and made is not None and store.now - made < store.lag
        if one.key not in file.records and one.revision > file.begins_after and not is_late:
            yield Violation(GUARANTEE, one.revision, one.key, "it has no line: removed from the file")


def _rewritten(store: AuditedStore) -> Iterator[Violation]:
    for key, kv in store.kvs.items():
        if key.startswith("audit/") and kv.version != 1:
            yield Violation(GUARANTEE, kv.mod_revision, key, f"it was written {kv.version} times: rewritten")


def _of_store(store: AuditedStore) -> dict[str, _Told]:
    return {
        key: _Told(kv.mod_revision, key, document(kv.value) or {}, "etcd")
        for key, kv in store.kvs.items()
        if key.startswith("audit/")
    }


Subject = tuple[str, str]
_Last = tuple[_Told, Document | None]


def _subjects(one: _Told) -> Iterator[tuple[Subject, Document | None, Document | None]]:
    """Keys that a record tells of, below the prefix, with the values before and after; its own key names the pool."""
    pool = one.key.split("/")[1]
    for change in objects_of(one.record, "changes"):
        kind, name = text_of(change, "kind"), text_of(change, "name")
        before, after = change.get("before"), change.get("after")
        was = before if isinstance(before, dict) else None
        now = after if isinstance(after, dict) else None
        match kind:
            case "adapter":
                yield ("adapters", f"{pool}/{name_key(name)}"), was, now
            case "pool":
                yield ("pools", name), was, now
            case "tenant":
                yield ("tenants", name), _quota(was), _quota(now)
            case _:
                continue


def _quota(tenant: Document | None) -> Document | None:
    """The part of a tenant's record that only changes of tenants change."""
    quota = (tenant or {}).get("max_adapters")
    return None if quota is None else {"max_adapters": quota}


def _may_lack(before: _Told | None, file: _File, store: AuditedStore) -> bool:
    """True if a record that was made after this one may be gone in order, since its time may be up."""
    if before is None:
        return True
    at = _time(text_of(before.record, "at"))
    is_followed = file.whole_from is not None and before.revision >= file.whole_from
    return not is_followed and (at is None or store.now - at >= store.retention[0] - _SKEW)


def _chain_faults(changes: Iterable[_Told], file: _File, store: AuditedStore) -> Iterator[Violation]:
    """Findings on changes that do not begin with what the one before left: a record between them is missing."""
    last: dict[Subject, _Last] = {}
    for one in changes:
        for subject, before, after in _subjects(one):
            known = last.get(subject)
            is_readable = "unreadable" not in (before or {})
            if known and is_readable and before != known[1] and not _may_lack(known[0], file, store):
                between = f"{known[0].where} left another value of {'/'.join(subject)} than this change found"
                message = f"{between}: a change without a record, or a record that was rewritten or removed"
                yield Violation(GUARANTEE, one.revision, f"{one.where}, {one.key}", message)
            last[subject] = one, after


def _state_faults(changes: Sequence[_Told], file: _File, store: AuditedStore) -> Iterator[Violation]:
    """Findings on what stands: it has to be what the last record about it left, as of the revision of that."""
    last: dict[Subject, _Last] = {}
    for one in changes:
        last |= {subject: (one, after) for subject, _, after in _subjects(one)}
    by_revision = {one.revision: one for one in changes}
    revisions = sorted(by_revision)
    for key, kv in store.kvs.items():
        kind, _, rest = key.partition("/")
        known = last.get((kind, rest))
        place = bisect_left(revisions, kv.mod_revision)
        before = by_revision[revisions[place - 1]] if place else None
        if kind == "audit" or (kv.mod_revision not in by_revision and _may_lack(before, file, store)):
            continue
        stands = _quota(document(kv.value)) if kind == "tenants" else document(kv.value)
        if kv.mod_revision not in by_revision:
            yield Violation(GUARANTEE, kv.mod_revision, key, "no record is of its revision: changed without a record")
        elif known is not None and stands != known[1]:
            message = f"it is not what {known[0].where}, {known[0].key}, left: changed without a record"
            yield Violation(GUARANTEE, kv.mod_revision, key, message)
    yield from _gone(last, file, store)


def _gone(last: Mapping[Subject, _Last], file: _File, store: AuditedStore) -> Iterator[Violation]:
    """Findings on what the last record left, and what is not there."""
    for (kind, rest), (one, after) in last.items():
        is_there = after is None or f"{kind}/{rest}" in store.kvs
        if not is_there and not _may_lack(one, file, store):
            message = f"{one.where}, {one.key}, left it, and it is gone: deleted without a record"
            yield Violation(GUARANTEE, one.revision, f"{kind}/{rest}", message)


def _history_faults(store: AuditedStore) -> Iterator[Violation]:
    """Findings on history that was changed at a revision at which no record was put."""
    for step in store.steps:
        events = step.events if isinstance(step, Revision) else ()
        changed = {store.shown(event.key): event.kv for event in events}
        if not any(key.startswith("audit/") and kv is not None for key, kv in changed.items()):
            for key in changed:
                if key.startswith("history/"):
                    yield Violation(GUARANTEE, step.revision, key, "it was changed without a record")


def _time(text: str) -> datetime | None:
    """A time as records have it; None: it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None
