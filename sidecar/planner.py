"""The planner: from what is desired and what was observed to exactly what shall be done. Pure.

The plan is so specific that its executor has nothing left to choose. It is made anew from the whole state each
time, so that a lost event, a failed call or somebody else's call to the engine needs no case of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice

from registry.model.names import name_key, name_of_key
from registry.model.records import PoolSpec
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.chosen import Chosen, choose
from sidecar.desired import DesiredAdapter, DesiredState, RefusedRecord
from sidecar.failures import Failure
from sidecar.lazy.wanted import NOTHING_LAZY, Wanted
from sidecar.observed import Observed
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
    Unload,
    WarnedAdapter,
)
from sidecar.rules import Rules, obstacle_of, rules_of

# A status must stay small; more pending names than this are counted only.
MAX_OVER_CAPACITY_LISTED = 200
MAX_WARNINGS_LISTED = 100


@dataclass(frozen=True, slots=True)
class Known:
    """What this replica knows beside desired and observed state.

    Attributes:
        staged: what is in the store, by ref.
        staging: refs that are being brought in.
        failures: by name key.
        unsettled: name keys whose last load has an unknown outcome that no listing has settled yet.
        owns: artifact id of a path under our store, else None.
        base_problem: why adapters cannot be compared with the base model; empty: they can.
        base_known: False if there is nothing to compare them with.
        lazy: which lazy adapters stay loaded.
    """

    staged: Mapping[ArtifactRef, Staged]
    staging: AbstractSet[ArtifactRef]
    failures: Mapping[str, Failure]
    unsettled: AbstractSet[str]
    owns: Callable[[str], str | None]
    base_problem: str = ""
    base_known: bool = True
    lazy: Wanted = NOTHING_LAZY


def make_plan(desired: DesiredState, pool: PoolSpec | None, observed: Observed, known: Known, *, now: float) -> Plan:
    """What to do so that the engine comes to serve what is desired.

    Args:
        desired: the pool's adapters at one revision.
        pool: the pool's record; None: it has none.
        observed: the engine, just looked at.
        known: what this replica knows beside these.
        now: monotonic seconds.
    """
    blocked = _mismatch(pool, observed) or known.base_problem
    if blocked:
        return Plan(desired.revision, (), (), (), (), (), None, blocked=blocked)
    chosen = choose(desired, pool, observed)
    rules, lazy = rules_of(pool, observed), known.lazy
    keep = {adapter.name for adapter in (*chosen.adapters, *lazy.residents)}
    unloads = [_decide_unload(one, observed, known, now) for one in _superfluous(desired, keep, observed, known)]
    eager = [_decide(adapter, rules, observed, known, now) for adapter in chosen.adapters]
    residents = [_decide_resident(adapter, rules, observed, known, now) for adapter in lazy.residents]
    decided = [*unloads, *eager, *residents]
    actions = [action for _, action in decided if action is not None]
    pending = [condition for condition, _ in decided if isinstance(condition, PendingAdapter)]
    failed = [condition for condition, _ in decided if isinstance(condition, FailedAdapter)]
    refusals = [_refusal(desired, refused) for refused in desired.refused.values()]
    return Plan(
        revision=desired.revision,
        stage=tuple(action for action in actions if isinstance(action, Stage)),
        calls=tuple(action for action in actions if not isinstance(action, Stage)),
        served=_served(eager),
        pending=(*pending, *_over_capacity(desired, chosen)),
        failed=(*failed, *refusals, *_troubles(lazy)),
        wake_at=min((f.retry_at for f in failed if f.retry_at is not None), default=None),
        warnings=tuple(islice(_warnings((*chosen.adapters, *lazy.residents), known), MAX_WARNINGS_LISTED)),
        omitted=max(0, len(chosen.over) - MAX_OVER_CAPACITY_LISTED),
        residents=_served(residents),
    )


def _served(decided: Iterable[tuple[Condition, Action | None]]) -> tuple[ServedAdapter, ...]:
    return tuple(condition for condition, _ in decided if isinstance(condition, ServedAdapter))


def _warnings(chosen: Iterable[DesiredAdapter], known: Known) -> Iterator[WarnedAdapter]:
    if not known.base_known:
        message = "adapters' names and shapes are not compared with the base: give --base-model, or pool update --from"
        yield WarnedAdapter("", 0, "base_unknown", message)
    for adapter in chosen:
        staged = known.staged.get(adapter.ref)
        for warning in staged.warnings if staged else ():
            yield WarnedAdapter(adapter.name, adapter.generation, warning.reason, warning.message)


def _mismatch(pool: PoolSpec | None, observed: Observed) -> str:
    if pool is None or set(pool.base_models) & set(observed.base_models):
        return ""
    served, expected = ", ".join(observed.base_models), ", ".join(pool.base_models)
    return f"the engine serves {served}, the pool is for {expected}: check --engine and --pool"


def _decide(
    adapter: DesiredAdapter, rules: Rules, observed: Observed, known: Known, now: float
) -> tuple[Condition, Action | None]:
    """What to say of one adapter, and what to do about it."""
    staged = known.staged.get(adapter.ref)
    current = observed.adapters.get(adapter.name)
    obstacle = obstacle_of(adapter, rules, current, staged, known.owns)
    if obstacle is not None:
        return obstacle, None
    if staged is not None and current == staged.path:
        is_pinned = adapter.ref.digest is not None
        return ServedAdapter(adapter.name, adapter.generation, staged.digest, is_pinned), None
    failure = known.failures.get(adapter.key)
    if failure is not None and failure.forbids(adapter.ref, observed.facts.incarnation, now):
        return _failed(adapter, failure), None
    if staged is None:
        stage = None if adapter.ref in known.staging else Stage(adapter.name, adapter.ref, adapter.request_id)
        return _pending(adapter, "staging"), stage
    if adapter.key in known.unsettled:
        return _pending(adapter, "outcome_unknown"), None
    if current is None:
        return _pending(adapter, "loading"), Load(adapter.name, staged.path, adapter.ref, adapter.request_id)
    swap = Swap(adapter.name, current, staged.path, adapter.ref, adapter.request_id)
    return _pending(adapter, "swapping"), swap


def _decide_resident(
    adapter: DesiredAdapter, rules: Rules, observed: Observed, known: Known, now: float
) -> tuple[Condition, Action | None]:
    """The same of a lazy adapter that is loaded. A replica's readiness waits for none of them."""
    condition, action = _decide(adapter, rules, observed, known, now)
    if not isinstance(condition, ServedAdapter):
        condition = replace(condition, is_settled=True)
    may_call = adapter.key not in known.lazy.asked
    return condition, action if may_call or isinstance(action, Stage) else None


def _troubles(lazy: Wanted) -> Iterator[FailedAdapter]:
    """What was asked for and refused. Nothing is tried again before the next question."""
    residents = {adapter.key for adapter in lazy.residents}
    for adapter, failure in lazy.troubles:
        if adapter.key not in residents:
            yield replace(_failed(adapter, failure), is_settled=True)


def _refusal(desired: DesiredState, refused: RefusedRecord) -> FailedAdapter:
    good = desired.of(refused.key)
    return FailedAdapter(
        name=good.name if good else name_of_key(refused.key),
        generation=good.generation if good else 0,
        reason=refused.reason,
        message=f"the record at revision {refused.revision} cannot be followed: {refused.message}",
        attempts=1,
        retry_at=None,
        request_id="",
        is_settled=True,
    )


def _superfluous(desired: DesiredState, keep: AbstractSet[str], observed: Observed, known: Known) -> Iterator[Unload]:
    for name, path in observed.adapters.items():
        if name in keep or known.owns(path) is None:
            continue
        key = name_key(name)
        if key in known.lazy.asked:
            continue
        # A record that cannot be read says nothing about what should be served; what is loaded stays.
        if key in desired.refused and desired.of(key) is None:
            continue
        yield Unload(name, path)


def _decide_unload(
    unload: Unload, observed: Observed, known: Known, now: float
) -> tuple[Condition | None, Unload | None]:
    """An unload is put off while an earlier one of the same name has failed."""
    failure = known.failures.get(name_key(unload.name))
    if failure is None or not failure.forbids(None, observed.facts.incarnation, now):
        return None, unload
    failed = FailedAdapter(
        unload.name, 0, failure.reason, failure.message, failure.attempts, failure.retry_at, "", is_settled=True
    )
    return failed, None


def _over_capacity(desired: DesiredState, chosen: Chosen) -> Iterator[PendingAdapter]:
    for _, key in chosen.over[:MAX_OVER_CAPACITY_LISTED]:
        yield _pending(desired.adapters[key], "over_capacity", is_settled=True)


def _pending(adapter: DesiredAdapter, reason: str, *, is_settled: bool = False) -> PendingAdapter:
    return PendingAdapter(adapter.name, adapter.generation, reason, adapter.request_id, is_settled)


def _failed(adapter: DesiredAdapter, failure: Failure) -> FailedAdapter:
    return FailedAdapter(
        name=adapter.name,
        generation=adapter.generation,
        reason=failure.reason,
        message=failure.message,
        attempts=failure.attempts,
        retry_at=failure.retry_at,
        request_id=adapter.request_id,
        is_settled=failure.is_settled(),
    )
