"""Ring of a replica's newest events, derived from rounds, in memory alone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum

from registry.model.status import ReportedEvent
from registry.runtime.clock import Clock, rfc3339
from sidecar.engines.observed import Observed
from sidecar.plan.names import key_of
from sidecar.plan.types import Plan, RoundReport, StatusInputs, Unload

# A few hundred bytes each. Older ones are forgotten, and counted.
MAX_EVENTS = 1000
MAX_TEXT_CHARACTERS = 500
# In a status there are so many of the newest, with so much of their messages.
REPORTED, REPORTED_CHARACTERS = 10, 200


class EventKind(StrEnum):
    """Kind of an event on a replica. The values are an interface."""

    STARTED = "started"
    LOADED = "loaded"
    SWAPPED = "swapped"
    UNLOADED = "unloaded"
    EVICTED = "evicted"  # unloaded by us although it is desired: it made room, or was not used
    REFUSED = "refused"
    ENGINE_RESTARTED = "engine_restarted"
    READY = "ready"
    NOT_READY = "not_ready"
    HELD = "held"
    DRAIN_BEGUN = "drain_begun"
    DRAIN_ENDED = "drain_ended"


class EventRing:
    """Compares each round with the one before. Nothing of it is written anywhere.

    What an engine had when this process first saw it is no event: it came before.
    """

    def __init__(self, clock: Clock, is_desired: Callable[[str], bool], size: int = MAX_EVENTS) -> None:
        """`is_desired`: whether the adapter under a name key is desired; what is disabled is not."""
        self._clock = clock
        self._is_desired = is_desired
        self._events: deque[dict[str, object]] = deque(maxlen=size)
        self._count = 0
        self._observed: Observed | None = None
        self._failed: AbstractSet[tuple[str, int, str]] = frozenset()
        self._going: AbstractSet[str] = frozenset()
        self._ready = False
        self._held = ""
        self._add(EventKind.STARTED)

    def as_dict(self) -> dict[str, object]:
        """The events, the oldest first, and how many older ones were forgotten."""
        return {"schema": 1, "forgotten": self._count - len(self._events), "events": list(self._events)}

    def newest(self) -> list[ReportedEvent]:
        """The newest events, as a status tells them, the oldest first."""
        found = [self._events[place] for place in range(max(0, len(self._events) - REPORTED), len(self._events))]
        return [_reported(one) for one in found]

    def counts(self) -> dict[str, Counter[object]]:
        """Counts of events by adapter, by the engine's names, as far as the ring goes."""
        found: dict[str, Counter[object]] = {}
        for one in self._events:
            if one["name"]:
                found.setdefault(str(one["name"]), Counter())[one["event"]] += 1
        return found

    def take(self, report: RoundReport) -> None:
        """Takes in what a round came to."""
        situation = report.situation
        if situation.observed is not None and situation.observed is not self._observed:
            self._compare(situation.observed, situation.plan)
        if situation.plan is not None:
            self._take_plan(situation.plan)
        self._take_state(situation)

    def take_drain(self, why: str) -> None:
        """Takes in that the replica drains, and why; empty: it serves again."""
        self._add(EventKind.DRAIN_BEGUN if why else EventKind.DRAIN_ENDED, message=why)

    def _compare(self, now: Observed, plan: Plan | None) -> None:
        before, self._observed = self._observed, now
        if before is None:
            return
        known: Mapping[str, str] = before.adapters
        if before.facts.incarnation != now.facts.incarnation:
            lost = f"another process of the engine than before, which had {len(known)} adapters"
            self._add(EventKind.ENGINE_RESTARTED, message=lost)
            known, self._going = {}, frozenset()
        if known == now.adapters:
            return
        generations = {one.name: one.generation for one in (*plan.served, *plan.residents)} if plan else {}
        gone = sorted(known.keys() - now.adapters.keys())
        for name in gone:
            is_evicted = key_of(name) in self._going and self._is_desired(key_of(name))
            self._add(EventKind.EVICTED if is_evicted else EventKind.UNLOADED, name)
        self._going -= {key_of(name) for name in gone}
        for name in sorted(name for name, path in now.adapters.items() if known.get(name) != path):
            kind = EventKind.SWAPPED if name in known else EventKind.LOADED
            self._add(kind, name, generations.get(name, 0))

    def _take_plan(self, plan: Plan) -> None:
        failed = {(one.name, one.generation, one.reason): one.message for one in plan.failed}
        for place in [one for one in failed if one not in self._failed]:
            self._add(EventKind.REFUSED, *place, message=failed[place])
        self._failed = failed.keys()
        self._going |= {key_of(call.name) for call in plan.calls if isinstance(call, Unload)}
        if self._going:
            # What another version replaces is wanted, and what others serve from now on is not lost.
            wanted = {one.key for one in plan.chosen.wanted} | {one.key for one in plan.leaving}
            self._going -= wanted

    def _take_state(self, situation: StatusInputs) -> None:
        if situation.ready != self._ready:
            self._ready = situation.ready
            kind = EventKind.READY if situation.ready else EventKind.NOT_READY
            self._add(kind, message="" if situation.ready else situation.note)
        if situation.held != self._held:
            self._held = situation.held
            if situation.held:
                self._add(EventKind.HELD, message=situation.held)

    def _add(self, kind: EventKind, name: str = "", generation: int = 0, reason: str = "", message: str = "") -> None:
        self._count += 1
        self._events.append(
            {
                "number": self._count,
                "at": rfc3339(self._clock.wall()),
                "event": kind.value,
                "name": name,
                "generation": generation,
                "reason": reason,
                "message": message[:MAX_TEXT_CHARACTERS],
            }
        )


def _reported(one: Mapping[str, object]) -> ReportedEvent:
    told = {key: value for key, value in one.items() if key != "number"}
    return ReportedEvent.model_validate({**told, "message": str(one["message"])[:REPORTED_CHARACTERS]})
