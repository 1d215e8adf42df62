"""Deletes adapters whose time to live is over. Pure.

The controller of expiry finds out that it is (`registry.rollout.expiry`), and asks with the etag of the record that it
looked at: whatever was written since then keeps the adapter.
"""

from __future__ import annotations

from registry.etcd3.ops import Range
from registry.model.errors import Conflict, Reason
from registry.model.keys import Keys
from registry.transactions.adapters import draft_of
from registry.transactions.builder import Planned, finish
from registry.transactions.changes import ExpireAdapter, tenants_of
from registry.transactions.context import Context
from registry.transactions.decode import ReadSet, present_adapter, present_pool
from registry.transactions.rollouts import present_target
from registry.transactions.steps import remove_step
from registry.transactions.tenants import count_all

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
