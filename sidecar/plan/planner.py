"""Planner: from desired and observed state to exactly what shall be done. Pure.

The plan is so specific that its executor has nothing left to choose. It is made anew from the whole state each time,
so that a lost event, a failed call or somebody else's call to the engine needs no case of its own. Every argument is
data: the same arguments make the same plan, which can be printed, compared and replayed.

- Nothing is planned for an engine of another kind or base than the pool's (R23). What it answers is told all the same.
- Only files that this process has proven are loaded (R21); others are staged first.
- Only paths of our store are unloaded, and names that were ours in this process of the engine (R11). Under such a name
  no other weights stay, not even until ours are there: an error is better than an answer of the wrong adapter (R4).
- What others are to serve stays until they prove that they do, and is loaded again if the engine loses it (R24).
- A record that cannot be read takes nothing away (R14), since it does not say what is desired.
- Earlier generations that are kept are served beside the newest, and come after all else; they hold up nothing.
- While a generation fails, the last good one stays, or is loaded again where the engine has lost it (R13).
- No load or swap is planned for a name while a call for it is under way or its outcome is unknown: the same load would
  be made twice. None is planned while the engine asks about the name: the call would wait for our own answer.
- A failure forbids only what failed, until its pause is over or its cause has changed (R8). No refusal by an engine is
  final (R17).
- News and the backlog are taken in turn, and unloads first: neither holds the other up (R19).
- Whatever is to be served here and is not has a condition that says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice, zip_longest
from typing import TypeVar

from registry.model.names import name_key
from registry.model.records import PoolSpec
from registry.model.replica_state import BLOCKED
from sidecar.artifacts.types import Stage
from sidecar.desired.informer import DesiredAdapter, DesiredState
from sidecar.desired.placement import NOBODY
from sidecar.engines.observed import Observed
from sidecar.plan.backoff import Failure
from sidecar.plan.conditions import (
    ENGINE_PAUSED,
    count_omitted,
    failed,
    kept_lacking,
    not_now,
    pending,
    refusal,
    troubles,
    warnings,
)
from sidecar.plan.handoff import Handoff
from sidecar.plan.limits import decline, deviation_of, passed_on, rejection_of
from sidecar.plan.names import SEPARATOR, engine_name, key_of, listed_as, overlap_of
from sidecar.plan.readiness import EngineRefusals, refusals_among
from sidecar.plan.selection import (
    count_removing,
    decide_unload,
    lost_by_engine,
    of_before,
    ours_leaving,
    select,
    still_answered,
    still_kept,
    still_served,
    superfluous,
)
from sidecar.plan.types import (
    Action,
    Condition,
    FailedAdapter,
    KeptAdapter,
    Load,
    PendingAdapter,
    Plan,
    PlanContext,
    Selection,
    ServedAdapter,
    Swap,
    Unload,
    WarnedAdapter,
)

MAX_WARNINGS_LISTED = 100
Kind = TypeVar("Kind", ServedAdapter, PendingAdapter, FailedAdapter)


def make_plan(
    desired: DesiredState, pool: PoolSpec | None, observed: Observed, known: PlanContext, *, now: float
) -> Plan:
    """Plans the calls that bring the engine to the desired state; all choice is here.

    Args:
        desired: the pool's adapters at one revision.
        pool: the pool's record; None: it has none.
        observed: the engine, just looked at.
        known: what this replica knows beside these.
        now: monotonic seconds.
    """
    chosen = select(desired, pool, observed, known, now=now)
    if blocked := _mismatch(pool, observed) or known.base_problem or _unchecked(observed, known):
        return replace(_nothing(desired, chosen, observed, known, blocked), declined=known.declined)
    leaving = ours_leaving(chosen, observed)
    kept = still_kept(leaving, known)
    overlap = overlap_of(chosen.wanted, chosen.limits.names, observed, chosen.staged, chosen.kept)
    wrong = (*_disproven(chosen, observed, known), *of_before(desired, chosen, observed, known, now))
    no_more = tuple(dict.fromkeys((*_taken(observed, known), *wrong)))
    too_many = tuple(superfluous(desired, chosen, kept, overlap, known))
    free = (one for one in too_many if name_key(one.name) not in known.in_progress.keys)
    gone = () if observed.paused else (*no_more, *free)
    unloads = [decide_unload(one, observed, known, now) for one in gone]
    eager = [_decide(adapter, chosen, observed, known, now) for adapter in chosen.adapters]
    residents = [_decide_resident(adapter, chosen, observed, known, now) for adapter in chosen.lazy.residents]
    decided = [*unloads, *eager, *residents]
    wanted = zip(chosen.wanted, (*eager, *residents), strict=True)
    instead = [each for one, said in wanted for each in _fall_back(one, *said, chosen, observed, known, now)]
    lost = lost_by_engine(desired, chosen, kept, observed, known)
    again = [step for one in lost if (step := _decide_lost(one, chosen, observed, known, now)) is not None]
    planned = in_turn([*(action for _, action in (*decided, *instead) if action is not None), *again], desired, known)
    beside = [_decide_kept(one, chosen, observed, known, now) for one in chosen.kept]
    planned += _not_planned(beside, planned)
    coming = len(known.in_progress.loads - observed.adapters.keys())
    actions = overlap.within(planned, chosen.limits.capacity, going=len(gone) + coming)
    refused = _of_kind(decided, FailedAdapter)
    declined = decline(desired, chosen, refused, known, now)
    failures = tuple(passed_on(desired, one, declined, known) for one in refused)
    leftover = tuple(still_served(desired, kept, observed, chosen, known))
    served = [*_of_kind(decided, ServedAdapter), *leftover]
    answered = _kept(desired, chosen, observed, known, served, gone)
    return Plan(
        revision=desired.revision,
        stage=tuple(action for action in actions if isinstance(action, Stage)),
        calls=tuple(action for action in actions if not isinstance(action, Stage)),
        served=_of_kind(eager, ServedAdapter),
        pending=(*_of_kind(decided, PendingAdapter), *not_now(desired, chosen)),
        failed=(*failures, *(refusal(desired, one) for one in desired.refused.values()), *troubles(chosen.lazy)),
        wake_at=_wake_at((*failures, *_of_kind([*instead, *beside], FailedAdapter)), now),
        warnings=_warnings(desired, chosen, kept, observed, known, _of_kind(beside, FailedAdapter)),
        omitted=count_omitted(chosen),
        residents=_of_kind(residents, ServedAdapter),
        leaving=leaving,
        still_served=leftover,
        kept=answered,
        beside=_of_kind(beside, ServedAdapter),
        removing=count_removing((*no_more, *too_many), desired, chosen, known),
        among=known.share.among if known.share else NOBODY,
        is_out=known.share is not None and known.share.is_out,
        refusals=_refusals(chosen, eager, known, serves=bool(served or answered)),
        is_awaiting=bool(known.in_progress.keys),
        paused=observed.paused,
        declined=declined,
        chosen=chosen,
    )


def _warnings(
    desired: DesiredState,
    chosen: Selection,
    kept: Iterable[Handoff],
    observed: Observed,
    known: PlanContext,
    lacking: Iterable[FailedAdapter],
) -> tuple[WarnedAdapter, ...]:
    found = chain(warnings(desired, chosen, kept, observed, known), kept_lacking(chosen, lacking))
    return tuple(islice(found, MAX_WARNINGS_LISTED))


def _kept(
    desired: DesiredState,
    chosen: Selection,
    observed: Observed,
    known: PlanContext,
    served: Iterable[ServedAdapter],
    gone: Iterable[Unload],
) -> tuple[KeptAdapter, ...]:
    # What is served of a record that cannot be followed is reported as failed as well.
    as_desired = {name_key(one.name) for one in served}
    told, going = as_desired.difference(desired.refused), {one.name for one in gone}
    kept = still_answered(desired, chosen, observed, known, told=told, gone=going)
    return tuple(replace(one, is_counted=name_key(one.name) in as_desired) for one in kept)


def _refusals(
    chosen: Selection, decided: Iterable[tuple[Condition, Action | None]], known: PlanContext, *, serves: bool
) -> EngineRefusals:
    keys = [one.key for one, (said, _) in zip(chosen.adapters, decided, strict=True) if isinstance(said, FailedAdapter)]
    failures = [known.failures[key] for key in keys if key in known.failures]
    return refusals_among(len(chosen.adapters), failures, serves=serves)


def _wake_at(failures: Iterable[FailedAdapter], now: float) -> float | None:
    """Time of the next retry, or of a failure that becomes final for rollouts."""
    times = [at for one in failures for at in (one.retry_at, one.look_at, one.final_at) if at is not None]
    return min((at for at in times if now < at < math.inf), default=None)


def in_turn(actions: Iterable[Action], desired: DesiredState, known: PlanContext) -> list[Action]:
    """Actions in order; changes and backlog take turns, so that neither waits long.

    Unloads come first. Then come in turn: the newest of what was changed since the engine started, and the most
    important of all, of those as important the one that was used last. What is not eager comes last.
    """
    unloads: list[Action] = []
    eager: list[tuple[DesiredAdapter, Action]] = []
    others: list[Action] = []
    for action in actions:
        adapter = None if isinstance(action, Unload) else desired.adapters.get(key_of(action.name))
        if adapter is not None:
            eager.append((adapter, action))
        else:
            (unloads if isinstance(action, Unload) else others).append(action)
    by_worth = sorted(eager, key=lambda one: (-one[0].priority, -known.used_at.get(one[0].key, -math.inf), one[0].key))
    since = math.inf if known.since is None else known.since
    news = sorted((one for one in by_worth if one[0].revision > since), key=lambda one: -one[0].revision)
    turns = chain.from_iterable(zip_longest(news, by_worth))
    return [*unloads, *dict.fromkeys(one[1] for one in turns if one is not None), *others]


def _nothing(desired: DesiredState, chosen: Selection, observed: Observed, known: PlanContext, blocked: str) -> Plan:
    """Nothing is called, and what the engine answers to all the same is told."""
    served = tuple(_listed(chosen.adapters, chosen, observed, known))
    residents = tuple(_listed(chosen.lazy.residents, chosen, observed, known))
    told = {name_key(one.name) for one in (*served, *residents)}
    return Plan(
        revision=desired.revision,
        stage=(),
        calls=(),
        served=served,
        pending=(),
        failed=(),
        wake_at=None,
        warnings=(WarnedAdapter("", 0, BLOCKED, blocked),),
        blocked=blocked,
        residents=residents,
        kept=tuple(still_answered(desired, chosen, observed, known, told=told, gone=())),
        chosen=chosen,
    )


def _listed(
    adapters: Iterable[DesiredAdapter], chosen: Selection, observed: Observed, known: PlanContext
) -> Iterator[ServedAdapter]:
    """Adapters that the engine has with the files meant, of whichever base."""
    for adapter, path in listed_as(adapters, chosen.limits.names, observed):
        if digest := known.made_of.get((adapter.ref, path)):
            yield ServedAdapter(adapter.name, adapter.generation, digest, adapter.ref.digest is not None)


def _taken(observed: Observed, known: PlanContext) -> Iterator[Unload]:
    """No other weights stay under a name of ours, not even until ours are there."""
    for name in sorted(known.taken & observed.adapters.keys()):
        yield Unload(name, observed.adapters[name], known.request_id)


def _disproven(chosen: Selection, observed: Observed, known: PlanContext) -> Iterator[Unload]:
    """Unloads of bound adapters that a later proof found wrong: an error is better."""
    busy, without = known.in_progress.keys | chosen.lazy.asked, chosen.limits.no_effect
    unexpected = dict(_unexpected(chosen)) if chosen.limits.unexpected else {}
    for name, path in sorted(observed.adapters.items()) if without or unexpected else ():
        is_free = name_key(name) not in busy and name not in known.taken
        is_wrong = path in without or unexpected.get(name) == path
        if is_wrong and path in observed.ours and is_free:
            yield Unload(name, path, known.request_id)


def _unexpected(chosen: Selection) -> Iterator[tuple[str, str]]:
    """Names and paths of what the engine answers otherwise with than its record expects."""
    for adapter in chosen.wanted:
        staged = chosen.staged.get(adapter.ref)
        if staged is not None and deviation_of(adapter, chosen.limits, staged):
            yield engine_name(adapter, chosen.limits.names), staged.path


def _of_kind(decided: Iterable[tuple[Condition | None, Action | None]], kind: type[Kind]) -> tuple[Kind, ...]:
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


def _unchecked(observed: Observed, known: PlanContext) -> str:
    if observed.facts.swap != "unproven" or known.base_known:
        return ""
    return (
        f"{observed.facts.kind} ends at an adapter that does not fit its base model, and there is nothing to compare "
        "adapters with: give --base-model, or loraplane pool update --from"
    )


def _decide(
    adapter: DesiredAdapter, chosen: Selection, observed: Observed, known: PlanContext, now: float
) -> tuple[Condition, Action | None]:
    """Condition of one adapter, and the call for it."""
    staged = chosen.staged.get(adapter.ref)
    name = engine_name(adapter, chosen.limits.names)
    current = observed.adapters.get(name)
    hindered = _hindrance(adapter, name, current, chosen, observed, known)
    if hindered is not None:
        return hindered, None
    if staged is not None and current == staged.path:
        is_pinned = adapter.ref.digest is not None
        return ServedAdapter(adapter.name, adapter.generation, staged.digest, is_pinned), None
    failure = _failure_of(adapter, observed, known)
    if failure is not None and failure.forbids(adapter.ref, observed.facts.incarnation, now):
        return failed(adapter, failure), None
    if staged is None or not staged.is_proven:
        return _stage(adapter, failure, known)
    if _is_unsettled(adapter, known):
        return pending(adapter, "outcome_unknown"), None
    # While it is tried again it stays failed: a status that changed with each try would say nothing new.
    again = failed(adapter, failure) if failure is not None and failure.is_engines else None
    if observed.paused:
        return again or pending(adapter, ENGINE_PAUSED), None
    if current is None:
        load = Load(name, staged.path, adapter.ref, adapter.request_id, chosen.limits.proves)
        return again or pending(adapter, "loading"), load
    swap = Swap(name, current, staged.path, adapter.ref, adapter.request_id, chosen.limits.proves)
    return again or pending(adapter, "swapping"), swap


def _stage(adapter: DesiredAdapter, failure: Failure | None, known: PlanContext) -> tuple[Condition, Stage | None]:
    """Bring its files in; what of them failed before is said until they are there."""
    refused = failure.refused if failure is not None else None
    stage = None if adapter.ref in known.staging else Stage(adapter.name, adapter.ref, adapter.request_id, refused)
    if failure is None or failure.is_engines:
        return pending(adapter, "staging"), stage
    return failed(adapter, failure), stage


def _is_unsettled(adapter: DesiredAdapter, known: PlanContext) -> bool:
    """True while the engine may yet get this or an earlier generation by a load of which nothing is known."""
    return any(one.key in known.unsettled for one in (adapter, *adapter.fallbacks))


def _fall_back(
    adapter: DesiredAdapter,
    said: Condition,
    action: Action | None,
    chosen: Selection,
    observed: Observed,
    known: PlanContext,
    now: float,
) -> Iterator[tuple[Condition, Action | None]]:
    """The same of earlier generations of an adapter that is not served, where the engine has lost them.

    The first that does not fail is the last of them. It is told by what the engine lists then, beside what is said of
    the newest. What was never had of it is fetched only once the newest is known to fail: that is on its way.
    """
    good, busy = chosen.good.get(adapter.key, ()), known.in_progress.keys | chosen.lazy.asked
    names = {engine_name(one, chosen.limits.names) for one in good}
    if isinstance(said, ServedAdapter) or isinstance(action, Load | Swap) or _is_unsettled(adapter, known):
        return
    if not names.isdisjoint(observed.adapters) or not busy.isdisjoint({adapter.key, *map(name_key, names)}):
        return
    is_failing = isinstance(said, FailedAdapter) or _failure_of(adapter, observed, known) is not None
    for one in good:
        # An engine that replaces nothing could not be given the newest after it.
        if is_failing or (one.ref in chosen.staged and observed.facts.swap != "refused"):
            condition, step = _decide(one, chosen, observed, known, now)
            yield condition, _under_its_key(one, step)
            if step is not None or not isinstance(condition, FailedAdapter):
                return


def _decide_kept(
    adapter: DesiredAdapter, chosen: Selection, observed: Observed, known: PlanContext, now: float
) -> tuple[Condition, Action | None]:
    """The same of an earlier generation that is kept; what is there under its name is replaced by nothing."""
    condition, step = _decide(adapter, chosen, observed, known, now)
    step = _under_its_key(adapter, step)
    if isinstance(step, Load):
        return condition, replace(step, beside=True)
    return condition, step if isinstance(step, Stage) else None


def _not_planned(decided: Iterable[tuple[Condition, Action | None]], planned: Iterable[Action]) -> list[Action]:
    """Steps for what no other step is for: a last good generation may be one that is kept, too."""
    names = {one.name for one in planned}
    return [step for _, step in decided if step is not None and step.name not in names]


def _decide_lost(
    adapter: DesiredAdapter, chosen: Selection, observed: Observed, known: PlanContext, now: float
) -> Action | None:
    """Action for an adapter that the engine lost before others serve it."""
    step = _decide(adapter, chosen, observed, known, now)[1]
    return step if adapter.key == name_key(adapter.name) else _under_its_key(adapter, step)


def _under_its_key(good: DesiredAdapter, step: Action | None) -> Action | None:
    """A step for an earlier generation, so that what fails of it hides nothing of the newest."""
    if isinstance(step, Stage):
        return replace(step, name=f"{good.name}{SEPARATOR}{good.generation}")
    return replace(step, key=good.key) if isinstance(step, Load) else step


def _hindrance(
    adapter: DesiredAdapter, name: str, current: str | None, chosen: Selection, observed: Observed, known: PlanContext
) -> Condition | None:
    """Condition of an adapter for which nothing may be done now; None: something may."""
    if current is not None and name in known.taken:
        return pending(adapter, "swapping")  # it is unloaded, and the next plan loads ours
    obstacle = rejection_of(adapter, chosen.limits, observed, chosen.staged.get(adapter.ref))
    if obstacle is not None:
        return obstacle
    if adapter.key in known.in_progress.keys:
        # What is listed may be on its way out, or be put back.
        return pending(adapter, "loading" if current is None else "swapping")
    return None


def _failure_of(adapter: DesiredAdapter, observed: Observed, known: PlanContext) -> Failure | None:
    """Failure of the wanted version, in this process of the engine."""
    failure = known.failures.get(adapter.key)
    is_about = failure is not None and failure.is_about(adapter.ref, observed.facts.incarnation)
    return failure if is_about else None


def _decide_resident(
    adapter: DesiredAdapter, chosen: Selection, observed: Observed, known: PlanContext, now: float
) -> tuple[Condition, Action | None]:
    """The same of a lazy adapter that is loaded. A replica's readiness waits for none of them."""
    condition, action = _decide(adapter, chosen, observed, known, now)
    if not isinstance(condition, ServedAdapter):
        condition = replace(condition, is_settled=True)
    may_call = adapter.key not in chosen.lazy.asked
    return condition, action if may_call or isinstance(action, Stage) else None
