"""The one way in: what a change must read, and its transaction."""

from __future__ import annotations

from typing import assert_never

from registry.etcd3.ops import Range
from registry.transactions import adapters, alone, canaries, pools, removals, rollouts, settlement, tenants
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    ConfirmRemovals,
    CreatePool,
    DeletePool,
    HaltRollout,
    PromoteRollout,
    RollbackAdapter,
    SetTenant,
    SettleRemoval,
    UpdatePool,
)
from registry.transactions.context import Context
from registry.transactions.draft import Planned
from registry.transactions.view import View


def reads_of(change: Change, context: Context) -> tuple[Range, ...]:
    """Everything that the change is planned from.

    Raises:
        InvalidArgument: it is larger than any transaction may be.
    """
    keys, request_id = context.keys, context.caller.request_id
    match change:
        case ApplyAdapters():
            adapters.check_count(change, context)
            return adapters.apply_reads(change, keys, request_id)
        case RollbackAdapter():
            return adapters.rollback_reads(change, keys, request_id)
        case PromoteRollout() | AbortRollout() | HaltRollout():
            return rollouts.rollout_reads(change, keys, request_id)
        case CreatePool() | UpdatePool() | DeletePool():
            return pools.pool_reads(change, keys, request_id)
        case ConfirmRemovals():
            return removals.confirm_reads(change, keys, request_id)
        case SetTenant():
            return tenants.tenant_reads(change, keys, request_id)
        case SettleRemoval():
            return settlement.settle_reads(change, keys, request_id)
    assert_never(change)


def reads_beside(change: Change, view: View, context: Context) -> tuple[Range, ...]:
    """What the change is planned from too, which only a true view of all of `reads_of` tells."""
    match change:
        case ApplyAdapters():
            return alone.neighbours_read(change.pool, len(change.changes), view, context.keys)
        case RollbackAdapter():
            return alone.neighbours_read(change.pool, 1, view, context.keys)
        case _:
            return ()


def may_be_guessed(change: Change) -> bool:
    """False if the plan rests on something that its compares do not verify, so that it has to be read first."""
    return not (isinstance(change, ApplyAdapters) and canaries.looks_at_replicas(change))


def plan_change(change: Change, view: View, context: Context) -> Planned:
    """The transaction that carries the change out, or that nothing needs to be done.

    Raises:
        RegistryError: it is refused; nothing has been changed.
    """
    match change:
        case ApplyAdapters():
            return adapters.plan_apply(change, view, context)
        case RollbackAdapter():
            return adapters.plan_rollback(change, view, context)
        case PromoteRollout() | AbortRollout() | HaltRollout():
            return rollouts.plan_rollout(change, view, context)
        case CreatePool() | UpdatePool() | DeletePool():
            return pools.plan_pool(change, view, context)
        case ConfirmRemovals():
            return removals.plan_confirm_removals(change, view, context)
        case SetTenant():
            return tenants.plan_set_tenant(change, view, context)
        case SettleRemoval():
            return settlement.plan_settle(change, view, context)
    assert_never(change)
