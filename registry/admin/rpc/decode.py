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
        case "delete":
            return validate.make_remove(change.delete, change.etag, field=field)
        case _:
            raise InvalidArgument(Reason.INVALID_FIELD, "a change is an upsert or a delete", field=field)


def rollback_adapter(request: pb.RollbackAdapterRequest) -> RollbackAdapter:
    """The rollback that a request asks for."""
    return validate.make_rollback(
        request.pool, request.name, request.to_generation, request.etag, restored=request.restored
    )


def promote_rollout(request: pb.PromoteRolloutRequest) -> PromoteRollout:
    """The promotion that a request asks for."""
    return validate.make_rollout_change(PromoteRollout, request.pool, request.name, request.generation, request.etag)


def abort_rollout(request: pb.AbortRolloutRequest) -> AbortRollout:
    """The abortion that a request asks for."""
    return validate.make_rollout_change(AbortRollout, request.pool, request.name, request.generation, request.etag)


def create_pool(request: pb.CreatePoolRequest, fingerprint_of: validate.Fingerprinter) -> CreatePool:
    """The pool that a request creates."""
    if request.pool.etag:
        raise InvalidArgument(Reason.INVALID_FIELD, "a pool that does not exist has no etag", field="pool.etag")
    pool = request.pool
    return validate.make_create_pool(
        *(pool.name, list(pool.base_models), limits_dict(pool.limits), _base(pool), _engines(request, None)),
        fingerprint_of=fingerprint_of,
    )


def update_pool(request: pb.UpdatePoolRequest, fingerprint_of: validate.Fingerprinter) -> UpdatePool:
    """The pool's new values."""
    pool = request.pool
    mask = list(request.update_mask.paths) if request.HasField("update_mask") else None
    engines = _engines(request, mask)
    return validate.make_update_pool(
        *(pool.name, list(pool.base_models), limits_dict(pool.limits), pool.etag, _base(pool), mask, engines),
        fingerprint_of=fingerprint_of,
    )


def confirm_removals(request: pb.ConfirmRemovalsRequest) -> ConfirmRemovals:
    """The confirmation that a request gives."""
    return validate.make_confirm_removals(request.name, request.revision, request.etag)


def delete_pool(request: pb.DeletePoolRequest) -> DeletePool:
    """The deletion that a request asks for."""
    return validate.make_delete_pool(request.name, request.etag)


def set_tenant(request: pb.SetTenantRequest) -> SetTenant:
    """The quota that a request sets."""
    return validate.make_set_tenant(request.tenant.name, request.tenant.max_adapters, request.tenant.etag)


def drain_replica(request: pb.DrainReplicaRequest) -> DrainReplica:
    """The order that a request gives."""
    return validate.make_drain_replica(request.pool, request.name, drain=not request.undrain)


def repair_tenant(request: pb.RepairTenantRequest) -> RepairTenant:
    """The repair that a request asks for."""
    return validate.make_repair_tenant(request.name)


def restore_history(request: pb.RestoreHistoryRequest) -> RestoreHistory:
    """The history that a request restores."""
    return validate.make_restore_history(request.pool, request.name, request.generations, request.last)


def _engines(request: pb.CreatePoolRequest | pb.UpdatePoolRequest, mask: Sequence[str] | None) -> dict[str, str]:
    pool = request.pool
    if pool.engine and (mask is None or "engine" in mask) and not request.restored:
        try:
            check_kind(pool.engine)
        except NoDriver as error:
            raise InvalidArgument(Reason.INVALID_FIELD, str(error), field="pool.engine") from error
    given = {"engine": pool.engine, "engine_names": pool.engine_names}
    return {name: value for name, value in given.items() if value}


def _base(pool: pb.Pool) -> dict[str, object] | None:
    return base_dict(pool.base) if pool.HasField("base") else None
