"""What a plan says of adapters that are not served as desired, and of those that somebody should look at. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from registry.model.names import name_of_key
from sidecar.chosen import Chosen
from sidecar.desired import DesiredAdapter, DesiredState, RefusedRecord
from sidecar.failures import Failure
from sidecar.known import Known
from sidecar.lazy.wanted import Wanted
from sidecar.leaving import OVER_CAPACITY, Leaving, Stuck
from sidecar.observed import Observed
from sidecar.plan import FailedAdapter, PendingAdapter, WarnedAdapter

# A status must stay small; more pending names than this are counted only.
MAX_OVER_CAPACITY_LISTED = 200
UNPROVEN = (
    "lists nothing, and answers every request with the adapter that it was told of last, or without one as the base "
    "model: served is what it was told at the last look; nobody else may set adapters"
)


def pending(adapter: DesiredAdapter, reason: str, *, is_settled: bool = False) -> PendingAdapter:
    """It is not served yet."""
    return PendingAdapter(adapter.name, adapter.generation, reason, adapter.request_id, is_settled)


def failed(adapter: DesiredAdapter, failure: Failure) -> FailedAdapter:
    """It could not be served, for a reason that is remembered."""
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


def refusal(desired: DesiredState, refused: RefusedRecord) -> FailedAdapter:
    """Its record cannot be followed."""
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


def troubles(lazy: Wanted) -> Iterator[FailedAdapter]:
    """What was asked for and refused. Nothing is tried again before the next question."""
    residents = {adapter.key for adapter in lazy.residents}
    for adapter, failure in lazy.troubles:
        if adapter.key not in residents:
            yield replace(failed(adapter, failure), is_settled=True)


def not_now(desired: DesiredState, chosen: Chosen) -> Iterator[PendingAdapter]:
    """What waits for room, and what waits until the live replicas are known; of each as many as are listed."""
    for _, key in chosen.over[:MAX_OVER_CAPACITY_LISTED]:
        yield pending(desired.adapters[key], OVER_CAPACITY, is_settled=True)
    for _, key in chosen.undecided[:MAX_OVER_CAPACITY_LISTED]:
        yield pending(desired.adapters[key], "replicas_unknown")


def count_omitted(chosen: Chosen) -> int:
    """How many of those are not listed."""
    return sum(max(0, len(ranks) - MAX_OVER_CAPACITY_LISTED) for ranks in (chosen.over, chosen.undecided))


def warnings(
    desired: DesiredState,
    served: Iterable[DesiredAdapter],
    kept: Iterable[Leaving],
    observed: Observed,
    known: Known,
) -> Iterator[WarnedAdapter]:
    """What somebody should know of what is served all the same."""
    if not known.base_known:
        message = "adapters' names and shapes are not compared with the base: give --base-model, or pool update --from"
        yield WarnedAdapter("", 0, "base_unknown", message)
    if observed.facts.swap == "unproven":
        yield WarnedAdapter("", 0, "adapter_unproven", f"{observed.facts.kind} {UNPROVEN}")
    for adapter in served:
        staged = known.staged.get(adapter.ref)
        for warning in staged.warnings if staged else ():
            yield WarnedAdapter(adapter.name, adapter.generation, warning.reason, warning.message)
    for one in kept:
        verdict = known.handed.get(one)
        if isinstance(verdict, Stuck):
            message = f"it is to be served elsewhere, and kept here until it is: {verdict.message}"
            adapter = desired.adapters[one.key]
            yield WarnedAdapter(adapter.name, adapter.generation, "not_handed_over", message)
