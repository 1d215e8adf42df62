"""What residency answers after each commit, held against what engines serve: nobody who serves is left out (R24)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import last_part
from registry.model.replica_state import ReplicaState
from registry.model.status import Presence
from registry.residency.derive import DerivedResidence, DerivedResidency, residency
from registry.residency.view import PLAIN, PoolView, renew_view
from registry.rollout.pool import PoolSnapshot, PoolValues
from tests.simulation.artifacts import source_of
from tests.simulation.goal import DRIFT_SECONDS
from tests.simulation.history import POOL, read_wanted
from tests.simulation.loop import State
from tests.simulation.world import KEYS, ReplicaHost, World

# The process of an engine, and since when it was seen to serve it.
Spell = tuple[str, float]
# What takes an adapter from an engine without its sidecar.
BY_OTHERS = {"stop", "foreign"}


@dataclass
class Places:
    """A reader of residency that sees each moment.

    Attributes:
        held: how many places were held against an engine.
    """

    world: World
    held: int = 0
    _view: PoolView = field(default_factory=lambda: PoolView(PoolSnapshot(POOL)))
    _named: dict[tuple[str, str], Spell] = field(default_factory=dict)
    _sources: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    _said_at: dict[str, float] = field(default_factory=dict)
    _restores: int = 0

    def on_commit(self, revision: int, events: tuple[Event, ...]) -> None:
        """Each revision of etcd."""
        self._note_events(events)
        if self._restores != self.world.restores:
            self._restores = self.world.restores
            self._view = PoolView(PoolSnapshot(POOL, known=self._view.snapshot.known))
            self._named.clear()
        self._view = renew_view(self._view, self._values(revision))
        answers = {key: found for key in self._view.records if (found := residency(self._view, key)) is not None}
        told = {key: _told(answer) for key, answer in answers.items()}
        for (key, replica), spell in list(self._named.items()):
            if key not in answers or not self._still(answers[key].name, replica, spell):
                del self._named[key, replica]
                continue
            self.held += 1
            if not self._is_placed(key, answers[key], replica, told[key][0] | told[key][1]):
                names = {one.replica: f"{one.state.value} {one.reason}" for one in answers[key].replicas}
                self.world.checks.violated(f"R24 {key} is served by {replica}, and residency names {names}")
        for key, answer in answers.items():
            for one in answer.replicas:
                self._note(key, answer.name, one)

    def _values(self, revision: int) -> PoolValues:
        kvs = self.world.store.kvs
        return PoolValues(
            presences=_below(kvs.values(), KEYS.replicas(POOL)),
            statuses=_below(kvs.values(), KEYS.statuses(POOL)),
            records=_below(kvs.values(), KEYS.adapters(POOL)),
            revision=revision,
            holds_back=True,
            spec=kvs.get(KEYS.pool(POOL)),
            members=kvs.get(KEYS.members(POOL)),
        )

    def _host(self, replica: str) -> ReplicaHost | None:
        """Who owns a replica's id; None: nobody, one who drains, or one whose engine does not run."""
        host = self._owner(replica)
        return None if host is None or host.engine.process.state is not State.RUNS else host

    def _owner(self, replica: str) -> ReplicaHost | None:
        kv = self.world.store.kvs.get(KEYS.replica(POOL, replica))
        presence = None if kv is None else Presence.parse(kv.value)
        if kv is None or presence is None or presence.leaving:
            return None
        hosts = (*self.world.replicas, *self.world.rivals)
        return next((one for one in hosts if one.place.owner == presence.owner), None)

    def _note_events(self, events: Iterable[Event]) -> None:
        """What each generation is made of, in several stores of several things; and when each replica spoke."""
        for event in events:
            if event.key.startswith(KEYS.statuses(POOL)):
                self._said_at[last_part(event.key)] = asyncio.get_running_loop().time()
            is_record = event.kv is not None and event.key.startswith(KEYS.adapters(POOL))
            wanted = read_wanted(event.kv.value) if event.kv is not None and is_record else None
            for version in wanted.versions if wanted is not None else ():
                self._sources[last_part(event.key), version.generation].add(version.source)

    def _note(self, key: str, name: str, told: DerivedResidence) -> None:
        """Notes whom residency names for what its engine lists: no other generation, which it may not know of yet."""
        found = self._host(told.replica) if told.state is ReplicaState.SERVING else None
        path = None if found is None else found.engine.listing.get(name)
        if found is None or path is None or not self._is_of(key, told.generation, path):
            return
        if not self._has_listed(found, name, self._said_at.get(told.replica, 0.0)):
            return  # it was lost since the status was written, and has come back
        process = found.engine.process.name
        if self._named.get((key, told.replica), ("", 0.0))[0] != process:
            self._named[key, told.replica] = process, asyncio.get_running_loop().time()

    def _is_of(self, key: str, generation: int, path: str) -> bool:
        return not generation or source_of(path) in self._sources[key, generation]

    def _still(self, name: str, replica: str, spell: Spell) -> bool:
        """Whether the same engine has listed it ever since."""
        found = self._host(replica)
        if found is None or found.engine.process.name != spell[0] or name not in found.engine.listing:
            return False
        return self._has_listed(found, name, spell[1])

    def _has_listed(self, host: ReplicaHost, name: str, since: float) -> bool:
        samples = reversed(self.world.checks.samples[host.place.store.replica])
        return all(name in sample.listing for sample in samples if sample.at > since)

    def _is_placed(self, key: str, answer: DerivedResidency, replica: str, named: set[str]) -> bool:
        """A replica may be let go of where others serve what is placed by number, or chosen."""
        adapter = self._view.adapter(key)
        if replica in named or adapter is None or answer.lazy:
            return True
        others = [host for one in named if (host := self._owner(one)) is not None]
        return adapter.spec is not PLAIN and any(self._serves(host, answer.name) for host in others)

    def _serves(self, host: ReplicaHost, name: str) -> bool:
        """True if an engine lists a name, swaps it by two calls, or lost it to others so lately that nobody heard."""
        if name in host.engine.listing:
            return True
        lost = None
        for sample in reversed(self.world.checks.samples[host.place.store.replica]):
            if name in sample.listing:
                break
            lost = sample
        is_news = lost is not None and lost.at > asyncio.get_running_loop().time() - DRIFT_SECONDS
        return lost is not None and (name in host.engine.busy or (is_news and lost.what in BY_OTHERS))


def _below(kvs: Iterable[KeyValue], prefix: bytes) -> dict[bytes, KeyValue]:
    return {kv.key: kv for kv in kvs if kv.key.startswith(prefix) and last_part(kv.key)}


def _told(answer: DerivedResidency) -> tuple[set[str], set[str]]:
    """Who serves it, and of whom it is told that they cannot be asked at the moment."""
    states = (ReplicaState.SERVING, ReplicaState.UNKNOWN)
    serving, unknown = ({one.replica for one in answer.replicas if one.state is state} for state in states)
    return serving, unknown
