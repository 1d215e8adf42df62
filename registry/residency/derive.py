"""Residency of a pool's adapters, derived from a view, and changes of it. Pure.

A pool may have 20,000 adapters on 100 replicas, and each status of a replica is a new view: what cannot have changed
is not derived again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from registry.model.names import matches
from registry.model.placement import Assignment, declinable, decline_note, decliners
from registry.model.replica_state import (
    BLOCKED,
    NOT_SEEN,
    Expectation,
    ParsedStatus,
    ReplicaState,
    Verdict,
    compare_digests,
    evaluate,
)
from registry.model.status import ReplicaStatus
from registry.residency.view import PLAIN, AdapterView, EarlierRecord, PoolView
from registry.rollout.pool import LiveReplica, PlacementInputs
from registry.rollout.status import NOT_ALIVE

# The reason of a replica that serves an adapter until those that are to serve it do.
LEAVING = "leaving"
# The reason of a replica whose engine has a URL that the pool does not allow: no request must be sent there.
URL_NOT_ALLOWED = "engine_url_not_allowed"
# The reason of a replica that serves another generation than it is to serve.
EARLIER_GENERATION = "earlier_generation"
# The note where no replica is to serve an adapter.
_NOBODY, _NOBODY_ALIVE = "no live replica matches its selector", "no replica is alive"


@dataclass(frozen=True, slots=True)
class WantedGeneration:
    """A generation that a replica is to serve, and how it stands to it."""

    generation: int
    state: ReplicaState
    reason: str


@dataclass(frozen=True, slots=True)
class DerivedResidence:
    """One replica's part in an adapter; see the message of this name in the .proto.

    `wanted` None: what it is to serve is what it serves, or what the other fields are about.
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
    return None if adapter is None else _residency(view, adapter)


def _residency(view: PoolView, adapter: AdapterView) -> DerivedResidency:
    shares = _Shares(view, adapter)
    parts = [part for name in shares.names() if (part := shares.part(name)) is not None]
    replicas = tuple(_residence(view, adapter, part) for part in _compared(parts))
    halted = adapter.rollout.halted if adapter.rollout is not None else ""
    return DerivedResidency(adapter.name, adapter.generation, adapter.lazy, replicas, shares.note(), halted)


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """How a replica stands to an adapter; `wanted` None: as in `DerivedResidence`."""

    state: ReplicaState
    reason: str
    wanted: tuple[ReplicaState, str] | None = None


@dataclass(frozen=True, slots=True)
class CountedResidency:
    """One adapter, and how many replicas stand to it how: those of its residency, and those that are missing."""

    name: str
    generation: int
    lazy: bool
    counts: Mapping[ReplicaStanding, int]
    note: str = ""
    halted: str = ""


def counted(view: PoolView, keys: Iterable[str]) -> Iterator[tuple[str, CountedResidency | None]]:
    """The adapters of these name keys, counted; None: no record can be read.

    Adapters that no status names and that all replicas know alike stand alike everywhere: they are derived once.
    """
    alike: dict[tuple[bool, int], CountedResidency] = {}
    for key in keys:
        adapter = view.adapter(key)
        if adapter is None:
            yield key, None
            continue
        kind = _kind(view, adapter)
        found = (alike.get(kind) if kind else None) or _counted(view, adapter)
        if kind:
            alike[kind] = found
        yield key, replace(found, name=adapter.name, generation=adapter.generation)


def _kind(view: PoolView, adapter: AdapterView) -> tuple[bool, int] | None:
    """Equal for adapters that stand alike on all replicas; None: it may stand as no other does."""
    known = bisect_left(view.observed, adapter.revision)
    is_known_before = adapter.earlier is not None and known > 0
    if adapter.spec is not PLAIN or adapter.key in view.named or is_known_before:
        return None
    return adapter.lazy, known


def _counted(view: PoolView, adapter: AdapterView) -> CountedResidency:
    found = _residency(view, adapter)
    counts = Counter(_standing(one) for one in found.replicas)
    if missing := _missing(view, adapter):
        counts[ReplicaStanding(ReplicaState.UNKNOWN, NOT_ALIVE)] = missing
    return CountedResidency(found.name, found.generation, found.lazy, counts, found.note, found.halted)


def _standing(one: DerivedResidence) -> ReplicaStanding:
    return ReplicaStanding(one.state, one.reason, (one.wanted.state, one.wanted.reason) if one.wanted else None)


def _missing(view: PoolView, adapter: AdapterView) -> int:
    """How many replicas would have to serve it too, if they lived; what is placed by number goes to others."""
    if adapter.is_chosen:
        return 0
    lacking, selector = view.snapshot.lacking, adapter.spec.placement.selector
    if not selector:
        return lacking.count
    nameless = sum(one.count for one in lacking.nameless if matches(selector, one.labels))
    return nameless + sum(matches(selector, one.labels) for one in lacking.named)


def residence_on(view: PoolView, adapter: AdapterView, name: str) -> DerivedResidence | None:
    """One replica's part in an adapter with a digest; None: it has none, or is gone."""
    part = _Shares(view, adapter).part(name) if name in view.replicas else None
    return None if part is None else _residence(view, adapter, part)


@dataclass(frozen=True, slots=True)
class _Part:
    """A generation that a replica is to serve, and the verdict on that."""

    replica: str
    generation: int
    verdict: Verdict


class _Shares:
    """The replicas to serve an adapter: by the live ones, and by what each knows."""

    def __init__(self, view: PoolView, adapter: AdapterView) -> None:
        self._view = view
        self._adapter = adapter
        self._inputs = view.inputs(adapter)
        self._now = view.assigned(adapter, self._inputs.now) if adapter.is_chosen else None

    def names(self) -> Iterable[str]:
        """The replicas that may have a part in it, sorted."""
        view = self._view
        if self._now is None:
            return view.replicas
        names = {*view.leaving.get(self._adapter.key, ())}
        names = names.union(*(view.assigned(self._adapter, one).serving for one in self._inputs.all))
        return sorted(names & view.replicas.keys())

    def part(self, name: str) -> _Part | None:
        """A replica's part; None: it has none."""
        return self._own_part(name) or self._leaving_part(name) or self._awaited_part(name)

    def _own_part(self, name: str) -> _Part | None:
        """The part by what the replica knows."""
        adapter, replica = self._adapter, self._view.replicas[name]
        if self._now is None:
            fits = matches(adapter.spec.placement.selector, replica.member.labels)
            return self._part(name, replica, adapter.generation) if fits else None
        own = self._own(name)
        if own is None or name not in own.serving:
            return None
        return self._part(name, replica, self._generation(own, name))

    def _leaving_part(self, name: str) -> _Part | None:
        """The part that it reports to serve until others do, as far as that is proven."""
        replica = self._view.replicas[name]
        leaving = replica.reading.leaving.get(self._adapter.key) if isinstance(replica.reading, ParsedStatus) else None
        if leaving is None:
            return None
        part = self._part(name, replica, leaving.generation)
        is_served = part.verdict.state is ReplicaState.SERVING
        return replace(part, verdict=replace(part.verdict, reason=LEAVING)) if is_served else None

    def _awaited_part(self, name: str) -> _Part | None:
        """The part that it is to have once it knows the live replicas and their room."""
        if self._now is None or name not in self._now.serving:
            return None
        generation = self._generation(self._now, name)
        return self._part(name, self._view.replicas[name], generation, self._inputs.now)

    def note(self) -> str:
        """A note if fewer replicas take it than it asks for, who declines it, or that none match; or empty."""
        adapter, placement = self._adapter, self._adapter.spec.placement
        if placement.replicas == "all":
            return "" if self._has_somebody() else _NOBODY if placement.selector else _NOBODY_ALIVE
        if self._now is None:
            return ""
        generation = declinable(adapter.generation, adapter.rollout)
        members = (one.member for one in self._inputs.now.candidates)
        declined = decline_note(decliners(adapter.key, adapter.spec, generation, members))
        if len(self._now.serving) >= placement.replicas:
            return declined
        lacking = f"placed on {placement.replicas}, {len(self._now.serving)}"
        return f"{lacking} take it; {declined}" if declined else f"{lacking} alive"

    def _has_somebody(self) -> bool:
        if self._now is not None:
            return bool(self._now.serving)
        selector = self._adapter.spec.placement.selector
        return any(matches(selector, one.member.labels) for one in self._view.replicas.values())

    def _part(self, name: str, replica: LiveReplica, generation: int, inputs: PlacementInputs | None = None) -> _Part:
        """A replica's part; `inputs`: those that its share must be of; None: any."""
        adapter = self._adapter
        pinned = adapter.pinned
        if adapter.rollout is not None and generation == adapter.rollout.stable_generation:
            pinned = adapter.rollout.stable_spec.source.digest is not None
        expected = Expectation(adapter.key, generation, adapter.revision, adapter.lazy, pinned)
        if inputs is not None:
            expected = replace(expected, members=inputs.members, weights=inputs.weights)
        verdict = evaluate(replica.reading, expected)
        if verdict.reason == NOT_SEEN and adapter.earlier is not None:
            verdict = replace(verdict, kept=_kept_before(adapter.key, adapter.earlier, replica))
        return _Part(name, generation, verdict)

    def _generation(self, assigned: Assignment, name: str) -> int:
        rollout = self._adapter.rollout
        if rollout is None or name in assigned.canaries:
            return self._adapter.generation
        return rollout.stable_generation

    def _own(self, name: str) -> Assignment | None:
        """The replicas that serve it by what this one knows; None: that is not known here."""
        inputs = self._inputs.own[name]
        return None if inputs is None else self._view.assigned(self._adapter, inputs)


def _kept_before(key: str, earlier: EarlierRecord, replica: LiveReplica) -> int | None:
    """The generation that a replica answers with that knows only the record before; None: none is proven."""
    expected = Expectation(key, earlier.generation, earlier.revision, lazy=False, pinned=earlier.pinned)
    verdict = evaluate(replica.reading, expected)
    return earlier.generation if verdict.state is ReplicaState.SERVING else verdict.kept


def _compared(parts: Sequence[_Part]) -> Sequence[_Part]:
    """The parts; failed where different files were found under one generation."""
    if not any(part.verdict.digest for part in parts):
        return parts
    compared = compare_digests([part.verdict for part in parts])
    return [replace(part, verdict=verdict) for part, verdict in zip(parts, compared, strict=True)]


def _residence(view: PoolView, adapter: AdapterView, part: _Part) -> DerivedResidence:
    replica, verdict = view.replicas[part.replica], part.verdict
    status = replica.reading.status if isinstance(replica.reading, ParsedStatus) else None
    resident = replica.reading.resident.get(adapter.key) if isinstance(replica.reading, ParsedStatus) else None
    generation, state, reason, wanted = part.generation, verdict.state, verdict.reason, None
    is_loaded = verdict.state is ReplicaState.SERVING
    if verdict.kept is not None:
        wanted = WantedGeneration(part.generation, verdict.state, verdict.reason)
        generation, state, reason, is_loaded = verdict.kept, ReplicaState.SERVING, EARLIER_GENERATION, True
    elif adapter.lazy:
        is_loaded = is_loaded and resident is not None and resident.generation == part.generation
    is_versioned = status is not None and status.engine.names == "versioned"
    residence = DerivedResidence(
        part.replica,
        replica.router_url,
        replica.member.labels,
        f"{adapter.name}@{generation}" if is_versioned else adapter.name,
        generation,
        state,
        reason,
        is_loaded,
        resident.last_used if resident is not None and is_loaded else "",
        wanted,
    )
    if part.replica not in view.withheld:
        return residence
    state, reason = ReplicaState.FAILED, URL_NOT_ALLOWED
    return replace(residence, engine_url="", state=state, reason=reason, loaded=False, last_used="")


def changed(old: PoolView, new: PoolView) -> frozenset[str]:
    """The name keys whose `residency` or counts differ, also of adapters that came or are gone."""
    names = {*old.replicas, *new.replicas}
    if old.snapshot.lacking != new.snapshot.lacking:
        keys = {*old.records, *new.records}
        return frozenset(key for key in keys if _lacks_differ(old, new, key) or _differs(old, new, key, names))
    if old.engine_hosts != new.engine_hosts:
        return frozenset(key for key in {*old.records, *new.records} if _differs(old, new, key, names))
    causes = [name for name in names if old.replicas.get(name) is not new.replicas.get(name)]
    return frozenset(key for key in _candidates(old, new, causes) if _differs(old, new, key, causes))


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
    return {key for key, entry in view.records.items() if entry.adapter and entry.adapter.is_chosen}


def _touched(old: PoolView, new: PoolView, name: str) -> set[str] | None:
    """The name keys that a change of a replica is about; None: it may be about all."""
    one, other = old.replicas.get(name), new.replicas.get(name)
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
    first, last = (bisect_right(view.by_revision, (revision, "\U0010ffff")) for revision in sorted(revisions))
    return {key for _, key in view.by_revision[first:last]}


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
        (before.serves or {}, now.serves or {}),
    )
    return {key for one, other in pairs for key in {*one, *other} if one.get(key) != other.get(key)}


def _differs(old: PoolView, new: PoolView, key: str, causes: Iterable[str]) -> bool:
    before, now = old.adapter(key), new.adapter(key)
    if before is None or now is None:
        return before is not now
    if before is now and _stands_alone(now):
        return any(residence_on(old, now, name) != residence_on(new, now, name) for name in causes)
    return residency(old, key) != residency(new, key)


def _lacks_differ(old: PoolView, new: PoolView, key: str) -> bool:
    before, now = old.adapter(key), new.adapter(key)
    return before is not None and now is not None and _missing(old, before) != _missing(new, now)


def _stands_alone(adapter: AdapterView) -> bool:
    """True if the part of one replica does not depend on the others."""
    return adapter.pinned and not adapter.is_chosen
