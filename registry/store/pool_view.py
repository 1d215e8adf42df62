"""A pool's records, live replicas and statuses, read once, and read again only where etcd's values changed. Pure.

A view serves all who look at the pool; none is changed once it is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from registry.errors import RegistryError
from registry.etcd3.ops import KeyValue
from registry.keys import last_part
from registry.model.assignment import Assignment, Selector, looks_at_room, room_taken
from registry.model.placement import Member, members_digest
from registry.model.records import AdapterRecord, AdapterSpec, CanaryRollout, Source
from registry.model.status import Presence
from registry.store.assignments import Assignments, Reckoning
from registry.store.judgement import Said, Told, said
from registry.transactions.stored import read_adapter

# How much of the past is kept, so that a replica which has not heard of the newest can be understood.
_REMEMBERED = 8
# Stands for the specs of nearly all adapters: thousands of them would take much room.
PLAIN = AdapterSpec(source=Source(uri="file:///"))
Values = Mapping[bytes, KeyValue]


@dataclass(frozen=True, slots=True)
class Adapter:
    """What of a record residency follows from. `spec` is `PLAIN` where it is on all replicas, without canaries."""

    key: str
    name: str
    generation: int
    revision: int
    lazy: bool
    pinned: bool
    spec: AdapterSpec
    rollout: CanaryRollout | None

    @property
    def is_chosen(self) -> bool:
        """True if who serves which generation depends on who else lives."""
        return self.rollout is not None or looks_at_room(self.spec)


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of etcd and what it was read as; `adapter` None: it cannot be read."""

    kv: KeyValue
    adapter: Adapter | None
    room: Selector | None


@dataclass(frozen=True, slots=True)
class Replica:
    """A live replica: what its presence says, and what it says of itself."""

    presence: KeyValue
    member: Member
    status: KeyValue | None
    said: Said


@dataclass(frozen=True, slots=True)
class Room:
    """How many adapters take room on all replicas that match a selector: so it became at revision `since`.

    `number` tells it from the others of its pool.
    """

    number: int
    since: int
    everywhere: Mapping[Selector, int]


@dataclass(frozen=True, eq=False)
class PoolView:
    """A pool as it stands.

    Attributes:
        revision: etcd's revision of the records.
        records: by name key, those that cannot be read too.
        replicas: by name, sorted.
        rooms: what of the replicas' room is taken, recently and, last, now.
        known: recent sets of live replicas by their digest, the present one last.
        assignments: who serves what is not everywhere; handed on from view to view.
        by_revision: (revision, name key) of all records, the oldest first.
        source: what `records` were read from.
    """

    pool: str
    revision: int = 0
    records: Mapping[str, Entry] = field(default_factory=dict)
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    rooms: tuple[Room, ...] = (Room(0, 0, {}),)
    known: dict[str, tuple[Member, ...]] = field(default_factory=lambda: {members_digest(()): ()})
    assignments: Assignments = field(default_factory=Assignments)
    by_revision: Sequence[tuple[int, str]] = ()
    source: Values = field(default_factory=dict)

    def adapter(self, key: str) -> Adapter | None:
        """A record that can be read."""
        entry = self.records.get(key)
        return entry.adapter if entry else None

    def room_at(self, revision: int) -> Room | None:
        """What a replica that has seen this revision reckons with; None: that is not known any more."""
        return next((room for room in reversed(self.rooms) if room.since <= revision), None)

    @property
    def reckoning(self) -> Reckoning:
        """By which who lives now is to find its share."""
        return next(reversed(self.known)), self.rooms[-1].number

    @cached_property
    def reckonings(self) -> Mapping[str, Reckoning | None]:
        """By which each replica finds its share; None: nobody knows."""
        return {name: self._reckoning_of(one.said) for name, one in self.replicas.items()}

    def assigned(self, adapter: Adapter, by: Reckoning) -> Assignment:
        """Who serves an adapter by a reckoning of this view."""
        digest, number = by
        room = next(room for room in self.rooms if room.number == number)
        record = (adapter.key, adapter.revision)
        return self.assignments.find(self.pool, record, adapter.spec, by, self.known[digest], room.everywhere)

    def _reckoning_of(self, told: Said) -> Reckoning | None:
        if not isinstance(told, Told) or told.status.members not in self.known:
            return None
        room = self.room_at(told.status.observed_revision)
        return None if room is None else (told.status.members, room.number)


@dataclass(frozen=True, slots=True)
class Held:
    """What etcd holds of a pool.

    Attributes:
        revision: up to which the records are known.
        deleted_revision: of the last deletion of a record that was seen to happen; 0: none was.
    """

    revision: int
    deleted_revision: int
    records: Values
    presences: Values
    statuses: Values


def renewed(view: PoolView, held: Held) -> PoolView:
    """The view of what etcd holds now; what did not change is not read again."""
    if held.revision < view.revision:  # the store was set back: what was remembered is of another history
        view = PoolView(view.pool)
    records = view.records if held.records is view.source else _records(view, held.records)
    replicas = _replicas(view, held)
    rooms = view.rooms if records is view.records else _rooms(view.rooms, records, held.deleted_revision)
    known = view.known if replicas is view.replicas else _known(view.known, replicas)
    return replace(
        view,
        revision=held.revision,
        records=records,
        replicas=replicas,
        rooms=rooms,
        known=known,
        by_revision=view.by_revision if records is view.records else _by_revision(records),
        source=held.records,
    )


def is_held_back(view: PoolView, held: Held) -> bool:
    """True if a replica speaks of records that are not known yet, so that what it said before still counts."""
    statuses = {last_part(kv.key): kv for kv in held.statuses.values()}
    return any(replica.status != statuses.get(name) for name, replica in view.replicas.items())


def _records(view: PoolView, values: Values) -> Mapping[str, Entry]:
    old = view.records
    new = {}
    for kv in values.values():
        key = last_part(kv.key)
        before = old.get(key)
        new[key] = before if before is not None and before.kv == kv else _entry(view.pool, key, kv)
    return old if len(new) == len(old) and all(old.get(key) is entry for key, entry in new.items()) else new


def _entry(pool: str, key: str, kv: KeyValue) -> Entry:
    try:
        record = read_adapter(pool, kv)
    except RegistryError:
        return Entry(kv, None, None)
    return Entry(kv, _adapter(key, record, kv.mod_revision), room_taken(record.spec))


def _adapter(key: str, record: AdapterRecord, revision: int) -> Adapter:
    spec = record.spec
    plain = record.rollout is None and not looks_at_room(spec) and not spec.placement.selector
    return Adapter(
        key,
        record.name,
        record.generation,
        revision,
        spec.load == "lazy",
        spec.source.digest is not None,
        PLAIN if plain else spec,
        record.rollout,
    )


def _by_revision(records: Mapping[str, Entry]) -> list[tuple[int, str]]:
    return sorted((entry.kv.mod_revision, key) for key, entry in records.items())


def _replicas(view: PoolView, held: Held) -> Mapping[str, Replica]:
    statuses = {last_part(kv.key): kv for kv in held.statuses.values()}
    new = {}
    for kv in sorted(held.presences.values(), key=lambda one: one.key):
        name = last_part(kv.key)
        new[name] = _replica(view.replicas.get(name), name, kv, statuses.get(name), held.revision)
    old = view.replicas
    return old if len(new) == len(old) and all(old.get(name) is one for name, one in new.items()) else new


def _replica(before: Replica | None, name: str, presence: KeyValue, status: KeyValue | None, revision: int) -> Replica:
    last_status, last_said = (before.status, before.said) if before is not None else (None, None)
    told = last_said if status == last_status else said(status)
    if _is_ahead(told, revision):
        status, told = last_status, last_said
    if before is not None and (before.presence, before.status) == (presence, status):
        return before
    return Replica(presence, _member(name, presence), status, told)


def _is_ahead(told: Said, revision: int) -> bool:
    """True if a replica speaks of records that are not known here yet: it would be taken to speak of those before."""
    return isinstance(told, Told) and not told.status.stale and told.status.observed_revision > revision


def _member(name: str, kv: KeyValue) -> Member:
    """A presence that cannot be read still shows that it lives."""
    try:
        presence = Presence.parse(kv.value)
    except RegistryError:
        return Member(name, {})
    return Member(name, presence.labels, presence.capacity)


def _rooms(rooms: tuple[Room, ...], records: Mapping[str, Entry], deleted_revision: int) -> tuple[Room, ...]:
    taking = [(entry.kv.mod_revision, entry.room) for entry in records.values() if entry.room is not None]
    everywhere = Counter(room for _, room in taking)
    if everywhere == rooms[-1].everywhere:
        return rooms
    since = max([deleted_revision, rooms[-1].since, *(revision for revision, _ in taking)])
    return (*rooms, Room(rooms[-1].number + 1, since, everywhere))[-_REMEMBERED:]


def _known(known: dict[str, tuple[Member, ...]], replicas: Mapping[str, Replica]) -> dict[str, tuple[Member, ...]]:
    members = tuple(one.member for one in replicas.values())
    digest = members_digest(members)
    kept = [(one, of) for one, of in known.items() if one != digest][1 - _REMEMBERED :]
    return {**dict(kept), digest: members}
