"""View of a pool: a snapshot, its adapters, and each replica's inputs. Pure.

It serves all who look at the pool; none is changed once it is made.

A replica follows each record as it stood at the revision that its status tells, and that may be an earlier one than
etcd has now: of a slow replica two or three earlier, of an adapter that was deleted and made anew one of its former
life. So a view remembers which record stood from when to when, as far as any live replica may still be there (guarantee
R24). What it does not know for certain it leaves out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError
from registry.model.keys import is_adapter_key, last_part
from registry.model.names import is_engine_allowed
from registry.model.placement import Assignment, declinable, looks_at_room, spec_now
from registry.model.records import AdapterRecord, AdapterSpec, CanaryRollout, SourceSpec
from registry.model.replica_state import ParsedStatus, ReplicaState, StatusReading, Verdict, doubt, status_of
from registry.model.status import ReplicaStatus
from registry.rollout.pool import LiveReplica, PlacementInputs, PoolRoom, PoolSnapshot, PoolValues, renew
from registry.transactions.decode import engine_hosts_of, read_adapter

# Stands for the specs of nearly all adapters: thousands of them would take much room.
PLAIN = AdapterSpec(source=SourceSpec(uri="file:///"))


# So many earlier records of an adapter are remembered, and so many names that were deleted.
_EARLIER_KEPT = 16
_DELETED_KEPT = 1000


@dataclass(frozen=True, slots=True)
class AdapterView:
    """The fields of a record that residency follows from.

    `spec` is `PLAIN` where it is on all replicas, without canaries.
    """

    key: str
    name: str
    generation: int
    revision: int
    lazy: bool
    pinned: bool
    spec: AdapterSpec = field(hash=False)
    rollout: CanaryRollout | None = field(hash=False)

    @property
    def is_chosen(self) -> bool:
        """True if other live replicas decide which of them serve it, and how."""
        return self.rollout is not None or looks_at_room(self.spec)


@dataclass(frozen=True, slots=True)
class EarlierRecord:
    """A record that stood for certain from one revision to another, both included."""

    first: int
    last: int
    adapter: AdapterView


Earlier = tuple[EarlierRecord, ...]


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """A value of etcd and what it was read as; `adapter` None: it cannot be read.

    `earlier`: the records that replicas may still follow, the oldest first.
    """

    kv: KeyValue
    adapter: AdapterView | None
    earlier: Earlier = ()


@dataclass(frozen=True, slots=True)
class ReplicaInputs:
    """The inputs by which the replicas of a pool find their share.

    Attributes:
        now: by which the live replicas are to find it.
        own: by which each replica does; None: that is not known.
        all: every one of these.
    """

    now: PlacementInputs
    own: Mapping[str, PlacementInputs | None]
    all: frozenset[PlacementInputs]


@dataclass(frozen=True, eq=False)
class RecordOrder:
    """Records by revision, sorted once anybody asks."""

    records: Mapping[str, AdapterEntry]

    @cached_property
    def steps(self) -> Sequence[tuple[int, str]]:
        """(revision, name key) wherever a replica comes to follow another record, or none that is known."""
        found = {(entry.kv.mod_revision, key) for key, entry in self.records.items()}
        for key, entry in self.records.items():
            for one in entry.earlier:
                found |= {(one.first, key), (one.last + 1, key)}
        return sorted(found)


@dataclass(frozen=True, eq=False)
class PoolView:
    """A pool as it stands.

    Attributes:
        snapshot: its replicas, and the room that adapters take.
        records: by name key, those that cannot be read too.
        order: of the records by revision.
        engine_hosts: what the pool allows the URLs of engines to name; empty: anything; None: that was never known.
        deleted: the records of names that are gone, by name key, as far as replicas may still follow them.
    """

    snapshot: PoolSnapshot
    records: Mapping[str, AdapterEntry] = field(default_factory=dict)
    order: RecordOrder = field(default_factory=lambda: RecordOrder({}))
    engine_hosts: tuple[str, ...] | None = None
    deleted: Mapping[str, Earlier] = field(default_factory=dict)

    @property
    def revision(self) -> int:
        """The revision up to which the records are known."""
        return self.snapshot.revision

    @property
    def replicas(self) -> Mapping[str, LiveReplica]:
        """The live replicas by name, sorted, without those that leave."""
        return self.snapshot.replicas

    @cached_property
    def everybody(self) -> Mapping[str, LiveReplica]:
        """The live replicas by name, with those that leave."""
        return {**self.snapshot.draining, **self.snapshot.replicas}

    def adapter(self, key: str) -> AdapterView | None:
        """A record that can be read."""
        entry = self.records.get(key)
        return entry.adapter if entry else None

    def is_followed(self, adapter: AdapterView) -> bool:
        """True if each replica follows this record, or none that is known of."""
        entry = self.records.get(adapter.key)
        return not (entry and entry.earlier and self.observed and self.observed[0] < adapter.revision)

    def alike(self, adapter: AdapterView) -> AdapterView | None:
        """The adapter that stands for all of its kind; None: this one may stand as no other does.

        Adapters that no status names, and that all replicas know alike, stand alike on each replica: they differ in
        their names and generations alone.
        """
        if adapter.spec is not PLAIN or adapter.key in self.named or not self.is_followed(adapter):
            return None
        kind = adapter.lazy, bisect_left(self.observed, adapter.revision)
        return self._standing_for.setdefault(kind, adapter)

    @cached_property
    def _standing_for(self) -> dict[tuple[bool, int], AdapterView]:
        """The first adapter that was looked at of each kind; a cache that changes no answer."""
        return {}

    def stood(self, key: str, revision: int) -> AdapterView | None:
        """The earlier record of this name key that stood at a revision; None: there was none, or it is not known."""
        entry = self.records.get(key)
        found = (one.adapter for one in (entry.earlier if entry else ()) if one.first <= revision <= one.last)
        return next(found, None)

    def inputs(self, adapter: AdapterView) -> ReplicaInputs:
        """The inputs by which replicas find out whether they serve an adapter."""
        return self.by_room if looks_at_room(adapter.spec) else self._evenly

    def assigned(self, adapter: AdapterView, inputs: PlacementInputs) -> Assignment:
        """The replicas that serve an adapter by these inputs."""
        snapshot = self.snapshot
        record, generation = (adapter.key, adapter.revision), declinable(adapter.generation, adapter.rollout)
        return snapshot.assignments.find(snapshot.pool, record, adapter.spec, inputs, generation)

    @cached_property
    def withheld(self) -> frozenset[str]:
        """The replicas whose engines have URLs for routers that the pool does not allow."""
        hosts = self.engine_hosts
        urls = {name: one.router_url for name, one in self.everybody.items() if hosts != ()}
        return frozenset(name for name, url in urls.items() if url and not is_engine_allowed(url, hosts or ()))

    @cached_property
    def answering(self) -> Mapping[str, set[str]]:
        """By name key, the replicas that say by the name itself that their engines answer to it."""
        found: dict[str, set[str]] = {}
        for name, one in self.everybody.items():
            said = one.reading
            keys = {*said.leaving, *said.kept, *(said.serves or ())} if isinstance(said, ParsedStatus) else ()
            for key in keys:
                found.setdefault(key, set()).add(name)
        return found

    @cached_property
    def doubted(self) -> Mapping[str, Verdict]:
        """The replicas whose statuses may not be believed, and why not."""
        said = {name: one.reading for name, one in self.everybody.items()}
        found = {name: doubt(reading) for name, reading in said.items() if isinstance(reading, ParsedStatus)}
        return {name: verdict for name, verdict in found.items() if verdict is not None}

    @cached_property
    def unplaced(self) -> Mapping[str, Verdict]:
        """The replicas whose statuses are believed, and do not show which part they have in what is chosen."""
        members = Verdict(ReplicaState.UNKNOWN, "membership_not_seen", "it knows other live replicas")
        room = Verdict(ReplicaState.UNKNOWN, "room_not_seen", "it knows of other room that the replicas have")
        found = {one.member.replica: status for one, status, names_unknown in _speaking(self) if names_unknown}
        return {name: room if said.members in self.snapshot.known else members for name, said in found.items()}

    @cached_property
    def observed(self) -> Sequence[int]:
        """The revisions up to which the replicas know the records, sorted."""
        return sorted(one.status.observed_revision for one in self._readings())

    @cached_property
    def named(self) -> frozenset[str]:
        """The name keys on which the verdicts of replicas may differ from that on adapters that no status names."""
        named = set[str]()
        found: dict[str, tuple[int, str]] = {}
        for one in self._readings():
            named.update(one.failed, one.pending, one.kept, one.earlier, one.serves or (), one.leaving, one.resident)
            for key, file in one.found.items():
                if found.setdefault(key, (file.generation, file.digest)) != (file.generation, file.digest):
                    named.add(key)
        return frozenset(named)

    def _readings(self) -> Iterator[ParsedStatus]:
        return (one.reading for one in self.everybody.values() if isinstance(one.reading, ParsedStatus))

    @cached_property
    def by_room(self) -> ReplicaInputs:
        """The inputs by which replicas find out whether they serve what is placed by number."""
        return self._inputs(self.snapshot.inputs_now(by_room=True), self.snapshot.rooms)

    @cached_property
    def _evenly(self) -> ReplicaInputs:
        return self._inputs(self.snapshot.inputs_now(by_room=False), (None,))

    def _inputs(self, now: PlacementInputs, rooms: Sequence[PoolRoom | None]) -> ReplicaInputs:
        own = {name: self._own(one.reading, rooms) for name, one in self.everybody.items()}
        return ReplicaInputs(now, own, frozenset({now, *(one for one in own.values() if one is not None)}))

    def _own(self, reading: StatusReading, rooms: Sequence[PoolRoom | None]) -> PlacementInputs | None:
        """The inputs of a replica, by its status: the weights show the room that it knew."""
        if not isinstance(reading, ParsedStatus) or reading.status.members not in self.snapshot.known:
            return None
        found = (self.snapshot.inputs(reading.status.members, room) for room in reversed(rooms))
        return next((one for one in found if one.weights in {None, reading.status.weights}), None)


def renew_view(view: PoolView, values: PoolValues) -> PoolView:
    """The view of the values that stand in etcd now; `values` have records."""
    if values.revision < view.revision:  # the store was set back: what was remembered is of another history
        # But which replicas a digest is made of does not depend on it, and theirs still tell of those before.
        fresh = PoolSnapshot(view.snapshot.pool, known=view.snapshot.known)
        view, values = PoolView(fresh, engine_hosts=view.engine_hosts), replace(values, changed=None)
    snapshot, hosts = renew(view.snapshot, values), engine_hosts_of(values.spec)
    records, deleted = _records(view, values)
    if hosts is None:  # of a later release, or damaged: what was allowed before still is, and nothing else
        hosts = view.engine_hosts
    order = view.order if records is view.records else RecordOrder(records)
    return PoolView(snapshot, records, order, hosts, deleted)


def known_to(view: PoolView, revision: int) -> PoolView:
    """The same view, of which it is known that no record changed up to a revision."""
    return replace(view, snapshot=replace(view.snapshot, revision=revision)) if revision > view.revision else view


def is_held_back(view: PoolView, values: PoolValues) -> bool:
    """True if a status speaks of records not known yet: the one before still counts."""
    statuses = {last_part(kv.key): kv for kv in values.statuses.values()}
    return any(
        replica.status != status_of(replica.presence, statuses.get(name)) for name, replica in view.everybody.items()
    )


def is_apart(presences: Mapping[bytes, KeyValue], statuses: Mapping[bytes, KeyValue], revision: int) -> bool:
    """True if some replica has no status, and one of the two is newer than the revision up to which both are known.

    Both are written by one transaction, of which one half may have come first.
    """
    known = {last_part(kv.key): kv for kv in statuses.values()}
    pairs = ((kv, known.get(last_part(kv.key))) for kv in presences.values())
    lacking = (pair for pair in pairs if status_of(*pair) is None)
    return any(one.mod_revision > revision for pair in lacking for one in pair if one is not None)


def not_understood(view: PoolView) -> int | None:
    """The revision below which that happened by which some status is to be understood; None: all of them are.

    A status speaks of the records as they stood at its revision, and of live replicas that it names by a digest alone.
    """
    newest = max((entry.kv.mod_revision for entry in view.records.values()), default=0)
    found = set[int]()
    for one, status, names_unknown in _speaking(view):
        if status.observed_revision < newest:
            found.add(status.observed_revision)
        if names_unknown and one.status is not None:
            found.add(one.status.mod_revision)
    return min(found, default=None)


def is_understood(view: PoolView, since: int) -> bool:
    """True if each status speaks of records and of live replicas that are known; `since`: from when all records are.

    One that is held back speaks of later records; where none before it counts, nothing would be known of its replica.
    """
    if any(one.status is None and one.newest is not None for one in view.everybody.values()):
        return False
    return not any(names_unknown or status.observed_revision < since for _, status, names_unknown in _speaking(view))


def _speaking(view: PoolView) -> Iterator[tuple[LiveReplica, ReplicaStatus, bool]]:
    """Replicas with a present status, it, and whether it counts unknown replicas."""
    for name, one in view.everybody.items():
        status = one.reading.status if isinstance(one.reading, ParsedStatus) else None
        if status is not None and not status.stale:
            yield one, status, bool(status.members) and view.by_room.own[name] is None


def _records(view: PoolView, values: PoolValues) -> tuple[Mapping[str, AdapterEntry], Mapping[str, Earlier]]:
    """The records, read where they changed, and those of names that are gone."""
    old, found, changed = view.records, values.records or {}, values.changed
    if changed is not None and not changed:
        return old, view.deleted
    new, deleted = {} if changed is None else dict(old), dict(view.deleted)
    keys = [key for key in (found if changed is None else changed) if is_adapter_key(key, view.snapshot.pool)]
    for etcd_key in keys:
        kv, key = found.get(etcd_key), last_part(etcd_key)
        before = old.get(key)
        if kv is None:
            new.pop(key, None)
        else:
            new[key] = _entry(view, key, kv, before) if before is None or before.kv != kv else before
            deleted.pop(key, None)
    for key in old if changed is None else map(last_part, keys):
        if key in old and key not in new:
            deleted[key] = _earlier(view, old[key], None)
    if len(new) == len(old) and all(new.get(key) is old.get(key) for key in map(last_part, keys)):
        return old, view.deleted
    kept = [(key, some) for key, earlier in deleted.items() if (some := _still_followed(view, earlier))]
    return new, dict(kept[-_DELETED_KEPT:])


def _entry(view: PoolView, key: str, kv: KeyValue, before: AdapterEntry | None) -> AdapterEntry:
    earlier = _earlier(view, before, kv) if before else _still_followed(view, view.deleted.get(key, ()))
    try:
        record = read_adapter(view.snapshot.pool, kv)
    except RegistryError:
        return AdapterEntry(kv, None, earlier)
    # What is disabled is nowhere to be asked for, as if it were deleted.
    return AdapterEntry(kv, _adapter(key, record, kv.mod_revision) if record.spec.enabled else None, earlier)


def _earlier(view: PoolView, before: AdapterEntry, now: KeyValue | None) -> Earlier:
    """The record that stood there up to now, if known; `now` None: it was deleted."""
    first, last = before.kv.mod_revision, max(view.revision, before.kv.mod_revision)
    if now is not None and (now.create_revision, now.version) == (before.kv.create_revision, before.kv.version + 1):
        last = now.mod_revision - 1
    stood = () if before.adapter is None else (EarlierRecord(first, last, before.adapter),)
    return _still_followed(view, (*before.earlier, *stood))


def _still_followed(view: PoolView, earlier: Earlier) -> Earlier:
    """Those that a replica may still follow: none of them goes back."""
    least = view.observed[0] if view.observed else 0
    return tuple(one for one in earlier if one.last >= least)[-_EARLIER_KEPT:]


def _adapter(key: str, record: AdapterRecord, revision: int) -> AdapterView:
    spec = spec_now(record)
    plain = record.rollout is None and not looks_at_room(spec) and not spec.placement.selector
    return AdapterView(
        key,
        record.name,
        record.generation,
        revision,
        spec.load == "lazy",
        spec.source.digest is not None,
        PLAIN if plain else spec,
        record.rollout,
    )
