"""Plans and commits changes on a `MemoryEtcd`, as the store does on a real one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from registry.access.decision import Grant
from registry.access.principal import Principal, operator
from registry.etcd3.ops import Range, Txn
from registry.model.keys import Keys
from registry.model.records import AdapterRecord, AdapterSpec, PoolLimits, SourceSpec
from registry.transactions.builder import Planned, Settled, Unchanged, replay
from registry.transactions.changes import (
    ApplyAdapters,
    Change,
    CreatePool,
    Remove,
    Upsert,
    payload_digest,
)
from registry.transactions.context import Caller, Context, LeaseIds, TxnLimits
from registry.transactions.decode import ReadSet, read_set_of
from registry.transactions.plan import plan_change, reads_beside, reads_of
from registry.transactions.repair import AuditTrail, is_of_tenant
from tests.support.memory_etcd import MemoryEtcd

KEYS = Keys("/t")
POOL = "p"
ALICE = "operator:alice"  # where request ids of a `Author` stand


def spec(source: str = "v1", **values: Any) -> AdapterSpec:
    """A spec whose artifact is named by `source`."""
    return AdapterSpec(source=SourceSpec(uri=f"file:///a/{source}"), **values)


def upsert(name: str, source: str = "v1", etag: int | None = None, **values: Any) -> Upsert:
    """An upsert."""
    return Upsert(name, spec(source, **values), etag)


def applying(*changes: Upsert | Remove, pool: str = POOL) -> ApplyAdapters:
    """A change set."""
    return ApplyAdapters(pool, changes)


def creating(name: str = POOL, *base_models: str) -> CreatePool:
    """A new pool."""
    return CreatePool(name, base_models or ("base",), PoolLimits())


def lost_records(etcd: MemoryEtcd, tenant: str) -> tuple[AdapterRecord, ...]:
    """Records of a tenant that were deleted past the admin service, as the store finds them."""
    trail = AuditTrail(tenant)
    for key, kv in etcd.kvs.items():
        if key.startswith(KEYS.audits()):
            trail.take(kv)
    adapters = [key for key in etcd.kvs if key.startswith(KEYS.all_adapters())]
    return trail.lost({key for key in adapters if is_of_tenant(key, tenant, KEYS)}, KEYS)


@dataclass
class Author:
    """Somebody who makes changes. `context` can be made for each change; ids are counted."""

    etcd: MemoryEtcd = field(default_factory=MemoryEtcd)
    limits: TxnLimits = field(default_factory=TxnLimits)
    made: int = 0
    principal: Principal = operator("alice")  # noqa: RUF009 - it is frozen
    grant: Grant | None = None

    def copy(self) -> Author:
        """Another one, with a store of its own that holds the same."""
        etcd = MemoryEtcd(dict(self.etcd.kvs), self.etcd.revision, list(self.etcd.history))
        return replace(self, etcd=etcd)

    def context(self, change: Change, request_id: str = "") -> Context:
        self.made += 1
        caller = Caller(self.principal, request_id or f"auto-{self.made}", bool(request_id), grant=self.grant)
        return Context(
            keys=KEYS,
            limits=self.limits,
            caller=caller,
            leases=LeaseIds(request=1, audit=2),
            at=f"2026-01-01T00:00:{self.made:02}Z",
            audit_id=f"a{self.made:06}",
            payload_digest=payload_digest(change),
        )

    def view(self, change: Change, context: Context) -> ReadSet:
        """Everything that the change is planned from, read now."""
        return self._whole(change, self._read(reads_of(change, context)), context)

    def _whole(self, change: Change, view: ReadSet, context: Context) -> ReadSet:
        beside = set(reads_beside(change, view, context)) - set(view.reads)
        return self._read((*view.reads, *beside)) if beside else view

    def _read(self, reads: tuple[Range, ...]) -> ReadSet:
        result = self.etcd.txn(Txn((), reads))
        return read_set_of(reads, result.revision, result.responses)

    def plan(self, change: Change, request_id: str = "") -> Planned:
        """The plan from what stands in the store now."""
        context = self.context(change, request_id)
        return plan_change(change, self.view(change, context), context)

    def change(self, change: Change, request_id: str = "") -> Settled:
        """Carries a change out, as the store's loop does."""
        context = self.context(change, request_id)
        return self.settle(change, context, self.view(change, context))

    def settle(self, change: Change, context: Context, view: ReadSet) -> Settled:
        """The loop from a view on, which may be old."""
        for _ in range(100):
            known = replay(view, context)
            if known is not None:
                return known
            view = self._whole(change, view, context)
            planned = plan_change(change, view, context)
            if isinstance(planned, Unchanged):
                return Settled(planned.reply, view.revision)
            result = self.etcd.txn(planned.txn)
            if result.succeeded:
                return Settled(planned.reply, result.revision)
            view = read_set_of(view.reads, result.revision, result.responses)
        raise AssertionError(f"it is never settled: {change}")
