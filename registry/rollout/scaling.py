"""Number of replicas by requests: the facts and the decision. Pure.

Each replica tells in its status how many requests for such an adapter were with its engine, running or waiting, on
average over the last minute. Their sum is the demand: it does not depend on which replicas serve the adapter, so a step
that moves requests from one replica to another does not bring about the next step.

One more replica where the demand is more than the present ones are to have; one fewer where one fewer would still be
left with less than `LOW_SHARE` of what it is to have, and for `CALM_SECONDS` without a break. Between these two nothing
happens. What is unknown is not nothing: the number is lowered only while every replica tells. It is never raised above
the replicas that live and match, and whoever acts has seen the number stand for `STEP_SECONDS`: so however many look,
there is at most one step in that time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from registry.etcd3.ops import KeyValue
from registry.model.names import matches, name_key
from registry.model.placement import decliners, spec_now
from registry.model.records import AdapterRecord
from registry.model.replica_state import ParsedStatus
from registry.rollout.index import AdapterIndex
from registry.rollout.pool import LiveReplica, PoolSnapshot

STEP_SECONDS = 60.0
CALM_SECONDS = 180.0
LOW_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests for an adapter that were with engines at once, on average over a minute.

    `is_whole`: every replica told, so that there are no more. `living`: the replicas that could serve it.
    """

    in_flight: float
    is_whole: bool
    living: int


@dataclass(frozen=True, slots=True)
class ScaleRange:
    """The range of a number of replicas, and what one of them is to have at once."""

    least: int
    most: int
    per_replica: int

    def ceiling(self, living: int) -> int:
        """The largest number that makes sense while so many live."""
        return max(self.least, min(self.most, living))


@dataclass(frozen=True, slots=True)
class Watched:
    """Sight of a number by one process.

    Attributes:
        number: of replicas.
        since: it has stood for certain since then, in monotonic seconds.
        low_since: since then it could be lower at each look; None: at the last look it could not.
    """

    number: int
    since: float
    low_since: float | None = None


@dataclass(frozen=True, slots=True)
class ScaleStep:
    """Another number, and why, in a sentence."""

    replicas: int
    why: str


def range_of(record: AdapterRecord) -> ScaleRange | None:
    """The range of a record's number of replicas; None: it does not follow requests, or nobody is to serve it."""
    least, by_load = record.spec.placement.replicas, record.spec.placement.by_load
    if by_load is None or least == "all" or not record.spec.enabled:
        return None
    return ScaleRange(least, max(least, by_load.max), by_load.per_replica)


def number_of(record: AdapterRecord, within: ScaleRange) -> int:
    """The present number of replicas."""
    number = spec_now(record).placement.replicas
    return number if number != "all" else within.least


def demand_of(record: AdapterRecord, pool: PoolSnapshot) -> Demand:
    """The demand by what the live replicas of its pool tell; those that drain serve on, so they count, too."""
    key = name_key(record.name)
    told = [_told(one, key) for one in (*pool.replicas.values(), *pool.draining.values())]
    known = [one for one in told if one is not None]
    return Demand(sum(known), len(known) == len(told), _living(record, pool))


def _told(replica: LiveReplica, key: str) -> float | None:
    """Requests at once for an adapter by a replica's status; None: it does not tell of it."""
    load = replica.reading.status.load if isinstance(replica.reading, ParsedStatus) else None
    if load is None:
        return None
    found = next((one.in_flight for one in load.adapters if name_key(one.name) == key), None)
    return found if found is not None or load.omitted else 0.0


def _living(record: AdapterRecord, pool: PoolSnapshot) -> int:
    members = next(reversed(pool.known.values()))
    declining = decliners(name_key(record.name), record.spec, record.generation, members)
    fitting = (one for one in members if matches(record.spec.placement.selector, one.labels))
    return sum(one.capacity != 0 and one.replica not in declining for one in fitting)


def watched(before: Watched | None, number: int, now: float) -> Watched:
    """Sight of the number that stands now; `before` None: it was not seen before."""
    return before if before is not None and before.number == number else Watched(number, now)


def look(seen: Watched, within: ScaleRange, demand: Demand, now: float) -> tuple[Watched, ScaleStep | None]:
    """Sight of the number after a look at the demand, and the step that is due; None: none is."""
    number, ceiling = seen.number, within.ceiling(demand.living)
    if demand.in_flight > number * within.per_replica and number < ceiling:
        up = ScaleStep(number + 1, _why(demand, within, number))
        return replace(seen, low_since=None), up if now - seen.since >= STEP_SECONDS else None
    if not _could_be_lower(number, within, demand):
        return replace(seen, low_since=None), None
    low_since = now if seen.low_since is None else seen.low_since
    seen = replace(seen, low_since=low_since)
    is_due = now - seen.since >= STEP_SECONDS and now - low_since >= CALM_SECONDS
    return seen, ScaleStep(number - 1, _why(demand, within, number)) if is_due else None


def _could_be_lower(number: int, within: ScaleRange, demand: Demand) -> bool:
    if number <= within.least:
        return False
    is_beyond = number > within.ceiling(demand.living)
    is_low = demand.in_flight < LOW_SHARE * within.per_replica * (number - 1)
    return is_beyond or (demand.is_whole and is_low)


def _why(demand: Demand, within: ScaleRange, number: int) -> str:
    if number > within.ceiling(demand.living):
        return f"{demand.living} replicas live that could serve it, fewer than {number}"
    return f"{demand.in_flight:.1f} requests at once on {number} replicas, {within.per_replica} are to be on each"


def again_at(seen: Watched) -> float:
    """Time at which a step may be due though nothing changes, in monotonic seconds."""
    return max(seen.since + STEP_SECONDS, 0.0 if seen.low_since is None else seen.low_since + CALM_SECONDS)


@dataclass(frozen=True, slots=True)
class ScaledRecord:
    """A record whose number of replicas follows requests, and what this process has seen of the number."""

    kv: KeyValue
    record: AdapterRecord
    within: ScaleRange
    seen: Watched


class ScaledAdapters(AdapterIndex[ScaledRecord]):
    """The adapters whose numbers of replicas follow requests."""

    _mark = re.compile(rb'"by_load":\{')

    def _entry(
        self, kv: KeyValue, record: AdapterRecord, before: ScaledRecord | None, now: float
    ) -> ScaledRecord | None:
        within = range_of(record)
        if within is None:
            return None
        seen = watched(before.seen if before else None, number_of(record, within), now)
        return ScaledRecord(kv, record, within, seen)

    def saw(self, pool: str, key: bytes, seen: Watched) -> None:
        """Keeps what a look has found, unless the record is gone or its number another meanwhile."""
        now = self.of(pool).get(key)
        if now is not None and now.seen.number == seen.number and now.seen.since == seen.since:
            self._entries[pool][key] = replace(now, seen=seen)
