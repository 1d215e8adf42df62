"""The planner: from what is desired and what was observed to exactly what shall be done. Pure.

The plan is so specific that its executor has nothing left to choose. It is made anew from the whole state each
time, so that a lost event, a failed call or somebody else's call to the engine needs no case of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from registry.lora.policy import is_served
from registry.model.names import name_key, name_of_key
from registry.model.records import EngineNames, PoolSpec
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.chosen import Chosen, capacity, choose
from sidecar.desired import DesiredAdapter, DesiredState, RefusedRecord
from sidecar.engine_names import engine_name, key_of, names_of
from sidecar.failures import Failure
from sidecar.handover import Handover, hand_over
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
    """

    staged: Mapping[ArtifactRef, Staged]
    staging: AbstractSet[ArtifactRef]
    failures: Mapping[str, Failure]
    unsettled: AbstractSet[str]
    owns: Callable[[str], str | None]
    base_problem: str = ""
    base_known: bool = True


@dataclass(frozen=True, slots=True)
class _Rules:
    """What no adapter may break here: names in lower case, the highest rank, the modules; None: no limit.

    `names`: what the engine calls an adapter.
    """

    base_names: frozenset[str]
    max_rank: int | None
    target_modules: tuple[str, ...] | None
    names: EngineNames


def _rules(pool: PoolSpec | None, observed: Observed) -> _Rules:
    bounds = [observed.facts.limits.max_lora_rank, pool.limits.max_rank if pool else None]
    pools = tuple(pool.limits.target_modules) if pool and pool.limits.target_modules else None
    return _Rules(
        base_names=frozenset(base.lower() for base in observed.base_models),
        max_rank=min((bound for bound in bounds if bound is not None), default=None),
        target_modules=observed.facts.limits.target_modules or pools,
        names=names_of(pool),
    )


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
    rules = _rules(pool, observed)
    handover = hand_over(chosen.adapters, rules.names, observed, known.staged, known.owns)
    decided: list[tuple[Condition | None, Action | None]] = [
        *(_decide_unload(unload, observed, known, now) for unload in _superfluous(desired, handover)),
        *(_decide(adapter, rules, observed, known, now) for adapter in chosen.adapters),
        *((_refusal(desired, refused), None) for refused in desired.refused.values()),
    ]
    conditions = [condition for condition, _ in decided]
    actions = handover.within([action for _, action in decided if action is not None], capacity(pool, observed))
    failed = tuple(c for c in conditions if isinstance(c, FailedAdapter))
    return Plan(
        revision=desired.revision,
        stage=tuple(action for action in actions if isinstance(action, Stage)),
        calls=tuple(action for action in actions if not isinstance(action, Stage)),
        served=tuple(c for c in conditions if isinstance(c, ServedAdapter)),
        pending=(*(c for c in conditions if isinstance(c, PendingAdapter)), *_over_capacity(desired, chosen)),
        failed=failed,
        wake_at=min((f.retry_at for f in failed if f.retry_at is not None), default=None),
        warnings=tuple(islice(_warnings(chosen.adapters, known), MAX_WARNINGS_LISTED)),
        omitted=max(0, len(chosen.over) - MAX_OVER_CAPACITY_LISTED),
    )


def _warnings(chosen: Iterable[DesiredAdapter], known: Known) -> Iterator[WarnedAdapter]:
    if not known.base_known:
        message = "adapters' names and shapes are not compared with the base: give --base-model, or pool update --from"
        yield WarnedAdapter("", 0, "base_unknown", message)
    for adapter in chosen:
        staged = known.staged.get(adapter.ref)
        for warning in staged.warnings if staged else ():
            yield WarnedAdapter(adapter.name, adapter.generation, warning.reason, warning.message)


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


def _decide(
    adapter: DesiredAdapter, rules: _Rules, observed: Observed, known: Known, now: float
) -> tuple[Condition, Action | None]:
    """What to say of one adapter, and what to do about it."""
    staged = known.staged.get(adapter.ref)
    name = engine_name(adapter, rules.names)
    current = observed.adapters.get(name)
    obstacle = _obstacle(adapter, rules, observed, staged, known.owns)
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
        return _pending(adapter, "loading"), Load(name, staged.path, adapter.ref, adapter.request_id)
    swap = Swap(name, current, staged.path, adapter.ref, adapter.request_id)
    return _pending(adapter, "swapping"), swap


def _obstacle(
    adapter: DesiredAdapter,
    rules: _Rules,
    observed: Observed,
    staged: Staged | None,
    owns: Callable[[str], str | None],
) -> FailedAdapter | None:
    """Why the adapter cannot be served here, however often it is tried."""
    name = engine_name(adapter, rules.names)
    current = observed.adapters.get(name)
    if name.lower() in rules.base_names:
        return _hopeless(adapter, "name_is_base_model", f"{name!r} is a name of the engine's base model")
    if current is not None and owns(current) is None:
        return _hopeless(
            adapter, "name_conflict", f"the engine has {name!r} from {current}, which is not ours; unload it"
        )
    if staged is None:
        return None
    return _unservable(adapter, rules, staged) or _remembered(adapter, name, observed, staged)


def _remembered(adapter: DesiredAdapter, name: str, observed: Observed, staged: Staged) -> FailedAdapter | None:
    """Why the engine would answer from what it remembers of other weights that it had under this name."""
    before = observed.adapters.get(name) if observed.facts.swap == "refused" else None
    before = before or observed.past.get(name)
    if before is None or before == staged.path:
        return None
    message = (
        f"the engine had other weights as {name!r}, and {observed.facts.kind} {observed.facts.version} would answer "
        "from what it remembers of those: give the pool --engine-names versioned, or restart or upgrade the engine"
    )
    return _hopeless(adapter, "name_remembered", message)


def _unservable(adapter: DesiredAdapter, rules: _Rules, staged: Staged) -> FailedAdapter | None:
    """Why an adapter that is right in itself is not for this replica's limits."""
    limit = rules.max_rank
    if limit is not None and staged.rank > limit:
        return _hopeless(adapter, "rank_too_high", f"rank {staged.rank} is above the replica's limit of {limit}")
    left_out = sorted(name for name in staged.targets if not is_served(name, rules.target_modules))
    if left_out:
        message = f"the engine leaves out {', '.join(left_out)}: start it with --lora-target-modules that name them"
        return _hopeless(adapter, "target_modules_mismatch", message)
    return None


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


def _superfluous(desired: DesiredState, handover: Handover) -> Iterator[Unload]:
    for name, path in handover.ours.items():
        if name in handover.keep or name in handover.held:
            continue
        key = key_of(name)
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


def _hopeless(adapter: DesiredAdapter, reason: str, message: str) -> FailedAdapter:
    return FailedAdapter(
        adapter.name, adapter.generation, reason, message, 1, None, adapter.request_id, is_settled=True
    )
