"""What should be served at each revision, told by etcd's history alone: an oracle that knows no code of the sidecar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Any

from registry.etcd3.ops import Event
from registry.model.names import name_key
from registry.model.placement import Assignment, Member, Selector, assign, rate, rate_evenly
from registry.model.records import AdapterSpec, Canary, Placement, SourceSpec, Strategy
from sidecar.desired.informer import record_hash
from tests.simulation.artifacts import ROOT, digest_of, path_of

POOL = "p"
Members = Mapping[str, Member]


@dataclass(frozen=True)
class Version:
    """One generation of an adapter, and what it is made of."""

    generation: int
    source: str


@dataclass(frozen=True)
class Wanted:
    """One adapter as its record asks for it.

    Attributes:
        replicas: on how many it is placed; None: on all.
        canary: how many of them take new weights first; None: it has no strategy.
        stable: what all the others keep meanwhile; None: there is no rollout.
        is_conducted: its rollout has to come to an end by itself.
    """

    name: str
    newest: Version
    is_eager: bool
    replicas: int | None = None
    canary: int | str | None = None
    stable: Version | None = None
    is_conducted: bool = False

    @property
    def versions(self) -> tuple[Version, ...]:
        """What one replica or another is to serve."""
        return (self.newest,) if self.stable is None else (self.newest, self.stable)

    @property
    def is_alike(self) -> bool:
        """True if all replicas serve the same of it, whoever lives."""
        return self.replicas is None and self.stable is None


@dataclass(frozen=True)
class Moment:
    """The pool at one revision.

    Attributes:
        state_hash: over all records.
        wanted: the readable records by name key.
        unreadable: keys whose newest record is not readable, with the readable ones before it: a replica keeps the
            last of these that it saw.
        made: name key to the revision at which a record of that name was made.
    """

    state_hash: int
    wanted: Mapping[str, Wanted]
    unreadable: Mapping[str, tuple[Wanted, ...]]
    made: Mapping[str, int] = field(default_factory=dict)

    def share(self, replica: str, live: Members | None) -> dict[str, Version]:
        """Name to what a replica is to have loaded, whoever asks for it. `live` None: it does not know who lives."""
        everywhere = self._everywhere()
        eager = [one for one in self.wanted.values() if one.is_eager]
        shares = {one.name: _share(one, replica, live or {}, everywhere) for one in eager}
        return {name: version for name, version in shares.items() if version is not None}

    def lazy(self) -> dict[str, Version]:
        """Name to what is loaded at the first request."""
        return {one.name: one.newest for one in self.wanted.values() if not one.is_eager}

    def may_load(self, source: str, replica: str, live: Members | None) -> set[str]:
        """Names under which a replica may load that source; that of a lazy one, where it is loaded already."""
        kept = {one.name for before in self.unreadable.values() for one in before if has(one, source)}
        due = self.share(replica, live) | self.lazy()
        return kept | {name for name, version in due.items() if version.source == source}

    def _everywhere(self) -> dict[Selector, int]:
        """How many adapters take room on every replica."""
        kept = sum(bool(before) for before in self.unreadable.values())
        return {frozenset(): kept + sum(one.is_eager and one.replicas is None for one in self.wanted.values())}


def has(one: Wanted, source: str) -> bool:
    """Whether an adapter that every replica loads by itself has a version that is made of a source."""
    return one.is_eager and any(version.source == source for version in one.versions)


def assigned(one: Wanted, live: Iterable[Member], everywhere: Mapping[Selector, int]) -> Assignment:
    """Who of the live replicas serves an adapter, and who are its canaries."""
    rated = rate(live, everywhere) if one.replicas else rate_evenly(live)
    return assign(POOL, name_key(one.name), _spec(one.replicas, one.canary), rated)


@cache
def _spec(replicas: int | None, canary: int | str | None) -> AdapterSpec:
    """As much of a spec as says who serves it."""
    strategy = None if canary is None else Strategy(canary=Canary(replicas=canary))
    return AdapterSpec(source=SourceSpec(uri=ROOT), placement=Placement(replicas=replicas or "all"), strategy=strategy)


def _share(one: Wanted, replica: str, live: Members, everywhere: Mapping[Selector, int]) -> Version | None:
    """What a replica is to serve of an adapter; None: nothing, or it cannot know."""
    if one.is_alike:
        return one.newest
    found = assigned(one, live.values(), everywhere)
    if replica not in found.serving:
        return None
    return one.newest if one.stable is None or replica in found.canaries else one.stable


@dataclass
class Oracle:
    """Folds the history of one pool's adapters."""

    prefix: bytes
    moments: list[tuple[int, Moment]] = field(default_factory=lambda: [(0, Moment(0, {}, {}))])
    past: list[list[tuple[int, Moment]]] = field(default_factory=list)
    _hashes: dict[str, int] = field(default_factory=dict)
    _good: dict[str, tuple[Wanted, ...]] = field(default_factory=dict)

    def take(self, revision: int, events: tuple[Event, ...]) -> None:
        """Folds one revision in."""
        mine = [event for event in events if event.key.startswith(self.prefix)]
        if not mine:
            return
        before = self.newest
        wanted, unreadable, made = dict(before.wanted), dict(before.unreadable), dict(before.made)
        for event in mine:
            key = event.key.removeprefix(self.prefix).decode()
            for known in (wanted, unreadable, self._hashes):
                known.pop(key, None)
            if event.kv is None:
                self._good.pop(key, None)
                made.pop(key, None)
                continue
            made.setdefault(key, revision)
            self._hashes[key] = record_hash(key, revision, event.kv.value)
            one = read_wanted(event.kv.value)
            if one is None:
                unreadable[key] = self._good.get(key, ())
            else:
                wanted[key] = one
                self._good[key] = (*self._good.get(key, ()), one)
        self.moments.append((revision, Moment(sum(self._hashes.values()) % (1 << 256), wanted, unreadable, made)))

    def restore(self, history: Iterable[tuple[int, tuple[Event, ...]]]) -> None:
        """The store was replaced by one with that history. Who followed the former may speak of it for a while."""
        self.past.append(self.moments)
        self.moments = [(0, Moment(0, {}, {}))]
        self._hashes.clear()
        for revision, events in history:
            self.take(revision, events)

    def at(self, revision: int) -> list[Moment]:
        """The pool as it was at a revision: of this store, and of those before it."""
        return [_at(moments, revision) for moments in (self.moments, *reversed(self.past))]

    def made_of(self, key: str, generation: int, revision: int) -> set[tuple[str, int]]:
        """What a generation is made of, with the life that its name has at a revision: in this store, and before."""
        found = (_made_of(moments, key, generation, revision) for moments in (self.moments, *self.past))
        return {one for one in found if one is not None}

    @property
    def newest(self) -> Moment:
        return self.moments[-1][1]


def _at(moments: list[tuple[int, Moment]], revision: int) -> Moment:
    return next(moment for number, moment in reversed(moments) if number <= revision)


def _made_of(moments: list[tuple[int, Moment]], key: str, generation: int, revision: int) -> tuple[str, int] | None:
    life = _at(moments, revision).made.get(key)
    until = (moment for number, moment in reversed(moments) if number <= revision)
    for moment in takewhile(lambda one: one.made.get(key) == life, until):
        wanted = moment.wanted.get(key)
        for version in () if wanted is None else wanted.versions:
            if version.generation == generation and life is not None:
                return version.source, life
    return None


def read_wanted(value: bytes) -> Wanted | None:
    """A record as far as it matters; None: it cannot be followed."""
    try:
        record = json.loads(value)
        spec, rollout = record["spec"], record.get("rollout")
        replicas = (spec.get("placement") or {}).get("replicas", "all")
        strategy = spec.get("strategy") or {}
        return Wanted(
            record["name"],
            Version(record["generation"], _source(spec)),
            spec.get("load", "eager") == "eager",
            None if replicas == "all" else replicas,
            strategy["canary"]["replicas"] if strategy else None,
            Version(rollout["stable_generation"], _source(rollout["stable_spec"])) if rollout else None,
            is_conducted=bool(rollout) and strategy["promote"] == "auto" and not rollout["halted"],
        )
    except (ValueError, KeyError, TypeError):
        return None


def _source(spec: Mapping[str, Any]) -> str:
    return str(spec["source"]["uri"]).removeprefix(ROOT)


def served_hashes(moment: Moment, replica: str, listing: Mapping[str, str]) -> set[tuple[int, str]]:
    """Count and hash that a true status may tell of such a listing; several if one is unreadable, or placed."""
    listed = {one: line for one in moment.wanted.values() for line in _lines(one, replica, listing)}
    sets = [[line for one, line in listed.items() if not _is_placed(one)]]
    for line in (line for one, line in listed.items() if _is_placed(one)):
        sets += [[*lines, line] for lines in sets]  # or it is only kept until others serve it
    for before in moment.unreadable.values():
        kept = [line for one in before for line in _lines(one, replica, listing)]
        sets += [[*lines, line] for lines in sets for line in kept]
    return {_hash(lines) for lines in sets}


def _is_placed(one: Wanted) -> bool:
    """True if a replica serves it or not by who lives: also amid a rollout, since one that drains is not counted."""
    return one.replicas is not None or one.stable is not None


def _lines(one: Wanted, replica: str, listing: Mapping[str, str]) -> list[str]:
    """What a status says of the version of an adapter that is listed, if it is one that some replica is to serve."""
    path = listing.get(one.name) if one.is_eager else None
    listed = [version for version in one.versions if path == path_of(replica, version.source)]
    return [f"{one.name}\0{version.generation}\0{digest_of(version.source)}\n" for version in listed]


def _hash(lines: list[str]) -> tuple[int, str]:
    return len(lines), "sha256:" + hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
