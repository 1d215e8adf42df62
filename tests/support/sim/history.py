"""What should be served at each revision, told by etcd's history alone: an oracle that knows no code of the sidecar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from registry.etcd3.ops import Event
from sidecar.desired import record_hash
from tests.support.sim.artifacts import ROOT, digest_of, path_of


@dataclass(frozen=True)
class Wanted:
    """One adapter as its record asks for it."""

    name: str
    generation: int
    source: str
    is_eager: bool


@dataclass(frozen=True)
class Moment:
    """The pool at one revision: its state hash, the readable records, and keys whose newest record is not readable."""

    state_hash: int
    wanted: Mapping[str, Wanted]
    unreadable: frozenset[str]

    def eager(self) -> dict[str, str]:
        """Name to source of what should be loaded."""
        return {one.name: one.source for one in self.wanted.values() if one.is_eager}


@dataclass
class Oracle:
    """Folds the history of one pool's adapters. For an unreadable record `wanted` keeps the last good one."""

    prefix: bytes
    moments: list[tuple[int, Moment]] = field(default_factory=lambda: [(0, Moment(0, {}, frozenset()))])
    _hashes: dict[str, int] = field(default_factory=dict)

    def take(self, revision: int, events: tuple[Event, ...]) -> None:
        """Folds one revision in."""
        mine = [event for event in events if event.key.startswith(self.prefix)]
        if not mine:
            return
        wanted = dict(self.moments[-1][1].wanted)
        unreadable = set(self.moments[-1][1].unreadable)
        for event in mine:
            key = event.key.removeprefix(self.prefix).decode()
            unreadable.discard(key)
            self._hashes.pop(key, None)
            if event.kv is None:
                wanted.pop(key, None)
                continue
            self._hashes[key] = record_hash(key, revision, event.kv.value)
            one = _read(event.kv.value)
            if one is None:
                unreadable.add(key)
            else:
                wanted[key] = one
        moment = Moment(sum(self._hashes.values()) % (1 << 256), wanted, frozenset(unreadable))
        self.moments.append((revision, moment))

    def at(self, revision: int) -> Moment:
        """The pool as it was at a revision."""
        return next(moment for number, moment in reversed(self.moments) if number <= revision)

    @property
    def newest(self) -> Moment:
        return self.moments[-1][1]


def _read(value: bytes) -> Wanted | None:
    try:
        record = json.loads(value)
        source = record["spec"]["source"]["uri"].removeprefix(ROOT)
        return Wanted(record["name"], record["generation"], source, record["spec"].get("load", "eager") == "eager")
    except (ValueError, KeyError, TypeError):
        return None


def served_hashes(moment: Moment, replica: str, listing: Mapping[str, str]) -> set[tuple[int, str]]:
    """Count and hash that a true status may tell of such a listing; more than one if a record is not readable."""
    served = [
        (one.name, key, f"{one.name}\0{one.generation}\0{digest_of(one.source)}\n")
        for key, one in moment.wanted.items()
        if one.is_eager and listing.get(one.name) == path_of(replica, one.source)
    ]
    sure = [line for _, key, line in served if key not in moment.unreadable]
    unsure = [line for _, key, line in served if key in moment.unreadable]
    return {_hash(sure), _hash([*sure, *unsure])}


def _hash(lines: list[str]) -> tuple[int, str]:
    return len(lines), "sha256:" + hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
