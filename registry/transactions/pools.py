"""Plans changes of pools, confirmations of removals (R15), orders to drain (R20).

A pool is deleted only once it is empty. An order stands under the lease of the replica's presence, and goes with it.
"""

from __future__ import annotations

from typing import assert_never

from registry.etcd3.ops import Compare, Delete, KeyValue, Op, Put, Range, absent, mod_is, none_in
from registry.model.audit import AuditChange
from registry.model.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Reason
from registry.model.keys import Keys
from registry.model.records import ChangeReply, PoolLimits, PoolSpec
from registry.model.status import DrainOrder, presence_of
from registry.transactions.builder import Planned, TxnBuilder, check_fits, finish, put_record
from registry.transactions.changes import ConfirmRemovals, CreatePool, DeletePool, DrainReplica, UpdatePool
from registry.transactions.context import Context, check_etag
from registry.transactions.decode import (
    Absent,
    Damaged,
    Present,
    ReadSet,
    any_in,
    named,
    no_pool,
    present_pool,
    shown,
    snapshot_of,
    stored_pool,
)
from registry.transactions.steps import carry_unknown
from registry.transactions.supported import check_engine_names

PoolState = Present[PoolSpec] | Damaged | Absent


PoolChange = CreatePool | UpdatePool | DeletePool | ConfirmRemovals | DrainReplica


def pool_reads(change: PoolChange, keys: Keys) -> tuple[Range, ...]:
    """Inputs of the plan of a pool's change, or of an order to one of its replicas."""
    match change:
        case DeletePool():
            return (Range(keys.pool(change.name)), any_in(keys.adapters(change.name)))
        case CreatePool() | UpdatePool():
            return _put_reads(change, keys)
        case ConfirmRemovals():
            return (Range(keys.pool(change.name)),)
        case DrainReplica(pool, name):
            return (Range(keys.replica(pool, name)), Range(keys.drain(pool, name)), Range(keys.pool(pool)))
    assert_never(change)


def _put_reads(change: CreatePool | UpdatePool, keys: Keys) -> tuple[Range, ...]:
    """Also adapters that are named like its base models."""
    named = (Range(keys.adapter(change.name, model)) for model in change.base_models)
    content = (any_in(keys.adapters(change.name)),) if isinstance(change, UpdatePool) else ()
    return (Range(keys.pool(change.name)), *named, *content)


def plan_pool(change: PoolChange, view: ReadSet, context: Context) -> Planned:
    """The transaction of such a change. Raises RegistryError: it is refused."""
    match change:
        case CreatePool():
            return plan_create_pool(change, view, context)
        case UpdatePool():
            return plan_update_pool(change, view, context)
        case DeletePool():
            return plan_delete_pool(change, view, context)
        case ConfirmRemovals():
            return plan_confirm_removals(change, view, context)
        case DrainReplica():
            return plan_drain(change, view, context)
    assert_never(change)


def plan_create_pool(change: CreatePool, view: ReadSet, context: Context) -> Planned:
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
    wanted = _whole(change)
    check_engine_names(wanted)
    compare = (absent(keys.pool(change.name)), *_no_adapters(change, context))
    draft = _put_draft("CreatePool", Absent(), wanted, compare, context)
    planned = finish(draft, view, context)
    return check_fits(planned, context.limits)


def plan_update_pool(change: UpdatePool, view: ReadSet, context: Context) -> Planned:
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


def plan_delete_pool(change: DeletePool, view: ReadSet, context: Context) -> Planned:
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
    draft = TxnBuilder(
        scope=change.name,
        method="DeletePool",
        compare=(mod_is(keys.pool(change.name), state.revision), none_in(keys.adapters(change.name))),
        success=(Delete(keys.pool(change.name)),),
        audit=(AuditChange(kind="pool", name=change.name, before=snapshot_of(state), after=None),),
        reply=ChangeReply(),
    )
    return finish(draft, view, context)


def _existing(name: str, field: str, view: ReadSet, context: Context) -> Present[PoolSpec] | Damaged:
    match stored_pool(view, context.keys, name):
        case Absent():
            raise no_pool(name, field=field)
        case state:
            return state


def _wanted(change: UpdatePool, state: Present[PoolSpec] | Damaged) -> PoolSpec:
    if not isinstance(state, Present):
        if change.fields is not None:
            message = "the pool's record cannot be read, so no part of it can be kept; leave update_mask out"
            raise InvalidArgument(Reason.INVALID_FIELD, message, field="update_mask")
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


def _whole(change: CreatePool | UpdatePool) -> PoolSpec:
    """A pool in the place of nothing, or of what cannot be read."""
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
) -> TxnBuilder:
    same = isinstance(state, Present) and state.record == wanted
    put: tuple[Op, ...] = (put_record(context.keys.pool(wanted.name), wanted.to_bytes(), field="pool"),)
    change = AuditChange(kind="pool", name=wanted.name, before=snapshot_of(state), after=shown(wanted))
    return TxnBuilder(
        scope=wanted.name,
        method=method,
        compare=compare,
        success=() if same else put,
        audit=(change,),
        reply=ChangeReply(pool=wanted, etag=state.revision if same else None),
    )


def _check_no_adapter(change: CreatePool | UpdatePool, view: ReadSet, context: Context) -> None:
    for index, model in enumerate(change.base_models):
        if view.key(context.keys.adapter(change.name, model)) is not None:
            raise InvalidArgument(
                Reason.NAME_IS_BASE_MODEL,
                f"pool {change.name!r} has an adapter {model!r}, and no base model may have its name; delete it first",
                field=f"pool.base_models[{index}]",
            )


def _check_empty(name: str, view: ReadSet, context: Context) -> None:
    """Refuses another kind of engine for a pool that has adapters: what one kind serves, another may not."""
    if view.below(context.keys.adapters(name)) is not None:
        raise FailedPrecondition(
            Reason.POOL_NOT_EMPTY,
            f"pool {name!r} has adapters, so its kind of engine stays; create another pool for the other engines",
            field="pool.engine",
        )


def _no_adapters(change: CreatePool | UpdatePool, context: Context) -> tuple[Compare, ...]:
    return tuple(absent(context.keys.adapter(change.name, model)) for model in change.base_models)


def plan_confirm_removals(change: ConfirmRemovals, view: ReadSet, context: Context) -> Planned:
    """The transaction that writes a confirmation into the pool's record; a lower one than before changes nothing.

    Raises:
        NotFound: there is no such pool.
        Conflict: the etag is stale.
        InvalidArgument: the revision is still to come; what nobody has seen, nobody can vouch for.
        FailedPrecondition: the record cannot be read.
    """
    state = present_pool(view, context.keys, change.name, field="name")
    check_etag(change.etag, state, field="etag")
    if change.revision > view.revision:
        message = f"etcd is at revision {view.revision}, so that there is no list at {change.revision} yet"
        raise InvalidArgument(Reason.INVALID_FIELD, f"{message}; give the one that the replica names", field="revision")
    before = state.record
    revision = max(change.revision, before.removals_confirmed_revision)
    wanted = before.model_copy(update={"removals_confirmed_revision": revision})
    compare = (mod_is(context.keys.pool(wanted.name), state.revision),)
    return finish(_put_draft("ConfirmRemovals", state, wanted, compare, context), view, context)


def plan_drain(change: DrainReplica, view: ReadSet, context: Context) -> Planned:
    """The transaction that orders a replica to drain, or to serve again.

    Raises:
        NotFound: there is no such pool, or no such replica lives in it.
        FailedPrecondition: the order that stands is from a future schema.
    """
    keys, pool, name = context.keys, change.pool, change.name
    presence, before = view.key(keys.replica(pool, name)), view.key(keys.drain(pool, name))
    if presence is None:
        present_pool(view, keys, pool)
        message = f"no replica {name!r} lives in pool {pool!r}; loraplane get replicas lists those that do"
        raise NotFound(Reason.REPLICA_NOT_FOUND, message, field="name")
    order = DrainOrder(pool=pool, replica=name, drain=change.drain, at=context.at, by=context.caller.principal.name)
    same = _is_so(change, presence, before)
    key = keys.drain(pool, name)
    told = AuditChange(kind="replica", name=name, before=_shown_order(before), after=shown(order))
    draft = TxnBuilder(
        scope=pool,
        method="DrainReplica",
        compare=(
            mod_is(keys.replica(pool, name), presence.mod_revision),
            mod_is(key, before.mod_revision if before is not None else 0),
        ),
        success=() if same else (Put(key, order.to_bytes(), presence.lease),),
        audit=(told,),
        reply=ChangeReply(etag=presence.mod_revision if same else None),
    )
    return finish(draft, view, context)


def _is_so(change: DrainReplica, presence: KeyValue, before: KeyValue | None) -> bool:
    """True if the order stands already, or the replica does by itself what it says.

    An order under another lease was for a process that is gone, and goes with that; one that has just started may yet
    read it.
    """
    leaving, order = _is_leaving(presence), None if before is None else _order(before)
    if not change.drain:
        return not leaving and (order is None or not order.drain)
    if before is None or order is None or before.lease != presence.lease:
        return leaving
    return order.drain


def _is_leaving(kv: KeyValue) -> bool:
    presence = presence_of(kv.value)
    return presence is not None and presence.leaving


def _order(kv: KeyValue) -> DrainOrder | None:
    """None: it cannot be read. Raises FailedPrecondition: it is from a future schema."""
    try:
        return DrainOrder.parse(kv.value)
    except FailedPrecondition as error:
        if error.reason is Reason.FUTURE_SCHEMA:
            raise named(error, kv, "") from error
        return None


def _shown_order(kv: KeyValue | None) -> dict[str, object] | None:
    if kv is None:
        return None
    order = _order(kv)
    return snapshot_of(Damaged(kv.value, kv.mod_revision) if order is None else Present(order, kv.mod_revision))
