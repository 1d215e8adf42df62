"""Conditions and warnings that a plan reports of adapters. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from registry.model.names import name_of_key
from sidecar.desired.informer import DesiredAdapter, DesiredState, RefusedRecord
from sidecar.engines.observed import Observed
from sidecar.plan.backoff import Failure
from sidecar.plan.handoff import OVER_CAPACITY, Handoff, Stuck
from sidecar.plan.limits import is_own
from sidecar.plan.names import engine_name, key_of
from sidecar.plan.types import FailedAdapter, LazySelection, PendingAdapter, PlanContext, Selection, WarnedAdapter
from sidecar.vllm_plugin.protocol import expected_key

# A status must stay small; more pending names than this are counted only.
MAX_OVER_CAPACITY_LISTED = 200
# The reason of what a replica may have to serve or not: it does not know yet which replicas live.
REPLICAS_UNKNOWN = "replicas_unknown"
# The reason why an adapter is pending while no call may be made to the engine.
ENGINE_PAUSED = "engine_paused"
# What an engine breaks only where the weights behind a name are replaced.
MENDED_BY_VERSIONS = frozenset({"rust_frontend", "kv_connector"})
# The reason why an adapter is warned of whose files somebody removed or changed.
FILES_TOUCHED = "files_touched"
FILE_NOT_TAKEN = "file_not_taken"
# The reason why an adapter is warned of that keeps generations which are not served.
KEPT_NOT_SERVED = "kept_not_served"
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
        final_at=failure.final_at,
        look_at=failure.look_at,
        is_own=is_own(failure),
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


def troubles(lazy: LazySelection) -> Iterator[FailedAdapter]:
    """Lazy adapters that were asked for and refused; tried again at the next question."""
    residents = {adapter.key for adapter in lazy.residents}
    for adapter, failure in lazy.troubles:
        if adapter.key not in residents:
            yield replace(failed(adapter, failure), is_settled=True)


def not_now(desired: DesiredState, chosen: Selection) -> Iterator[PendingAdapter]:
    """Adapters that wait for room, or until live replicas are known; as listed."""
    for _, key in chosen.over[:MAX_OVER_CAPACITY_LISTED]:
        yield pending(desired.adapters[key], OVER_CAPACITY, is_settled=True)
    for _, key in chosen.undecided[:MAX_OVER_CAPACITY_LISTED]:
        yield pending(desired.adapters[key], REPLICAS_UNKNOWN)


def count_omitted(chosen: Selection) -> int:
    """Number of those that are not listed."""
    return sum(max(0, len(ranks) - MAX_OVER_CAPACITY_LISTED) for ranks in (chosen.over, chosen.undecided))


def kept_lacking(chosen: Selection, lacking: Iterable[FailedAdapter]) -> Iterator[WarnedAdapter]:
    """Warnings about earlier generations that are kept and not served: they fail, or have no room."""
    for one in lacking:
        yield WarnedAdapter(one.name, one.generation, KEPT_NOT_SERVED, f"{one.reason}: {one.message}")
    is_versioned = chosen.limits.names == "versioned"
    crowded = Counter(one.name for adapter in chosen.adapters if is_versioned for one in adapter.beside)
    for name, count in (crowded - Counter(one.name for one in chosen.kept)).items():
        message = (
            f"there is no room for the oldest {count} of the generations that it keeps: give the pool max_adapters and "
            "the engine --max-cpu-loras of more, or keep fewer"
        )
        yield WarnedAdapter(name, 0, KEPT_NOT_SERVED, message)


def _of_artifacts(chosen: Selection, observed: Observed) -> Iterator[WarnedAdapter]:
    """Warnings that staging found, without those that the engine itself gives."""
    is_told = observed.facts.evidence is not None
    for adapter in chosen.wanted:
        staged = chosen.staged.get(adapter.ref)
        for warning in staged.warnings if staged else ():
            if not is_told or warning.reason != "engine_coverage_unknown":
                yield WarnedAdapter(adapter.name, adapter.generation, warning.reason, warning.message)
    for adapter in chosen.kept:
        staged = chosen.staged.get(adapter.ref)
        for warning in staged.warnings if staged else ():
            if warning.reason == "source_gone":  # all else was told when it was the newest
                yield WarnedAdapter(adapter.name, adapter.generation, warning.reason, warning.message)


def _of_expectations(chosen: Selection, observed: Observed) -> Iterator[WarnedAdapter]:
    """Adapters that are served without proof that they answer as their records expect."""
    for adapter in chosen.wanted:
        expect, staged = adapter.ref.expect, chosen.staged.get(adapter.ref)
        if not expect or staged is None:
            continue
        is_served = observed.adapters.get(engine_name(adapter, chosen.limits.names)) == staged.path
        if is_served and expected_key(staged.path, expect) not in observed.as_expected:
            message = f"spec.expect is not proven here: {_why_unproven(chosen, observed)}"
            yield WarnedAdapter(adapter.name, adapter.generation, "expect_unproven", message)


def _why_unproven(chosen: Selection, observed: Observed) -> str:
    if observed.facts.proves and not chosen.limits.proves:
        return "the pool has --prove off"
    if not chosen.limits.expects:
        return "only vLLM with the plugin of this release can be asked, and on CPUs with LORAPLANE_PROVE_ON_CPU=1"
    return (
        "the engine has no room for it yet, cannot answer the prompts, or has had these files since before they were "
        "to answer so: it is asked when it has room, and when it gets them anew"
    )


def _of_files(desired: DesiredState, observed: Observed, known: PlanContext) -> Iterator[WarnedAdapter]:
    """Adapters that are served whose files the engine could not read again."""
    for name, path in observed.adapters.items() if known.touched else ():
        if path in known.touched:
            adapter = desired.of(key_of(name))
            message = (
                f"{path} {known.touched[path]}, and not by us; it is fetched again. Until then the engine answers from "
                "memory, and vLLM ends if it has to read it: leave the store to the sidecars"
            )
            yield WarnedAdapter(
                adapter.name if adapter else name, adapter.generation if adapter else 0, FILES_TOUCHED, message
            )


def _of_host(known: PlanContext) -> Iterator[WarnedAdapter]:
    if known.pool_refusal:
        yield WarnedAdapter("", 0, "pool_refused", f"{known.pool_refusal}; what it said before goes on")
    for why in known.not_taken.values():
        yield WarnedAdapter("", 0, FILE_NOT_TAKEN, f"{why}; what that file said before goes on")
    if known.proxied:
        yield WarnedAdapter("", 0, "etcd_proxy", known.proxied)


def _of_engine(observed: Observed, *, is_versioned: bool) -> Iterator[WarnedAdapter]:
    if observed.paused:
        yield WarnedAdapter("", 0, ENGINE_PAUSED, observed.paused)
    if observed.facts.swap == "plugin" and not observed.facts.proves_answers:
        message = "the engine's plugin is of an earlier release: answers do not say which version made them"
        yield WarnedAdapter("", 0, "answers_unproven", message)
    for hazard in observed.facts.hazards:
        if not is_versioned or hazard.reason not in MENDED_BY_VERSIONS:
            yield WarnedAdapter("", 0, hazard.reason, hazard.message)


def warnings(
    desired: DesiredState, chosen: Selection, kept: Iterable[Handoff], observed: Observed, known: PlanContext
) -> Iterator[WarnedAdapter]:
    """Warnings about adapters that are served all the same."""
    if not known.base_known:
        message = "adapters' names and shapes are not compared with the base: give --base-model, or pool update --from"
        yield WarnedAdapter("", 0, "base_unknown", message)
    elif not observed.facts.base.is_known:
        message = (
            "nobody knows whether the engine has the base model that adapters are checked against: run it with the "
            "plugin, or give the sidecar --base-model"
        )
        yield WarnedAdapter("", 0, "base_unproven", message)
    if observed.facts.swap == "unproven":
        yield WarnedAdapter("", 0, "adapter_unproven", f"{observed.facts.kind} {UNPROVEN}")
    yield from _of_host(known)
    yield from _of_engine(observed, is_versioned=chosen.limits.names == "versioned")
    if chosen.limits.names == "versioned" and chosen.limits.capacity == 1 and chosen.over:
        message = (
            "there is room for 1 adapter, and a generation with a name of its own is loaded before the one that it "
            "replaces: give the pool max_adapters and the engine --max-cpu-loras of 2 or more, or plain names"
        )
        yield WarnedAdapter("", 0, OVER_CAPACITY, message)
    yield from _of_files(desired, observed, known)
    yield from _of_artifacts(chosen, observed)
    yield from _of_expectations(chosen, observed)
    for one in kept:
        verdict = known.handed.get(one)
        if isinstance(verdict, Stuck):
            message = f"it is to be served elsewhere, and kept here until it is: {verdict.message}"
            adapter = desired.adapters[one.key]
            yield WarnedAdapter(adapter.name, adapter.generation, "not_handed_over", message)
