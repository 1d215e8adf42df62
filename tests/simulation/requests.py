"""Changes as requests of the admin API: the reverse of `registry.admin.rpc.decode`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from registry.model.messages import pool_message, spec_message
from registry.model.records import PoolSpec
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    ConfirmRemovals,
    CreatePool,
    DrainReplica,
    PromoteRollout,
    Remove,
    RepairTenant,
    RollbackAdapter,
    SetTenant,
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
    method, message, reply = _of_adapters(change) or _of_others(change)
    message.request_id, message.validate_only = request_id, validate_only
    return Request(method, message, reply)


# The message has a request id, and can be a dry run.
_Parts = tuple[str, Any, type[Message]]


def _of_adapters(change: Change) -> _Parts | None:
    applied = pb.ApplyAdaptersResponse
    match change:
        case ApplyAdapters(pool=pool, changes=changes):
            return (
                "ApplyAdapters",
                pb.ApplyAdaptersRequest(pool=pool, changes=[_change(one) for one in changes]),
                applied,
            )
        case RollbackAdapter(pool=pool, name=name):
            return "RollbackAdapter", pb.RollbackAdapterRequest(pool=pool, name=name), applied
        case PromoteRollout(pool=pool, name=name, etag=etag):
            return "PromoteRollout", pb.PromoteRolloutRequest(pool=pool, name=name, etag=_etag(etag)), applied
        case AbortRollout(pool=pool, name=name, etag=etag):
            return "AbortRollout", pb.AbortRolloutRequest(pool=pool, name=name, etag=_etag(etag)), applied
    return None


def _of_others(change: Change) -> _Parts:
    match change:
        case CreatePool(name=name, base_models=models, limits=limits):
            pool = pool_message(PoolSpec(name=name, base_models=list(models), limits=limits), 0)
            return "CreatePool", pb.CreatePoolRequest(pool=pool), pb.Pool
        case ConfirmRemovals(name=name, revision=revision):
            return "ConfirmRemovals", pb.ConfirmRemovalsRequest(name=name, revision=revision), pb.Pool
        case SetTenant(name=name, max_adapters=most):
            return "SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name=name, max_adapters=most)), pb.Tenant
        case RepairTenant(name=name):
            return "RepairTenant", pb.RepairTenantRequest(name=name), pb.RepairTenantResponse
        case DrainReplica(pool=pool, name=name, drain=drain):
            order = pb.DrainReplicaRequest(pool=pool, name=name, undrain=not drain)
            return "DrainReplica", order, pb.DrainReplicaResponse
    raise AssertionError(f"nobody in the simulation asks for {change}")


def _change(one: Upsert | Remove) -> pb.AdapterChange:
    if isinstance(one, Remove):
        return pb.AdapterChange(delete=one.name, etag=_etag(one.etag))
    return pb.AdapterChange(upsert=pb.Adapter(name=one.name, spec=spec_message(one.spec)), etag=_etag(one.etag))


def _etag(etag: int | None) -> str:
    return "" if etag is None else str(etag)
