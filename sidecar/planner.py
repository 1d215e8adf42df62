"""The planner: from what is desired and what was observed to exactly what shall be done. Pure.

The plan is so specific that its executor has nothing left to choose. It is made anew from the whole state each
time, so that a lost event, a failed call or somebody else's call to the engine needs no case of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from registry.model.records import PoolSpec
from sidecar.chosen import capacity, choose
from sidecar.conditions import count_omitted, failed, not_now, pending, refusal, troubles, warnings
from sidecar.desired import DesiredAdapter, DesiredState
from sidecar.engine_names import engine_name
from sidecar.handover import hand_over
from sidecar.known import Known
from sidecar.leaving import BLOCKED
from sidecar.observed import Observed
from sidecar.placings import NOBODY
from sidecar.plan import (
    Action,
    Condition,
    FailedAdapter,
    Load,
    PendingAdapter,
    Plan,
    ServedAdapter,
    Stage,
    Swap,
    WarnedAdapter,
)
from sidecar.rules import Rules, obstacle_of, rules_of
from sidecar.unloads import decide_unload, ours_leaving, still_kept, still_served, superfluous

MAX_WARNINGS_LISTED = 100
Told = TypeVar("Told", ServedAdapter, PendingAdapter, FailedAdapter)


def make_plan(desired: DesiredState, pool: PoolSpec | None, observed: Observed, known: Known, *, now: float) -> Plan:
    """What to do so that the engine comes to serve what is desired.

    Args:
        desired: the pool's adapters at one revision.
        pool: the pool's record; None: it has none.
        observed: the engine, just looked at.
        known: what this replica knows beside these.
        now: monotonic seconds.
    """
    if blocked := _mismatch(pool, observed) or known.base_problem or _unchecked(observed, known):
        return _nothing(desired, blocked)
    chosen = choose(desired, known.share, pool, observed)
    leaving = ours_leaving(chosen, observed, known)
    kept = still_kept(leaving, known)
    rules, lazy = rules_of(pool, observed), known.lazy
    wanted = (*chosen.adapters, *lazy.residents)
    handover = hand_over(wanted, rules.names, observed, known.staged, known.owns)
    gone = tuple(superfluous(desired, chosen, kept, handover, known))
    unloads = [decide_unload(one, observed, known, now) for one in gone]
    eager = [_decide(adapter, rules, observed, known, now) for adapter in chosen.adapters]
    residents = [_decide_resident(adapter, rules, observed, known, now) for adapter in lazy.residents]
    decided = [*unloads, *eager, *residents]
    actions: Sequence[Action] = [action for _, action in decided if action is not None]
    actions = handover.within(actions, capacity(pool, observed), going=len(gone))
    failures = _told(decided, FailedAdapter)
    return Plan(
        revision=desired.revision,
        stage=tuple(action for action in actions if isinstance(action, Stage)),
        calls=tuple(action for action in actions if not isinstance(action, Stage)),
        served=_told(eager, ServedAdapter),
        pending=(*_told(decided, PendingAdapter), *not_now(desired, chosen)),
        failed=(*failures, *(refusal(desired, one) for one in desired.refused.values()), *troubles(lazy)),
        wake_at=min((f.retry_at for f in failures if f.retry_at is not None), default=None),
        warnings=tuple(islice(warnings(desired, wanted, kept, observed, known), MAX_WARNINGS_LISTED)),
        omitted=count_omitted(chosen),
        residents=_told(residents, ServedAdapter),
        leaving=leaving,
        still_served=tuple(still_served(desired, kept, observed, known)),
        among=known.share.among if known.share else NOBODY,
    )


def _nothing(desired: DesiredState, blocked: str) -> Plan:
    told = WarnedAdapter("", 0, BLOCKED, blocked)
    return Plan(desired.revision, (), (), (), (), (), None, (told,), blocked=blocked)


def _told(decided: Iterable[tuple[Condition | None, Action | None]], kind: type[Told]) -> tuple[Told, ...]:
    return tuple(condition for condition, _ in decided if isinstance(condition, kind))


def _mismatch(pool: PoolSpec | None, observed: Observed) -> str:
    if pool is None:
        return ""
    kind = observed.facts.kind
    if pool.engine != kind:
        return f"the engine is {kind}, the pool is for {pool.engine}: check --engine-kind and --pool"
    if set(pool.base_models) & set(observed.base_models):
        return ""
    served, expected = ", ".join(observed.base_models), ", ".join(pool.base_models)
    return f"the engine serves {served}, the pool is for {expected}: check --engine and --pool"


def _unchecked(observed: Observed, known: Known) -> str:
    if observed.facts.swap != "unproven" or known.base_known:
        return ""
    return (
        f"{observed.facts.kind} ends at an adapter that does not fit its base model, and there is nothing to compare "
        "adapters with: give --base-model, or loraplane pool update --from"
    )


def _decide(
    adapter: DesiredAdapter, rules: Rules, observed: Observed, known: Known, now: float
) -> tuple[Condition, Action | None]:
    """What to say of one adapter, and what to do about it."""
    staged = known.staged.get(adapter.ref)
    name = engine_name(adapter, rules.names)
    current = observed.adapters.get(name)
    obstacle = obstacle_of(adapter, rules, observed, staged, known.owns)
    if obstacle is not None:
        return obstacle, None
    if staged is not None and current == staged.path:
        is_pinned = adapter.ref.digest is not None
        return ServedAdapter(adapter.name, adapter.generation, staged.digest, is_pinned), None
    failure = known.failures.get(adapter.key)
    if failure is not None and failure.forbids(adapter.ref, observed.facts.incarnation, now):
        return failed(adapter, failure), None
    if staged is None:
        stage = None if adapter.ref in known.staging else Stage(adapter.name, adapter.ref, adapter.request_id)
        return pending(adapter, "staging"), stage
    if adapter.key in known.unsettled:
        return pending(adapter, "outcome_unknown"), None
    if current is None:
        return pending(adapter, "loading"), Load(name, staged.path, adapter.ref, adapter.request_id)
    swap = Swap(name, current, staged.path, adapter.ref, adapter.request_id)
    return pending(adapter, "swapping"), swap


def _decide_resident(
    adapter: DesiredAdapter, rules: Rules, observed: Observed, known: Known, now: float
) -> tuple[Condition, Action | None]:
    """The same of a lazy adapter that is loaded. A replica's readiness waits for none of them."""
    condition, action = _decide(adapter, rules, observed, known, now)
    if not isinstance(condition, ServedAdapter):
        condition = replace(condition, is_settled=True)
    may_call = adapter.key not in known.lazy.asked
    return condition, action if may_call or isinstance(action, Stage) else None
