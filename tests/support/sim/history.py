"""What should be served at each revision, told by etcd's history alone: an oracle that knows no code of the sidecar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from registry.etcd3.ops import Event
from registry.model.assignment import assign
from registry.model.names import name_key
from registry.model.placement import Member
from registry.model.records import AdapterSpec, Placement, Source
from sidecar.raw_records import record_hash
from tests.support.sim.artifacts import ROOT, digest_of, path_of

POOL = "p"


@dataclass(frozen=True)
class Wanted:
    """One adapter as its record asks for it. `replicas`: on how many it is placed; None: on all."""

    name: str
    generation: int
    source: str
    is_eager: bool
    replicas: int | None = None


@dataclass(frozen=True)
class Moment:
    """The pool at one revision.

    Attributes:
        state_hash: over all records.
        wanted: the readable records by name key.
        unreadable: keys whose newest record is not readable, with the readable ones before it: a replica keeps the
            last of these that it saw.
    """

    state_hash: int
    wanted: Mapping[str, Wanted]
    unreadable: Mapping[str, tuple[Wanted, ...]]

    def eager(self) -> dict[str, str]:
        """Name to source of what should be loaded."""
        return {one.name: one.source for one in self.wanted.values() if one.is_eager}

    def is_placed(self, name: str) -> bool:
        """True if not all replicas are to serve it."""
        return any(one.name == name and one.replicas is not None for one in self.wanted.values())

    def owners(self, name: str, replicas: Iterable[str]) -> set[str]:
        """Those of the live replicas that are to serve an adapter; they have no labels, and room alike."""
        one = next(one for one in self.wanted.values() if one.name == name)
        spec = AdapterSpec(source=Source(uri=ROOT), placement=Placement(replicas=one.replicas or "all"))
        return set(assign(POOL, name_key(name), spec, [Member(replica, {}) for replica in replicas], {}).serving)

    def may_load(self, source: str) -> set[str]:
        """Names under which that source may be loaded."""
        kept = [one for before in self.unreadable.values() for one in before]
        return {one.name for one in (*self.wanted.values(), *kept) if one.is_eager and one.source == source}


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
        wanted, unreadable = dict(before.wanted), dict(before.unreadable)
        for event in mine:
            key = event.key.removeprefix(self.prefix).decode()
            for known in (wanted, unreadable, self._hashes):
                known.pop(key, None)
            if event.kv is None:
                self._good.pop(key, None)
                continue
            self._hashes[key] = record_hash(key, revision, event.kv.value)
            one = _read(event.kv.value)
            if one is None:
                unreadable[key] = self._good.get(key, ())
            else:
                wanted[key] = one
                self._good[key] = (*self._good.get(key, ()), one)
        self.moments.append((revision, Moment(sum(self._hashes.values()) % (1 << 256), wanted, unreadable)))

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

    @property
    def newest(self) -> Moment:
        return self.moments[-1][1]


def _at(moments: list[tuple[int, Moment]], revision: int) -> Moment:
    return next(moment for number, moment in reversed(moments) if number <= revision)


def _read(value: bytes) -> Wanted | None:
    try:
        record = json.loads(value)
        source = record["spec"]["source"]["uri"].removeprefix(ROOT)
        replicas = (record["spec"].get("placement") or {}).get("replicas", "all")
        is_eager = record["spec"].get("load", "eager") == "eager"
        return Wanted(record["name"], record["generation"], source, is_eager, None if replicas == "all" else replicas)
    except (ValueError, KeyError, TypeError):
        return None


def served_hashes(moment: Moment, replica: str, listing: Mapping[str, str]) -> set[tuple[int, str]]:
    """Count and hash that a true status may tell of such a listing; more than one if one is unreadable, or placed."""
    listed = [one for one in moment.wanted.values() if _is_served(one, replica, listing)]
    sets = [[_line(one) for one in listed if one.replicas is None]]
    for line in (_line(one) for one in listed if one.replicas is not None):
        sets += [[*lines, line] for lines in sets]  # or it is only kept until others serve it
    for before in moment.unreadable.values():
        kept = [_line(one) for one in before if _is_served(one, replica, listing)]
        sets += [[*lines, line] for lines in sets for line in kept]
    return {_hash(lines) for lines in sets}


def _is_served(one: Wanted, replica: str, listing: Mapping[str, str]) -> bool:
    return one.is_eager and listing.get(one.name) == path_of(replica, one.source)


def _line(one: Wanted) -> str:
    return f"{one.name}\0{one.generation}\0{digest_of(one.source)}\n"


def _hash(lines: list[str]) -> tuple[int, str]:
    return len(lines), "sha256:" + hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
