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
from registry.store.assignments import Assignments, Reckoning, Room
from registry.store.judgement import Said, Told, said
from registry.store.pool_facts import known as known_of
from registry.store.pool_facts import member_of
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
class Reckonings:
    """By which the replicas of a pool find their share.

    Attributes:
        now: by which who lives now is to find it.
        own: by which each replica does; None: nobody knows.
        all: of these every one.
    """

    now: Reckoning
    own: Mapping[str, Reckoning | None]
    all: frozenset[Reckoning]


@dataclass(frozen=True, eq=False)
class PoolView:
    """A pool as it stands.

    Attributes:
        revision: etcd's revision of the records.
        records: by name key, those that cannot be read too.
        replicas: by name, sorted.
        rooms: what of the replicas' room is taken, recently and, last, now.
        known: recent sets of live replicas, but for strangers, by their digest, the present one last.
        assignments: who serves what is not everywhere; handed on from view to view.
        by_revision: (revision, name key) of all records, the oldest first.
        source: what `records` were read from.
    """

    pool: str
    revision: int = 0
    records: Mapping[str, Entry] = field(default_factory=dict)
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    rooms: tuple[Room, ...] = (Room(0, {}),)
    known: dict[str, tuple[Member, ...]] = field(default_factory=lambda: {members_digest(()): ()})
    assignments: Assignments = field(default_factory=Assignments)
    by_revision: Sequence[tuple[int, str]] = ()
    source: Values = field(default_factory=dict)

    def adapter(self, key: str) -> Adapter | None:
        """A record that can be read."""
        entry = self.records.get(key)
        return entry.adapter if entry else None

    def reckonings(self, adapter: Adapter) -> Reckonings:
        """By which replicas find who serves an adapter."""
        return self._weighted if looks_at_room(adapter.spec) else self._even

    def assigned(self, adapter: Adapter, by: Reckoning) -> Assignment:
        """Who serves an adapter by a reckoning of this view."""
        return self.assignments.find(self.pool, (adapter.key, adapter.revision), adapter.spec, by)

    @cached_property
    def leaving(self) -> Mapping[str, set[str]]:
        """By name key, the replicas that say that they serve it until others do."""
        found: dict[str, set[str]] = {}
        for name, one in self.replicas.items():
            for key in one.said.leaving if isinstance(one.said, Told) else ():
                found.setdefault(key, set()).add(name)
        return found

    @cached_property
    def _weighted(self) -> Reckonings:
        return self._reckonings(self.rooms)

    @cached_property
    def _even(self) -> Reckonings:
        return self._reckonings((None,))

    def _reckonings(self, rooms: Sequence[Room | None]) -> Reckonings:
        now = self._rated(next(reversed(self.known)), rooms[-1])
        own = {name: self._own(one.said, rooms) for name, one in self.replicas.items()}
        return Reckonings(now, own, frozenset({now, *(one for one in own.values() if one is not None)}))

    def _own(self, told: Said, rooms: Sequence[Room | None]) -> Reckoning | None:
        """By which a replica says that it found its share: what room it reckoned with shows in the weights."""
        if not isinstance(told, Told) or told.status.members not in self.known:
            return None
        rated = (self._rated(told.status.members, room) for room in reversed(rooms))
        return next((one for one in rated if one.weights in {None, told.status.weights}), None)

    def _rated(self, digest: str, room: Room | None) -> Reckoning:
        return self.assignments.reckoning(digest, self.known[digest], room)


@dataclass(frozen=True, slots=True)
class Held:
    """What etcd holds of a pool. `revision`: up to which the records are known."""

    revision: int
    records: Values
    presences: Values
    statuses: Values


def renewed(view: PoolView, held: Held) -> PoolView:
    """The view of what etcd holds now; what did not change is not read again."""
    if held.revision < view.revision:  # the store was set back: what was remembered is of another history
        view = PoolView(view.pool)
    records = view.records if held.records is view.source else _records(view, held.records)
    replicas = _replicas(view, held)
    rooms = view.rooms if records is view.records else _rooms(view.rooms, records)
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
        new[name] = _replica(view.replicas.get(name), kv, statuses.get(name), held.revision)
    old = view.replicas
    return old if len(new) == len(old) and all(old.get(name) is one for name, one in new.items()) else new


def _replica(before: Replica | None, presence: KeyValue, status: KeyValue | None, revision: int) -> Replica:
    last_status, last_said = (before.status, before.said) if before is not None else (None, None)
    told = last_said if status == last_status else said(status)
    if _is_ahead(told, revision):
        status, told = last_status, last_said
    if before is not None and (before.presence, before.status) == (presence, status):
        return before
    return Replica(presence, member_of(presence), status, told)


def _is_ahead(told: Said, revision: int) -> bool:
    """True if a replica speaks of records that are not known here yet: it would be taken to speak of those before."""
    return isinstance(told, Told) and not told.status.stale and told.status.observed_revision > revision


def _rooms(rooms: tuple[Room, ...], records: Mapping[str, Entry]) -> tuple[Room, ...]:
    everywhere = Counter(entry.room for entry in records.values() if entry.room is not None)
    if everywhere == rooms[-1].everywhere:
        return rooms
    return (*rooms, Room(rooms[-1].number + 1, everywhere))[-_REMEMBERED:]


def _known(known: dict[str, tuple[Member, ...]], replicas: Mapping[str, Replica]) -> dict[str, tuple[Member, ...]]:
    members = known_of(one.member for one in replicas.values())
    digest = members_digest(members)
    kept = [(one, of) for one, of in known.items() if one != digest][1 - _REMEMBERED :]
    return {**dict(kept), digest: members}
