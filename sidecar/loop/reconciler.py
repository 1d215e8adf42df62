"""Reconciler: the loop that makes the engine serve what is desired.

A round looks at the engine, gathers all that a plan is made from into one frozen `Inputs`, has `make_plan` decide, says
what is so, stages, and calls. The next round begins anew, from the newest whole state. Events only wake the loop: of
a flood of changes some rounds see several at once, and none is lost.

- A plan and the status of its round are of one snapshot and one look (R9). A status must not say of a newer revision
  what was planned for an older one, so `Planned` keeps a plan together with its inputs.
- Without a whole look at the engine, or before it is known what is desired, there is no plan and no call (R13):
  unknown is not empty. A look that fails for a moment changes nothing that is said.
- A plan that unloads or swaps is made from a look that was just taken. A load from an older look does no harm, as the
  engine refuses a name that is loaded; an unload might take away what somebody else has loaded since (R11).
- All that a plan may load is told to the keeper of leases before the first call, in the step in which the plan is made:
  else the files could be let go of in between (R7).
- Before each call it is asked again whether it may be made. The replica id may have been lost (R10), several engines
  may answer, or the bytes were touched since they were hashed (R21).
- Slow calls and stagings go on beside the loop. Where the engine takes several calls at once, only the names that a
  slow one is about wait for it (R19).
- What the probes find corrects the status at once, whatever call is out (R18).
- `RoundMemory` is all that is remembered, beside the last look. After a kill it is found again, or costs one more try
  (R12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial

import structlog

from registry.lora.engine_base import EngineBase
from registry.model.placement import Declined
from registry.model.records import PoolSpec
from registry.runtime.clock import Clock
from sidecar.artifacts.staging import Staging
from sidecar.artifacts.types import ArtifactStore
from sidecar.desired.assignment import Assigner, Share
from sidecar.desired.informer import DesiredAdapter, DesiredState
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.driver import Engine, ProvesAnswers
from sidecar.engines.observed import Done, Observed, Use
from sidecar.loop.executor import Attempt, Executor
from sidecar.loop.observer import RESYNC_SECONDS, EngineObserver, EngineProbes
from sidecar.loop.retries import RetryTracker
from sidecar.loop.rounds import Inputs, Planned, Propagation, RateLimiter, RoundMemory
from sidecar.metrics import RECONCILE_SECONDS
from sidecar.ownership import Ownership
from sidecar.plan.handoff import Handoff, HandoffVerdict
from sidecar.plan.limits import restored
from sidecar.plan.names import SEPARATOR, key_of, listed_as, names_of
from sidecar.plan.readiness import NO_REFUSALS, USUAL_RULE, ReadyRule
from sidecar.plan.selection import still_kept
from sidecar.plan.types import Call, LastSeen, Load, Plan, PlanContext, RoundReport, StatusInputs, Swap, Unload
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
class EngineParts:
    """An engine, and what looks at it."""

    engine: Engine
    observer: EngineObserver
    probes: EngineProbes


@dataclass(frozen=True, slots=True)
class DesiredParts:
    """Share and demand of one replica.

    Attributes:
        mailbox: has the newest state.
        sharing: finds this replica's share of it.
        demand: what of the lazy adapters is asked for.
    """

    mailbox: Mailbox
    sharing: Assigner
    demand: ResidentSet


@dataclass(frozen=True, slots=True)
class RoundLinks:
    """Listeners of rounds, and those who are asked in them.

    Attributes:
        publish: is told what a round came to.
        notice: see `Notice`.
        verdicts: what those who are to take adapters over said of it.
        declined_before: what was declined before the restart.
    """

    publish: Callable[[RoundReport], None]
    notice: Notice
    verdicts: Callable[[], Mapping[Handoff, HandoffVerdict]] = dict
    declined_before: Callable[[], Mapping[str, Declined]] = dict


@dataclass(frozen=True, slots=True)
class Workers:
    """What carries plans out, beside the loop and for as long as it runs."""

    staging: Staging
    executor: Executor


class Reconciler:
    """One engine's loop. Everything that it remembers is either re-read from the engine or only delays a retry."""

    def __init__(
        self,
        engine: EngineParts,
        desired: DesiredParts,
        store: ArtifactStore,
        ownership: Ownership,
        clock: Clock,
        links: RoundLinks,
        rule: ReadyRule = USUAL_RULE,
    ) -> None:
        """Does nothing yet. `ownership` of the replica id. `rule`: for a replica whose engine refuses adapters."""
        self._engine, self._observer, self._probes = engine.engine, engine.observer, engine.probes
        self._mailbox, self._sharing, self._demand = desired.mailbox, desired.sharing, desired.demand
        self._store = store
        self._ownership = ownership
        self._clock = clock
        self._links = links
        self._rule = rule
        self._memory = RoundMemory(RetryTracker(clock, desired.sharing.replica), Propagation(clock.wall()))

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

    def heed_probes(self) -> None:
        """Has the engine looked at again, since its probes found it to be otherwise.

        A round may wait for the engine for long: that it is away is said at once, of what was said last.
        """
        self._observer.distrust()
        reported = self._memory.reported
        if reported is not None and reported.situation.ready and self._probes.problem:
            situation = replace(reported.situation, ready=False, note=self._probes.problem)
            self._say(replace(reported, situation=situation))

    async def run(self, paced: Callable[[Round], Awaitable[float]] = _unsupervised) -> None:
        """Runs until it is cancelled.

        `paced`: runs a round, and gives the seconds until the next one, also if it fails.
        """
        async with asyncio.TaskGroup() as tasks:
            failed, staged = self._memory.retries.staging_failed, self._memory.retries.staged
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
                    pause = await paced(partial(self._round, workers))

    async def _round(self, workers: Workers) -> float:
        """One round. Returns the seconds after which the next is due without a wake-up."""
        self._take_up(workers.executor.collect())
        made = await self._make(await self._look(), workers)
        if made is not None and made.plan.is_destructive:
            # The engine must just have been looked at, and etcd may have moved on meanwhile.
            made = await self._make(await self._observer.look_at_most_old(0.0), workers)
        if made is None:
            return self._observer.look_again_seconds if self._observer.problem else RESYNC_SECONDS
        plan, inputs = made.plan, made.inputs
        incarnation = inputs.observed.facts.incarnation
        self._note(made)
        self._memory.propagation.follow(plan, inputs.desired.adapters, self._clock.wall())
        workers.staging.stop(plan.chosen.unwanted)
        workers.staging.start(plan.stage)
        if isinstance(self._engine, ProvesAnswers):
            await self._engine.tell_versions(plan.chosen.versions)
        carried = await workers.executor.carry_out(plan, incarnation, is_serving=self._memory.ready_in == incarnation)
        attempts = carried.attempts
        if not attempts:
            pause = self._pause(plan)
            return pause if carried.again_seconds is None else min(pause, carried.again_seconds)
        self._take_up(attempts)
        is_calm = self._memory.ready_in == incarnation and all(isinstance(one.outcome, Done) for one in attempts)
        return SETTLE_SECONDS if is_calm and len(attempts) == len(plan.calls) else 0.0

    def _take_up(self, attempts: tuple[Attempt, ...]) -> None:
        """Takes in calls that have ended; the engine may have changed by them."""
        self._memory.retries.take_up(attempts)
        if attempts:
            self._observer.forget()

    async def _look(self) -> Observed | None:
        if self._ownership.refusal or self._probes.several:
            return None
        plan = self._memory.reported.situation.plan if self._memory.reported is not None else None
        # It was seen in a state in which nothing may be called, which it may leave unnoticed.
        is_hindered = plan is not None and bool(plan.paused or plan.blocked)
        is_expecting = self._demand.is_expecting or is_hindered
        return await self._observer.look(has_unsettled=bool(self._memory.retries.unsettled), is_expecting=is_expecting)

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
        self._memory.retries.settle(observed, turns=self._observer.turns)
        self._memory.retries.ask_again(lambda key: self._wanted(desired, share, key))
        return await self._plan(lambda: self._gather(snapshot, desired, share, observed, workers), workers)

    async def _share(self, desired: DesiredState, snapshot: Snapshot) -> Share:
        if self._sharing.is_long(desired, snapshot.members):
            # The event loop has a lease to keep meanwhile.
            return await asyncio.to_thread(self._sharing.find, desired, snapshot.members)
        return self._sharing.find(desired, snapshot.members)

    async def _plan(self, gather: Callable[[], Inputs], workers: Workers) -> Planned:
        """Has a plan made of what is known, and says what that may load before anything is called.

        What the store knows is read from memory in the step in which the plan is made and told of: nothing is let go of
        in between. Files are read before, beside the event loop, for a plan that would have needed them.
        """
        inputs = gather()
        plan = inputs.plan()
        if plan.chosen.unseen and await self._store.recall(plan.chosen.unseen):
            inputs = gather()
            plan = inputs.plan()
        if plan.blocked:
            listed = listed_as(plan.chosen.wanted, plan.chosen.limits.names, inputs.observed)
            made_of = await self._store.made_of([(adapter.ref, path) for adapter, path in listed])
            inputs = replace(inputs, known=replace(inputs.known, made_of=made_of))
            plan = inputs.plan()
        self._remember(plan, inputs)
        # Also what calls that were made may yet come to, and what the engine was told.
        under_way = self._memory.retries.loads() | workers.executor.uses
        self._links.notice(inputs.observed, plan.chosen.versions.keys() | self._demand.uses(inputs.now) | under_way)
        return Planned(plan, inputs)

    def _remember(self, plan: Plan, inputs: Inputs) -> None:
        """Takes in a plan, for those that come after it."""
        memory, desired, share = self._memory, inputs.desired, inputs.share
        memory.declined = plan.declined
        unloaded = (call.name for call in plan.calls if isinstance(call, Unload))
        memory.own_names.note(inputs.observed, unloaded, lambda name: desired.of(key_of(name)) is not None)
        if not plan.blocked:
            memory.handing = {one.name for one in still_kept(plan.leaving, inputs.known)}
        memory.desired_count = len(share.order) + len(share.undecided)
        self._demand.follow(plan)

    def _gather(
        self, snapshot: Snapshot, desired: DesiredState, share: Share, observed: Observed, workers: Workers
    ) -> Inputs:
        memory, now = self._memory, self._now()
        problem = self._compare_with(snapshot.pool, observed.facts.base)
        if memory.declined is None:
            memory.declined = restored(self._links.declined_before(), desired)
        memory.backlog.look(observed, desired, now)
        known = PlanContext(
            staged=self._store.seen,
            staging=workers.staging.in_progress.keys(),
            failures=memory.retries.failures,
            unsettled=memory.retries.unsettled,
            in_progress=workers.executor.in_progress,
            base_problem=problem,
            base_known=self._store.base_known,
            lazy=self._demand.candidates(desired, observed, now=now),
            share=share,
            handed=self._links.verdicts(),
            taken=memory.own_names.taken(observed),
            request_id=snapshot.last_request_id,
            since=memory.backlog.since,
            used_at=memory.backlog.used_at,
            proxied=snapshot.proxied,
            pool_refusal=snapshot.pool_refusal,
            handing=memory.handing,
            generations=memory.generations.by_use,
            declined=memory.declined,
            reads=self._store.reads,
            touched=self._store.troubles,
            not_taken=self._store.not_taken,
        )
        return Inputs(snapshot, desired, share, observed, known, now)

    def _compare_with(self, pool: PoolSpec | None, base: EngineBase) -> str:
        """Has adapters compared with what the pool asks for; what was refused for other terms is looked at anew."""
        asked = (pool.base, pool.limits.require_signature) if pool else None
        terms = (asked, self._store.reads, base.own.fingerprint if base.own else "")
        if terms != self._memory.terms:
            self._memory.terms = terms
            self._demand.troubles.forget()
            self._memory.retries.forget_staging()
        return self._store.use_pool(pool, base)

    def _note(self, made: Planned) -> None:
        """Says what is so, before the calls; the round after them says what they came to."""
        plan, inputs, memory = made.plan, made.inputs, self._memory
        observed, desired = inputs.observed, inputs.desired
        memory.retries.forget_others(observed, lambda key: self._wanted(desired, inputs.share, key))
        incarnation, seen_at = observed.facts.incarnation, self._clock.moment().wall_of(self._observer.observed_at)
        memory.last_seen = LastSeen(plan.served, seen_at)
        served = (*plan.served, *plan.residents, *plan.still_served)
        memory.generations.note(observed, ((one.name, one.generation) for one in served))
        if memory.found[0] != incarnation:
            memory.found = incarnation, plan.refusals.serves
        if plan.is_settled and self._rule.may_begin(plan.refusals, was_serving=memory.found[1]):
            memory.ready_in = incarnation
        decision = (plan.revision, len(plan.stage), len(plan.calls), len(plan.served))
        if decision != memory.logged:
            memory.logged = decision
            _log.info(
                "plan_made",
                revision=plan.revision,
                state_hash=f"{desired.state_hash:064x}",
                stage=[stage.name for stage in plan.stage[:MAX_NAMES_LOGGED]],
                calls=[f"{type(call).__name__} {call.name}" for call in plan.calls[:MAX_NAMES_LOGGED]],
                actions=len(plan.stage) + len(plan.calls),
                served=len(plan.served),
                failed=len(plan.failed),
                request_id=inputs.snapshot.last_request_id,
            )
        self._report(inputs.snapshot, observed, plan)

    def _wanted(self, desired: DesiredState, share: Share, key: str) -> DesiredAdapter | None:
        """What this replica is to serve under a name key, or under that of an earlier generation, kept or last good."""
        plain = key.partition(SEPARATOR)[0]
        adapter = desired.adapters.get(plain)
        wanted = share.version(adapter) if adapter else self._demand.resident(plain)
        return None if wanted is None else wanted.under(key)

    def _report(self, snapshot: Snapshot, observed: Observed | None, plan: Plan | None) -> None:
        """`snapshot` is what the plan was made from: a status must not speak of a later revision (guarantee R9)."""
        desired = snapshot.actionable
        ready = observed is not None and desired is not None and self._memory.ready_in == observed.facts.incarnation
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
            last_seen=self._memory.last_seen,
        )
        self._say(RoundReport(situation, self._memory.desired_count, plan.chosen.limits.capacity if plan else None))

    def _say(self, report: RoundReport) -> None:
        self._memory.reported = report
        self._links.publish(report)

    def _why_not_ready(self, snapshot: Snapshot, plan: Plan | None) -> str:
        if problem := self._ownership.refusal or self._probes.several or self._observer.problem or self._probes.problem:
            return problem
        if self._observer.hangs and not (plan is not None and plan.paused):
            return "the engine answers but generates nothing since a call that timed out; restart it"
        if snapshot.actionable is None and snapshot.pool_refusal:
            return snapshot.pool_refusal
        if snapshot.desired is None or not snapshot.pool_read:
            return "nothing is known yet of what should be served: etcd was not reached and there is no snapshot"
        if snapshot.pool is None:
            return "there is no such pool: loraplane pool create, or correct --pool"
        if plan is not None and (plan.blocked or plan.paused):
            return plan.blocked or plan.paused
        if plan is not None and (degraded := self._rule.degraded(plan.refusals)):
            return degraded
        return "the first plan is being carried out"

    def _pause(self, plan: Plan) -> float:
        if self._memory.retries.unsettled or plan.paused or plan.blocked:
            return UNSETTLED_SECONDS
        longest = min(RESYNC_SECONDS, self._demand.rest_seconds(self._now()))
        if plan.wake_at is None:
            return longest
        return min(longest, max(0.0, plan.wake_at - self._now()))

    def _now(self) -> float:
        return self._clock.monotonic()
