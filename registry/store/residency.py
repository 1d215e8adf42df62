"""Where each adapter of a pool is served, by what name and in which generation, derived from a view of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from registry.model.assignment import Assignment
from registry.model.placement import matches
from registry.store.assignments import Reckoning
from registry.store.judgement import Asked, Judged, ReplicaState, Told, agreed, judge
from registry.store.pool_view import Adapter, PoolView, Replica

# Said of a replica that serves an adapter until those who are to serve it do.
LEAVING = "leaving"
# What is said where nobody is to serve an adapter.
_NOBODY, _NOBODY_ALIVE = "no live replica matches its selector", "no replica is alive"


@dataclass(frozen=True, slots=True)
class Residence:
    """One replica's part in an adapter; see the message of this name in the .proto."""

    replica: str
    engine_url: str
    labels: Mapping[str, str]
    model: str
    generation: int
    state: ReplicaState
    reason: str
    loaded: bool
    last_used: str


@dataclass(frozen=True, slots=True)
class AdapterResidency:
    """Where one adapter is; `note` is what somebody should know in one sentence."""

    name: str
    generation: int
    lazy: bool
    replicas: tuple[Residence, ...]
    note: str = ""


def residency(view: PoolView, key: str) -> AdapterResidency | None:
    """Where an adapter is; None: there is none of this name key, or its record cannot be read."""
    adapter = view.adapter(key)
    if adapter is None:
        return None
    shares = _Shares(view, adapter)
    parts = [part for name in shares.names() if (part := shares.part(name)) is not None]
    replicas = tuple(_residence(view, adapter, part) for part in _agreed(parts))
    return AdapterResidency(adapter.name, adapter.generation, adapter.lazy, replicas, shares.note())


def residence_on(view: PoolView, adapter: Adapter, name: str) -> Residence | None:
    """One replica's part in an adapter that has a digest; None: it has none, or does not live."""
    part = _Shares(view, adapter).part(name) if name in view.replicas else None
    return None if part is None else _residence(view, adapter, part)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a replica is to serve, and where it is with that."""

    replica: str
    generation: int
    judged: Judged


class _Shares:
    """Who is to serve an adapter: by what lives now, and by what each replica knows of that."""

    def __init__(self, view: PoolView, adapter: Adapter) -> None:
        self._view = view
        self._adapter = adapter
        self._reckonings = view.reckonings(adapter)
        self._now = view.assigned(adapter, self._reckonings.now) if adapter.is_chosen else None

    def names(self) -> Iterable[str]:
        """The replicas that may have a part in it, sorted."""
        view = self._view
        if self._now is None:
            return view.replicas
        names = {*view.leaving.get(self._adapter.key, ())}
        names = names.union(*(view.assigned(self._adapter, one).serving for one in self._reckonings.all))
        return sorted(names & view.replicas.keys())

    def part(self, name: str) -> _Part | None:
        """A replica's part; None: it has none."""
        return self._own_part(name) or self._leaving_part(name) or self._awaited_part(name)

    def _own_part(self, name: str) -> _Part | None:
        """What the replica finds to be its share."""
        adapter, replica = self._adapter, self._view.replicas[name]
        if self._now is None:
            fits = matches(adapter.spec.placement.selector, replica.member.labels)
            return self._judged(name, replica, adapter.generation) if fits else None
        own = self._own(name)
        if own is None or name not in own.serving:
            return None
        return self._judged(name, replica, self._generation(own, name))

    def _leaving_part(self, name: str) -> _Part | None:
        """What it says that it serves until others do, as far as that is proven."""
        replica = self._view.replicas[name]
        leaving = replica.said.leaving.get(self._adapter.key) if isinstance(replica.said, Told) else None
        if leaving is None:
            return None
        part = self._judged(name, replica, leaving.generation)
        is_served = part.judged.state is ReplicaState.SERVING
        return replace(part, judged=replace(part.judged, reason=LEAVING)) if is_served else None

    def _awaited_part(self, name: str) -> _Part | None:
        """What is to be its share as soon as it has heard who lives, and what takes room."""
        if self._now is None or name not in self._now.serving:
            return None
        generation = self._generation(self._now, name)
        return self._judged(name, self._view.replicas[name], generation, self._reckonings.now)

    def note(self) -> str:
        """That fewer replicas live than the placement asks for, or none that it selects; empty: as many do."""
        placement = self._adapter.spec.placement
        if placement.replicas == "all":
            return "" if self._has_somebody() else _NOBODY if placement.selector else _NOBODY_ALIVE
        if self._now is None or len(self._now.serving) >= placement.replicas:
            return ""
        return f"placed on {placement.replicas}, {len(self._now.serving)} alive"

    def _has_somebody(self) -> bool:
        if self._now is not None:
            return bool(self._now.serving)
        selector = self._adapter.spec.placement.selector
        return any(matches(selector, one.member.labels) for one in self._view.replicas.values())

    def _judged(self, name: str, replica: Replica, generation: int, by: Reckoning | None = None) -> _Part:
        """Where a replica is with a generation. `by`: what it must have reckoned with; None: that is known."""
        adapter = self._adapter
        pinned = adapter.pinned
        if adapter.rollout is not None and generation == adapter.rollout.stable_generation:
            pinned = adapter.rollout.stable_spec.source.digest is not None
        asked = Asked(adapter.key, generation, adapter.revision, adapter.lazy, pinned)
        if by is not None:
            asked = replace(asked, members=by.members, weights=by.weights)
        return _Part(name, generation, judge(replica.said, asked))

    def _generation(self, assigned: Assignment, name: str) -> int:
        rollout = self._adapter.rollout
        if rollout is None or name in assigned.canaries:
            return self._adapter.generation
        return rollout.stable_generation

    def _own(self, name: str) -> Assignment | None:
        """Who serves it by what the replica has seen; None: nobody knows what that is."""
        reckoning = self._reckonings.own[name]
        return None if reckoning is None else self._view.assigned(self._adapter, reckoning)


def _agreed(parts: Sequence[_Part]) -> Sequence[_Part]:
    """The parts, where replicas that found different files under one generation do not serve it."""
    if not any(part.judged.digest for part in parts):
        return parts
    generations = {part.generation for part in parts}
    settled = {one: iter(agreed([part.judged for part in parts if part.generation == one])) for one in generations}
    return [replace(part, judged=next(settled[part.generation])) for part in parts]


def _residence(view: PoolView, adapter: Adapter, part: _Part) -> Residence:
    replica, judged = view.replicas[part.replica], part.judged
    status = replica.said.status if isinstance(replica.said, Told) else None
    resident = replica.said.resident.get(adapter.key) if isinstance(replica.said, Told) else None
    is_loaded = judged.state is ReplicaState.SERVING
    if adapter.lazy:
        is_loaded = is_loaded and resident is not None and resident.generation == part.generation
    is_versioned = status is not None and status.engine.names == "versioned"
    return Residence(
        part.replica,
        status.engine.url if status is not None else "",
        replica.member.labels,
        f"{adapter.name}@{part.generation}" if is_versioned else adapter.name,
        part.generation,
        judged.state,
        judged.reason,
        is_loaded,
        resident.last_used if resident is not None and is_loaded else "",
    )
