"""Decodes requests into changes.

A field that is wrong raises InvalidArgument with the field's path.
"""

from __future__ import annotations

from collections.abc import Sequence

from registry.model.errors import InvalidArgument, Reason
from registry.model.messages import base_dict, limits_dict, spec_dict
from registry.runtime.engine_drivers import NoDriver, check_kind
from registry.transactions import validate
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    ConfirmRemovals,
    CreatePool,
    DeletePool,
    DrainReplica,
    PromoteRollout,
    Remove,
    RepairTenant,
    RestoreHistory,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
    Upsert,
)
from registry.transactions.validate import make_etag, make_existing_etag, make_generation
from registry.v1 import registry_pb2 as pb


def apply_adapters(request: pb.ApplyAdaptersRequest) -> ApplyAdapters:
    """The change set of a request."""
    changes = [_change(one, index) for index, one in enumerate(request.changes)]
    return validate.make_apply(request.pool, changes, retry=request.retry, retry_replica=request.retry_replica)


def _change(change: pb.AdapterChange, index: int) -> Upsert | Remove:
    field = f"changes[{index}]"
    match change.WhichOneof("change"):
        case "upsert":
            return validate.make_upsert(change.upsert.name, spec_dict(change.upsert.spec), change.etag, field=field)
        case "update":
            spec, mask = spec_dict(change.update.spec), change.update_mask.paths
            return validate.make_update(change.update.name, spec, mask, change.etag, field=field)
        case "delete":
            return Remove(change.delete, make_existing_etag(change.etag, field=f"{field}.etag"))
        case _:
            raise InvalidArgument(Reason.INVALID_FIELD, "a change is an upsert, an update or a delete", field=field)


def rollback_adapter(request: pb.RollbackAdapterRequest) -> RollbackAdapter:
    """The rollback that a request asks for."""
    generation = make_generation(request.to_generation, zero="the one before", field="to_generation")
    etag = make_etag(request.etag, field="etag")
    return RollbackAdapter(request.pool, request.name, generation, etag, request.restored)


def promote_rollout(request: pb.PromoteRolloutRequest) -> PromoteRollout:
    """The promotion that a request asks for."""
    return PromoteRollout(request.pool, request.name, *_canary(request))


def abort_rollout(request: pb.AbortRolloutRequest) -> AbortRollout:
    """The abortion that a request asks for."""
    return AbortRollout(request.pool, request.name, *_canary(request))


def _canary(request: pb.PromoteRolloutRequest | pb.AbortRolloutRequest) -> tuple[int, int | None]:
    """Generation and etag of what only canaries serve."""
    generation = make_generation(request.generation, zero="the present one", field="generation")
    return generation, make_existing_etag(request.etag, field="etag")


def create_pool(request: pb.CreatePoolRequest, fingerprint_of: validate.Fingerprinter) -> CreatePool:
    """The pool that a request creates."""
    if request.pool.etag:
        raise InvalidArgument(Reason.INVALID_FIELD, "a pool that does not exist has no etag", field="pool.etag")
    return validate.make_create_pool(_pool(request), fingerprint_of)


def update_pool(request: pb.UpdatePoolRequest, fingerprint_of: validate.Fingerprinter) -> UpdatePool:
    """The pool's new values."""
    mask = list(request.update_mask.paths) if request.HasField("update_mask") else None
    return validate.make_update_pool(_pool(request, mask), request.pool.etag, mask, fingerprint_of)


def confirm_removals(request: pb.ConfirmRemovalsRequest) -> ConfirmRemovals:
    """The confirmation that a request gives."""
    if request.revision < 1:
        message = "give the revision that the replica names"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="revision")
    return ConfirmRemovals(request.name, request.revision, make_existing_etag(request.etag, field="etag"))


def delete_pool(request: pb.DeletePoolRequest) -> DeletePool:
    """The deletion that a request asks for."""
    return DeletePool(request.name, make_existing_etag(request.etag, field="etag"))


def set_tenant(request: pb.SetTenantRequest) -> SetTenant:
    """The quota that a request sets; 0: none. Tenants have lower-case names."""
    tenant = request.tenant
    return SetTenant(tenant.name.lower(), tenant.max_adapters or None, make_etag(tenant.etag, field="tenant.etag"))


def drain_replica(request: pb.DrainReplicaRequest) -> DrainReplica:
    """The order that a request gives."""
    return DrainReplica(request.pool, request.name, not request.undrain)


def repair_tenant(request: pb.RepairTenantRequest) -> RepairTenant:
    """The repair that a request asks for."""
    return RepairTenant(request.name.lower())


def restore_history(request: pb.RestoreHistoryRequest) -> RestoreHistory:
    """The history that a request restores."""
    return validate.make_restore_history(request.pool, request.name, request.generations, request.last)


def _pool(request: pb.CreatePoolRequest | pb.UpdatePoolRequest, mask: Sequence[str] | None = None) -> dict[str, object]:
    """Fields of a pool as a request gives them."""
    pool = request.pool
    if pool.engine and (mask is None or "engine" in mask) and not request.restored:
        try:
            check_kind(pool.engine)
        except NoDriver as error:
            raise InvalidArgument(Reason.INVALID_FIELD, str(error), field="pool.engine") from error
    base = base_dict(pool.base) if pool.HasField("base") else None
    told: dict[str, object] = {
        "name": pool.name,
        "base_models": list(pool.base_models),
        "limits": limits_dict(pool.limits),
    }
    given = {"base": base, "engine": pool.engine, "engine_names": pool.engine_names}
    return told | {name: value for name, value in given.items() if value}
