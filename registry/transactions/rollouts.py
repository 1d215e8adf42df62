"""Rollouts that canaries began: promoted to all replicas, taken back, or halted."""

from __future__ import annotations

from typing import assert_never

from registry.etcd3.ops import Range
from registry.model.errors import Conflict, FailedPrecondition, Reason
from registry.model.keys import Keys
from registry.model.records import AdapterRecord, CanaryRollout, PoolSpec
from registry.transactions.adapters import draft_of
from registry.transactions.builder import Planned, finish
from registry.transactions.changes import AbortRollout, HaltRollout, PromoteRollout, RolloutChange
from registry.transactions.context import Context, StepTarget, check_etag
from registry.transactions.decode import Present, ReadSet, present_adapter, present_pool
from registry.transactions.steps import AdapterStep, put_step, rollout_step


def rollout_reads(change: RolloutChange, keys: Keys) -> tuple[Range, ...]:
    """Inputs of the plan of a rollout's change."""
    records = (keys.pool(change.pool), keys.adapter(change.pool, change.name))
    return tuple(map(Range, records))


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


def _step(
    change: RolloutChange, running: CanaryRollout, target: StepTarget, present: Present[AdapterRecord], context: Context
) -> AdapterStep:
    match change:
        case PromoteRollout():
            return rollout_step(target, present, None, context)
        case AbortRollout():
            return put_step(target, running.stable_spec, context, goes_on=False)
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
