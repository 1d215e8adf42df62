"""From requests on the wire to changes. Raises InvalidArgument with the field's path where they are wrong."""

from __future__ import annotations

from registry.errors import InvalidArgument, Reason
from registry.transactions import make
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    ConfirmRemovals,
    CreatePool,
    DeletePool,
    PromoteRollout,
    Remove,
    RollbackAdapter,
    SetTenant,
    SettleRemoval,
    UpdatePool,
    Upsert,
)
from registry.v1 import registry_pb2 as pb

# More are no number of replicas, and Python refuses to read very many.
_MOST_DIGITS = 18


def apply_adapters(request: pb.ApplyAdaptersRequest) -> ApplyAdapters:
    """The change set of a request."""
    return make.make_apply(request.pool, [_change(one, index) for index, one in enumerate(request.changes)])


def _change(change: pb.AdapterChange, index: int) -> Upsert | Remove:
    field = f"changes[{index}]"
    match change.WhichOneof("change"):
        case "upsert":
            return make.make_upsert(change.upsert.name, _spec(change.upsert.spec), change.etag, field=field)
        case "delete":
            return make.make_remove(change.delete, change.etag, field=field)
        case _:
            raise InvalidArgument(Reason.INVALID_FIELD, "a change is an upsert or a delete", field=field)


def _spec(spec: pb.AdapterSpec) -> dict[str, object]:
    values: dict[str, object] = {
        "source": _source(spec.source),
        "base_model": spec.base_model or None,
        "priority": spec.priority,
        "placement": {
            "replicas": spec.placement.replicas or "all",
            "selector": dict(sorted(spec.placement.selector.items())),
        },
        "prepare": _given(remap=spec.prepare.remap, vision=spec.prepare.vision, dora=spec.prepare.dora),
        "credentials": spec.credentials or None,
        "labels": dict(sorted(spec.labels.items())),
        "strategy": _strategy(spec.strategy) if spec.HasField("strategy") else None,
    }
    return values | _given(load=spec.load)


def _strategy(strategy: pb.Strategy) -> dict[str, object]:
    replicas = strategy.canary_replicas
    is_number = replicas.isdecimal() and len(replicas) <= _MOST_DIGITS
    values: dict[str, object] = {
        "canary": {"replicas": int(replicas) if is_number else replicas},
        "max_failures": strategy.max_failures,
    }
    if strategy.HasField("soak_seconds"):
        values["soak_seconds"] = strategy.soak_seconds
    return values | _given(promote=strategy.promote)


def _source(source: pb.Source) -> dict[str, object]:
    return {"uri": source.uri, "digest": source.digest or None, "signature": source.signature or None}


def _given(**values: str) -> dict[str, str]:
    """Empty strings stand for the defaults."""
    return {name: value for name, value in values.items() if value}


def rollback_adapter(request: pb.RollbackAdapterRequest) -> RollbackAdapter:
    """The rollback that a request asks for."""
    return make.make_rollback(request.pool, request.name, request.to_generation, request.etag)


def promote_rollout(request: pb.PromoteRolloutRequest) -> PromoteRollout:
    """The promotion that a request asks for."""
    return make.make_rollout_change(PromoteRollout, request.pool, request.name, request.generation, request.etag)


def abort_rollout(request: pb.AbortRolloutRequest) -> AbortRollout:
    """The abortion that a request asks for."""
    return make.make_rollout_change(AbortRollout, request.pool, request.name, request.generation, request.etag)


def create_pool(request: pb.CreatePoolRequest) -> CreatePool:
    """The pool that a request creates."""
    if request.pool.etag:
        raise InvalidArgument(Reason.INVALID_FIELD, "a pool that does not exist has no etag", field="pool.etag")
    pool = request.pool
    return make.make_create_pool(pool.name, list(pool.base_models), _limits(pool), _base(pool), _engines(pool))


def update_pool(request: pb.UpdatePoolRequest) -> UpdatePool:
    """The pool's new values."""
    pool = request.pool
    mask = list(request.update_mask.paths) if request.HasField("update_mask") else None
    return make.make_update_pool(
        pool.name, list(pool.base_models), _limits(pool), pool.etag, _base(pool), mask, _engines(pool)
    )


def confirm_removals(request: pb.ConfirmRemovalsRequest) -> ConfirmRemovals:
    """The confirmation that a request gives."""
    return make.make_confirm_removals(request.name, request.revision, request.etag)


def settle_removal(request: pb.SettleRemovalRequest) -> SettleRemoval:
    """The settlement that a request asks for."""
    told = request.removal
    removed = {"revision": told.revision, "at": told.removed_at, "by": told.removed_by}
    return make.make_settle_removal(told.pool, told.name, told.record.encode(), removed)


def delete_pool(request: pb.DeletePoolRequest) -> DeletePool:
    """The deletion that a request asks for."""
    return make.make_delete_pool(request.name, request.etag)


def set_tenant(request: pb.SetTenantRequest) -> SetTenant:
    """The quota that a request sets."""
    return make.make_set_tenant(request.tenant.name, request.tenant.max_adapters, request.tenant.etag)


def _limits(pool: pb.Pool) -> dict[str, object]:
    return {
        "max_rank": pool.limits.max_rank or None,
        "max_adapters": pool.limits.max_adapters or None,
        "target_modules": list(pool.limits.target_modules) or None,
        "require_signature": pool.limits.require_signature,
        "require_digest": pool.limits.require_digest,
    }


def _engines(pool: pb.Pool) -> dict[str, str]:
    return _given(engine=pool.engine, engine_names=pool.engine_names)


def _base(pool: pb.Pool) -> dict[str, object] | None:
    if not pool.HasField("base"):
        return None
    modules = {one.pattern: (one.outputs, one.inputs) for one in pool.base.modules}
    return {"modules": modules, "fingerprint": pool.base.fingerprint, "names": list(pool.base.names)}
