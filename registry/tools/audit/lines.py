"""Lines of the audit: a JSON object each, with its place in etcd. Pure.

A file begins with a line that says behind which revision it does. From there on each record has one line, in the order
of the revisions. Other lines say how far etcd was read, and where it no longer had what came before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from registry.model.stored import read_json
from registry.tools.verify.history import Document


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A record: its key below the prefix, as it was written at a revision."""

    revision: int
    key: str
    record: Document


@dataclass(frozen=True, slots=True)
class BeginLine:
    """The lines that follow are of what was written behind a revision."""

    after: int


@dataclass(frozen=True, slots=True)
class SeenLine:
    """Everything up to a revision is in the lines before."""

    revision: int


@dataclass(frozen=True, slots=True)
class HoleLine:
    """Between two revisions only what stood at the later one is known, since etcd was compacted."""

    after: int
    before: int


@dataclass(frozen=True, slots=True)
class RubbishLine:
    """A line that is none of ours."""

    why: str


AuditLine = RecordLine | BeginLine | SeenLine | HoleLine | RubbishLine


def encode_line(line: RecordLine | BeginLine | SeenLine | HoleLine) -> str:
    """The line as text, with its end."""
    match line:
        case RecordLine(revision, key, record):
            told: Document = {"revision": revision, "key": key, "record": record}
        case BeginLine(after):
            told = {"begin": {"after": after}}
        case SeenLine(revision):
            told = {"seen": {"revision": revision}}
        case HoleLine(after, before):
            told = {"hole": {"after": after, "before": before}}
    return json.dumps(told, separators=(",", ":")) + "\n"


def decode_line(text: str) -> AuditLine:
    """The line that a text is."""
    try:
        fields = read_json(text)
        match fields:
            case {"revision": int(revision), "key": str(key), "record": dict(record)}:
                return RecordLine(revision, key, record)
            case {"begin": {"after": int(after)}}:
                return BeginLine(after)
            case {"seen": {"revision": int(revision)}}:
                return SeenLine(revision)
            case {"hole": {"after": int(after), "before": int(before)}}:
                return HoleLine(after, before)
    except ValueError as error:
        return RubbishLine(str(error))
    return RubbishLine("it is no line of loraplane-audit")


def decode_lines(texts: Iterable[str]) -> Iterator[AuditLine]:
    """The lines of a file."""
    return map(decode_line, texts)


@dataclass(frozen=True, slots=True)
class LinePosition:
    """Revision that lines reach, and keys of its records that have a line; None: all have."""

    revision: int
    keys: frozenset[str] | None = None


def reached(lines: Iterable[AuditLine]) -> LinePosition | None:
    """The place that lines reach; None: they tell of none.

    A process that was killed may have written only some of the last revision. Behind a hole nothing is known to be
    written yet.
    """
    found: LinePosition | None = None
    for line in lines:
        match line:
            case RecordLine(revision, key, _):
                keys = (found.keys or frozenset()) if found and found.revision == revision else frozenset()
                found = LinePosition(revision, keys | {key})
            case BeginLine(revision) | SeenLine(revision) | HoleLine(after=revision):
                found = LinePosition(revision)
            case RubbishLine():
                return None
    return found
