"""What statuses may say, told by what happened to engines, sources and records: R9, R16, R20."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from registry.etcd3.ops import Event, KeyValue
from registry.model.keys import last_part
from registry.model.names import name_key
from registry.model.status import Failed, Presence, ReplicaStatus
from tests.simulation.artifacts import HIGH_RANK, MISSING, path_of
from tests.simulation.checks import REFUSED_RECORD
from tests.simulation.engines import BASE
from tests.simulation.history import POOL, read_wanted
from tests.simulation.rounds import Rounds
from tests.simulation.world import KEYS, ReplicaHost, World

# A watch that says nothing is noticed, another member is asked, and a status written, before this.
FRESH_SECONDS = 30.0
MOST_BYTES = 256 << 10
# So many questions for a lazy adapter, each of a request that was broken off, look like refusals to its sidecar.
MOST_IN_VAIN = 2


@dataclass
class Statuses:
    """A reader of every status that knows what its replica cannot."""

    world: World
    rounds: Rounds
    _sources: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    _changed: list[tuple[int, float]] = field(default_factory=list)

    def on_commit(self, revision: int, events: tuple[Event, ...]) -> None:
        """Each revision of etcd."""
        for event in events:
            if event.key.startswith(KEYS.adapters(POOL)):
                self._note_record(revision, event)
            elif event.kv is not None and event.key.startswith(KEYS.statuses(POOL)):
                self._r10_owned(event.kv)
                self._check(ReplicaStatus.parse(event.kv.value), len(event.kv.value))

    def _note_record(self, revision: int, event: Event) -> None:
        self._changed.append((revision, _now()))
        wanted = None if event.kv is None else read_wanted(event.kv.value)
        for version in () if wanted is None else wanted.versions:
            self._sources[last_part(event.key), version.generation].add(version.source)

    def _check(self, status: ReplicaStatus, size_bytes: int) -> None:
        if size_bytes > MOST_BYTES:
            self.world.checks.violated(f"R16 the status of {status.replica} has {size_bytes} bytes")
        kv = self.world.store.kvs.get(KEYS.replica(POOL, status.replica))
        presence = None if kv is None else Presence.parse(kv.value)
        hosts = (*self.world.replicas, *self.world.rivals)
        host = next((one for one in hosts if presence is not None and one.place.owner == presence.owner), None)
        if host is None or presence is None:
            return
        rules: tuple[Callable[[ReplicaHost, Presence, ReplicaStatus], str], ...] = (
            self._r9_caused,
            self._r9_fresh,
            self._r9_of_one_process,
            self._r14_named,
            self._r20_drained,
        )
        for rule in rules:
            if wrong := rule(host, presence, status):
                self.world.checks.violated(wrong)

    def _r10_owned(self, kv: KeyValue) -> None:
        """Whoever writes a status has the replica's id: no two write one key."""
        replica = last_part(kv.key)
        presence = self.world.store.kvs.get(KEYS.replica(POOL, replica))
        self.world.told["R10"] += 1
        if presence is None or presence.lease != kv.lease:
            self.world.checks.violated(f"R10 a status of {replica} is written by a sidecar that has not its id")

    def _r9_caused(self, host: ReplicaHost, _presence: Presence, status: ReplicaStatus) -> str:
        """No report holds a reason that its engine, its source or its record did not cause."""
        for entry in status.failed:
            if not self._is_caused(host, status, entry):
                return f"R9 {status.replica} says of {entry.name} {entry.reason}, and nothing caused that"
        return ""

    def _is_caused(self, host: ReplicaHost, status: ReplicaStatus, entry: Failed) -> bool:
        self.world.told[f"R9 {entry.reason}"] += 1
        key = name_key(entry.name)
        sources = self._sources[key, entry.generation]
        match entry.reason:
            case "engine_refused":
                refused = host.engine.refused[status.engine.incarnation]
                broken_off = host.engine.broken_off[status.engine.incarnation]
                paths = [path_of(host.place.store.replica, source) for source in sources]
                return any(path in refused or broken_off[path] >= MOST_IN_VAIN for path in paths)
            case "weights_not_safetensors":
                return any(source.startswith(MISSING) for source in sources)
            case "rank_too_high":
                return any(source.startswith(HIGH_RANK) for source in sources)
            case "name_is_base_model":
                return key == BASE
            case "source_io":
                return bool(sources & host.place.store.out_of_reach)
            case reason if reason in REFUSED_RECORD:
                return any(key in moment.unreadable for moment in self.world.checks.oracle.at(status.observed_revision))
            case _:
                return True

    def _r9_fresh(self, host: ReplicaHost, _presence: Presence, status: ReplicaStatus) -> str:
        """Whoever cannot read what is desired says stale: else it has seen what changed a while ago."""
        index = bisect_right(self._changed, status.observed_revision, key=lambda one: one[0])
        if wrong := self.rounds.r9_stale(host, status):
            return wrong
        is_excused = status.stale or status.held or self.world.restores
        if is_excused or index == len(self._changed):
            return ""
        self.world.told["R9 fresh"] += 1
        missed, since = self._changed[index]
        late = _now() - max(since, host.process.resumed_at, host.started_at)
        if late <= FRESH_SECONDS:
            return ""
        at = status.observed_revision
        return f"R9 {status.replica} is not stale at {at}, and knows nothing of {missed} for {late:.1f} s"

    def _r9_of_one_process(self, host: ReplicaHost, _presence: Presence, status: ReplicaStatus) -> str:
        """What is told of an engine was read from that process of it."""
        slots, told = host.engine.slots.get(status.engine.incarnation), status.engine.limits.max_loras
        if slots is None or told is None:
            return ""
        self.world.told["R9 of one process"] += 1
        return "" if told == slots else f"R9 {status.replica} tells of {told} slots, and its engine has {slots}"

    def _r14_named(self, host: ReplicaHost, _presence: Presence, status: ReplicaStatus) -> str:
        """Each record that cannot be read is refused by its name, unless it is told that the engine is of no use."""
        moments = self.world.checks.oracle.at(status.observed_revision)
        if not status.engine.incarnation or not status.observed_revision:
            return ""
        if status.engine.incarnation in host.engine.others:
            return ""
        unreadable = set.intersection(*({*moment.unreadable} for moment in moments))
        self.world.told["R14"] += len(unreadable)
        unnamed = unreadable - {name_key(one.name) for one in status.failed}
        return f"R14 {status.replica} says nothing of {sorted(unnamed)}, which nobody can read" if unnamed else ""

    def _r20_drained(self, _host: ReplicaHost, presence: Presence, status: ReplicaStatus) -> str:
        """Who drains is not ready, from the moment at which its presence says so."""
        self.world.told["R20"] += presence.leaving
        return f"R20 {status.replica} drains, and says that it is ready" if presence.leaving and status.ready else ""


def _now() -> float:
    return asyncio.get_running_loop().time()
