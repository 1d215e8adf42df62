"""The loop that makes the engine serve what is desired: look, plan, stage, call, say what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

import structlog

from registry.model.names import name_key
from registry.model.records import BaseShapes, EngineNames, PoolSpec
from registry.sources.errors import ArtifactError
from sidecar.artifacts.types import ArtifactStore
from sidecar.chance import Chance
from sidecar.chosen import choose
from sidecar.desired import DesiredAdapter, DesiredState
from sidecar.engine_names import engine_name, names_of
from sidecar.engines.driver import Engine
from sidecar.executor import Attempt, Executor
from sidecar.failures import Failure, after_call, after_staging, not_borne_out
from sidecar.inputs import Inputs
from sidecar.metrics import RECONCILE_SECONDS
from sidecar.observed import Done, Gone, Observed
from sidecar.plan import Plan, Stage
from sidecar.planner import Known, make_plan
from sidecar.retention import Use
from sidecar.rounds import Rounds
from sidecar.sight import RESYNC_SECONDS, Sight
from sidecar.staging import Staging
from sidecar.status import Situation

_log = structlog.get_logger()
# An engine that could not be looked at in full, or may not be, is looked at again after this time.
LOOK_AGAIN_SECONDS = 15.0
# While the outcome of a call is unknown, the engine is asked again after this time.
UNSETTLED_SECONDS = 2.0
# After calls that the engine says it carried out it is looked at this much later, if nothing else comes before: others
# may wait for the same engine, or the same host, and what it says then is in the same status.
SETTLE_SECONDS = 0.1
MAX_NAMES_LOGGED = 20


class Ownership(Protocol):
    """Whether this sidecar is the one that may drive its replica."""

    @property
    def refusal(self) -> str:
        """Why it may not; empty: it may."""
        ...


# Is told of each look that a plan is made from, and of what that plan may load, before anything is called.
Notice = Callable[[Observed, AbstractSet[Use]], None]


@dataclass(frozen=True, slots=True)
class Report:
    """What one round came to, for status and metrics."""

    situation: Situation
    desired_count: int


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
    ) -> None:
        self._engine = engine
        self._store = store
        self._inputs = inputs
        self._ownership = ownership
        self._chance = chance
        self._publish = publish
        self._notice = notice
        self._executor = Executor(engine, inputs, chance)
        self._sight = Sight(engine, chance)
        self._failures: dict[str, Failure] = {}
        self._attempts: dict[str, Attempt] = {}
        self._terms: tuple[BaseShapes | None, bool] | None = None
        self._ready_in = ""
        self._logged: tuple[int, int, int, int] | None = None

    def distrust(self) -> None:
        """Forgets what was seen of the engine: it may have changed. The next round looks again."""
        self._sight.distrust()
        self._inputs.wake()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            staging = Staging(self._store, tasks, on_failure=self._staging_failed, on_end=self._inputs.wake)
            pause, rounds = 0.0, Rounds()
            while True:
                await self._inputs.wait(pause)
                if rest := rounds.rest_seconds(asyncio.get_running_loop().time()):
                    await asyncio.sleep(rest)
                with RECONCILE_SECONDS.time():
                    pause = await self._round(staging)

    async def _round(self, staging: Staging) -> float:
        """One round. Returns the seconds after which the next is due without a wake-up."""
        has_unsettled = any(attempt.is_unsettled for attempt in self._attempts.values())
        observed = None if self._ownership.refusal else await self._sight.look(has_unsettled=has_unsettled)
        desired = self._inputs.desired if self._inputs.pool_read else None
        if observed is None or desired is None:
            self._report(None, observed, desired)
            return LOOK_AGAIN_SECONDS
        self._settle(observed)
        plan = self._plan(desired, observed, staging)
        if plan.is_destructive:
            observed = await self._sight.look_at_most_old(0.0)
            desired = self._inputs.desired or desired  # it may have moved on during the look
            if observed is None:
                self._report(None, None, desired)
                return LOOK_AGAIN_SECONDS
            plan = self._plan(desired, observed, staging)
        self._note(plan, desired, observed)
        staging.start(plan.stage)
        incarnation = observed.facts.incarnation
        attempts = await self._executor.carry_out(plan, incarnation, is_serving=self._ready_in == incarnation)
        if not attempts:
            return self._pause(plan)
        self._take_up(attempts, incarnation)
        self._sight.distrust()
        is_calm = self._ready_in == incarnation and all(isinstance(one.outcome, Done) for one in attempts)
        return SETTLE_SECONDS if is_calm and len(attempts) == len(plan.calls) else 0.0

    def _plan(self, desired: DesiredState, observed: Observed, staging: Staging) -> Plan:
        pool = self._inputs.pool
        problem = self._compare_with(pool)
        chosen = choose(desired, pool, observed).adapters
        refs = {adapter.ref for adapter in chosen}
        known = Known(
            staged={ref: staged for ref in refs if (staged := self._store.lookup(ref)) is not None},
            staging=staging.in_progress,
            failures=self._failures,
            unsettled={key for key, attempt in self._attempts.items() if attempt.is_unsettled},
            owns=self._store.owns,
            base_problem=problem,
            base_known=self._store.base_known,
        )
        self._notice(observed, self._uses(chosen, known, names_of(pool)))
        return make_plan(desired, pool, observed, known, now=self._chance.monotonic())

    def _uses(self, chosen: Iterable[DesiredAdapter], known: Known, names: EngineNames) -> set[Use]:
        """What a plan made of this may load, and what calls that were made may yet come to."""
        uses = {(engine_name(one, names), known.staged[one.ref].path) for one in chosen if one.ref in known.staged}
        return uses | {(one.name, one.path) for one in self._attempts.values() if one.path is not None}

    def _compare_with(self, pool: PoolSpec | None) -> str:
        """Has adapters compared with what the pool asks for; what was refused for other terms is looked at anew."""
        terms = (pool.base, pool.limits.require_signature) if pool else None
        if terms != self._terms:
            self._terms = terms
            self._failures = {key: one for key, one in self._failures.items() if one.incarnation is not None}
        return self._store.use_pool(pool)

    def _settle(self, observed: Observed) -> None:
        """Compares what calls were said, or not known, to have done with what the engine now lists."""
        incarnation = observed.facts.incarnation
        for key, attempt in list(self._attempts.items()):
            if attempt.is_borne_out(observed):
                self._failures.pop(key, None)
            elif attempt.incarnation == incarnation:
                if self._sight.hangs and attempt.is_unsettled:
                    continue  # it may still be under way inside the engine, and must not be made twice
                self._failures[key] = not_borne_out(
                    attempt.ref, incarnation, self._failures.get(key), now=self._now(), uniform=self._chance.rng.uniform
                )
            del self._attempts[key]

    def _take_up(self, attempts: list[Attempt], incarnation: str) -> None:
        for attempt in attempts:
            failure = after_call(
                attempt.outcome,
                attempt.ref,
                incarnation,
                self._failures.get(attempt.key),
                now=self._now(),
                uniform=self._chance.rng.uniform,
            )
            if failure is not None:
                self._failures[attempt.key] = failure
            elif not isinstance(attempt.outcome, Gone):
                self._attempts[attempt.key] = attempt

    def _staging_failed(self, stage: Stage, error: ArtifactError) -> None:
        key = name_key(stage.name)
        self._failures[key] = after_staging(
            error, stage.ref, self._failures.get(key), now=self._now(), uniform=self._chance.rng.uniform
        )

    def _note(self, plan: Plan, desired: DesiredState, observed: Observed) -> None:
        """Says what is so, before the calls; the round after them says what they came to."""
        self._forget_failures(desired, observed)
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

    def _forget_failures(self, desired: DesiredState, observed: Observed) -> None:
        """Drops what is about another ref than the desired one, and unloads of what is not listed any more."""
        listed = {name_key(name) for name in observed.adapters} if self._failures else set()
        for key, failure in list(self._failures.items()):
            adapter = desired.adapters.get(key)
            is_about_now = key in listed if failure.ref is None else adapter is not None and adapter.ref == failure.ref
            if not is_about_now:
                del self._failures[key]

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
            lazy_count=len(desired.lazy) if desired else 0,
            note="" if ready else self._why_not_ready(plan, desired),
            held=self._inputs.held,
            last_request_id=self._inputs.last_request_id,
            names=names_of(self._inputs.pool),
        )
        self._publish(Report(situation, desired.count if desired else 0))

    def _why_not_ready(self, plan: Plan | None, desired: DesiredState | None) -> str:
        if self._ownership.refusal:
            return self._ownership.refusal
        if self._sight.problem:
            return self._sight.problem
        if self._sight.hangs:
            return "the engine answers but generates nothing since a call that timed out; restart it"
        if desired is None:
            return "nothing is known yet of what should be served: etcd was not reached and there is no snapshot"
        if plan is not None and plan.blocked:
            return plan.blocked
        return "the first plan is being carried out"

    def _pause(self, plan: Plan) -> float:
        if any(attempt.is_unsettled for attempt in self._attempts.values()):
            return UNSETTLED_SECONDS
        if plan.wake_at is None:
            return RESYNC_SECONDS
        return min(RESYNC_SECONDS, max(0.0, plan.wake_at - self._now()))

    def _now(self) -> float:
        return self._chance.monotonic()
