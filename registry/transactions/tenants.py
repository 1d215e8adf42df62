"""Tenants: counters that follow each change, and quotas that no revision exceeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from registry.etcd3.ops import Compare, Put, Range, mod_is
from registry.model.audit import AuditChange
from registry.model.errors import FailedPrecondition, Reason, ResourceExhausted
from registry.model.keys import Keys
from registry.model.records import ChangeReply, TenantRecord
from registry.transactions.builder import TENANT_SCOPE, Planned, TxnBuilder, finish, put_record
from registry.transactions.changes import SetTenant
from registry.transactions.context import Context, check_etag
from registry.transactions.decode import Absent, Present, ReadSet, shown, snapshot_of, stored_tenant
from registry.transactions.steps import AdapterStep


@dataclass(frozen=True, slots=True)
class Count:
    """The change of one tenant's counter."""

    compare: Compare
    put: Put


def count_all(steps: Iterable[AdapterStep], view: ReadSet, context: Context) -> dict[str, Count]:
    """The counters that the steps change, by tenant.

    Raises:
        ResourceExhausted: a tenant would have more than its quota.
        FailedPrecondition: a tenant's record cannot be read.
    """
    added: Counter[str] = Counter()
    for step in steps:
        added[step.tenant] += step.count
    return {tenant: _count(tenant, count, view, context) for tenant, count in added.items() if count}


def _count(tenant: str, added: int, view: ReadSet, context: Context) -> Count:
    state = stored_tenant(view, context.keys, tenant)
    record = tenant_record(state, tenant)
    # What was written past us was never counted, so deleting it may not drive the counter below zero.
    used = max(0, record.adapters + added)
    if added > 0 and record.max_adapters is not None and used > record.max_adapters:
        raise _over_quota(record, added)
    key = context.keys.tenant(tenant)
    return Count(mod_is(key, state.revision), Put(key, record.model_copy(update={"adapters": used}).to_bytes()))


def tenant_record(state: Present[TenantRecord] | Absent, tenant: str) -> TenantRecord:
    """The record of a tenant, which has none before something is said of it."""
    return state.record if isinstance(state, Present) else TenantRecord(name=tenant)


def _over_quota(record: TenantRecord, added: int) -> ResourceExhausted:
    return ResourceExhausted(
        Reason.QUOTA_EXCEEDED,
        f"tenant {record.name!r} may have {record.max_adapters} adapters and has {record.adapters}, so {added} more do "
        "not fit; delete some, or have its quota raised",
        metadata={
            "tenant": record.name,
            "max_adapters": str(record.max_adapters),
            "adapters": str(record.adapters),
            "added": str(added),
        },
    )


def tenant_reads(change: SetTenant, keys: Keys) -> tuple[Range, ...]:
    """Inputs of the plan of a quota's setting."""
    return (Range(keys.tenant(change.name)),)


def plan_set_tenant(change: SetTenant, view: ReadSet, context: Context) -> Planned:
    """The transaction that sets a quota.

    Raises:
        FailedPrecondition: the quota is below what the tenant has, or its record cannot be read.
        Conflict: the etag is stale.
    """
    state = stored_tenant(view, context.keys, change.name)
    check_etag(change.etag, state, field="tenant.etag")
    record = tenant_record(state, change.name)
    if change.max_adapters is not None and change.max_adapters < record.adapters:
        raise _below_use(record)
    wanted = record.model_copy(update={"max_adapters": change.max_adapters})
    draft = _tenant_draft(state, wanted, context)
    return finish(draft, view, context)


def _tenant_draft(state: Present[TenantRecord] | Absent, wanted: TenantRecord, context: Context) -> TxnBuilder:
    key = context.keys.tenant(wanted.name)
    same = isinstance(state, Present) and state.record == wanted
    change = AuditChange(kind="tenant", name=wanted.name, before=snapshot_of(state), after=shown(wanted))
    return TxnBuilder(
        scope=TENANT_SCOPE,
        method="SetTenant",
        compare=(mod_is(key, state.revision),),
        success=() if same else (put_record(key, wanted.to_bytes(), field="tenant"),),
        audit=(change,),
        reply=ChangeReply(tenant=wanted, etag=state.revision if same else None),
    )


def _below_use(record: TenantRecord) -> FailedPrecondition:
    return FailedPrecondition(
        Reason.QUOTA_BELOW_USE,
        f"tenant {record.name!r} has {record.adapters} adapters; delete some first, or allow as many",
        field="tenant.max_adapters",
        metadata={"adapters": str(record.adapters)},
    )
