"""Steps of a change: one adapter's record, its history, and what is kept of that.

The record says which generations are kept (`AdapterSpec.keep`), and what each is made of. So whoever follows the record
knows all of it, and a generation ends by the change that leaves it too far behind: the same transaction, with its audit
record (guarantee R25). Nobody has to look at a clock, or to delete anything.

- A publication keeps the generation that it replaces, unless canaries alone had that, or it was served nowhere.
- Going back, an abortion, switching off and a deletion keep none: what was served then is not to be served any more.
- More than there is room for is refused where that can be told beforehand; a replica with less room leaves out the
  oldest (`sidecar.plan.selection`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar, assert_never

from registry.etcd3.ops import Compare, Delete, Op, Put
from registry.model.audit import AuditChange
from registry.model.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Reason
from registry.model.names import check_not_base, tenant_of
from registry.model.placement import Member
from registry.model.records import (
    MAX_GENERATION,
    MIN_KEEP,
    AdapterOutcome,
    AdapterRecord,
    AdapterSpec,
    AskedRetry,
    CanaryRollout,
    KeptGeneration,
    PoolSpec,
    RetiredRecord,
)
from registry.model.status import ScaledReplicas
from registry.model.stored import MAX_RECORD_BYTES, Part
from registry.transactions.builder import put_record
from registry.transactions.canaries import rollout_of
from registry.transactions.context import Context, StepTarget, adapter_key, as_it_stands, check_etag
from registry.transactions.decode import Absent, Damaged, Present, no_adapter, shown, snapshot_of
from registry.transactions.supported import check_engine_can, check_expected

HISTORY_KEPT = 10


def retire_record(record: AdapterRecord, context: Context, *, deleted: bool) -> tuple[Op, ...]:
    """Puts a record into history, without what it keeps beside it, and takes the one that is too old out of it."""
    values = record.model_dump(by_alias=True)
    retired = {"retired_by_request": context.caller.request_id, "deleted": deleted, "restored_by": None, "kept": []}
    value = RetiredRecord.model_validate(values | retired).to_bytes()
    return retire_value(record.pool, record.name, record.generation, value, context)


def retire_value(pool: str, name: str, generation: int, value: bytes, context: Context) -> tuple[Op, ...]:
    """As `retire_record`, for a value that cannot be read: it is kept as it is, if perhaps cut off."""
    keys = context.keys
    put = Put(keys.history(pool, name, generation), value[:MAX_RECORD_BYTES])
    if generation <= HISTORY_KEPT:
        return (put,)
    return put, Delete(keys.history(pool, name, generation - HISTORY_KEPT))


PartT = TypeVar("PartT", bound=Part)


@dataclass(frozen=True, slots=True)
class AdapterStep:
    """A part of a transaction. `count` is what it adds to its tenant's counter; `audit` None: it changes nothing."""

    tenant: str
    count: int
    compare: tuple[Compare, ...]
    success: tuple[Op, ...]
    outcome: AdapterOutcome
    audit: AuditChange | None


def put_step(
    target: StepTarget, spec: AdapterSpec, context: Context, *, goes_on: bool, retry: AskedRetry | None = None
) -> AdapterStep:
    """Makes an adapter have a spec.

    `goes_on`: what this release does not know of the present spec stays in it, and new weights come to the replicas as
    the spec's strategy says. Otherwise it is for all replicas at once. `retry`: asked for where the spec is the same.

    Raises:
        Conflict: the etag is stale.
        InvalidArgument: the name is a base model's, the pool's engines cannot do it, answers are expected of tokens
            that its base does not know, or the record becomes too large.
        AlreadyExists: the name differs from an existing one in nothing but case.
        FailedPrecondition: generations are used up, or the pool asks for a digest.
    """
    check_not_base(target.name, target.pool.base_models, field=target.name_field)
    _check_pinned(target, spec)
    check_engine_can(target.pool, spec, field=target.spec_field)
    check_expected(target.pool, spec, field=target.spec_field)
    check_room(target.pool, spec, field=target.spec_field)
    check_etag(target.etag, target.state, field=target.etag_field)
    match target.state:
        case Present() as present:
            step = _replace(target, present, spec, context, goes_on=goes_on)
            if retry is None or step.outcome.outcome != "unchanged":
                return step
            return _update(target, present.record.model_copy(update={"retry": retry}), (), context)
        case Damaged() as damaged:
            return _repair(target, damaged, spec, context)
        case Absent() as gone:
            return _create(target, gone, spec, context)
    assert_never(target.state)


def _check_pinned(target: StepTarget, spec: AdapterSpec) -> None:
    if target.pool.limits.require_digest and spec.source.digest is None:
        raise FailedPrecondition(
            Reason.DIGEST_REQUIRED,
            f"pool {target.pool.name!r} takes no source without a digest; give that of `loraplane digest`",
            field=f"{target.spec_field}.source.digest",
        )


def remove_step(target: StepTarget, context: Context) -> AdapterStep:
    """Deletes an adapter; history keeps it.

    Raises:
        Conflict: the etag is stale.
        NotFound: there is no such adapter.
    """
    check_etag(target.etag, target.state, field=target.etag_field)
    outcome, retire = _removed(target, context)
    return AdapterStep(
        tenant=tenant_of(target.name),
        count=-1,
        compare=as_it_stands(target, context.keys),
        success=(Delete(adapter_key(target, context.keys)), *retire),
        outcome=outcome,
        audit=_audit(target, None),
    )


def _removed(target: StepTarget, context: Context) -> tuple[AdapterOutcome, tuple[Op, ...]]:
    match target.state:
        case Present(record=record, revision=revision):
            outcome = AdapterOutcome(outcome="deleted", name=record.name, record=record, etag=revision)
            return outcome, retire_record(record, context, deleted=True)
        case Damaged(value=value, revision=revision, generation=generation):
            outcome = AdapterOutcome(outcome="deleted", name=target.name, record=None, etag=revision)
            return outcome, retire_value(target.pool.name, target.name, generation, value, context)
        case Absent():
            raise no_adapter(target.pool.name, target.name, field=target.name_field)
    assert_never(target.state)


def _create(target: StepTarget, gone: Absent, spec: AdapterSpec, context: Context) -> AdapterStep:
    record = _dated(_new_record(target, spec, gone.last_generation + 1, context), context)
    return AdapterStep(
        tenant=record.tenant,
        count=1,
        compare=as_it_stands(target, context.keys),
        success=(_put(target, record, context),),
        outcome=AdapterOutcome(outcome="created", name=record.name, record=record, etag=None),
        audit=_audit(target, record),
    )


def _repair(target: StepTarget, damaged: Damaged, spec: AdapterSpec, context: Context) -> AdapterStep:
    record = _new_record(target, spec, damaged.generation + 1, context)
    retire = retire_value(target.pool.name, target.name, damaged.generation, damaged.value, context)
    return _update(target, record, retire, context)


def _replace(
    target: StepTarget, present: Present[AdapterRecord], spec: AdapterSpec, context: Context, *, goes_on: bool
) -> AdapterStep:
    record = present.record
    _check_case(target, record)
    wanted = carry_unknown(record.spec, spec) if goes_on else spec.model_copy(update=record.spec.life)
    if wanted == record.spec:
        return keep_step(target, present, context) if goes_on else rollout_step(target, present, None, context)
    if wanted.weights_and_serving == record.spec.weights_and_serving:
        kept = kept_after(record, wanted, record.generation, goes_on=True)
        return _update(target, record.model_copy(update={"spec": wanted, "kept": kept}), (), context)
    generation = _checked(record.generation + 1)
    changed = record.model_copy(
        update={
            "generation": generation,
            "spec": wanted,
            "updated_at": context.at,
            "updated_by": context.caller.principal.name,
            "request_id": context.caller.request_id,
            "rollout": rollout_of(record, wanted) if goes_on else None,
            "retry": None,
            "kept": kept_after(record, wanted, generation, goes_on=goes_on),
            # Load knows nothing of generations: whatever is published, the number that it asks for stays.
            "scaled": record.scaled if wanted.placement.by_load else None,
        }
    )
    return _update(target, changed, retire_record(record, context, deleted=False), context)


def rollout_step(
    target: StepTarget, present: Present[AdapterRecord], rollout: CanaryRollout | None, context: Context
) -> AdapterStep:
    """Changes how far a generation is meant to get. It stays the same generation, so history has nothing to keep.

    Raises:
        InvalidArgument: the record becomes too large.
    """
    if rollout == present.record.rollout:
        return keep_step(target, present, context)
    return _update(target, present.record.model_copy(update={"rollout": rollout}), (), context)


def scaled_step(
    target: StepTarget, present: Present[AdapterRecord], scaled: ScaledReplicas, context: Context
) -> AdapterStep:
    """Changes how many replicas serve an adapter whose placement is by load. It stays the same generation.

    Raises:
        InvalidArgument: the record becomes too large.
    """
    return _update(target, present.record.model_copy(update={"scaled": scaled}), (), context)


def keep_step(target: StepTarget, present: Present[AdapterRecord], context: Context) -> AdapterStep:
    """Leaves an adapter as it is."""
    record = present.record
    return AdapterStep(
        tenant=record.tenant,
        count=0,
        compare=as_it_stands(target, context.keys),
        success=(),
        outcome=AdapterOutcome(outcome="unchanged", name=record.name, record=record, etag=present.revision),
        audit=None,
    )


def _update(target: StepTarget, written: AdapterRecord, retire: tuple[Op, ...], context: Context) -> AdapterStep:
    record = _dated(written, context)
    return AdapterStep(
        tenant=tenant_of(target.name),
        count=0,
        compare=as_it_stands(target, context.keys),
        success=(_put(target, record, context), *retire),
        outcome=AdapterOutcome(outcome="updated", name=record.name, record=record, etag=None),
        audit=_audit(target, record),
    )


def _dated(record: AdapterRecord, context: Context) -> AdapterRecord:
    """The record with when its time to live is over, which starts anew whenever it is written."""
    ttl = record.spec.ttl_seconds
    expires_at = None if ttl is None else later(context.at, ttl)
    return record if expires_at == record.expires_at else record.model_copy(update={"expires_at": expires_at})


def later(at: str, seconds: int) -> str:
    """The RFC 3339 time so long after another."""
    then = datetime.fromisoformat(at) + timedelta(seconds=seconds)
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _new_record(target: StepTarget, spec: AdapterSpec, generation: int, context: Context) -> AdapterRecord:
    return AdapterRecord(
        name=target.name,
        pool=target.pool.name,
        tenant=tenant_of(target.name),
        generation=_checked(generation),
        spec=spec,
        updated_at=context.at,
        updated_by=context.caller.principal.name,
        request_id=context.caller.request_id,
    )


def _checked(generation: int) -> int:
    if generation > MAX_GENERATION:
        raise FailedPrecondition(
            Reason.UNREADABLE_RECORD, "the stored generation is the largest there can be; use another name"
        )
    return generation


def _check_case(target: StepTarget, record: AdapterRecord) -> None:
    if record.name != target.name:
        raise AlreadyExists(
            Reason.ADAPTER_EXISTS,
            f"{record.name!r} exists and differs in nothing but case; use that name",
            field=target.name_field,
            metadata={"name": record.name},
        )


def _put(target: StepTarget, record: AdapterRecord, context: Context) -> Put:
    return put_record(adapter_key(target, context.keys), record.to_bytes(), field=target.spec_field)


def _audit(target: StepTarget, after: AdapterRecord | None) -> AuditChange:
    name = target.state.record.name if isinstance(target.state, Present) else target.name
    return AuditChange(
        kind="adapter", name=name, before=snapshot_of(target.state), after=shown(after) if after else None
    )


def carry_unknown(old: PartT, new: PartT) -> PartT:
    """`new` with the fields of `old` that this release does not know, at every depth."""
    update: dict[str, object] = {**(old.model_extra or {}), **(new.model_extra or {})}
    for name in type(new).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Part) and isinstance(after, Part):
            update[name] = carry_unknown(before, after)
    return new.model_copy(update=update)


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
