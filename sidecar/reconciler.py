"""The loop that makes the engine serve what is desired: look, plan, stage, call, say what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import structlog

from registry.model.records import BaseShapes, EngineNames, PoolSpec
from sidecar.artifacts.types import ArtifactRef, ArtifactStore
from sidecar.chance import Chance
from sidecar.chosen import capacity, choose
from sidecar.desired import DesiredAdapter, DesiredState
from sidecar.engine_names import engine_name, names_of
from sidecar.engines.driver import Engine
from sidecar.executor import Executor
from sidecar.inputs import Inputs
from sidecar.known import Known
from sidecar.lazy.answers import Terms
from sidecar.lazy.demand import Demand
from sidecar.metrics import RECONCILE_SECONDS
from sidecar.observed import Done, Observed
from sidecar.ownership import Ownership
from sidecar.plan import Plan
from sidecar.planner import make_plan
from sidecar.propagation import Propagation
from sidecar.retention import Use
from sidecar.rounds import Rounds
from sidecar.rules import rules_of
from sidecar.share import Share, Sharing
from sidecar.sight import RESYNC_SECONDS, Sight
from sidecar.staging import Staging
from sidecar.status import Situation
from sidecar.trials import Trials

_log = structlog.get_logger()
# An engine that could not be looked at in full, or may not be, is looked at again after this time.
LOOK_AGAIN_SECONDS = 15.0
# While the outcome of a call is unknown, the engine is asked again after this time.
UNSETTLED_SECONDS = 2.0
# After calls that the engine says it carried out it is looked at this much later, if nothing else comes before: others
# may wait for the same engine, or the same host, and what it says then is in the same status.
SETTLE_SECONDS = 0.1
MAX_NAMES_LOGGED = 20


# Is told of each look that a plan is made from, and of what that plan may load, before anything is called.
Notice = Callable[[Observed, AbstractSet[Use]], None]


@dataclass(frozen=True, slots=True)
class Report:
    """What one round came to, for status and metrics.

    Attributes:
        situation: what the status is derived from.
        desired_count: how many eager adapters were this replica's to serve when it was last planned.
        capacity: the engine's; None: not known, or none.
    """

    situation: Situation
    desired_count: int
    capacity: int | None = None


class Reconciler:
    """One engine's loop. Everything that it remembers is either re-read from the engine or only delays a retry."""

    def __init__(
        self,
        engine: Engine,
        store: ArtifactStore,
        inputs: Inputs,
        ownership: Ownership,
        chance: Chance,
        publish: Callable[[Report], None],
        notice: Notice = lambda _observed, _uses: None,
        sharing: Sharing | None = None,
        *,
        demand: Demand,
    ) -> None:
        """Does nothing yet; `sharing` None: the replica is alone and serves whatever is desired."""
        self._engine = engine
        self._store = store
        self._inputs = inputs
        self._ownership = ownership
        self._chance = chance
        self._publish = publish
        self._notice = notice
        self._sharing = sharing
        self._demand = demand
        self._executor = Executor(engine, inputs, chance, self._may_call)
        self._sight = Sight(engine, chance)
        self._trials = Trials(chance)
        self._propagation = Propagation(chance.wall())
        self._terms: tuple[BaseShapes | None, bool] | None = None
        self._ready_in = ""
        self._desired_count = 0
        self._logged: tuple[int, int, int, int] | None = None

    def _may_call(self, key: str) -> bool:
        """Not for a replica that is another's, nor for a name that the engine asks about: it would await the answer."""
        return not self._ownership.refusal and not self._demand.is_asked(key)

    def distrust(self) -> None:
        """Forgets what was seen of the engine: it may have changed. The next round looks again."""
        self._sight.distrust()
        self._inputs.wake()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            staging = Staging(self._store, tasks, on_failure=self._trials.staging_failed, on_end=self._inputs.wake)
            pause, rounds = 0.0, Rounds()
            while True:
                await self._inputs.wait(pause)
                if rest := rounds.rest_seconds(asyncio.get_running_loop().time()):
                    await asyncio.sleep(rest)
                with RECONCILE_SECONDS.time():
                    pause = await self._round(staging)

    async def _round(self, staging: Staging) -> float:
        """One round. Returns the seconds after which the next is due without a wake-up."""
        has_unsettled, observed = bool(self._trials.unsettled), None
        if not self._ownership.refusal:
            observed = await self._sight.look(has_unsettled=has_unsettled, is_expecting=self._demand.is_expecting)
        desired = self._inputs.desired if self._inputs.pool_read else None
        if observed is None or desired is None:
            self._demand.suspend()
            self._report(None, observed, desired)
            return LOOK_AGAIN_SECONDS
        if self._sharing is not None and self._sharing.is_long(desired, self._inputs.members):
            # The event loop has a lease to keep meanwhile.
            await asyncio.to_thread(self._sharing.find, desired, self._inputs.members)
        self._trials.settle(observed, hangs=self._sight.hangs)
        plan = self._plan(desired, observed, staging)
        if plan.is_destructive:
            observed = await self._sight.look_at_most_old(0.0)
            desired = self._inputs.desired or desired  # it may have moved on during the look
            if observed is None:
                self._demand.suspend()
                self._report(None, None, desired)
                return LOOK_AGAIN_SECONDS
            plan = self._plan(desired, observed, staging)
        self._note(plan, desired, observed)
        self._propagation.follow(plan, desired.adapters, self._chance.wall())
        staging.start(plan.stage)
        incarnation = observed.facts.incarnation
        carried = await self._executor.carry_out(plan, incarnation, is_serving=self._ready_in == incarnation)
        attempts = carried.attempts
        if not attempts:
            return 0.0 if carried.is_overtaken else self._pause(plan)
        self._trials.take_up(attempts, incarnation)
        self._sight.distrust()
        is_calm = self._ready_in == incarnation and all(isinstance(one.outcome, Done) for one in attempts)
        return SETTLE_SECONDS if is_calm and len(attempts) == len(plan.calls) else 0.0

    def _plan(self, desired: DesiredState, observed: Observed, staging: Staging) -> Plan:
        pool = self._inputs.pool
        problem = self._compare_with(pool)
        share = self._share(desired)
        self._desired_count = len(share.order) + len(share.undecided) if share else len(desired.order)
        chosen = choose(desired, share, pool, observed)
        terms = Terms(rules_of(pool, observed), chosen.room, self._store.owns)
        lazy = self._demand.review(desired, observed, terms, now=self._now())
        wanted = (*chosen.adapters, *lazy.residents)
        refs = {adapter.ref for adapter in wanted}
        refs |= {ref for one in chosen.leaving for _, ref in desired.adapters[one.key].versions}
        known = Known(
            staged={ref: staged for ref in refs if (staged := self._store.lookup(ref)) is not None},
            staging=staging.in_progress,
            failures=self._trials.failures,
            unsettled=self._trials.unsettled,
            owns=self._store.owns,
            base_problem=problem,
            base_known=self._store.base_known,
            lazy=lazy,
            share=share,
            handed=self._inputs.handed,
        )
        self._notice(observed, self._uses(wanted, known, names_of(pool)))
        plan = make_plan(desired, pool, observed, known, now=self._now())
        if plan.blocked:
            self._demand.suspend()
        return plan

    def _share(self, desired: DesiredState) -> Share | None:
        return self._sharing.find(desired, self._inputs.members) if self._sharing else None

    def _uses(self, chosen: Iterable[DesiredAdapter], known: Known, names: EngineNames) -> set[Use]:
        """What a plan made of this may load, what calls that were made may yet come to, what the engine was told."""
        uses = {(engine_name(one, names), known.staged[one.ref].path) for one in chosen if one.ref in known.staged}
        return uses | self._demand.uses(self._now()) | self._trials.loads()

    def _compare_with(self, pool: PoolSpec | None) -> str:
        """Has adapters compared with what the pool asks for; what was refused for other terms is looked at anew."""
        terms = (pool.base, pool.limits.require_signature) if pool else None
        if terms != self._terms:
            self._terms = terms
            self._demand.forget_troubles()
            self._trials.forget_staging()
        return self._store.use_pool(pool)

    def _note(self, plan: Plan, desired: DesiredState, observed: Observed) -> None:
        """Says what is so, before the calls; the round after them says what they came to."""
        self._trials.forget_others(observed, lambda key: self._ref_of(desired, key))
        if plan.is_settled:
            self._ready_in = observed.facts.incarnation
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
                request_id=self._inputs.last_request_id,
            )
        self._report(plan, observed, desired)

    def _ref_of(self, desired: DesiredState, key: str) -> ArtifactRef | None:
        """What this replica is to serve under a name key."""
        adapter, share = desired.adapters.get(key), self._share(desired)
        version = share.version(adapter) if share and adapter else adapter or self._demand.resident(key)
        return version.ref if version else None

    def _report(self, plan: Plan | None, observed: Observed | None, desired: DesiredState | None) -> None:
        """`desired` is what the plan was made from: a status must not speak of a later revision (guarantee R9)."""
        ready = observed is not None and desired is not None and self._ready_in == observed.facts.incarnation
        ready = ready and not self._sight.hangs
        situation = Situation(
            revision=desired.revision if desired else 0,
            observed=observed,
            plan=plan,
            ready=ready,
            stale=not self._inputs.connected or bool(self._inputs.held),
            lazy=self._demand.situation(desired, plan),
            note="" if ready else self._why_not_ready(plan, desired),
            held=self._inputs.held,
            last_request_id=self._inputs.last_request_id,
            names=names_of(self._inputs.pool),
        )
        room = capacity(self._inputs.pool, observed) if observed else None
        self._publish(Report(situation, self._desired_count, room))

    def _why_not_ready(self, plan: Plan | None, desired: DesiredState | None) -> str:
        if self._ownership.refusal:
            return self._ownership.refusal
        if self._sight.problem:
            return self._sight.problem
        if self._sight.hangs:
            return "the engine answers but generates nothing since a call that timed out; restart it"
        if desired is None and self._inputs.pool_refusal:
            return self._inputs.pool_refusal
        if desired is None:
            return "nothing is known yet of what should be served: etcd was not reached and there is no snapshot"
        if plan is not None and plan.blocked:
            return plan.blocked
        return "the first plan is being carried out"

    def _pause(self, plan: Plan) -> float:
        if self._trials.unsettled:
            return UNSETTLED_SECONDS
        longest = min(RESYNC_SECONDS, self._demand.rest_seconds(self._now()))
        if plan.wake_at is None:
            return longest
        return min(longest, max(0.0, plan.wake_at - self._now()))

    def _now(self) -> float:
        return self._chance.monotonic()
