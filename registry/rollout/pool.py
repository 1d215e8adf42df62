"""Snapshot of a pool: its replicas, their statuses, and the room taken. Pure.

Rollouts and residency are both derived from it. A snapshot is made from the one before and from the values in etcd;
what did not change is not read again. None is changed once it is made. Assignments are cached beside it, since ranking
a hundred replicas for each adapter is slow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from immutables import Map

from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError
from registry.model.keys import is_adapter_key, last_part
from registry.model.names import name_of_key
from registry.model.placement import (
    Assignment,
    Candidate,
    Member,
    Selector,
    assign,
    counted,
    heeded,
    member_of,
    members_digest,
    rate,
    rate_evenly,
    room_taken,
    weights_digest,
)
from registry.model.records import AdapterSpec
from registry.model.replica_state import ParsedStatus, StatusReading, held_by_engine, parse_status, status_of
from registry.model.status import Presence
from registry.rollout.expected import NOBODY_LACKS, NOTHING_EXPECTED, LackingReplicas, PoolExpectation, expectation_of
from registry.transactions.decode import read_adapter

# A cache with more entries is emptied.
_MAX_ASSIGNMENTS = 200_000
_MAX_INPUTS = 500


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """The number of adapters that take room on all replicas that match, by selector.

    `number` is its own among those of its pool.
    """

    number: int
    everywhere: Mapping[Selector, int]


@dataclass(frozen=True, slots=True)
class PlacementInputs:
    """The inputs of a share: the digests of the live replicas and of their weights.

    `weights` None: the room that replicas have does not matter.
    """

    members: str
    weights: str | None
    candidates: tuple[Candidate, ...] = field(compare=False)


class Assignments:
    """The assignments of one pool's adapters. The cache changes no answer."""

    def __init__(self) -> None:
        self._assigned: dict[tuple[str, int, str, str | None], Assignment] = {}
        self._inputs: dict[tuple[str, int | None], PlacementInputs] = {}

    def inputs(self, digest: str, members: Sequence[Member], room: PoolRoom | None) -> PlacementInputs:
        """The inputs by which replicas find their share.

        Args:
            digest: of the live replicas.
            members: the live replicas.
            room: what of their room is taken; None: of what all that match serve, where room does not matter.
        """
        by = digest, room.number if room else None
        found = self._inputs.get(by)
        if found is None:
            if len(self._inputs) >= _MAX_INPUTS:
                self._inputs.clear()
            found = self._inputs[by] = _inputs(digest, members, room)
        return found

    def find(
        self, pool: str, record: tuple[str, int], spec: AdapterSpec, inputs: PlacementInputs, generation: int = 0
    ) -> Assignment:
        """The replicas that serve an adapter.

        Args:
            pool: of the adapter; the same for each.
            record: its name key, and etcd's revision of it.
            spec: of its record.
            inputs: the replicas to choose among.
            generation: the one that they may decline.
        """
        by = (*record, inputs.members, inputs.weights)
        found = self._assigned.get(by)
        if found is None:
            if len(self._assigned) >= _MAX_ASSIGNMENTS:
                self._assigned.clear()
            found = self._assigned[by] = assign(pool, record[0], spec, inputs.candidates, generation)
        return found


def _inputs(digest: str, members: Sequence[Member], room: PoolRoom | None) -> PlacementInputs:
    if room is None:
        return PlacementInputs(digest, None, rate_evenly(members))
    rated = rate(members, room.everywhere)
    return PlacementInputs(digest, weights_digest(rated), rated)


# As nearly all records have it: a field that stands twice may be another spec's, or a label.
_EAGER, _EVERYWHERE = b'"load":"eager"', b'"placement":{"replicas":"all","selector":{}}'
_PLACEMENT, _BY_NUMBER = b'"placement":', re.compile(rb'"placement":\{"replicas":[0-9]')
_LOAD, _DISABLED = b'"load":', b'"enabled":false'
_ANYWHERE: Selector = frozenset()
# How much of the past is kept, so that a replica can be understood which does not know the newest yet: a fleet that
# starts, or an apply of many adapters one by one, makes as many steps within the second that replicas take to follow.
REMEMBERED = 32
Values = Mapping[bytes, KeyValue]


@dataclass(frozen=True, slots=True)
class Stranger(Member):
    """A live replica whose presence cannot be read.

    Sidecars leave it out when they find which replicas serve what is placed by number, and which are canaries. It may
    serve what all do all the same, as one of a later release does.
    """


def read_presence(kv: KeyValue, *, reports: bool = True, held: int | None = None) -> tuple[Member, str]:
    """The live replica of a presence, a `Stranger` if that cannot be read; and its engine's address for routers.

    `reports` and `held` as in `registry.model.placement.member_of`.
    """
    replica = last_part(kv.key)
    try:
        presence = Presence.parse(kv.value)
    except RegistryError:
        return Stranger(replica, {}, reports=reports), ""
    return member_of(replica, presence, reports=reports, held=held), presence.engine_url


def without_strangers(members: Iterable[Member]) -> tuple[Member, ...]:
    """The replicas among which sidecars place adapters, as these find them."""
    return heeded(counted(one for one in members if not isinstance(one, Stranger)))


@dataclass(frozen=True, slots=True)
class LiveReplica:
    """A live replica: its presence and the status that counts in etcd, and what they were read as.

    `engine_url`: its engine's address for routers, as its presence says it; empty: it does not. `newest`: the status
    that stands, which may speak of records that are not known yet: then `status` is the one before.
    """

    presence: KeyValue
    member: Member
    status: KeyValue | None
    reading: StatusReading
    engine_url: str = ""
    newest: KeyValue | None = None

    @property
    def router_url(self) -> str:
        """The engine's address as routers are told it, unless the pool does not allow it; empty: it is not known."""
        return self.engine_url or (self.reading.status.engine.url if isinstance(self.reading, ParsedStatus) else "")


@dataclass(frozen=True, slots=True)
class PoolValues:
    """The values in etcd that a snapshot is made from.

    Attributes:
        presences: of the live replicas.
        statuses: of these and others.
        records: of all adapters; None: the room that they take does not matter.
        changed: keys of the records that were written or deleted since the snapshot before; None: it may be all.
        revision: up to which the records are known.
        holds_back: a status that speaks of later records waits until these are known; the one before it counts.
        spec: the pool's own record; None: there is none, or it does not matter.
        members: value of ``members/<pool>``: who is remembered of the pool; None: nobody.
        alone: of values of the past, of which statuses are not known, the presences that nothing was reported beside,
            by key and lease: all others are taken to have reported. None: the statuses tell.
    """

    presences: Values
    statuses: Values
    records: Values | None = None
    changed: frozenset[bytes] | None = None
    revision: int = 0
    holds_back: bool = False
    spec: KeyValue | None = None
    members: KeyValue | None = None
    alone: frozenset[tuple[bytes, int]] | None = None


def alone(presences: Values, statuses: Values) -> frozenset[tuple[bytes, int]]:
    """The presences that nothing is reported beside, by key and lease."""
    said = {last_part(kv.key): kv for kv in statuses.values()}
    silent = (kv for kv in presences.values() if status_of(kv, said.get(last_part(kv.key))) is None)
    return frozenset((kv.key, kv.lease) for kv in silent)


@dataclass(frozen=True, eq=False)
class PoolSnapshot:
    """A pool as it stands.

    Attributes:
        pool: its name.
        replicas: the live ones by name, sorted, without those that leave (guarantee R20).
        draining: those that leave, by name, sorted.
        revision: up to which the adapters are known; 0: they were not looked at.
        rooms: the room that adapters take on all replicas, recently and, last, now.
        known: recent sets of live replicas that adapters are placed among, by their digest, the present one last.
        assignments: which replicas serve what is not everywhere; handed on from snapshot to snapshot.
        taken: the selector of each adapter that takes room on all replicas that match, by etcd's key.
        expected: the replicas that it is to have.
        lacking: which of these do not live; one that leaves still does.
    """

    pool: str
    replicas: Mapping[str, LiveReplica] = field(default_factory=dict)
    draining: Mapping[str, LiveReplica] = field(default_factory=dict)
    revision: int = 0
    rooms: tuple[PoolRoom, ...] = (PoolRoom(0, {}),)
    known: dict[str, tuple[Member, ...]] = field(default_factory=lambda: {members_digest(()): ()})
    assignments: Assignments = field(default_factory=Assignments)
    taken: Map[bytes, Selector] = field(default_factory=Map)
    expected: PoolExpectation = NOTHING_EXPECTED
    lacking: LackingReplicas = NOBODY_LACKS

    def inputs_now(self, *, by_room: bool) -> PlacementInputs:
        """The inputs by which live replicas find their share; `by_room`: room counts."""
        return self.inputs(next(reversed(self.known)), self.rooms[-1] if by_room else None)

    def inputs(self, digest: str, room: PoolRoom | None) -> PlacementInputs:
        """The inputs of replicas that know these live replicas and this room."""
        return self.assignments.inputs(digest, self.known[digest], room)


def renew(snapshot: PoolSnapshot, values: PoolValues) -> PoolSnapshot:
    """The snapshot of the values that stand now; without records its room stays."""
    live = _live(snapshot, values)
    replicas = _kept(snapshot.replicas, {name: one for name, one in live.items() if not one.member.leaving})
    draining = _kept(snapshot.draining, {name: one for name, one in live.items() if one.member.leaving})
    known = snapshot.known if replicas is snapshot.replicas else _known(snapshot.known, replicas)
    expected = expectation_of(values.members, values.spec, snapshot.expected)
    there = (one.member for name, one in live.items() if one.member.reports or name in expected.remembered)
    lacking = expected.lacking({one.replica: one.labels for one in there})
    snapshot = replace(snapshot, replicas=replicas, draining=draining, known=known, expected=expected, lacking=lacking)
    return snapshot if values.records is None else _with_room(snapshot, values.records, values)


def _live(snapshot: PoolSnapshot, values: PoolValues) -> dict[str, LiveReplica]:
    """All that live, with those that leave."""
    statuses = {last_part(kv.key): kv for kv in values.statuses.values()}
    before, found = {**snapshot.draining, **snapshot.replicas}, {}
    for kv in sorted(values.presences.values(), key=lambda one: one.key):
        name = last_part(kv.key)
        found[name] = _replica(before.get(name), kv, status_of(kv, statuses.get(name)), values)
    return found


def _kept(old: Mapping[str, LiveReplica], new: Mapping[str, LiveReplica]) -> Mapping[str, LiveReplica]:
    """The old ones if they are the same, so that it can be told at a glance."""
    return old if len(new) == len(old) and all(old.get(name) is one for name, one in new.items()) else new


def _replica(
    before: LiveReplica | None, presence: KeyValue, status: KeyValue | None, values: PoolValues
) -> LiveReplica:
    last_status, last_reading = (before.status, before.reading) if before is not None else (None, None)
    newest, reading = status, last_reading if status == last_status else parse_status(status)
    held = held_by_engine(reading)
    reports = newest is not None if values.alone is None else (presence.key, presence.lease) not in values.alone
    if newest is None and reports and values.alone is not None:  # it has one, which is not known of the past
        status, reading = last_status, last_reading
    if values.holds_back and _is_ahead(reading, values.revision):
        stands = status_of(presence, last_status) is not None or _is_of_one_engine(last_reading, reading)
        status, reading = (last_status, last_reading) if stands else (None, None)
    known = (before.presence, before.status, before.newest, before.member.reports) if before is not None else ()
    if before is not None and known == (presence, status, newest, reports):
        return before
    member, engine_url = read_presence(presence, reports=reports, held=held)
    return LiveReplica(presence, member, status, reading, engine_url, newest)


def _is_ahead(reading: StatusReading, revision: int) -> bool:
    """True if a status speaks of records that are not known here yet."""
    return (
        isinstance(reading, ParsedStatus) and not reading.status.stale and reading.status.observed_revision > revision
    )


def _is_of_one_engine(one: StatusReading, other: StatusReading) -> bool:
    """True if two statuses tell of the same process of an engine: of that a sidecar that is gone said what still is."""
    if not isinstance(one, ParsedStatus) or not isinstance(other, ParsedStatus):
        return False
    before, now = one.status.engine, other.status.engine
    return bool(now.incarnation) and (before.url, before.incarnation) == (now.url, now.incarnation)


def _known(known: dict[str, tuple[Member, ...]], replicas: Mapping[str, LiveReplica]) -> dict[str, tuple[Member, ...]]:
    members = without_strangers(one.member for one in replicas.values())
    digest = members_digest(members)
    kept = [(one, of) for one, of in known.items() if one != digest][1 - REMEMBERED :]
    return {**dict(kept), digest: members}


def _with_room(snapshot: PoolSnapshot, records: Values, values: PoolValues) -> PoolSnapshot:
    """The snapshot with the room that these records take."""
    keys = values.changed if values.changed is not None else {*snapshot.taken, *records}
    taken, change = snapshot.taken.mutate(), Counter[Selector]()
    for key in keys:
        kv, before = records.get(key), taken.pop(key, None)
        room = _room_of(snapshot.pool, kv) if kv is not None else None
        if before is not None:
            change[before] -= 1
        if room is not None:
            taken[key] = room
            change[room] += 1
    last = snapshot.rooms[-1]
    everywhere = Counter(last.everywhere)
    everywhere.update(change)
    everywhere += Counter()  # drops what came to 0
    rooms = snapshot.rooms
    if everywhere != last.everywhere:
        rooms = (*rooms, PoolRoom(last.number + 1, everywhere))[-REMEMBERED:]
    return replace(snapshot, revision=values.revision, rooms=rooms, taken=taken.finish())


def _room_of(pool: str, kv: KeyValue) -> Selector | None:
    """The selector by which an adapter takes room; None: none, or unreadable."""
    if not is_adapter_key(kv.key, pool):
        return None
    if _is_typical(pool, kv):
        return _ANYWHERE
    if kv.value.count(_PLACEMENT) == 1 and _BY_NUMBER.search(kv.value):
        return None
    try:
        return room_taken(read_adapter(pool, kv).spec)
    except RegistryError:
        return None


def _is_typical(pool: str, kv: KeyValue) -> bool:
    """True for nearly all records: they need no parsing, and take room everywhere."""
    value = kv.value
    if _EVERYWHERE not in value or _EAGER not in value or _DISABLED in value:
        return False
    if value.count(_PLACEMENT) > 1 or value.count(_LOAD) > 1:
        return False
    start = f'{{"schema":1,"name":"{name_of_key(last_part(kv.key))}","pool":"{pool}",'.encode().lower()
    return value[: len(start)].lower() == start
