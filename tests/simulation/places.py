"""What residency answers after each commit, held against what engines serve: nobody who serves is left out (R24)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import last_part
from registry.model.replica_state import ParsedStatus, ReplicaState
from registry.model.status import Presence, presence_of
from registry.residency.derive import DerivedResidence, DerivedResidency, residency
from registry.residency.view import PLAIN, PoolView, renew_view
from registry.rollout.pool import PoolSnapshot, PoolValues
from tests.simulation.artifacts import source_of
from tests.simulation.checks import Sample
from tests.simulation.goal import DRIFT_SECONDS
from tests.simulation.history import POOL, read_wanted
from tests.simulation.loop import State, current_process_name
from tests.simulation.world import KEYS, ReplicaHost, World

# The process of an engine, and since when it was seen to serve it.
Spell = tuple[str, float]
# What takes an adapter from an engine without its sidecar.
BY_OTHERS = {"stop", "foreign"}


@dataclass
class Places:
    """Judges of residency: one that sees each moment, and one for each pool that an admin service follows.

    Attributes:
        held: how many places were held against an engine.
        told: the same, of what admin services told.
        view: of each moment.
    """

    world: World
    held: int = 0
    told: int = 0
    view: PoolView = field(default_factory=lambda: PoolView(PoolSnapshot(POOL)))
    _moments: Judge = field(init=False)
    _judges: dict[object, Judge] = field(default_factory=dict)
    _sources: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    _committed_at: dict[int, float] = field(default_factory=dict)
    _gone_at: dict[str, float] = field(default_factory=dict)
    _restores: int = 0

    def __post_init__(self) -> None:
        self._moments = Judge(self)

    def on_commit(self, revision: int, events: tuple[Event, ...]) -> None:
        """Each revision of etcd."""
        self._note_events(revision, events)
        if self._restores != self.world.restores:
            self._restores = self.world.restores
            self.view = PoolView(PoolSnapshot(POOL, known=self.view.snapshot.known))
            self._moments = Judge(self)
            self._judges.clear()
        self.view = renew_view(self.view, self._values(revision))
        self.held += self._moments.judge(self.view, "")

    def on_post(self, subscription: object, view: PoolView) -> None:
        """Each view that an admin service tells its readers of."""
        if view.snapshot.pool == POOL and self._restores == self.world.restores:
            judge = self._judges.setdefault(subscription, Judge(self))
            self.told += judge.judge(view, f" by {current_process_name()}")

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

    def host(self, replica: str) -> ReplicaHost | None:
        """Who owns a replica's id; None: nobody, one who drains, or one whose engine does not run."""
        host = self.owner(replica)
        return None if host is None or host.engine.process.state is not State.RUNS else host

    def owner(self, replica: str) -> ReplicaHost | None:
        """The same, whatever its engine does."""
        kv = self.world.store.kvs.get(KEYS.replica(POOL, replica))
        presence = None if kv is None else Presence.parse(kv.value)
        if kv is None or presence is None or presence.leaving:
            return None
        hosts = (*self.world.replicas, *self.world.rivals)
        return next((one for one in hosts if one.place.owner == presence.owner), None)

    def _note_events(self, revision: int, events: Iterable[Event]) -> None:
        """When that was, who was gone then, and what each generation is made of: in several stores several things."""
        self._committed_at[revision] = _now()
        for event in events:
            if event.key.startswith(KEYS.replicas(POOL)) and (event.kv is None or _is_leaving(event.kv)):
                self._gone_at[last_part(event.key)] = _now()
            is_record = event.kv is not None and event.key.startswith(KEYS.adapters(POOL))
            wanted = read_wanted(event.kv.value) if event.kv is not None and is_record else None
            for version in wanted.versions if wanted is not None else ():
                self._sources[last_part(event.key), version.generation].add(version.source)

    def said_at(self, view: PoolView, replica: str) -> float:
        """When the status was written by which a view speaks of a replica."""
        one = view.everybody.get(replica)
        status = None if one is None else one.status
        return 0.0 if status is None else self._committed_at.get(status.mod_revision, 0.0)

    def is_of(self, key: str, generation: int, path: str) -> bool:
        """Whether a path holds what a generation is made of."""
        return not generation or source_of(path) in self._sources[key, generation]

    def has_listed(self, host: ReplicaHost, name: str, since: float) -> bool:
        """Whether an engine listed a name then, and has ever since."""
        for sample in self._samples(host):
            if name not in sample.listing:
                return False
            if sample.at <= since:
                break
        return True

    def has_stayed(self, replica: str, since: float) -> bool:
        """Whether a replica has been a member ever since."""
        return self._gone_at.get(replica, -1.0) < since

    def serves(self, host: ReplicaHost, name: str, since: float) -> bool:
        """True if an engine lists a name, swaps it by two calls, or lost it to others so lately that nobody heard.

        Or has listed it at some time since then, which is all that a view of then can tell.
        """
        if name in host.engine.listing:
            return True
        lost = None
        for sample in self._samples(host):
            if name in sample.listing:
                break
            lost = sample
        is_news = lost is not None and lost.at > _now() - DRIFT_SECONDS
        is_later = lost is not None and lost.at > since
        return lost is not None and (name in host.engine.busy or is_later or (is_news and lost.what in BY_OTHERS))

    def _samples(self, host: ReplicaHost) -> Iterable[Sample]:
        """The newest first."""
        return reversed(self.world.checks.samples[host.place.store.replica])


@dataclass
class Judge:
    """Holds the views of one reader against engines, in the order in which they come."""

    places: Places
    _named: dict[tuple[str, str], Spell] = field(default_factory=dict)
    _lives: dict[str, int] = field(default_factory=dict)

    def judge(self, view: PoolView, by: str) -> int:
        """R24 always-placed: no answer lacks a replica that serves. Says how many places were looked at."""
        answers = {key: found for key in view.records if (found := residency(view, key)) is not None}
        told = {key: _told(answer) for key, answer in answers.items()}
        held, lives = 0, {key: entry.kv.create_revision for key, entry in view.records.items()}
        for (key, replica), spell in list(self._named.items()):
            is_same = self._lives.get(key) == lives.get(key)
            if key not in answers or not is_same or not self._still(answers[key].name, replica, spell):
                del self._named[key, replica]
                continue
            held += 1
            if not self._is_placed(view, key, answers[key], replica, told[key][0] | told[key][1]):
                names = {one.replica: f"{one.state.value} {one.reason}" for one in answers[key].replicas}
                text = f"R24 {key} is served by {replica}, and residency{by} names {names}"
                self.places.world.checks.violated(text)
        self._lives = lives
        for key, answer in answers.items():
            for one in answer.replicas:
                self._note(view, key, answer.name, one)
        return held

    def _note(self, view: PoolView, key: str, name: str, told: DerivedResidence) -> None:
        """Notes whom residency names for what its engine lists: no other generation, which it may not know of yet.

        Nor what is lazy and was loaded since its sidecar looked: nobody has told of that. Nor what is of an earlier
        life of the name: a replica that knows of its deletion is about to unload it.
        """
        places = self.places
        reading = view.everybody[told.replica].reading
        if not isinstance(reading, ParsedStatus) or reading.status.observed_revision < self._lives[key]:
            return
        found = places.host(told.replica) if told.state is ReplicaState.SERVING else None
        path = None if found is None else found.engine.listing.get(name)
        if found is None or path is None or not told.loaded or not places.is_of(key, told.generation, path):
            return
        said_at = places.said_at(view, told.replica)
        if not places.has_listed(found, name, said_at) or not places.has_stayed(told.replica, said_at):
            return  # it was lost since the status was written, and has come back
        process = found.engine.process.name
        if self._named.get((key, told.replica), ("", 0.0))[0] != process:
            self._named[key, told.replica] = process, _now()

    def _still(self, name: str, replica: str, spell: Spell) -> bool:
        """Whether the same engine has listed it ever since."""
        found = self.places.host(replica)
        if found is None or found.engine.process.name != spell[0] or name not in found.engine.listing:
            return False
        if name in found.engine.let_go:
            return False  # its sidecar cannot know that it is still there
        return self.places.has_listed(found, name, spell[1]) and self.places.has_stayed(replica, spell[1])

    def _is_placed(self, view: PoolView, key: str, answer: DerivedResidency, replica: str, named: set[str]) -> bool:
        """A replica may be let go of where others serve what is placed by number, or chosen, or what it is to leave.

        That it does not leave any more, its reader may be told later than what its status says.
        """
        places, adapter = self.places, view.adapter(key)
        if replica in named or adapter is None or answer.lazy:
            return True
        others = {one: host for one in named if (host := places.owner(one)) is not None}
        is_left = replica in view.everybody and replica not in view.replicas
        return (is_left or adapter.spec is not PLAIN) and any(
            places.serves(host, answer.name, places.said_at(view, one)) for one, host in others.items()
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_leaving(kv: KeyValue) -> bool:
    presence = presence_of(kv.value)
    return presence is None or presence.leaving


def _below(kvs: Iterable[KeyValue], prefix: bytes) -> dict[bytes, KeyValue]:
    return {kv.key: kv for kv in kvs if kv.key.startswith(prefix) and last_part(kv.key)}


def _told(answer: DerivedResidency) -> tuple[set[str], set[str]]:
    """Who serves it, and of whom it is told that they cannot be asked at the moment."""
    states = (ReplicaState.SERVING, ReplicaState.UNKNOWN)
    serving, unknown = ({one.replica for one in answer.replicas if one.state is state} for state in states)
    return serving, unknown
