"""Inputs of a round, and memory of all rounds: pace, propagation, and backlog."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime

from registry.model.names import name_key
from registry.model.records import BaseShapes
from registry.runtime import tracing
from sidecar.desired.assignment import Share
from sidecar.desired.informer import DesiredAdapter, DesiredState
from sidecar.desired.mailbox import Snapshot
from sidecar.desired.pool_cache import PoolCache
from sidecar.engines.observed import Observed
from sidecar.loop.observer import OwnNames, ServedGenerations
from sidecar.loop.retries import RetryTracker
from sidecar.metrics import PROPAGATION_SECONDS
from sidecar.plan.backoff import Declines
from sidecar.plan.names import key_of
from sidecar.plan.planner import make_plan
from sidecar.plan.types import NOTHING_SEEN, FailedAdapter, LastSeen, PendingAdapter, Plan, PlanContext, RoundReport

# So many rounds in so long are a flood; from then on each waits a little.
FLOOD_ROUNDS = 50
FLOOD_SECONDS = 0.5
REST_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that one round's plan is made from, gathered in one step, so that it is of one moment.

    Attributes:
        snapshot: what is known of etcd.
        desired: its state, that is followed.
        share: what of that is this replica's.
        observed: the engine, as it was looked at in this round.
        known: what this replica knows beside these.
        now: monotonic seconds.
    """

    snapshot: Snapshot
    desired: DesiredState
    share: Share
    observed: Observed
    known: PlanContext
    now: float

    def plan(self) -> Plan:
        """The plan that is made from these."""
        return make_plan(self.desired, self.snapshot.pool, self.observed, self.known, now=self.now)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with all that it was made from, so that nothing that is said of it comes from another moment."""

    plan: Plan
    inputs: Inputs


class RateLimiter:
    """Remembers when the latest rounds were."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=FLOOD_ROUNDS)

    def rest_seconds(self, now: float) -> float:
        """Seconds to wait before a round that is due now; notes the round."""
        is_flood = len(self._at) == FLOOD_ROUNDS and now - self._at[0] < FLOOD_SECONDS + FLOOD_ROUNDS * REST_SECONDS
        rest = REST_SECONDS if is_flood else 0.0
        self._at.append(now + rest)
        return rest


class Propagation:
    """Watches names from pending to served. Changes from before `started` are not counted: nobody waited here."""

    def __init__(self, started: datetime) -> None:
        self._started = started
        self._pending: dict[str, int] = {}

    def follow(self, plan: Plan, adapters: Mapping[str, DesiredAdapter], now: datetime) -> None:
        """Takes note of one plan; `adapters` are the desired ones by name key, `now` is UTC."""
        if self._pending:
            served = {adapter.name: adapter.generation for adapter in plan.served}
            for key, generation in self._pending.items():
                adapter = adapters.get(key)
                if adapter is not None and served.get(adapter.name) == generation:
                    self._observe(adapter.updated_at, now)
                    about: tracing.Attributes = {"adapter": adapter.name, "generation": generation}
                    tracing.record_since("served", adapter.request_id, adapter.updated_at, about)
        self._pending = {name_key(entry.name): entry.generation for entry in plan.pending if not entry.is_settled}

    def _observe(self, updated_at: str, now: datetime) -> None:
        try:
            committed = datetime.fromisoformat(updated_at)
        except ValueError:
            return
        if committed.tzinfo is not None and committed >= self._started:
            PROPAGATION_SECONDS.observe(max(0.0, (now - committed).total_seconds()))


class Backlog:
    """Remembers what order is kept by where an engine has much to load: what is news to it, and what was used last.

    Attributes:
        since: revision that was desired when its process was first planned for.
        used_at: monotonic seconds of the last use by name key, also in processes of the engine that are gone.
    """

    def __init__(self) -> None:
        self.since = 0
        self.used_at: dict[str, float] = {}
        self._seen: Observed | None = None

    def look(self, observed: Observed, desired: DesiredState, now: float) -> None:
        """Takes in a look at the engine, once."""
        if observed is self._seen:
            return
        if self._seen is None or self._seen.facts.incarnation != observed.facts.incarnation:
            self.since = desired.revision
        self._seen = observed
        used = {key_of(name): now - seconds for name, seconds in observed.last_used.items()}
        if used:
            kept = {key: at for key, at in self.used_at.items() if key in desired.adapters}
            self.used_at = {**kept, **used}


@dataclass(slots=True)
class RoundMemory:
    """All that a loop remembers from one round to the next, beside its look at the engine.

    Nothing of it decides what is served: after a restart it is found again, or costs one more try.

    Attributes:
        retries: so that what failed is not tried again at once, and what may yet happen is not done twice.
        propagation: so that how long a change took is counted when it is served.
        own_names: so that other files under a name that was ours are told from files that were never ours.
        generations: so that a status can name what answers once nothing desired has those files any more.
        backlog: so that what changed of late, and what was used last, comes first.
        handing: names that the engine had for others until these serve them, so that they come back if it loses them.
        declined: what was declined stays so; None: what was before the restart is not taken up yet.
        terms: what adapters were last compared by, so that what was refused by others is looked at anew, once.
        found: a process of the engine, and whether it served when it was first met: then no refusal makes it unready.
        ready_in: the process of the engine that all was carried out in, so that it stays ready during later changes.
        last_seen: so that a status without a plan says what was served.
        desired_count: the same, for how much there is to serve.
        reported: what was said last, so that what a probe finds corrects it before the round has ended.
        logged: the decision that was logged last, so that only others are.
    """

    retries: RetryTracker
    propagation: Propagation
    own_names: OwnNames = field(default_factory=OwnNames)
    generations: ServedGenerations = field(default_factory=ServedGenerations)
    backlog: Backlog = field(default_factory=Backlog)
    handing: AbstractSet[str] = frozenset()
    declined: Declines | None = None
    terms: tuple[tuple[BaseShapes | None, bool] | None, str, str] | None = None
    found: tuple[str, bool] = ("", False)
    ready_in: str = ""
    last_seen: LastSeen = NOTHING_SEEN
    desired_count: int = 0
    reported: RoundReport | None = None
    logged: tuple[int, int, int, int] | None = None


class ServedNews:
    """Tells what is newly served, so that it is known after a restart: see `sidecar.desired.last_good`."""

    def __init__(self, cache: PoolCache) -> None:
        self._cache = cache
        self._served: frozenset[tuple[str, int, str]] = frozenset()
        self._places: tuple[object, ...] = ()

    def take(self, report: RoundReport) -> None:
        """Takes in what one round came to."""
        if report.situation.plan is not None:
            self._cache.note_served(self._news(report.situation.plan))

    def _news(self, plan: Plan) -> list[tuple[str, int]]:
        """Name keys and generations that are served since; 0: that is others' now.

        What is kept under the number of what is not served says nothing of it: of a store before it was restored.
        """
        lacking: list[FailedAdapter | PendingAdapter] = [*plan.failed, *plan.pending]
        behind = {(one.name, one.generation) for one in lacking}
        kept = [(one.name, one.generation, "") for one in plan.kept if one.generation]
        answered = [(one.name, one.generation, one.digest) for one in (*plan.served, *plan.residents)]
        served = frozenset([*answered, *(one for one in kept if one[:2] not in behind)])
        news, self._served = served - self._served, served
        return [*((name_key(name), generation) for name, generation, _ in sorted(news)), *self._given_away(plan)]

    def _given_away(self, plan: Plan) -> Iterator[tuple[str, int]]:
        placed, chosen, leaving = self._cache.placed, plan.chosen, frozenset(one.key for one in plan.leaving)
        places = (plan.revision, plan.among, leaving)
        if plan.blocked or not placed or places == self._places:
            return
        self._places = places
        ours = leaving.union((one.key for one in chosen.wanted), (key for _, key in (*chosen.over, *chosen.undecided)))
        yield from ((key, 0) for key in sorted(placed - ours))
