"""Steps of a number of replicas that follows requests. Pure.

The controller of scaling finds the number (`registry.rollout.scaling`), and asks with the etag of the record that it
looked at: whoever wrote the record since then makes it look anew. The number stands in the record, so that whoever
follows the record, or proves that it serves it, goes by one number; it is none of a generation's.

The invariant: a number in a record is within the range that the record's spec has, and each step of it is one revision
with one record in the audit, whose reason is the sentence that `describe` shows. What is asked is compared with the
spec once more here, though the controller found it in the same record: a request may be repeated by hand, with the id
of one that was sent.
"""

from __future__ import annotations

from registry.etcd3.ops import Range
from registry.model.errors import InvalidArgument, Reason
from registry.model.keys import Keys
from registry.model.records import AdapterSpec
from registry.model.status import ScaledReplicas
from registry.transactions.adapters import draft_of
from registry.transactions.builder import Planned, finish
from registry.transactions.changes import ScaleAdapter
from registry.transactions.context import Context, check_etag
from registry.transactions.decode import ReadSet, present_adapter, present_pool
from registry.transactions.rollouts import present_target
from registry.transactions.steps import scaled_step


def scale_reads(change: ScaleAdapter, keys: Keys) -> tuple[Range, ...]:
    """Inputs of the plan of a step."""
    return tuple(map(Range, (keys.pool(change.pool), keys.adapter(change.pool, change.name))))


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
