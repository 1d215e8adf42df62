"""Change sets and rollbacks of adapters: steps, tenant counters, and whether they fit into one transaction."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from registry.errors import InvalidArgument, NotFound, Reason
from registry.etcd3.ops import Compare, Range, mod_is
from registry.keys import Keys
from registry.model.names import tenant_of
from registry.model.records import AdapterRecord, AdapterSpec, ChangeReply, PoolSpec
from registry.transactions.alone import check_alone
from registry.transactions.canaries import check_enough_replicas, looks_at_replicas
from registry.transactions.changes import ApplyAdapters, Remove, RollbackAdapter, Upsert, tenants_of
from registry.transactions.context import Context
from registry.transactions.draft import Draft, Planned, finish, fits, request_read
from registry.transactions.steps import Step, put_step, remove_step
from registry.transactions.stored import (
    Absent,
    Damaged,
    Present,
    newest_of,
    present_pool,
    retired_record,
    stored_adapter,
)
from registry.transactions.supported import check_supported
from registry.transactions.target import Target, check_etag
from registry.transactions.tenants import Count, count_all
from registry.transactions.view import View, everything_in, newest_in


def apply_reads(change: ApplyAdapters, keys: Keys, request_id: str) -> tuple[Range, ...]:
    """What an apply is planned from."""
    reads = _reads(change.pool, tenants_of(change), [one.name for one in change.changes], keys, request_id)
    return (*reads, everything_in(keys.replicas(change.pool))) if looks_at_replicas(change) else reads


def rollback_reads(change: RollbackAdapter, keys: Keys, request_id: str) -> tuple[Range, ...]:
    """What a rollback is planned from: all of history, since what was put there last need not be the newest of it."""
    name = change.name
    shared = _shared_reads(change.pool, tenants_of(change), keys, request_id)
    return (*shared, Range(keys.adapter(change.pool, name)), everything_in(keys.history_of(change.pool, name)))


def _reads(pool: str, tenants: Iterable[str], names: Iterable[str], keys: Keys, request_id: str) -> tuple[Range, ...]:
    each = [(Range(keys.adapter(pool, name)), newest_in(keys.history_of(pool, name))) for name in names]
    return (*_shared_reads(pool, tenants, keys, request_id), *(read for pair in each for read in pair))


def _shared_reads(pool: str, tenants: Iterable[str], keys: Keys, request_id: str) -> tuple[Range, ...]:
    return (request_read(keys, request_id), Range(keys.pool(pool)), *(Range(keys.tenant(one)) for one in tenants))


def check_count(change: ApplyAdapters, context: Context) -> None:
    """Refuses, before anything is read, more changes than could ever fit.

    Raises:
        InvalidArgument: with the number that fits whatever stands in etcd.
    """
    names = [one.name for one in change.changes]
    if _reads_needed(names) + looks_at_replicas(change) > context.limits.max_ops:
        fitting = range(1, len(names))
        count = bisect_right(fitting, context.limits.max_ops, key=lambda n: _operations_at_most(names[:n]))
        raise _too_many(len(names), count)


def _reads_needed(names: Sequence[str]) -> int:
    return 2 * len(names) + len(set(map(tenant_of, names))) + 2


def _operations_at_most(names: Sequence[str]) -> int:
    return 3 * len(names) + len(set(map(tenant_of, names))) + 2


def _too_many(asked: int, fitting: int) -> InvalidArgument:
    return InvalidArgument(
        Reason.TOO_MANY_CHANGES,
        f"{asked} changes do not fit into one etcd transaction, the first {fitting} do: split the set (then it is not "
        "atomic as a whole), or raise --max-txn-ops of etcd and of the admin service",
        field="changes",
        metadata={"max_changes": str(fitting)},
    )


def plan_apply(change: ApplyAdapters, view: View, context: Context) -> Planned:
    """The transaction of a change set.

    Raises:
        RegistryError: it is refused, whole.
    """
    pool = present_pool(view, context.keys, change.pool)
    steps = [_step(one, index, pool.record, view, context) for index, one in enumerate(change.changes)]
    counts = count_all(steps, view, context)
    named = {_name_field(one, index): step for index, (one, step) in enumerate(zip(change.changes, steps, strict=True))}
    alone = check_alone(pool.record, named, view, context)

    def first(count: int) -> Planned:
        return finish(draft_of("ApplyAdapters", pool, steps[:count], counts, context, alone), view, context)

    planned = first(len(steps))
    if fits(planned, context.limits):
        return planned
    fitting = bisect_right(range(1, len(steps)), 0, key=lambda count: int(not fits(first(count), context.limits)))
    raise _too_many(len(steps), fitting)


def _step(one: Upsert | Remove, index: int, pool: PoolSpec, view: View, context: Context) -> Step:
    target = _target(one, index, pool, view, context)
    match one:
        case Upsert():
            step = put_step(target, one.spec, context, goes_on=True)
            check_enough_replicas(target, step.outcome.record, view, context.keys)
            return step
        case Remove():
            return remove_step(target, context)
    assert_never(one)


def _name_field(one: Upsert | Remove, index: int) -> str:
    return f"changes[{index}].{'upsert.name' if isinstance(one, Upsert) else 'delete'}"


def _target(one: Upsert | Remove, index: int, pool: PoolSpec, view: View, context: Context) -> Target:
    field = f"changes[{index}]"
    return Target(
        pool=pool,
        name=one.name,
        etag=one.etag,
        state=stored_adapter(view, context.keys, pool.name, one.name),
        read_revision=view.revision,
        name_field=_name_field(one, index),
        etag_field=f"{field}.etag",
        spec_field=f"{field}.upsert.spec",
    )


def draft_of(
    method: str,
    pool: Present[PoolSpec],
    steps: Sequence[Step],
    counts: Mapping[str, Count],
    context: Context,
    compare: Sequence[Compare] = (),
) -> Draft:
    """The draft of a change of a pool's adapters; `compare`: besides what the steps do."""
    tenants = dict.fromkeys(step.tenant for step in steps)
    counted = [counts[tenant] for tenant in tenants if tenant in counts]
    return Draft(
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
    )


def plan_rollback(change: RollbackAdapter, view: View, context: Context) -> Planned:
    """The transaction of a rollback.

    Raises:
        RegistryError: it is refused.
    """
    pool = present_pool(view, context.keys, change.pool)
    state = stored_adapter(view, context.keys, change.pool, change.name)
    check_etag(change.etag, state, field="etag")
    spec = _earlier_spec(change, state, view, context.keys)
    check_supported(spec, field="spec")
    target = Target(
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
    change: RollbackAdapter, state: Present[AdapterRecord] | Damaged | Absent, view: View, keys: Keys
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
    # What canaries alone have served, and perhaps refused, is given to all only by its number.
    return earlier.rollout.stable_spec if earlier.rollout is not None and not wanted else earlier.spec


def _no_generation(change: RollbackAdapter) -> NotFound:
    which = f"generation {change.to_generation}" if change.to_generation else "earlier generation"
    return NotFound(
        Reason.GENERATION_NOT_FOUND,
        f"history holds no {which} of {change.name!r}; list its history to see which there are",
        field="to_generation" if change.to_generation else "name",
    )
