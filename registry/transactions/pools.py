"""Pools: created, changed, and deleted once they are empty."""

from __future__ import annotations

from typing import assert_never

from registry.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Reason
from registry.etcd3.ops import Compare, Delete, Op, Range, absent, mod_is, none_in
from registry.keys import Keys
from registry.model.records import AuditChange, ChangeReply, PoolLimits, PoolSpec
from registry.transactions.changes import CreatePool, DeletePool, UpdatePool
from registry.transactions.context import Context
from registry.transactions.draft import Draft, Planned, check_fits, finish, put_record, request_read
from registry.transactions.engine_kinds import check_engine_names
from registry.transactions.steps import carry_unknown
from registry.transactions.stored import Absent, Damaged, Present, shown, snapshot_of, stored_pool
from registry.transactions.target import check_etag
from registry.transactions.view import View, any_in

PoolState = Present[PoolSpec] | Damaged | Absent


def pool_reads(change: CreatePool | UpdatePool | DeletePool, keys: Keys, request_id: str) -> tuple[Range, ...]:
    """What a change of a pool is planned from."""
    if isinstance(change, DeletePool):
        return _delete_reads(change, keys, request_id)
    return _put_reads(change, keys, request_id)


def _put_reads(change: CreatePool | UpdatePool, keys: Keys, request_id: str) -> tuple[Range, ...]:
    """Also adapters that are named like its base models."""
    named = (Range(keys.adapter(change.name, model)) for model in change.base_models)
    content = (any_in(keys.adapters(change.name)),) if isinstance(change, UpdatePool) else ()
    return (request_read(keys, request_id), Range(keys.pool(change.name)), *named, *content)


def _delete_reads(change: DeletePool, keys: Keys, request_id: str) -> tuple[Range, ...]:
    return (request_read(keys, request_id), Range(keys.pool(change.name)), any_in(keys.adapters(change.name)))


def plan_pool(change: CreatePool | UpdatePool | DeletePool, view: View, context: Context) -> Planned:
    """The transaction of a change of a pool. Raises RegistryError: it is refused."""
    match change:
        case CreatePool():
            return plan_create_pool(change, view, context)
        case UpdatePool():
            return plan_update_pool(change, view, context)
        case DeletePool():
            return plan_delete_pool(change, view, context)
    assert_never(change)


def plan_create_pool(change: CreatePool, view: View, context: Context) -> Planned:
    """The transaction that creates a pool.

    Raises:
        AlreadyExists: there is one.
        InvalidArgument: a base model has the name of an adapter that stands there.
    """
    keys = context.keys
    if view.key(keys.pool(change.name)) is not None:
        raise AlreadyExists(
            Reason.POOL_EXISTS, f"pool {change.name!r} exists; update it, or choose another name", field="pool.name"
        )
    _check_no_adapter(change, view, context)
    wanted = PoolSpec(
        name=change.name,
        base_models=list(change.base_models),
        limits=change.limits,
        base=change.base,
        engine=change.engine,
        engine_names=change.engine_names,
    )
    check_engine_names(wanted)
    compare = (absent(keys.pool(change.name)), *_no_adapters(change, context))
    draft = _put_draft("CreatePool", Absent(), wanted, compare, context)
    planned = finish(draft, view, context)
    return check_fits(planned, context.limits)


def plan_update_pool(change: UpdatePool, view: View, context: Context) -> Planned:
    """The transaction that changes a pool.

    Raises:
        NotFound: there is none.
        Conflict: the etag is stale.
        InvalidArgument: a base model has the name of one of its adapters; or a part of what cannot be read is to stay.
        FailedPrecondition: the record is from a future schema.
    """
    state = _existing(change.name, "pool.name", view, context)
    check_etag(change.etag, state, field="pool.etag")
    _check_no_adapter(change, view, context)
    wanted = _wanted(change, state)
    check_engine_names(wanted)
    compare = (mod_is(context.keys.pool(change.name), state.revision), *_no_adapters(change, context))
    if isinstance(state, Present) and wanted.engine != state.record.engine:
        _check_empty(change.name, view, context)
        compare = (*compare, none_in(context.keys.adapters(change.name)))
    draft = _put_draft("UpdatePool", state, wanted, compare, context)
    planned = finish(draft, view, context)
    return check_fits(planned, context.limits)


def plan_delete_pool(change: DeletePool, view: View, context: Context) -> Planned:
    """The transaction that deletes a pool. A concurrent apply compares the pool, this one that no adapter is there.

    Raises:
        NotFound: there is none.
        Conflict: the etag is stale.
        FailedPrecondition: it has adapters, or the record is from a future schema.
    """
    keys = context.keys
    state = _existing(change.name, "name", view, context)
    check_etag(change.etag, state, field="etag")
    if view.below(keys.adapters(change.name)) is not None:
        raise FailedPrecondition(
            Reason.POOL_NOT_EMPTY, f"pool {change.name!r} has adapters; delete them first", field="name"
        )
    draft = Draft(
        scope=change.name,
        method="DeletePool",
        compare=(mod_is(keys.pool(change.name), state.revision), none_in(keys.adapters(change.name))),
        success=(Delete(keys.pool(change.name)),),
        audit=(AuditChange(kind="pool", name=change.name, before=snapshot_of(state), after=None),),
        reply=ChangeReply(),
    )
    return finish(draft, view, context)


def _existing(name: str, field: str, view: View, context: Context) -> Present[PoolSpec] | Damaged:
    match stored_pool(view, context.keys, name):
        case Absent():
            raise NotFound(
                Reason.POOL_NOT_FOUND, f"there is no pool {name!r}; create it, or list the pools there are", field=field
            )
        case state:
            return state


def _wanted(change: UpdatePool, state: Present[PoolSpec] | Damaged) -> PoolSpec:
    if not isinstance(state, Present):
        return _whole(change)
    old = state.record
    limits = {name: getattr(change.limits, name) for name in PoolLimits.model_fields if change.replaces(name)}
    values: dict[str, object] = {"limits": old.limits.model_copy(update=limits)}
    if change.replaces("base_models"):
        values["base_models"] = list(change.base_models)
    if change.replaces("base"):
        values["base"] = change.base
    if change.replaces("engine"):
        values["engine"] = change.engine or "vllm"
    if change.replaces("engine_names"):
        values["engine_names"] = change.engine_names or "plain"
    return carry_unknown(old, old.model_copy(update=values))


def _whole(change: UpdatePool) -> PoolSpec:
    """In the place of what cannot be read."""
    if change.fields is not None:
        message = "the pool's record cannot be read, so no part of it can be kept; leave update_mask out"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="update_mask")
    return PoolSpec(
        name=change.name,
        base_models=list(change.base_models),
        limits=change.limits,
        base=change.base,
        engine=change.engine or "vllm",
        engine_names=change.engine_names or "plain",
    )


def _put_draft(
    method: str, state: PoolState, wanted: PoolSpec, compare: tuple[Compare, ...], context: Context
) -> Draft:
    same = isinstance(state, Present) and state.record == wanted
    put: tuple[Op, ...] = (put_record(context.keys.pool(wanted.name), wanted.to_bytes(), field="pool"),)
    change = AuditChange(kind="pool", name=wanted.name, before=snapshot_of(state), after=shown(wanted))
    return Draft(
        scope=wanted.name,
        method=method,
        compare=compare,
        success=() if same else put,
        audit=() if same else (change,),
        reply=ChangeReply(pool=wanted, etag=state.revision if same else None),
    )


def _check_no_adapter(change: CreatePool | UpdatePool, view: View, context: Context) -> None:
    for index, model in enumerate(change.base_models):
        if view.key(context.keys.adapter(change.name, model)) is not None:
            raise InvalidArgument(
                Reason.NAME_IS_BASE_MODEL,
                f"pool {change.name!r} has an adapter {model!r}, and no base model may have its name; delete it first",
                field=f"pool.base_models[{index}]",
            )


def _check_empty(name: str, view: View, context: Context) -> None:
    """What one kind of engine serves, another may not."""
    if view.below(context.keys.adapters(name)) is not None:
        raise FailedPrecondition(
            Reason.POOL_NOT_EMPTY,
            f"pool {name!r} has adapters, so its kind of engine stays; create another pool for the other engines",
            field="pool.engine",
        )


def _no_adapters(change: CreatePool | UpdatePool, context: Context) -> tuple[Compare, ...]:
    return tuple(absent(context.keys.adapter(change.name, model)) for model in change.base_models)
