"""Ages of records, of which none is ever taken for older than it is. Pure.

A wall clock may be set, and the one of whoever wrote a record is not that of whoever reads it; so none is asked. A
record is at least as old as

- the time for which this process has known it as it stands, on its own monotonic clock; and
- what the clock of expiry tells, which outlives processes: one small record in etcd, that admin services move on.

Invariant: between two readings the clock of expiry moves by no more than has passed. Whoever moves it on adds the time
since it first saw the reading that it replaces, on the condition that this still stands; that reading was written
before it was seen. With the new reading it writes down the revision of the old one: all records up to that revision
had been written when the clock stood there. The condition also keeps apart what was before and after etcd was restored
from a backup: a reading has its revision in both, or the write fails.

Hence an adapter may end late: by the time in which no admin service ran, and after all of them were restarted by a
share of its age, since of earlier readings the older are kept the more thinly. It never ends early.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from registry.etcd3.ops import KeyValue
from registry.model.errors import Reason, RegistryError
from registry.model.records import AdapterRecord
from registry.model.status import tell_seconds
from registry.model.stored import Number, Part, Stored
from registry.rollout.index import AdapterIndex

# The clock is moved on as often as it says much about the shortest life, within bounds.
_TICKS_OF_A_LIFE, _SHORTEST_TICK_SECONDS, _LONGEST_TICK_SECONDS = 16, 30.0, 300.0
# A reading is left out if those beside it are closer to each other than this part of their age.
_THINNED_BY = 16


class ClockMark(Part):
    """Time on the clock of expiry at which all records up to a revision had been written."""

    revision: Number
    at_ms: Number


class ExpiryClock(Stored):
    """Clock of expiry: milliseconds that some admin service ran, which never are more than have passed.

    `marks`: earlier readings, the oldest first; the older, the fewer.
    """

    now_ms: Number = 0
    marks: Annotated[list[ClockMark], Field(max_length=1000)] = []


@dataclass(frozen=True, slots=True)
class EndingRecord:
    """A record with a time to live; `kv` as it stands, and since when it is known so, on the monotonic clock.

    `from_use`: its time begins with its last use, where that is later (`registry.rollout.uses`).
    """

    kv: KeyValue
    pool: str
    name: str
    generation: int
    ttl_seconds: int
    seen_at: float
    from_use: bool = False


class EndingAdapters(AdapterIndex[EndingRecord]):
    """Records with a time to live."""

    _mark = re.compile(rb'"ttl_seconds":[1-9]')

    def _entry(self, kv: KeyValue, record: AdapterRecord, _before: object, now: float) -> EndingRecord | None:
        ttl, is_from_use = record.spec.ttl_seconds, record.spec.ttl_from == "use"
        if ttl is None:
            return None
        return EndingRecord(kv, record.pool, record.name, record.generation, ttl, now, is_from_use)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clock of expiry as it stands, and since when it is known so, on the monotonic clock.

    `clock` None: a later release wrote it. `kv` None: there is none yet.
    """

    kv: KeyValue | None
    clock: ExpiryClock | None
    seen_at: float

    def now_ms(self, now: float) -> int:
        """Time on it; `now` on the monotonic clock."""
        return (self.clock.now_ms if self.clock else 0) + int((now - self.seen_at) * 1000)

    @property
    def marks(self) -> list[ClockMark]:
        """Earlier readings and this one, the oldest first; none: it tells nothing."""
        if self.kv is None or self.clock is None:
            return []
        return [*self.clock.marks, ClockMark(revision=self.kv.mod_revision, at_ms=self.clock.now_ms)]

    def known_ms(self, revision: int) -> int | None:
        """Time on it when a record of that revision had been written; None: it tells nothing of it."""
        marks = self.marks
        at = bisect_left(marks, revision, key=lambda mark: mark.revision)
        return marks[at].at_ms if at < len(marks) else None


def read_clock(before: ClockReading | None, kv: KeyValue | None, now: float) -> ClockReading:
    """The reading that stands now; one that cannot be read tells nothing, and the next replaces it."""
    if before is not None and before.kv == kv:
        return before
    try:
        return ClockReading(kv, ExpiryClock.parse(kv.value) if kv is not None else ExpiryClock(), now)
    except RegistryError as error:
        return ClockReading(kv, None if error.reason is Reason.FUTURE_SCHEMA else ExpiryClock(), now)


def age_seconds(one: EndingRecord, reading: ClockReading, now: float) -> float:
    """Least age of a record."""
    written_ms = reading.known_ms(one.kv.mod_revision)
    told = 0.0 if written_ms is None else (reading.now_ms(now) - written_ms) / 1000
    return max(now - one.seen_at, told)


def tick_seconds(one: EndingRecord) -> float:
    """Time after which the clock is to be moved on for the sake of one: where uses count, as often as they are told."""
    if one.from_use:
        return tell_seconds(one.ttl_seconds)
    return min(_LONGEST_TICK_SECONDS, max(_SHORTEST_TICK_SECONDS, one.ttl_seconds / _TICKS_OF_A_LIFE))


def advanced(reading: ClockReading, longest_seconds: float, now: float) -> ExpiryClock:
    """The next reading, on the condition that this one still stands; `longest_seconds`: the longest life of any."""
    if not reading.marks:
        return ExpiryClock()
    now_ms = reading.now_ms(now)
    kept = list(_thinned(reading.marks, now_ms, int(longest_seconds * 1000)))
    return ExpiryClock(now_ms=now_ms, marks=kept[::-1])


def _thinned(marks: list[ClockMark], now_ms: int, longest_ms: int) -> Iterator[ClockMark]:
    """The newest first; the first that is older than anything lives is the last that is needed."""
    newer_ms, newest_first = now_ms, marks[::-1]
    for mark, older in pairwise(newest_first):
        if now_ms - mark.at_ms > longest_ms:
            yield mark
            return
        if newer_ms - older.at_ms > (now_ms - older.at_ms) / _THINNED_BY:
            yield mark
            newer_ms = mark.at_ms
    yield newest_first[-1]
