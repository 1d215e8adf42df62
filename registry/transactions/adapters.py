"""Plans change sets and rollbacks of adapters, with tenants' counters. Pure.

Where the engines of a pool hold one adapter at a time, the transaction compares that it is alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from registry.access.questions import Resource, Verb
from registry.etcd3.ops import Compare, Range, mod_is, none_between, prefix_end
from registry.lora.text import printable
from registry.model.engine_kinds import traits_of
from registry.model.errors import FailedPrecondition, InvalidArgument, NotFound, Reason
from registry.model.keys import Keys, last_part
from registry.model.names import name_of_key, tenant_of
from registry.model.records import (
    AdapterRecord,
    AdapterSpec,
    AskedRetry,
    ChangeReply,
    PoolSpec,
    Restoration,
    RetiredRecord,
)
from registry.transactions.builder import Planned, TxnBuilder, finish, fits, request_reads
from registry.transactions.canaries import (
    check_enough_replicas,
    check_strategy,
    kept_replicas_read,
    members_of,
    replicas_read,
)
from registry.transactions.changes import ApplyAdapters, Remove, RollbackAdapter, Upsert, tenants_of
from registry.transactions.context import Context, StepTarget, TxnLimits, check_etag
from registry.transactions.decode import (
    Absent,
    Damaged,
    Present,
    ReadSet,
    everything_in,
    newest_in,
    newest_of,
    present_pool,
    retired_record,
    some_in,
    stored_adapter,
    stored_pool,
)
from registry.transactions.steps import AdapterStep, check_engines, put_step, remove_step
from registry.transactions.supported import check_supported
from registry.transactions.tenants import Count, count_all


def apply_reads(change: ApplyAdapters, keys: Keys) -> tuple[Range, ...]:
    """Inputs of the plan of an apply."""
    reads = _reads(change.pool, tenants_of(change), [one.name for one in change.changes], keys)
    return *reads, *replicas_read(change, keys)


def rollback_reads(change: RollbackAdapter, keys: Keys) -> tuple[Range, ...]:
    """Inputs of the plan of a rollback: all of history, since what was put there last need not be the newest of it."""
    name = change.name
    shared = _shared_reads(change.pool, tenants_of(change), keys)
    return (*shared, Range(keys.adapter(change.pool, name)), everything_in(keys.history_of(change.pool, name)))


def _reads(pool: str, tenants: Iterable[str], names: Iterable[str], keys: Keys) -> tuple[Range, ...]:
    each = [(Range(keys.adapter(pool, name)), newest_in(keys.history_of(pool, name))) for name in names]
    return (*_shared_reads(pool, tenants, keys), *(read for pair in each for read in pair))


def _shared_reads(pool: str, tenants: Iterable[str], keys: Keys) -> tuple[Range, ...]:
    return (Range(keys.pool(pool)), *(Range(keys.tenant(one)) for one in tenants))


def check_count(change: ApplyAdapters, context: Context) -> None:
    """Refuses, before anything is read, more changes than could ever fit.

    Raises:
        InvalidArgument: with the number that fits whatever stands in etcd.
    """
    names = [one.name for one in change.changes]
    needed = len(request_reads(context)) + _reads_needed(names) + len(replicas_read(change, context.keys))
    if needed > context.limits.max_ops:
        raise too_many_changes(names, str(len(names)), context.limits)


def too_many_changes(names: Sequence[str], asked: str, limits: TxnLimits) -> InvalidArgument:
    """The refusal of a set that begins with these names, with the number that fits whatever stands in etcd."""
    return _too_many(asked, _fitting_always(names, limits))


def _fitting_always(names: Sequence[str], limits: TxnLimits) -> int:
    """Number of changes that fit at a time, in each part of the set, whatever stands in etcd.

    It does not depend on which of them are done already, so that the same set is always split in the same way.
    """
    count = bisect_right(range(1, len(names)), limits.max_ops, key=lambda n: _operations_at_most(names[:n]))
    while count > 1 and any(
        _operations_at_most(names[start : start + count]) > limits.max_ops for start in range(0, len(names), count)
    ):
        count -= 1
    return count


def _reads_needed(names: Sequence[str]) -> int:
    return 2 * len(names) + len(set(map(tenant_of, names))) + 1


def _operations_at_most(names: Sequence[str]) -> int:
    return 3 * len(names) + len(set(map(tenant_of, names))) + 2


def _too_many(asked: str, fitting: int) -> InvalidArgument:
    return InvalidArgument(
        Reason.TOO_MANY_CHANGES,
        f"{asked} changes do not fit into one etcd transaction, {fitting} at a time do: split the set (then it is not "
        "atomic as a whole), or raise --max-txn-ops of etcd and of the admin service",
        field="changes",
        metadata={"max_changes": str(fitting)},
    )


def plan_apply(change: ApplyAdapters, view: ReadSet, context: Context) -> Planned:
    """The transaction of a change set.

    Raises:
        RegistryError: it is refused, whole.
    """
    pool = present_pool(view, context.keys, change.pool)
    retry = AskedRetry(request_id=context.caller.request_id, replica=change.retry_replica) if change.retry else None
    steps = [_step(one, index, pool.record, view, context, retry) for index, one in enumerate(change.changes)]
    counts = count_all(steps, view, context)
    named = {_name_field(one, index): step for index, (one, step) in enumerate(zip(change.changes, steps, strict=True))}
    alone = check_alone(pool.record, named, view, context)

    def first(count: int) -> Planned:
        return finish(draft_of("ApplyAdapters", pool, steps[:count], counts, context, alone), view, context)

    planned = first(len(steps))
    if fits(planned, context.limits):
        return planned
    fitting = bisect_right(range(1, len(steps)), 0, key=lambda count: int(not fits(first(count), context.limits)))
    always = _fitting_always([one.name for one in change.changes], context.limits)
    raise _too_many(str(len(steps)), min(fitting, max(1, always)))


def _step(
    one: Upsert | Remove, index: int, pool: PoolSpec, view: ReadSet, context: Context, retry: AskedRetry | None
) -> AdapterStep:
    target = _target(one, index, pool, view, context)
    match one:
        case Upsert():
            step = put_step(target, _wanted(one, target), context, goes_on=True, retry=retry)
            check_enough_replicas(target, step.outcome.record, view, context.keys)
            check_engines(target, one.spec, members_of(pool.name, view, context.keys))
            return step
        case Remove():
            return remove_step(target, context)
    assert_never(one)


def _wanted(one: Upsert, target: StepTarget) -> AdapterSpec:
    """The spec that an upsert comes to: of an update what it names, and the rest as it is.

    Raises:
        NotFound: there is no adapter to keep anything of, and no source to create it with.
        FailedPrecondition: the record of which something is to be kept cannot be read.
        InvalidArgument: what is given does not go with what is kept.
    """
    if one.fields is None:
        return one.spec
    match target.state:
        case Present(record=record):
            given = {field: getattr(one.spec, field) for field in one.fields}
            spec = record.spec.model_copy(update=given)
        case Damaged():
            message = f"the record of {target.name!r} cannot be read, so nothing of it is kept: write its whole spec"
            raise FailedPrecondition(Reason.UNREADABLE_RECORD, message, field=target.name_field)
        case Absent() if one.keeps("source"):
            message = f"there is no adapter {target.name!r} in pool {target.pool.name!r}; create it with a source"
            raise NotFound(Reason.ADAPTER_NOT_FOUND, message, field=target.name_field)
        case Absent():
            spec = one.spec
        case _:
            assert_never(target.state)
    check_supported(spec, field=target.spec_field)
    check_strategy(spec, field=target.spec_field)
    return spec


def _name_field(one: Upsert | Remove, index: int) -> str:
    return f"changes[{index}].{f'{_kind(one)}.name' if isinstance(one, Upsert) else 'delete'}"


def _kind(one: Upsert | Remove) -> str:
    """The name of the change in its request."""
    return "update" if isinstance(one, Upsert) and one.fields is not None else "upsert"


def _target(one: Upsert | Remove, index: int, pool: PoolSpec, view: ReadSet, context: Context) -> StepTarget:
    field = f"changes[{index}]"
    return StepTarget(
        pool=pool,
        name=one.name,
        etag=one.etag,
        state=stored_adapter(view, context.keys, pool.name, one.name),
        read_revision=view.revision,
        name_field=_name_field(one, index),
        etag_field=f"{field}.etag",
        spec_field=f"{field}.{_kind(one)}.spec",
    )


def draft_of(
    method: str,
    pool: Present[PoolSpec],
    steps: Sequence[AdapterStep],
    counts: Mapping[str, Count],
    context: Context,
    compare: Sequence[Compare] = (),
    reason: str = "",
) -> TxnBuilder:
    """The draft of a change of a pool's adapters; `compare`: besides what the steps do; `reason`: as in the draft."""
    tenants = dict.fromkeys(step.tenant for step in steps)
    counted = [counts[tenant] for tenant in tenants if tenant in counts]
    return TxnBuilder(
        scope=pool.record.name,
        method=method,
        compare=(
            mod_is(context.keys.pool(pool.record.name), pool.revision),
            *(condition for step in steps for condition in step.compare),
            *compare,
            *(count.compare for count in counted),
        ),
        success=(*(op for step in steps for op in step.success), *(count.put for count in counted)),
        audit=tuple(step.audit for step in steps if step.audit),
        reply=ChangeReply(adapters=[step.outcome for step in steps]),
        reason=reason,
    )


def plan_rollback(change: RollbackAdapter, view: ReadSet, context: Context) -> Planned:
    """The transaction of a rollback.

    Raises:
        RegistryError: it is refused.
    """
    pool = present_pool(view, context.keys, change.pool)
    state = stored_adapter(view, context.keys, change.pool, change.name)
    check_etag(change.etag, state, field="etag")
    spec = _earlier_spec(change, state, view, context.keys)
    if isinstance(state, Present):  # how long it lives is none of a generation's: going back leaves it
        spec = spec.model_copy(update=state.record.spec.life)
    check_supported(spec, field="spec")
    target = StepTarget(
        pool=pool.record,
        name=state.record.name if isinstance(state, Present) else change.name,
        etag=change.etag,
        state=state,
        read_revision=view.revision,
        name_field="name",
        etag_field="etag",
        spec_field="spec",
    )
    step = put_step(target, spec, context, goes_on=False)
    alone = check_alone(pool.record, {target.name_field: step}, view, context)
    draft = draft_of("RollbackAdapter", pool, [step], count_all([step], view, context), context, alone)
    return finish(draft, view, context)


def _earlier_spec(
    change: RollbackAdapter, state: Present[AdapterRecord] | Damaged | Absent, view: ReadSet, keys: Keys
) -> AdapterSpec:
    present = state.record if isinstance(state, Present) else None
    wanted, history = change.to_generation, keys.history_of(change.pool, change.name)
    if present is not None and present.generation == wanted:
        return present.spec
    if present is not None and present.rollout is not None and not wanted:
        return present.rollout.stable_spec
    key = keys.history(change.pool, change.name, wanted)
    kv = next((one for one in view.all_below(history) if one.key == key), None) if wanted else newest_of(view, history)
    if kv is None:
        raise _no_generation(change)
    earlier = retired_record(kv)
    if earlier.restored_by is not None and not change.restored:
        raise _not_from_here(earlier, earlier.restored_by)
    # What canaries alone have served, and perhaps refused, is given to all only by its number.
    return earlier.rollout.stable_spec if earlier.rollout is not None and not wanted else earlier.spec


def _not_from_here(earlier: RetiredRecord, by: Restoration) -> FailedPrecondition:
    return FailedPrecondition(
        Reason.GENERATION_RESTORED,
        f"generation {earlier.generation} of {earlier.name!r} is not of this store: {printable(by.principal)} restored "
        f"it at {printable(by.at)}; look at it in the history, and give --restored to go back to it",
        field="restored",
        metadata={"generation": str(earlier.generation), "restored_by": by.principal, "restored_at": by.at},
    )


def _no_generation(change: RollbackAdapter) -> NotFound:
    which = f"generation {change.to_generation}" if change.to_generation else "earlier generation"
    return NotFound(
        Reason.GENERATION_NOT_FOUND,
        f"history holds no {which} of {change.name!r}; list its history to see which there are",
        field="to_generation" if change.to_generation else "name",
    )


def beside_apply(change: ApplyAdapters, view: ReadSet, keys: Keys) -> tuple[Range, ...]:
    """Reads needed beside those of `apply_reads`, once it is known what there is."""
    neighbours = neighbours_read(change.pool, len(change.changes), view, keys)
    kept = [one.name for one in change.changes if isinstance(one, Upsert) and one.keeps("strategy")]
    return *neighbours, *kept_replicas_read(change.pool, kept, view, keys)


def neighbours_read(pool: str, count: int, view: ReadSet, keys: Keys) -> tuple[Range, ...]:
    """Reads needed beside the `count` adapters of a change set, once it is known what kind of pool it is."""
    state = stored_pool(view, keys, pool)
    if not isinstance(state, Present) or not traits_of(state.record.engine).is_single_slot:
        return ()
    return (some_in(keys.adapters(pool), count + 1),)


def check_alone(
    pool: PoolSpec, steps: Mapping[str, AdapterStep], view: ReadSet, context: Context
) -> tuple[Compare, ...]:
    """Comparisons of the transaction by which there never are two.

    Args:
        pool: of the adapters.
        steps: by the field that names the adapter.
        view: with what `neighbours_read` asks for. Without, the compares find it out.
        context: of the change.

    Raises:
        FailedPrecondition: an adapter would be created beside another.
    """
    created = [field for field, step in steps.items() if step.outcome.outcome == "created"]
    if not traits_of(pool.engine).is_single_slot or not created:
        return ()
    names = [step.outcome.name for step in steps.values()]
    touched = {context.keys.adapter(pool.name, name) for name in names}
    standing = [kv.key for kv in view.all_below(context.keys.adapters(pool.name)) if kv.key not in touched]
    others = [step.outcome.name for field, step in steps.items() if _stays(step) and field != created[-1]]
    others += [name_of_key(last_part(key)) for key in standing]
    if others:
        grant = context.caller.grant
        is_seen = grant is None or grant.sees((Verb.GET, Resource.ADAPTERS), pool.name)(others[0])
        raise _full(pool, others[0] if is_seen else None, created[-1])
    return tuple(_nothing_between(context.keys.adapters(pool.name), sorted(touched)))


def _stays(step: AdapterStep) -> bool:
    return step.outcome.outcome != "deleted"


def _nothing_between(prefix: bytes, keys: list[bytes]) -> Iterator[Compare]:
    """Comparisons that no key starts with `prefix` but these, which are sorted."""
    starts = [prefix, *(key + b"\0" for key in keys)]
    yield from (none_between(start, end) for start, end in zip(starts, [*keys, prefix_end(prefix)], strict=True))


def _full(pool: PoolSpec, other: str | None, field: str) -> FailedPrecondition:
    """`other`: the one that it has; None: the caller may not know."""
    which = f"that is {other!r}; delete it first" if other else "there is one; ask whose it is"
    return FailedPrecondition(
        Reason.POOL_FULL,
        f"the engines of pool {pool.name!r} are {pool.engine}, which has one adapter at a time, and {which}, or use "
        "another pool",
        field=field,
        metadata={"name": other} if other else {},
    )
