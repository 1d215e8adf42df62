"""View of a pool: a snapshot, its adapters, and each replica's inputs. Pure.

It serves all who look at the pool; none is changed once it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError
from registry.model.keys import last_part
from registry.model.names import is_engine_allowed
from registry.model.placement import Assignment, declinable, looks_at_room
from registry.model.records import AdapterRecord, AdapterSpec, CanaryRollout, SourceSpec
from registry.model.replica_state import ParsedStatus, StatusReading, status_of
from registry.rollout.pool import LiveReplica, PlacementInputs, PoolRoom, PoolSnapshot, PoolValues, renew
from registry.transactions.decode import engine_hosts_of, read_adapter

# Stands for the specs of nearly all adapters: thousands of them would take much room.
PLAIN = AdapterSpec(source=SourceSpec(uri="file:///"))


@dataclass(frozen=True, slots=True)
class EarlierRecord:
    """The record that stood before a change, of an eager adapter on all replicas."""

    generation: int
    revision: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class AdapterView:
    """The fields of a record that residency follows from.

    `spec` is `PLAIN` where it is on all replicas, without canaries. `earlier`: the record just before this one, which
    replicas follow until they receive the change; None: not known, or not on all replicas.
    """

    key: str
    name: str
    generation: int
    revision: int
    lazy: bool
    pinned: bool
    spec: AdapterSpec
    rollout: CanaryRollout | None
    earlier: EarlierRecord | None = None

    @property
    def is_chosen(self) -> bool:
        """True if other live replicas decide which of them serve it, and how."""
        return self.rollout is not None or looks_at_room(self.spec)


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """A value of etcd and what it was read as; `adapter` None: it cannot be read."""

    kv: KeyValue
    adapter: AdapterView | None


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
class PoolView:
    """A pool as it stands.

    Attributes:
        snapshot: its replicas, and the room that adapters take.
        records: by name key, those that cannot be read too.
        by_revision: (revision, name key) of all records, and of those known before them, the oldest first.
        engine_hosts: what the pool allows the URLs of engines to name; empty: anything; None: that was never known.
    """

    snapshot: PoolSnapshot
    records: Mapping[str, AdapterEntry] = field(default_factory=dict)
    by_revision: Sequence[tuple[int, str]] = ()
    engine_hosts: tuple[str, ...] | None = None

    @property
    def revision(self) -> int:
        """The revision up to which the records are known."""
        return self.snapshot.revision

    @property
    def replicas(self) -> Mapping[str, LiveReplica]:
        """The live replicas by name, sorted."""
        return self.snapshot.replicas

    def adapter(self, key: str) -> AdapterView | None:
        """A record that can be read."""
        entry = self.records.get(key)
        return entry.adapter if entry else None

    def inputs(self, adapter: AdapterView) -> ReplicaInputs:
        """The inputs by which replicas find out whether they serve an adapter."""
        return self._by_room if looks_at_room(adapter.spec) else self._evenly

    def assigned(self, adapter: AdapterView, inputs: PlacementInputs) -> Assignment:
        """The replicas that serve an adapter by these inputs."""
        snapshot = self.snapshot
        record, generation = (adapter.key, adapter.revision), declinable(adapter.generation, adapter.rollout)
        return snapshot.assignments.find(snapshot.pool, record, adapter.spec, inputs, generation)

    @cached_property
    def withheld(self) -> frozenset[str]:
        """The replicas whose engines have URLs for routers that the pool does not allow."""
        hosts = self.engine_hosts
        urls = {name: one.router_url for name, one in self.replicas.items() if hosts != ()}
        return frozenset(name for name, url in urls.items() if url and not is_engine_allowed(url, hosts or ()))

    @cached_property
    def leaving(self) -> Mapping[str, set[str]]:
        """By name key, the replicas that report to serve it until others do."""
        found: dict[str, set[str]] = {}
        for name, one in self.replicas.items():
            for key in one.reading.leaving if isinstance(one.reading, ParsedStatus) else ():
                found.setdefault(key, set()).add(name)
        return found

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
            named.update(one.failed, one.pending, one.kept, one.serves or ())
            for key, file in one.found.items():
                if found.setdefault(key, (file.generation, file.digest)) != (file.generation, file.digest):
                    named.add(key)
        return frozenset(named)

    def _readings(self) -> Iterator[ParsedStatus]:
        return (one.reading for one in self.replicas.values() if isinstance(one.reading, ParsedStatus))

    @cached_property
    def _by_room(self) -> ReplicaInputs:
        return self._inputs(self.snapshot.inputs_now(by_room=True), self.snapshot.rooms)

    @cached_property
    def _evenly(self) -> ReplicaInputs:
        return self._inputs(self.snapshot.inputs_now(by_room=False), (None,))

    def _inputs(self, now: PlacementInputs, rooms: Sequence[PoolRoom | None]) -> ReplicaInputs:
        own = {name: self._own(one.reading, rooms) for name, one in self.replicas.items()}
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
        before = view.engine_hosts
        view, values = PoolView(PoolSnapshot(view.snapshot.pool), engine_hosts=before), replace(values, changed=None)
    snapshot, records, hosts = renew(view.snapshot, values), _records(view, values), engine_hosts_of(values.spec)
    if hosts is None:  # of a later release, or damaged: what was allowed before still is, and nothing else
        hosts = view.engine_hosts
    by_revision = view.by_revision if records is view.records else _by_revision(records)
    return PoolView(snapshot, records, by_revision, hosts)


def is_held_back(view: PoolView, values: PoolValues) -> bool:
    """True if a status speaks of records not known yet: the one before still counts."""
    statuses = {last_part(kv.key): kv for kv in values.statuses.values()}
    return any(
        replica.status != status_of(replica.presence, statuses.get(name)) for name, replica in view.replicas.items()
    )


def _records(view: PoolView, values: PoolValues) -> Mapping[str, AdapterEntry]:
    """The records, read where they changed."""
    old, found, keys = view.records, values.records or {}, values.changed
    if keys is not None and not keys:
        return old
    new = {} if keys is None else dict(old)
    keys = frozenset(found) if keys is None else keys
    for etcd_key in keys:
        kv, key = found.get(etcd_key), last_part(etcd_key)
        before = old.get(key)
        if kv is None:
            new.pop(key, None)
        else:
            new[key] = _entry(view.snapshot.pool, key, kv, before) if before is None or before.kv != kv else before
    is_same = len(new) == len(old) and all(new.get(key) is old.get(key) for key in map(last_part, keys))
    return old if is_same else new


def _entry(pool: str, key: str, kv: KeyValue, before: AdapterEntry | None) -> AdapterEntry:
    try:
        adapter = _adapter(key, read_adapter(pool, kv), kv.mod_revision)
    except RegistryError:
        return AdapterEntry(kv, None)
    return AdapterEntry(kv, replace(adapter, earlier=_earlier(kv, before)) if before else adapter)


def _earlier(kv: KeyValue, before: AdapterEntry) -> EarlierRecord | None:
    """What stood there, if nothing else did in between."""
    if before.adapter is None or before.adapter.lazy or before.adapter.spec is not PLAIN:
        return None
    if (kv.create_revision, kv.version) != (before.kv.create_revision, before.kv.version + 1):
        return None
    return EarlierRecord(before.adapter.generation, before.adapter.revision, before.adapter.pinned)


def _adapter(key: str, record: AdapterRecord, revision: int) -> AdapterView:
    spec = record.spec
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


def _by_revision(records: Mapping[str, AdapterEntry]) -> list[tuple[int, str]]:
    revisions = [(entry.kv.mod_revision, key) for key, entry in records.items()]
    adapters = ((key, entry.adapter) for key, entry in records.items() if entry.adapter)
    return sorted([*revisions, *((one.earlier.revision, key) for key, one in adapters if one.earlier)])
