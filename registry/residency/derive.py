"""Residency of a pool's adapters, derived from a view, and changes of it. Pure.

Residency says of each adapter which replicas serve it, or are to. It is stored nowhere: it follows from the records,
the presences and the statuses, as one frozen `PoolView` has them. So it cannot disagree with them. `Shares` finds the
part of one replica; this module puts the parts together.

- No engine that serves an adapter under its own name is missing, as far as its sidecar's status shows it (R24): a
  router could else send requests nowhere. So a replica is judged by the newest record, and by that which it follows.
- "Serving" is said only of what a status proves (R9). A replica whose files differ from those of others, under one
  generation without a digest, is failed.
- Where no replica that stays serves an adapter, those that drain are named too if they serve it, and as unknown those
  that may serve it though nothing proves it. Where others serve it, these are left out (R20).
- No URL is given that the pool does not allow: a presence must not lead requests away. The replica is named as failed.
- `changed` names just the adapters of which something differs between two views. A pool may have 20,000 adapters
  on 100 replicas, and each status makes a new view: what cannot have changed is not derived again. A property holds it
  against deriving all anew.
- `counted` derives what stands alike everywhere once, for the same reason. It counts replicas that are missing, too,
  and residency does not: nobody can ask them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from registry.etcd3.ops import KeyValue
from registry.model.names import matches
from registry.model.placement import roles_lacking
from registry.model.replica_reasons import LEAVING
from registry.model.replica_state import BLOCKED, ParsedStatus, ReplicaState, StatusReading, compare_digests, doubt
from registry.model.status import ReplicaStatus, Resident
from registry.residency.shares import ReplicaPart, Shares, WantedGeneration
from registry.residency.view import AdapterEntry, AdapterView, PoolView
from registry.rollout.expected import ROLE_NOT_SERVED, role_not_served
from registry.rollout.status import NOT_ALIVE

# The reason of a replica whose engine has a URL that the pool does not allow: no request must be sent there.
URL_NOT_ALLOWED = "engine_url_not_allowed"
# The note where who serves an adapter leaves, and nobody else serves it yet.
_ONLY_LEAVING = "only replicas that drain or let go of it serve it"


@dataclass(frozen=True, slots=True)
class DerivedResidence:
    """One replica's part in an adapter; see the message of this name in the .proto.

    `wanted` None: what it is to serve is what it serves, or what the other fields are about. `earlier`: the generations
    that its engine answers to beside that, by ``name@generation``.
    """

    replica: str
    engine_url: str
    labels: Mapping[str, str]
    model: str
    generation: int
    state: ReplicaState
    reason: str
    loaded: bool
    last_used: str
    wanted: WantedGeneration | None = None
    earlier: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DerivedResidency:
    """The replicas of one adapter; `note` is one sentence for people. `halted`: why its rollout is, or empty."""

    name: str
    generation: int
    lazy: bool
    replicas: tuple[DerivedResidence, ...]
    note: str = ""
    halted: str = ""


def residency(view: PoolView, key: str) -> DerivedResidency | None:
    """The residency of an adapter; None: no record of this name key can be read."""
    adapter = view.adapter(key)
    return None if adapter is None else residency_of(view, adapter)


def models_by_model(like: AdapterView, adapter: AdapterView) -> Mapping[str, str]:
    """The models by which requests call an adapter, by those of one that stands alike."""
    versions = f"{like.name}@{like.generation}", f"{adapter.name}@{adapter.generation}"
    return dict(((like.name, adapter.name), versions))


def residency_of(view: PoolView, adapter: AdapterView) -> DerivedResidency:
    """The residency of an adapter whose record can be read."""
    shares = Shares(view, adapter)
    parts = _compared([part for name in shares.names() if (part := shares.part(name)) is not None])
    note = shares.note()
    if not any(_has_it(view, adapter, part) for part in parts) and (last := _compared(list(shares.last_parts()))):
        merged = {part.replica: part for part in (*parts, *last)}
        parts = sorted(merged.values(), key=lambda part: part.replica)
        note = _ONLY_LEAVING if any(part.is_serving for part in last) else note
    replicas = tuple(_residence(view, adapter, part) for part in parts)
    note = "; ".join([*([note] if note else []), *map(role_not_served, _roles_lacking(view, adapter, replicas))])
    halted = adapter.rollout.halted if adapter.rollout is not None else ""
    return DerivedResidency(adapter.name, adapter.generation, adapter.lazy, replicas, note, halted)


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """Relation of a replica to an adapter; `wanted` None: as in `DerivedResidence`."""

    state: ReplicaState
    reason: str
    wanted: tuple[ReplicaState, str] | None = None


@dataclass(frozen=True, slots=True)
class CountedResidency:
    """One adapter, and how many replicas stand to it how: those of its residency, and those that are missing.

    `pool_replicas`: number of live ones that do not drain, where its placement chooses among these; else 0.
    """

    name: str
    generation: int
    lazy: bool
    counts: Mapping[ReplicaStanding, int]
    note: str = ""
    halted: str = ""
    pool_replicas: int = 0


def counted(view: PoolView, keys: Iterable[str]) -> Iterator[tuple[str, CountedResidency | None]]:
    """The adapters of these name keys, counted; None: no record can be read.

    Adapters that stand alike everywhere are derived once.
    """
    alike: dict[str, CountedResidency] = {}
    for key in keys:
        adapter = view.adapter(key)
        if adapter is None:
            yield key, None
            continue
        like = view.alike(adapter) or adapter
        found = alike[like.key] = alike.get(like.key) or counted_of(view, like, residency_of(view, like))
        yield key, replace(found, name=adapter.name, generation=adapter.generation)


def counted_of(view: PoolView, adapter: AdapterView, found: DerivedResidency) -> CountedResidency:
    """An adapter counted, by its residency."""
    counts = Counter(_standing(one) for one in _reckoned(view, found))
    if missing := _missing(view, adapter):
        counts[ReplicaStanding(ReplicaState.UNKNOWN, NOT_ALIVE)] = missing
    if roles := _roles_lacking(view, adapter, found.replicas):
        counts[ReplicaStanding(ReplicaState.UNKNOWN, ROLE_NOT_SERVED)] = len(roles)
    size = _pool_size(view, adapter)
    return CountedResidency(found.name, found.generation, found.lazy, counts, found.note, found.halted, size)


@dataclass(frozen=True, slots=True)
class CountedReplica:
    """One replica, and how many adapters stand to it how; `loaded`: so many of these its engine has loaded."""

    replica: str
    counts: Mapping[ReplicaStanding, int]
    loaded: int


def by_replica(view: PoolView, keys: Iterable[str]) -> list[CountedReplica]:
    """The replicas to which any of these adapters stands, sorted; those that are missing and have a name, too.

    It is the same as `counted`, by replicas: each part is counted once here and once there. Only what replicas without
    a name lack is counted there alone.
    """
    found: dict[str, Counter[ReplicaStanding]] = {}
    loaded = Counter[str]()
    for adapter, times in _kinds(view, keys):
        for part in _reckoned(view, residency_of(view, adapter)):
            found.setdefault(part.replica, Counter())[_standing(part)] += times
            loaded[part.replica] += times * part.loaded
        for name in _missing_names(view, adapter):
            found.setdefault(name, Counter())[ReplicaStanding(ReplicaState.UNKNOWN, NOT_ALIVE)] += times
    return [CountedReplica(name, found[name], loaded[name]) for name in sorted(found)]


def _kinds(view: PoolView, keys: Iterable[str]) -> Iterable[tuple[AdapterView, int]]:
    """Adapters of which each stands for so many that stand alike everywhere."""
    adapters = [adapter for key in keys if (adapter := view.adapter(key)) is not None]
    alike = [view.alike(adapter) or adapter for adapter in adapters]
    first, times = {one.key: one for one in alike}, Counter(one.key for one in alike)
    return [(first[key], count) for key, count in times.items()]


def _reckoned(view: PoolView, found: DerivedResidency) -> Iterator[DerivedResidence]:
    """The parts that count: one that drains, and is not known to serve it, is waited for by nobody."""
    return (one for one in found.replicas if _counts(view, one))


def _counts(view: PoolView, part: DerivedResidence) -> bool:
    return part.replica in view.replicas or part.state is ReplicaState.SERVING


def _missing_names(view: PoolView, adapter: AdapterView) -> Sequence[str]:
    """The names of those that `_missing` counts, as far as they have any."""
    selector = adapter.spec.placement.selector
    return (
        [] if adapter.is_chosen else [one.name for one in view.snapshot.lacking.named if matches(selector, one.labels)]
    )


def _pool_size(view: PoolView, adapter: AdapterView) -> int:
    return len(view.replicas) if adapter.is_chosen or adapter.spec.placement.selector else 0


def _standing(one: DerivedResidence) -> ReplicaStanding:
    return ReplicaStanding(one.state, one.reason, (one.wanted.state, one.wanted.reason) if one.wanted else None)


def _missing(view: PoolView, adapter: AdapterView) -> int:
    """Number of replicas that would have to serve it too, if they lived; what is placed by number goes to others."""
    if adapter.is_chosen:
        return 0
    selector = adapter.spec.placement.selector
    nameless = sum(one.count for one in view.snapshot.lacking.nameless if matches(selector, one.labels))
    return nameless + len(_missing_names(view, adapter))


def _roles_lacking(view: PoolView, adapter: AdapterView, parts: Sequence[DerivedResidence]) -> Sequence[str]:
    """The roles of which no replica is to serve it; none while only canaries are to, and where nobody is."""
    staying = [one.labels for one in parts if one.replica in view.replicas and one.reason != LEAVING]
    return roles_lacking(view.snapshot.expected.roles, staying) if staying and adapter.rollout is None else ()


def residence_on(view: PoolView, adapter: AdapterView, name: str) -> DerivedResidence | None:
    """One replica's part in an adapter with a digest; None: it has none, or is gone."""
    shares = Shares(view, adapter)
    part = shares.part(name) if name in view.replicas else None
    if part is None and name in view.everybody and not _serving(view, adapter):
        part = shares.last_part(name)
    return None if part is None else _residence(view, adapter, part)


def _serving(view: PoolView, adapter: AdapterView) -> bool:
    """True if a replica that stays serves it, in whichever generation."""
    shares = Shares(view, adapter)
    return any((part := shares.part(name)) is not None and _has_it(view, adapter, part) for name in shares.names())


def _has_it(view: PoolView, adapter: AdapterView, part: ReplicaPart) -> bool:
    """True if the replica serves it, and goes on with that once it knows the newest record.

    What it could load as long as it was lazy, it refuses from then on until it is loaded.
    """
    return part.is_serving and (adapter.lazy or _is_loaded(view, adapter, part))


def _is_loaded(view: PoolView, adapter: AdapterView, part: ReplicaPart) -> bool:
    if not part.lazy:
        return part.is_serving
    resident = _resident(view, adapter, part)
    return part.is_serving and resident is not None and resident.generation == part.generation


def _resident(view: PoolView, adapter: AdapterView, part: ReplicaPart) -> Resident | None:
    """State of a lazy adapter that is loaded, as its replica tells it."""
    reading = view.everybody[part.replica].reading
    return reading.resident.get(adapter.key) if isinstance(reading, ParsedStatus) else None


def _compared(parts: Sequence[ReplicaPart]) -> Sequence[ReplicaPart]:
    """The parts; failed where different files were found under one generation."""
    if not any(part.verdict.digest for part in parts):
        return parts
    compared = compare_digests([part.verdict for part in parts])
    return [part.judged(verdict) for part, verdict in zip(parts, compared, strict=True)]


def _residence(view: PoolView, adapter: AdapterView, part: ReplicaPart) -> DerivedResidence:
    replica = view.everybody[part.replica]
    status = replica.reading.status if isinstance(replica.reading, ParsedStatus) else None
    is_loaded, resident = _is_loaded(view, adapter, part), _resident(view, adapter, part)
    is_versioned = status is not None and status.engine.names == "versioned"
    residence = DerivedResidence(
        part.replica,
        replica.router_url,
        replica.member.labels,
        f"{part.name}@{part.generation}" if is_versioned else part.name,
        part.generation,
        part.verdict.state,
        part.verdict.reason,
        is_loaded,
        resident.last_used if resident is not None and is_loaded else "",
        part.wanted,
        _earlier(replica.reading, adapter, part) if is_versioned else (),
    )
    if part.replica not in view.withheld:
        return residence
    state, reason = ReplicaState.FAILED, URL_NOT_ALLOWED
    return replace(residence, engine_url="", state=state, reason=reason, loaded=False, last_used="", earlier=())


def _earlier(reading: StatusReading, adapter: AdapterView, part: ReplicaPart) -> tuple[int, ...]:
    """Earlier generations that a status proves to be answered beside the one of the part."""
    if not isinstance(reading, ParsedStatus) or doubt(reading) is not None:
        return ()
    return tuple(one for one in reading.earlier.get(adapter.key, ()) if one != part.generation)


def changed(old: PoolView, new: PoolView) -> frozenset[str]:
    """The name keys whose `residency` or counts differ, also of adapters that came or are gone.

    And those that stand nowhere before and after, as what is disabled, and have another record: who shows records
    beside their residency hears of these as well.
    """
    names = {*old.everybody, *new.everybody}
    if old.snapshot.lacking != new.snapshot.lacking or _ask_for_other_roles(old, new):
        keys = {*old.records, *new.records}
        return frozenset(key for key in keys if _lacks_differ(old, new, key) or _differs(old, new, key, names))
    if old.engine_hosts != new.engine_hosts:
        return frozenset(key for key in {*old.records, *new.records} if _differs(old, new, key, names))
    causes = [name for name in names if old.everybody.get(name) is not new.everybody.get(name)]
    # What those that leave are needed for depends on all others.
    looked_at = {*causes, *old.snapshot.draining, *new.snapshot.draining} if causes else ()
    return frozenset(key for key in _candidates(old, new, causes) if _differs(old, new, key, looked_at))


def _candidates(old: PoolView, new: PoolView, causes: Iterable[str]) -> Iterable[str]:
    """The name keys that may have changed."""
    keys: set[str] = set()
    for name in causes:
        touched = _touched(old, new, name)
        if touched is None:
            return {*old.records, *new.records}
        keys |= touched
    if old.records is not new.records:
        names = {*old.records, *new.records}
        keys |= {key for key in names if old.records.get(key) is not new.records.get(key)}
    return keys | _chosen(new) if old.snapshot.rooms is not new.snapshot.rooms else keys


def _chosen(view: PoolView) -> set[str]:
    return {key for key, entry in view.records.items() if _is_chosen(entry)}


def _is_chosen(entry: AdapterEntry) -> bool:
    """True if other live replicas decide, by this record or an earlier one, which of them serve it."""
    adapters = (entry.adapter, *(one.adapter for one in entry.earlier))
    return any(adapter is not None and adapter.is_chosen for adapter in adapters)


def _touched(old: PoolView, new: PoolView, name: str) -> set[str] | None:
    """The name keys that a change of a replica is about; None: it may be about all."""
    one, other = old.everybody.get(name), new.everybody.get(name)
    if one is None or other is None or one.engine_url != other.engine_url:
        return None
    if one.member != replace(other.member, declines=one.member.declines):
        return None
    before, now = one.reading, other.reading
    if not (isinstance(before, ParsedStatus) and isinstance(now, ParsedStatus)) or _whole(before.status) != _whole(
        now.status
    ):
        return None
    keys = _seen_between(new, before.status.observed_revision, now.status.observed_revision) | _named(before, now)
    is_same = (before.status.members, before.status.weights) == (now.status.members, now.status.weights)
    is_same = is_same and one.member == other.member
    return keys if is_same else keys | _chosen(new)


def _seen_between(view: PoolView, *revisions: int) -> set[str]:
    """The name keys of the records that only one of two statuses knew."""
    first, last = (bisect_right(view.order.steps, (revision, "\U0010ffff")) for revision in sorted(revisions))
    return {key for _, key in view.order.steps[first:last]}


def _whole(status: ReplicaStatus) -> tuple[object, ...]:
    """The fields of a status that every adapter of the replica depends on."""
    engine, lazy = status.engine, status.lazy
    return (
        status.stale,
        bool(status.engine.incarnation),
        engine.url,
        engine.names,
        lazy.servable,
        lazy.reason,
        status.omitted > 0,
        status.omitted_reason,
        status.serves is None,
        any(one.reason == BLOCKED for one in status.warnings),
    )


def _named(before: ParsedStatus, now: ParsedStatus) -> set[str]:
    """The name keys about which the two statuses differ."""
    pairs: tuple[tuple[Mapping[str, object], Mapping[str, object]], ...] = (
        (before.failed, now.failed),
        (before.pending, now.pending),
        (before.found, now.found),
        (before.resident, now.resident),
        (before.leaving, now.leaving),
        (before.kept, now.kept),
        (before.earlier, now.earlier),
        (before.serves or {}, now.serves or {}),
    )
    return {key for one, other in pairs for key in {*one, *other} if one.get(key) != other.get(key)}


def _differs(old: PoolView, new: PoolView, key: str, causes: Iterable[str]) -> bool:
    before, now = old.adapter(key), new.adapter(key)
    if before is None or now is None:
        return before is not now or _stored(old, key) != _stored(new, key)
    if _pool_size(old, before) != _pool_size(new, now):
        return True
    if before is now and old.records[key] is new.records[key] and _stands_alone(new.records[key]):
        names = {*causes, *old.answering.get(key, ()), *new.answering.get(key, ())}
        return any(_stands(old, now, name) != _stands(new, now, name) for name in names)
    told, tells = residency_of(old, before), residency_of(new, now)
    return told != tells or list(_reckoned(old, told)) != list(_reckoned(new, tells))


def _stored(view: PoolView, key: str) -> KeyValue | None:
    """The record of an adapter that stands nowhere: it is disabled, cannot be read, or is not there."""
    entry = view.records.get(key)
    return entry.kv if entry else None


def _stands(view: PoolView, adapter: AdapterView, name: str) -> tuple[DerivedResidence | None, bool]:
    """One replica's part, and whether it counts."""
    part = residence_on(view, adapter, name)
    return part, part is not None and _counts(view, part)


def _lacks_differ(old: PoolView, new: PoolView, key: str) -> bool:
    before, now = old.adapter(key), new.adapter(key)
    if before is None or now is None:
        return False
    notes_differ = _ask_for_other_roles(old, new) and residency_of(old, before).note != residency_of(new, now).note
    return notes_differ or _missing(old, before) != _missing(new, now)


def _ask_for_other_roles(old: PoolView, new: PoolView) -> bool:
    return old.snapshot.expected.roles != new.snapshot.expected.roles


def _stands_alone(entry: AdapterEntry) -> bool:
    """True if the part of one replica that stays does not depend on the others."""
    adapters = (entry.adapter, *(one.adapter for one in entry.earlier))
    return all(one is not None and one.pinned and not one.is_chosen for one in adapters)
