"""Changes as requests of the admin API: the reverse of `registry.admin.rpc.decode`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from google.protobuf.message import Message

from registry.model.messages import pool_message, spec_message
from registry.model.records import PoolSpec
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    ConfirmRemovals,
    CreatePool,
    DeletePool,
    DrainReplica,
    HaltRollout,
    PromoteRollout,
    Remove,
    RepairTenant,
    RestoreHistory,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
    Upsert,
)
from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True)
class Request:
    """One call: its method, what is sent, and the type of the answer."""

    method: str
    message: Message
    reply: type[Message]


def request_of(change: Change, request_id: str, *, validate_only: bool = False) -> Request:
    """The call that asks for a change."""
    given = {"request_id": request_id, "validate_only": validate_only}
    match change:
        case ApplyAdapters(pool=pool, changes=changes):
            sent = pb.ApplyAdaptersRequest(pool=pool, changes=[_change(one) for one in changes], **given)
            return Request("ApplyAdapters", sent, pb.ApplyAdaptersResponse)
        case RollbackAdapter(pool=pool, name=name, etag=etag):
            back = pb.RollbackAdapterRequest(pool=pool, name=name, etag=_etag(etag), **given)
            return Request("RollbackAdapter", back, pb.ApplyAdaptersResponse)
        case PromoteRollout(pool=pool, name=name, etag=etag):
            on = pb.PromoteRolloutRequest(pool=pool, name=name, etag=_etag(etag), **given)
            return Request("PromoteRollout", on, pb.ApplyAdaptersResponse)
        case AbortRollout(pool=pool, name=name, etag=etag):
            off = pb.AbortRolloutRequest(pool=pool, name=name, etag=_etag(etag), **given)
            return Request("AbortRollout", off, pb.ApplyAdaptersResponse)
        case CreatePool(name=name, base_models=models, limits=limits):
            made = pool_message(PoolSpec(name=name, base_models=list(models), limits=limits), 0)
            return Request("CreatePool", pb.CreatePoolRequest(pool=made, **given), pb.Pool)
        case ConfirmRemovals(name=name, revision=revision):
            sure = pb.ConfirmRemovalsRequest(name=name, revision=revision, **given)
            return Request("ConfirmRemovals", sure, pb.Pool)
        case SetTenant(name=name, max_adapters=most):
            quota = pb.SetTenantRequest(tenant=pb.Tenant(name=name, max_adapters=most), **given)
            return Request("SetTenant", quota, pb.Tenant)
        case RepairTenant(name=name):
            return Request("RepairTenant", pb.RepairTenantRequest(name=name, **given), pb.RepairTenantResponse)
        case DrainReplica(pool=pool, name=name, drain=drain):
            order = pb.DrainReplicaRequest(pool=pool, name=name, undrain=not drain, **given)
            return Request("DrainReplica", order, pb.DrainReplicaResponse)
        case HaltRollout() | UpdatePool() | DeletePool() | RestoreHistory():
            raise NotImplementedError(f"nobody in the simulation asks for {change}")
    assert_never(change)


def _change(one: Upsert | Remove) -> pb.AdapterChange:
    if isinstance(one, Remove):
        return pb.AdapterChange(delete=one.name, etag=_etag(one.etag))
    return pb.AdapterChange(upsert=pb.Adapter(name=one.name, spec=spec_message(one.spec)), etag=_etag(one.etag))


def _etag(etag: int | None) -> str:
    return "" if etag is None else str(etag)
