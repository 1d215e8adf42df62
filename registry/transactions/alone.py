"""Pools whose engines have one adapter at a time: the transaction that makes it compares that it is alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from registry.errors import FailedPrecondition, Reason
from registry.etcd3.ops import Compare, Range, none_between, prefix_end
from registry.keys import Keys, last_part
from registry.model.names import name_of_key
from registry.model.records import PoolSpec
from registry.transactions.context import Context
from registry.transactions.engine_kinds import ONE_ADAPTER
from registry.transactions.steps import Step
from registry.transactions.stored import Present, stored_pool
from registry.transactions.view import View, some_in


def neighbours_read(pool: str, count: int, view: View, keys: Keys) -> tuple[Range, ...]:
    """What has to be read beside the `count` adapters of a change set, once it is known what kind of pool it is."""
    state = stored_pool(view, keys, pool)
    if not isinstance(state, Present) or state.record.engine not in ONE_ADAPTER:
        return ()
    return (some_in(keys.adapters(pool), count + 1),)


def check_alone(pool: PoolSpec, steps: Mapping[str, Step], view: View, context: Context) -> tuple[Compare, ...]:
    """What the transaction compares so that there never are two.

    Args:
        pool: of the adapters.
        steps: by the field that names the adapter.
        view: with what `neighbours_read` asks for. Without, the compares find it out.
        context: of the change.

    Raises:
        FailedPrecondition: an adapter would be created beside another.
    """
    created = [field for field, step in steps.items() if step.outcome.outcome == "created"]
    if pool.engine not in ONE_ADAPTER or not created:
        return ()
    names = [step.outcome.name for step in steps.values()]
    touched = {context.keys.adapter(pool.name, name) for name in names}
    standing = [kv.key for kv in view.all_below(context.keys.adapters(pool.name)) if kv.key not in touched]
    others = [step.outcome.name for field, step in steps.items() if _stays(step) and field != created[-1]]
    others += [name_of_key(last_part(key)) for key in standing]
    if others:
        raise _full(pool, others[0], created[-1])
    return tuple(_nothing_between(context.keys.adapters(pool.name), sorted(touched)))


def _stays(step: Step) -> bool:
    return step.outcome.outcome != "deleted"


def _nothing_between(prefix: bytes, keys: list[bytes]) -> Iterator[Compare]:
    """That no key starts with `prefix` but these, which are sorted."""
    starts = [prefix, *(key + b"\0" for key in keys)]
    yield from (none_between(start, end) for start, end in zip(starts, [*keys, prefix_end(prefix)], strict=True))


def _full(pool: PoolSpec, other: str, field: str) -> FailedPrecondition:
    return FailedPrecondition(
        Reason.POOL_FULL,
        f"the engines of pool {pool.name!r} are {pool.engine}, which has one adapter at a time, and that is {other!r}; "
        "delete it first, or use another pool",
        field=field,
        metadata={"name": other},
    )
