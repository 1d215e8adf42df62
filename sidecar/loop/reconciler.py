"""Reconciler: the loop that makes the engine serve what is desired.

Each round looks at the engine, plans, stages, calls, and says what came of it. It takes whatever is newest, so that
under a flood of changes fewer rounds lose nothing and leave time to take it in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from registry.lora.engine_base import EngineBase
from registry.model.placement import Declined
from registry.model.records import BaseShapes, PoolSpec
from registry.runtime.clock import Clock
from sidecar.artifacts.staging import Staging
from sidecar.artifacts.types import ArtifactStore
from sidecar.desired.assignment import Assigner, Share
from sidecar.desired.informer import DesiredAdapter, DesiredState
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.driver import Engine
from sidecar.engines.observed import Done, Observed, Use
from sidecar.loop.executor import Attempt, Executor
from sidecar.loop.observer import RESYNC_SECONDS, EngineObserver, EngineProbes, OwnNames, ServedGenerations
from sidecar.loop.retries import RetryTracker
from sidecar.loop.rounds import Backlog, Propagation, RateLimiter
from sidecar.metrics import RECONCILE_SECONDS
from sidecar.ownership import Ownership
from sidecar.plan.backoff import Declines
from sidecar.plan.declines import restored
from sidecar.plan.handoff import Handoff, HandoffVerdict
from sidecar.plan.names import SEPARATOR, key_of, listed_as, names_of
from sidecar.plan.planner import make_plan
from sidecar.plan.readiness import NO_REFUSALS, USUAL_RULE, ReadyRule
from sidecar.plan.selection import still_kept
from sidecar.plan.types import (
    NOTHING_SEEN,
    Call,
    LastSeen,
    Load,
    Plan,
    PlanContext,
    RoundReport,
    StatusInputs,
    Swap,
    Unload,
)
from sidecar.resolver.demand import ResidentSet

_log = structlog.get_logger()
# While the outcome of a call is unknown, or none may be made, the engine is asked again after this time.
UNSETTLED_SECONDS = 2.0
# After calls that the engine says it carried out it is looked at this much later, if nothing else comes before: others
# may wait for the same engine, or the same host, and what it says then is in the same status.
SETTLE_SECONDS = 0.1
MAX_NAMES_LOGGED = 20
# Is told of each look that a plan is made from, and of what that plan may load, before anything is called.
Notice = Callable[[Observed, AbstractSet[Use]], None]
Round = Callable[[], Awaitable[float]]


async def _unsupervised(round_: Round) -> float:
    return await round_()


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with all that it was made from, so that nothing that is said of it comes from another moment."""

    plan: Plan
    snapshot: Snapshot
    desired: DesiredState
    share: Share
    observed: Observed


@dataclass(frozen=True, slots=True)
class Workers:
    """What carries plans out, beside the loop and for as long as it runs."""

    staging: Staging
    executor: Executor


class Reconciler:
    """One engine's loop. Everything that it remembers is either re-read from the engine or only delays a retry."""

    def __init__(
        self,
        engine: Engine,
        store: ArtifactStore,
        mailbox: Mailbox,
        ownership: Ownership,
        clock: Clock,
        publish: Callable[[RoundReport], None],
        notice: Notice,
        sharing: Assigner,
        *,
        demand: ResidentSet,
        probes: EngineProbes,
        verdicts: Callable[[], Mapping[Handoff, HandoffVerdict]] = dict,
        paced: Callable[[Round], Awaitable[float]] = _unsupervised,
        rule: ReadyRule = USUAL_RULE,
        base: Path | None = None,
        declined_before: Callable[[], Mapping[str, Declined]] = dict,
    ) -> None:
        """Does nothing yet.

        `probes` of the engine; `verdicts`: what those who are to take adapters over said of it. `paced`: runs a round,
        and gives the seconds until the next one, also if it fails. `rule`, `base`: see there.
        `declined_before`: what it declined before its restart.
        """
        self._engine = engine
        self._store = store
        self._mailbox = mailbox
        self._ownership = ownership
        self._clock = clock
        self._publish = publish
        self._notice = notice
        self._sharing = sharing
        self._verdicts = verdicts
        self._paced = paced
        self._demand = demand
        self._observer = EngineObserver(engine, clock, store.owns, base)
        self._probes = probes
        self._reported: RoundReport | None = None
        self._own_names = OwnNames()
        self._generations = ServedGenerations()
        self._retries = RetryTracker(clock, sharing.replica)
        self._propagation = Propagation(clock.wall())
        self._terms: tuple[tuple[BaseShapes | None, bool] | None, str, str] | None = None
        self._rule = rule
        self._found: tuple[str, bool] = ("", False)
        self._last_seen = NOTHING_SEEN
        self._ready_in = ""
        self._backlog = Backlog()
        self._handing: AbstractSet[str] = frozenset()
        self._declined: Declines | None = None
        self._declined_before = declined_before
        self._desired_count = 0
        self._logged: tuple[int, int, int, int] | None = None

    def _may_call(self, call: Call) -> bool:
        """Not for a replica that is another's, nor while its engine is paused or they are several, nor for a name that
        the engine asks about: it would await the answer.

        Nor if the engine would be given bytes that were touched since they were proven: they are looked at anew.
        """
        hindered = self._ownership.refusal or self._probes.several or self._engine.paused
        if hindered or self._demand.is_asked(key_of(call.name)):
            return False
        path = call.path if isinstance(call, Load) else call.new if isinstance(call, Swap) else None
        is_sound = path is None or self._store.is_intact(path)
        if not is_sound:
            self._mailbox.wake()
        return is_sound

    def distrust(self) -> None:
        """Forgets what was seen of the engine: it may have changed. The next round looks again.

        A round may wait for the engine for long: that the probes found it away is said at once, of what was said last.
        """
        self._observer.distrust()
        self._mailbox.wake()
        if self._reported is not None and self._reported.situation.ready and self._probes.problem:
            situation = replace(self._reported.situation, ready=False, note=self._probes.problem)
            self._say(replace(self._reported, situation=situation))

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            failed, staged = self._retries.staging_failed, self._retries.staged
            workers = Workers(
                Staging(self._store, tasks, on_failure=failed, on_success=staged, on_end=self._mailbox.wake),
                Executor(self._engine, self._mailbox, self._clock, self._may_call, tasks.create_task),
            )
            pause, rounds = 0.0, RateLimiter()
            while True:
                await self._mailbox.wait(pause)
                if rest := rounds.rest_seconds(asyncio.get_running_loop().time()):
                    await asyncio.sleep(rest)
                with RECONCILE_SECONDS.time():
                    pause = await self._paced(partial(self._round, workers))

    async def _round(self, workers: Workers) -> float:
        """One round. Returns the seconds after which the next is due without a wake-up."""
        self._take_up(workers.executor.collect())
        made = await self._make(await self._look(), workers)
        if made is not None and made.plan.is_destructive:
            # The engine must just have been looked at, and etcd may have moved on meanwhile.
            made = await self._make(await self._observer.look_at_most_old(0.0), workers)
        if made is None:
            return self._observer.look_again_seconds if self._observer.problem else RESYNC_SECONDS
        plan, incarnation = made.plan, made.observed.facts.incarnation
        self._note(made)
        self._propagation.follow(plan, made.desired.adapters, self._clock.wall())
        workers.staging.start(plan.stage)
        carried = await workers.executor.carry_out(plan, incarnation, is_serving=self._ready_in == incarnation)
        attempts = carried.attempts
        if not attempts:
            pause = self._pause(plan)
            return pause if carried.again_seconds is None else min(pause, carried.again_seconds)
        self._take_up(attempts)
        is_calm = self._ready_in == incarnation and all(isinstance(one.outcome, Done) for one in attempts)
        return SETTLE_SECONDS if is_calm and len(attempts) == len(plan.calls) else 0.0

    def _take_up(self, attempts: tuple[Attempt, ...]) -> None:
        """Takes in calls that have ended; the engine may have changed by them."""
        for attempt in attempts:
            self._retries.take_up([attempt], attempt.incarnation)
            self._observer.distrust()

    async def _look(self) -> Observed | None:
        if self._ownership.refusal or self._probes.several:
            return None
        is_expecting = self._demand.is_expecting or self._is_hindered
        return await self._observer.look(has_unsettled=bool(self._retries.unsettled), is_expecting=is_expecting)

    @property
    def _is_hindered(self) -> bool:
        """True if the engine was seen in a state in which nothing may be called, which it may leave unnoticed."""
        plan = self._reported.situation.plan if self._reported is not None else None
        return plan is not None and bool(plan.paused or plan.blocked)

    async def _make(self, observed: Observed | None, workers: Workers) -> Planned | None:
        """A plan from this look and one snapshot; None: there cannot be one now, and the status says why."""
        snapshot = self._mailbox.snapshot
        desired = snapshot.actionable
        if observed is None or desired is None:
            if not self._ownership.refusal and await self._observer.fails_briefly():
                return None
            self._demand.suspend()
            self._report(snapshot, observed, None)
            return None
        share = await self._share(desired, snapshot)
        self._retries.settle(observed, turns=self._observer.turns)
        self._retries.ask_again(lambda key: self._wanted(desired, share, key))
        plan = await self._plan(snapshot, desired, share, observed, workers)
        return Planned(plan, snapshot, desired, share, observed)

    async def _share(self, desired: DesiredState, snapshot: Snapshot) -> Share:
        if self._sharing.is_long(desired, snapshot.members):
            # The event loop has a lease to keep meanwhile.
            return await asyncio.to_thread(self._sharing.find, desired, snapshot.members)
        return self._sharing.find(desired, snapshot.members)

    async def _plan(
        self, snapshot: Snapshot, desired: DesiredState, share: Share, observed: Observed, workers: Workers
    ) -> Plan:
        """Gathers what is known, has a plan made of it, and says what that may load before anything is called.

        What the store knows is read from memory in the step in which the plan is made and told of: nothing is let go of
        in between. Files are read before, beside the event loop, for a plan that would have needed them.
        """
        now, known = self._gather(snapshot, desired, share, observed, workers)
        plan = make_plan(desired, snapshot.pool, observed, known, now=now)
        if plan.chosen.unseen and await self._store.recall(plan.chosen.unseen):
            now, known = self._gather(snapshot, desired, share, observed, workers)
            plan = make_plan(desired, snapshot.pool, observed, known, now=now)
        if plan.blocked:
            listed = listed_as(plan.chosen.wanted, plan.chosen.limits.names, observed)
            made_of = await self._store.made_of([(adapter.ref, path) for adapter, path in listed])
            plan = make_plan(desired, snapshot.pool, observed, replace(known, made_of=made_of), now=now)
        self._declined = plan.declined
        unloaded = (call.name for call in plan.calls if isinstance(call, Unload))
        self._own_names.note(observed, unloaded, lambda name: desired.of(key_of(name)) is not None)
        if not plan.blocked:
            self._handing = {one.name for one in still_kept(plan.leaving, known)}
        self._desired_count = len(share.order) + len(share.undecided)
        self._demand.follow(plan)
        # Also what calls that were made may yet come to, and what the engine was told.
        under_way = self._retries.loads() | workers.executor.uses
        self._notice(observed, plan.chosen.uses | self._demand.uses(now) | under_way)
        return plan

    def _gather(
        self, snapshot: Snapshot, desired: DesiredState, share: Share, observed: Observed, workers: Workers
    ) -> tuple[float, PlanContext]:
        """All that is known now, with what time that is."""
        now, problem = self._now(), self._compare_with(snapshot.pool, observed.facts.base)
        if self._declined is None:
            self._declined = restored(self._declined_before(), desired)
        self._backlog.look(observed, desired, now)
        return now, PlanContext(
            staged=self._store.seen,
            staging=workers.staging.in_progress,
            failures=self._retries.failures,
            unsettled=self._retries.unsettled,
            in_progress=workers.executor.in_progress,
            base_problem=problem,
            base_known=self._store.base_known,
            lazy=self._demand.candidates(desired, observed, now=now),
            share=share,
            handed=self._verdicts(),
            taken=self._own_names.taken(observed),
            request_id=snapshot.last_request_id,
            since=self._backlog.since,
            used_at=self._backlog.used_at,
            proxied=snapshot.proxied,
            handing=self._handing,
            generations=self._generations.by_use,
            declined=self._declined,
            reads=self._store.reads,
            touched=self._store.troubles,
        )

    def _compare_with(self, pool: PoolSpec | None, base: EngineBase) -> str:
        """Has adapters compared with what the pool asks for; what was refused for other terms is looked at anew."""
        asked = (pool.base, pool.limits.require_signature) if pool else None
        terms = (asked, self._store.reads, base.own.fingerprint if base.own else "")
        if terms != self._terms:
            self._terms = terms
            self._demand.forget_troubles()
            self._retries.forget_staging()
        return self._store.use_pool(pool, base)

    def _note(self, made: Planned) -> None:
        """Says what is so, before the calls; the round after them says what they came to."""
        plan, observed, desired = made.plan, made.observed, made.desired
        self._retries.forget_others(observed, lambda key: self._wanted(desired, made.share, key))
        incarnation, seen_at = observed.facts.incarnation, self._clock.moment().wall_of(self._observer.observed_at)
        self._last_seen = LastSeen(plan.served, seen_at)
        served = (*plan.served, *plan.residents, *plan.still_served)
        self._generations.note(observed, ((one.name, one.generation) for one in served))
        if self._found[0] != incarnation:
            self._found = incarnation, plan.refusals.serves
        if plan.is_settled and self._rule.may_begin(plan.refusals, was_serving=self._found[1]):
            self._ready_in = incarnation
        decision = (plan.revision, len(plan.stage), len(plan.calls), len(plan.served))
        if decision != self._logged:
            self._logged = decision
            _log.info(
                "plan_made",
                revision=plan.revision,
                state_hash=f"{desired.state_hash:064x}",
                stage=[stage.name for stage in plan.stage[:MAX_NAMES_LOGGED]],
                calls=[f"{type(call).__name__} {call.name}" for call in plan.calls[:MAX_NAMES_LOGGED]],
                actions=len(plan.stage) + len(plan.calls),
                served=len(plan.served),
                failed=len(plan.failed),
                request_id=made.snapshot.last_request_id,
            )
        self._report(made.snapshot, observed, plan)

    def _wanted(self, desired: DesiredState, share: Share, key: str) -> DesiredAdapter | None:
        """What this replica is to serve under a name key, or while it cannot under the key of its last good one."""
        plain = key.partition(SEPARATOR)[0]
        adapter = desired.adapters.get(plain)
        wanted = share.version(adapter) if adapter else self._demand.resident(plain)
        good = wanted.fallback if wanted is not None else None
        return wanted if key == plain else good if good is not None and good.key == key else None

    def _report(self, snapshot: Snapshot, observed: Observed | None, plan: Plan | None) -> None:
        """`snapshot` is what the plan was made from: a status must not speak of a later revision (guarantee R9)."""
        desired = snapshot.actionable
        ready = observed is not None and desired is not None and self._ready_in == observed.facts.incarnation
        refusals = plan.refusals if plan else NO_REFUSALS
        is_well = not (self._observer.hangs or self._probes.problem or (plan and (plan.paused or plan.blocked)))
        ready = ready and is_well and snapshot.pool is not None and self._rule.may_stay(refusals)
        situation = StatusInputs(
            revision=desired.revision if desired else 0,
            observed=observed,
            plan=plan,
            ready=ready,
            stale=desired is None or not snapshot.connected or bool(snapshot.held),
            lazy=self._demand.situation(desired, plan),
            note="" if ready else self._why_not_ready(snapshot, plan),
            held=snapshot.held,
            last_request_id=snapshot.last_request_id,
            names=names_of(snapshot.pool),
            degraded=self._rule.degraded(refusals),
            last_seen=self._last_seen,
        )
        self._say(RoundReport(situation, self._desired_count, plan.chosen.limits.capacity if plan else None))

    def _say(self, report: RoundReport) -> None:
        self._reported = report
        self._publish(report)

    def _why_not_ready(self, snapshot: Snapshot, plan: Plan | None) -> str:
        if problem := self._ownership.refusal or self._probes.several or self._observer.problem or self._probes.problem:
            return problem
        if self._observer.hangs and not (plan is not None and plan.paused):
            return "the engine answers but generates nothing since a call that timed out; restart it"
        if snapshot.actionable is None and snapshot.pool_refusal:
            return snapshot.pool_refusal
        if snapshot.actionable is None:
            return "nothing is known yet of what should be served: etcd was not reached and there is no snapshot"
        if snapshot.pool is None:
            return "there is no such pool: loraplane pool create, or correct --pool"
        if plan is not None and (plan.blocked or plan.paused):
            return plan.blocked or plan.paused
        if plan is not None and (degraded := self._rule.degraded(plan.refusals)):
            return degraded
        return "the first plan is being carried out"

    def _pause(self, plan: Plan) -> float:
        if self._retries.unsettled or plan.paused or plan.blocked:
            return UNSETTLED_SECONDS
        longest = min(RESYNC_SECONDS, self._demand.rest_seconds(self._now()))
        if plan.wake_at is None:
            return longest
        return min(longest, max(0.0, plan.wake_at - self._now()))

    def _now(self) -> float:
        return self._clock.monotonic()
