"""Kept generations of an adapter: `AdapterSpec.keep`. Pure.

The record says which they are, and what each is made of. So whoever follows the record knows all of it, and a
generation ends by the change that leaves it too far behind: the same transaction, with its audit record (guarantee
R25). Nobody has to look at a clock, or to delete anything.

- A publication keeps the generation that it replaces, unless canaries alone had that, or it was served nowhere.
- Going back, an abortion, switching off and a deletion keep none: what was served then is not to be served any more.
- More than there is room for is refused where that can be told beforehand; a replica with less room leaves out the
  oldest (`sidecar.plan.selection`).
"""

from __future__ import annotations

from collections.abc import Iterable

from registry.model.errors import FailedPrecondition, InvalidArgument, Reason
from registry.model.placement import Member
from registry.model.records import MIN_KEEP, AdapterRecord, AdapterSpec, KeptGeneration, PoolSpec
from registry.transactions.context import StepTarget
from registry.transactions.decode import Present


def kept_after(record: AdapterRecord, wanted: AdapterSpec, generation: int, *, goes_on: bool) -> list[KeptGeneration]:
    """The earlier generations that are kept once a record has another spec, and maybe another generation.

    Args:
        record: as it is.
        wanted: its next spec.
        generation: its next one, or the same.
        goes_on: False: it goes back to what was before.
    """
    if wanted.keep is None or not wanted.enabled or not goes_on:
        return []
    is_replaced = generation > record.generation and record.spec.enabled and record.rollout is None
    replaced = [KeptGeneration(generation=record.generation, spec=_weights(record.spec))] if is_replaced else []
    return [one for one in (*replaced, *record.kept) if generation - one.generation < wanted.keep]


def _weights(spec: AdapterSpec) -> AdapterSpec:
    """The part of a spec that decides about the weights: a record is to stay small."""
    return AdapterSpec(
        source=spec.source,
        base_model=spec.base_model,
        prepare=spec.prepare,
        credentials=spec.credentials,
        expect=spec.expect,
    )


def check_room(pool: PoolSpec, spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument if the pool's limit has not the room for what one adapter keeps."""
    most = pool.limits.max_adapters
    if spec.keep is None or most is None or spec.keep < most:
        return
    raise InvalidArgument(
        Reason.INVALID_FIELD,
        f"{_room_of(spec.keep)}, and pool {pool.name!r} has max_adapters {most}: use at most {most - 1}, or raise that"
        if most > MIN_KEEP
        else f"pool {pool.name!r} has max_adapters {most}, which is room for no second generation: leave it out",
        field=f"{field}.keep",
    )


def _room_of(keep: int) -> str:
    return f"{keep} generations take room for {keep + 1} adapters, since the next one is loaded beside them"


def check_engines(target: StepTarget, spec: AdapterSpec, members: Iterable[Member]) -> None:
    """Looks, when keep is new, whether any engine of the pool, as far as they say, has the room for it.

    A replica that has less room than others leaves out the oldest generations.

    Raises:
        FailedPrecondition: none has.
    """
    is_known = isinstance(target.state, Present) and target.state.record.spec.keep == spec.keep
    rooms = [one.capacity for one in members if one.capacity]
    if spec.keep is None or is_known or not rooms or spec.keep < max(rooms):
        return
    raise FailedPrecondition(
        Reason.INVALID_FIELD,
        f"{_room_of(spec.keep)}, and no engine of pool {target.pool.name!r} holds more than {max(rooms)}: keep fewer, "
        "or raise --max-cpu-loras",
        field=f"{target.spec_field}.keep",
    )
