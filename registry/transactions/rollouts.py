"""Rollouts, numbers of replicas and ends of adapters that are there. Pure.

Most of what is asked here comes from the controllers of `registry.rollout`: with the etag of the record that they
looked at, so that whatever was written since then counts. Rollouts that canaries began are promoted to all replicas,
taken back, or halted. An adapter whose time to live is over is deleted.

A number that follows requests stands in the record, so that whoever follows the record, or proves that it serves it,
goes by one number; it is none of a generation's. The invariant: it is within the range that the record's spec has, and
each step of it is one revision with one record in the audit, whose reason is the sentence that `describe` shows. What
is asked is compared with the spec once more here, though the controller found it in the same record: a request may be
repeated by hand, with the id of one that was sent.
"""

from __future__ import annotations

from typing import assert_never

from registry.etcd3.ops import Range
from registry.model.errors import Conflict, FailedPrecondition, InvalidArgument, Reason
from registry.model.keys import Keys
from registry.model.records import LIFE, AdapterRecord, AdapterSpec, CanaryRollout, PoolSpec
from registry.model.status import ScaledReplicas
from registry.transactions.adapters import draft_of
from registry.transactions.builder import Planned, finish
from registry.transactions.canaries import has_places
from registry.transactions.changes import (
    AbortRollout,
    ExpireAdapter,
    HaltRollout,
    PromoteRollout,
    RolloutChange,
    ScaleAdapter,
    tenants_of,
)
from registry.transactions.context import Context, StepTarget, check_etag
from registry.transactions.decode import Present, ReadSet, present_adapter, present_pool
from registry.transactions.steps import AdapterStep, put_step, remove_step, rollout_step, scaled_step
from registry.transactions.tenants import count_all


def rollout_reads(change: RolloutChange | ScaleAdapter, keys: Keys) -> tuple[Range, ...]:
    """Inputs of the plan of a rollout's change, or of another number of replicas."""
    return tuple(map(Range, (keys.pool(change.pool), keys.adapter(change.pool, change.name))))


def plan_rollout(change: RolloutChange, view: ReadSet, context: Context) -> Planned:
    """The transaction of a change of a rollout.

    Raises:
        NotFound: there is no such pool, or no such adapter.
        Conflict: the etag is stale, or the generation is not the present one.
        FailedPrecondition: all replicas are to serve the generation already; or the record cannot be read.
    """
    pool = present_pool(view, context.keys, change.pool)
    present = present_adapter(view, context.keys, change.pool, change.name)
    check_etag(change.etag, present, field="etag")
    _check_generation(change, present.record)
    target = present_target(pool.record, present, change.etag, view)
    step = _step(change, _running(present.record), target, present, context)
    return finish(draft_of(type(change).__name__, pool, [step], {}, context), view, context)


def _check_generation(change: RolloutChange, record: AdapterRecord) -> None:
    if change.generation not in {0, record.generation}:
        raise Conflict(
            Reason.GENERATION_MISMATCH,
            f"generation {record.generation} of {record.name!r} is the present one, not {change.generation}; look at "
            "it and decide anew",
            field="generation",
            metadata={"generation": str(record.generation)},
        )


def _running(record: AdapterRecord) -> CanaryRollout:
    if record.rollout is None:
        raise FailedPrecondition(
            Reason.NO_ROLLOUT,
            f"generation {record.generation} of {record.name!r} is for all its replicas already; there is no rollout",
            field="name",
        )
    return record.rollout


# Of a spec that only canaries serve: what all follow at once, so that nobody takes it back with the weights. A
# placement goes with `load: eager` alone.
_FOR_ALL = ("enabled", "load", "placement", "priority")


def _taken_back(running: CanaryRollout, spec: AdapterSpec) -> AdapterSpec:
    """The spec after the end of a rollout, which leaves how long it lives, so that it has none of that.

    Canaries for which the placement has no places any more stay, too.
    """
    kept = {name: getattr(spec, name) for name in _FOR_ALL}
    back = running.stable_spec.model_copy(update=kept | dict.fromkeys(LIFE))
    return back if has_places(back) else back.model_copy(update={"strategy": spec.strategy})


def _step(
    change: RolloutChange, running: CanaryRollout, target: StepTarget, present: Present[AdapterRecord], context: Context
) -> AdapterStep:
    match change:
        case PromoteRollout():
            return rollout_step(target, present, None, context)
        case AbortRollout():
            return put_step(target, _taken_back(running, present.record.spec), context, goes_on=False)
        case HaltRollout(why=why):
            return rollout_step(target, present, running.model_copy(update={"halted": why}), context)
    assert_never(change)


def present_target(pool: PoolSpec, present: Present[AdapterRecord], etag: int | None, view: ReadSet) -> StepTarget:
    """An adapter that is there, as target of a change that names nothing but it."""
    return StepTarget(
        pool=pool,
        name=present.record.name,
        etag=etag,
        state=present,
        read_revision=view.revision,
        name_field="name",
        etag_field="etag",
        spec_field="spec",
    )


def plan_scale(change: ScaleAdapter, view: ReadSet, context: Context) -> Planned:
    """The transaction that writes down another number of replicas.

    Raises:
        NotFound: there is no such pool, or no such adapter.
        Conflict: its record was written since.
        InvalidArgument: its placement has no such number.
        FailedPrecondition: a record cannot be read.
    """
    pool = present_pool(view, context.keys, change.pool)
    present = present_adapter(view, context.keys, change.pool, change.name)
    check_etag(change.etag, present, field="etag")
    if not _is_within(present.record.spec, change.replicas):
        message = f"the placement of {present.record.name!r} is by no load that makes it {change.replicas} replicas"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="replicas")
    target = present_target(pool.record, present, change.etag, view)
    scaled = ScaledReplicas(replicas=change.replicas, reason=change.why, at=context.at)
    step = scaled_step(target, present, scaled, context)
    return finish(draft_of("ScaleAdapter", pool, [step], {}, context, reason=change.why), view, context)


def _is_within(spec: AdapterSpec, replicas: int) -> bool:
    """True if the spec has a range of numbers, and this is one of them.

    What no release writes, a range above "all", has none.
    """
    least, by_load = spec.placement.replicas, spec.placement.by_load
    return by_load is not None and least != "all" and least <= replicas <= by_load.max


# In the audit, of what was deleted since its time was over.
TTL_REASON = "ttl"


def expiry_reads(change: ExpireAdapter, keys: Keys) -> tuple[Range, ...]:
    """Inputs of the plan of an expiry."""
    tenants = [keys.tenant(one) for one in tenants_of(change)]
    return tuple(map(Range, (keys.pool(change.pool), *tenants, keys.adapter(change.pool, change.name))))


def plan_expiry(change: ExpireAdapter, view: ReadSet, context: Context) -> Planned:
    """The transaction that deletes an adapter whose time is over.

    Raises:
        NotFound: there is no such pool, or no such adapter.
        Conflict: its record was written since, or has no time to live.
        FailedPrecondition: a record cannot be read.
    """
    pool = present_pool(view, context.keys, change.pool)
    present = present_adapter(view, context.keys, change.pool, change.name)
    if present.record.spec.ttl_seconds is None:
        raise Conflict(Reason.ETAG_MISMATCH, f"{present.record.name!r} has no ttl, so it does not end", field="name")
    target = present_target(pool.record, present, change.etag, view)
    step = remove_step(target, context)
    counts = count_all([step], view, context)
    return finish(draft_of("ExpireAdapter", pool, [step], counts, context, reason=TTL_REASON), view, context)
