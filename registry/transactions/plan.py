"""The one way in: what a change must read, and its transaction."""

from __future__ import annotations

from typing import assert_never

from registry.etcd3.ops import Range
from registry.transactions import adapters, canaries, pools, repair, rollouts, tenants
from registry.transactions.builder import Planned, request_reads
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    ConfirmRemovals,
    CreatePool,
    DeletePool,
    DrainReplica,
    ExpireAdapter,
    HaltRollout,
    PromoteRollout,
    RepairTenant,
    RestoreHistory,
    RollbackAdapter,
    ScaleAdapter,
    SetTenant,
    UpdatePool,
)
from registry.transactions.context import Context
from registry.transactions.decode import ReadSet


def reads_of(change: Change, context: Context) -> tuple[Range, ...]:
    """Everything that the change is planned from.

    Raises:
        InvalidArgument: it is larger than any transaction may be.
    """
    return (*request_reads(context), *_own_reads(change, context))


def _own_reads(change: Change, context: Context) -> tuple[Range, ...]:
    keys = context.keys
    match change:
        case ApplyAdapters():
            adapters.check_count(change, context)
            return adapters.apply_reads(change, keys)
        case RollbackAdapter():
            return adapters.rollback_reads(change, keys)
        case PromoteRollout() | AbortRollout() | HaltRollout() | ScaleAdapter():
            return rollouts.rollout_reads(change, keys)
        case ExpireAdapter():
            return rollouts.expiry_reads(change, keys)
        case CreatePool() | UpdatePool() | DeletePool() | ConfirmRemovals() | DrainReplica():
            return pools.pool_reads(change, keys)
        case SetTenant() | RepairTenant() | RestoreHistory():
            return _kept_reads(change, context)
    assert_never(change)


def _kept_reads(change: SetTenant | RepairTenant | RestoreHistory, context: Context) -> tuple[Range, ...]:
    """Of tenants and of histories."""
    match change:
        case SetTenant():
            return tenants.tenant_reads(change, context.keys)
        case RepairTenant():
            return repair.repair_reads(change, context)
        case RestoreHistory():
            return repair.restore_reads(change, context.keys)
    assert_never(change)


def reads_beside(change: Change, view: ReadSet, context: Context) -> tuple[Range, ...]:
    """Further inputs of the plan, which only a true view of all of `reads_of` tells."""
    match change:
        case ApplyAdapters():
            return adapters.beside_apply(change, view, context.keys)
        case RollbackAdapter():
            return adapters.neighbours_read(change.pool, 1, view, context.keys)
        case _:
            return ()


def may_be_guessed(change: Change) -> bool:
    """False if the plan rests on something that its compares do not verify, so that it has to be read first."""
    if isinstance(change, RepairTenant | RestoreHistory):
        return False
    if not isinstance(change, ApplyAdapters):
        return True
    return not (canaries.looks_at_replicas(change) or canaries.may_keep_strategy(change))


def plan_change(change: Change, view: ReadSet, context: Context) -> Planned:
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
        case ExpireAdapter():
            return rollouts.plan_expiry(change, view, context)
        case ScaleAdapter():
            return rollouts.plan_scale(change, view, context)
        case CreatePool() | UpdatePool() | DeletePool() | ConfirmRemovals() | DrainReplica():
            return pools.plan_pool(change, view, context)
        case SetTenant() | RepairTenant() | RestoreHistory():
            return _plan_kept(change, view, context)
    assert_never(change)


def _plan_kept(change: SetTenant | RepairTenant | RestoreHistory, view: ReadSet, context: Context) -> Planned:
    """Of tenants and of histories."""
    match change:
        case SetTenant():
            return tenants.plan_set_tenant(change, view, context)
        case RepairTenant():
            return repair.plan_repair(change, view, context)
        case RestoreHistory():
            return repair.plan_restore(change, view, context)
    assert_never(change)
