"""Time for which an adapter was certainly not used. Pure.

Each replica tells two kinds of revisions: before which one an adapter was last used, and up to which one it told all
uses. The clock of expiry (`registry.rollout.ages`) tells the least time between two revisions. So an adapter was not
used for at least the time from the last of

- the revision of its record,
- the revisions of its uses, and those before which a replica knows of no uses, by every replica, and
- the revision at which a replica came or went last, since nobody knows what one that is gone was asked,

to the first revision up to which any replica told its uses. While one of them does not tell, or is not heard of, that
time does not go on; where nobody lives there is nobody to tell. An adapter is late by that, and never early.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError
from registry.model.names import name_key
from registry.model.replica_state import ParsedStatus
from registry.model.status import tell_seconds
from registry.rollout.ages import ClockReading, EndingRecord
from registry.rollout.expected import remembered_here
from registry.rollout.pool import LiveReplica, PoolSnapshot

# A replica may lose what was used last before an unload, of two looks, and what came while it looked.
_LOOKS_LOST, _LOOK_SECONDS = 2, 10.0


@dataclass(frozen=True, slots=True)
class Unused:
    """Stretch of revisions in which no replica had a use of an adapter: after `begin`, up to `end`."""

    begin: int
    end: int


def needed_seconds(ttl_seconds: int) -> float:
    """Time without a use by what replicas tell, after which there certainly was none for the ttl."""
    return ttl_seconds + _LOOKS_LOST * tell_seconds(ttl_seconds) + _LOOK_SECONDS


def unused(one: EndingRecord, pool: PoolSnapshot, members: KeyValue | None) -> Unused | None:
    """The stretch in which an adapter was certainly not used; None: some replica cannot tell, or none lives."""
    living = {**pool.draining, **pool.replicas}
    try:
        lived = [name for name, known in remembered_here(members).members.items() if not known.last_seen]
    except RegistryError:
        return None
    if not living or members is None or any(name not in living for name in lived):
        return None
    told = [_told(replica, one) for replica in living.values()]
    whole = [each for each in told if each is not None]
    if len(whole) < len(told):
        return None
    begin = max(one.kv.mod_revision, members.mod_revision, *(each.begin for each in whole))
    return Unused(begin, min(each.end for each in whole))


def _told(replica: LiveReplica, one: EndingRecord) -> Unused | None:
    """The stretch by one replica; None: it does not tell, or does not know yet that it is to."""
    reading = replica.reading
    if not isinstance(reading, ParsedStatus) or reading.status.uses is None:
        return None
    uses = reading.status.uses
    if reading.status.observed_revision < one.kv.mod_revision:
        return None
    return Unused(max(uses.since, reading.uses.get(name_key(one.name), 0)), uses.until)


def unused_seconds(stretch: Unused, reading: ClockReading) -> float:
    """Least time that a stretch took, by the clock of expiry."""
    begun_ms, marks = reading.known_ms(stretch.begin), reading.marks
    at = bisect_right(marks, stretch.end, key=lambda mark: mark.revision)
    return 0.0 if begun_ms is None or not at else max(0, marks[at - 1].at_ms - begun_ms) / 1000


def is_over(one: EndingRecord, pool: PoolSnapshot, members: KeyValue | None, reading: ClockReading) -> bool:
    """True if an adapter was certainly not used for its ttl, since it was last written."""
    stretch = unused(one, pool, members)
    return stretch is not None and unused_seconds(stretch, reading) >= needed_seconds(one.ttl_seconds)
