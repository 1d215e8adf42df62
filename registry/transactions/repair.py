"""Repair of counters and history after deletions past us, and history of a backup."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

from registry.etcd3.ops import Compare, Delete, KeyValue, Put, Range, absent, mod_is, prefix_end
from registry.model.audit import AuditChange, AuditRecord
from registry.model.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Reason
from registry.model.keys import Keys
from registry.model.names import name_key, name_of_key, tenant_of
from registry.model.records import (
    MAX_RESTORED_FIRST,
    MAX_RESTORED_STEP,
    AdapterOutcome,
    AdapterRecord,
    ChangeReply,
    Restoration,
    RetiredRecord,
    TenantRecord,
)
from registry.model.stored import MAX_RECORD_BYTES
from registry.transactions.builder import TENANT_SCOPE, Planned, TxnBuilder, check_fits, finish, fits, put_record
from registry.transactions.changes import RepairTenant, RestoreHistory
from registry.transactions.context import Context
from registry.transactions.decode import (
    Absent,
    Present,
    ReadSet,
    generation_of_key,
    present_pool,
    shown,
    snapshot_of,
    stored_tenant,
)
from registry.transactions.steps import HISTORY_KEPT, retire_record
from registry.transactions.tenants import tenant_record

# Reads, compares and operations of a repair besides those of the records.
_OTHER_OPS = 4


class AuditTrail:
    """The last record of each adapter of a tenant, as audit records tell it."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._last: dict[tuple[str, str], tuple[int, dict[str, object] | None]] = {}

    def take(self, kv: KeyValue) -> None:
        """Follows one audit record, in any order. One that cannot be read is left out."""
        try:
            audit = AuditRecord.parse(kv.value)
        except FailedPrecondition:
            return
        for change in audit.changes:
            if change.kind == "adapter" and tenant_of(change.name) == self._tenant:
                self._note(kv.mod_revision, change)

    def _note(self, revision: int, change: AuditChange) -> None:
        told = change.after or change.before or {}
        name = str(told.get("pool")), name_key(change.name)
        if revision > self._last.get(name, (0, None))[0]:
            self._last[name] = revision, change.after

    def lost(self, standing: Collection[bytes], keys: Keys) -> tuple[AdapterRecord, ...]:
        """Records that should stand and do not; `standing` are the keys of adapters."""
        records = [record for _, after in self._last.values() if after and (record := _readable(after))]
        missing = [one for one in records if keys.adapter(one.pool, one.name) not in standing]
        return tuple(sorted(missing, key=lambda one: (one.pool, one.name)))


def _readable(after: dict[str, object]) -> AdapterRecord | None:
    try:
        return AdapterRecord.parse(json.dumps(after).encode())
    except FailedPrecondition:
        return None


def is_of_tenant(key: bytes, tenant: str, keys: Keys) -> bool:
    """True if a key below those of all adapters is of one of the tenant's, by the name that listings tell of it."""
    name = key.removeprefix(keys.all_adapters()).partition(b"/")[2].decode(errors="backslashreplace")
    return tenant_of(name_of_key(name)) == tenant


def repair_reads(change: RepairTenant, context: Context) -> tuple[Range, ...]:
    """Reads of a repair: all adapters' keys too, since a tenant's stand in many pools."""
    keys = context.keys
    everything = keys.all_adapters()
    return (
        Range(keys.tenant(change.name)),
        Range(everything, prefix_end(everything), keys_only=True),
        *(Range(_history_key(one, keys)) for one in _first(change, context)),
    )


def _first(change: RepairTenant, context: Context) -> tuple[AdapterRecord, ...]:
    """Lost records that one transaction has compares and operations for, two each."""
    return change.lost[: (context.limits.max_ops - _OTHER_OPS) // 2]


def plan_repair(change: RepairTenant, view: ReadSet, context: Context) -> Planned:
    """The transaction that makes the counter right and puts lost records into history.

    Those that do not fit stay counted, so that the next repair finds them. The compare of the tenant's record keeps the
    count right: every change of the number of its adapters writes that record.

    Raises:
        FailedPrecondition: the tenant's record cannot be read.
    """
    keys = context.keys
    state = stored_tenant(view, keys, change.name)
    standing = {kv.key for kv in view.all_below(keys.all_adapters()) if is_of_tenant(kv.key, change.name, keys)}
    lost = [one for one in change.lost if keys.adapter(one.pool, one.name) not in standing]
    first = _first(change, context)
    taken = [one for one in lost if one in first and view.key(_history_key(one, keys)) is None]
    left = sum(one not in first for one in lost)
    while True:
        wanted = tenant_record(state, change.name).model_copy(update={"adapters": len(standing) + left})
        planned = finish(_draft(state, wanted, taken, context), view, context)
        if not taken or fits(planned, context.limits):
            return planned
        half = len(taken) // 2
        left, taken = left + len(taken) - half, taken[:half]


def _history_key(record: AdapterRecord, keys: Keys) -> bytes:
    return keys.history(record.pool, record.name, record.generation)


def _draft(
    state: Present[TenantRecord] | Absent, wanted: TenantRecord, taken: Sequence[AdapterRecord], context: Context
) -> TxnBuilder:
    keys, key = context.keys, context.keys.tenant(wanted.name)
    is_right = not taken and wanted == tenant_record(state, wanted.name)
    counted = AuditChange(kind="tenant", name=wanted.name, before=snapshot_of(state), after=shown(wanted))
    deleted = [AuditChange(kind="adapter", name=one.name, before=shown(one), after=None) for one in taken]
    still_so = [condition for one in taken for condition in _conditions(one, keys)]
    retired = [op for one in taken for op in retire_record(one, context, deleted=True)]
    return TxnBuilder(
        scope=TENANT_SCOPE,
        method="RepairTenant",
        compare=(mod_is(key, state.revision), *still_so),
        success=() if is_right else (*retired, put_record(key, wanted.to_bytes(), field="name")),
        audit=tuple(deleted or [counted]),
        reply=ChangeReply(
            adapters=[AdapterOutcome(outcome="deleted", name=one.name, record=one, etag=None) for one in taken],
            tenant=wanted,
            etag=state.revision if is_right else None,
        ),
    )


def _conditions(record: AdapterRecord, keys: Keys) -> tuple[Compare, Compare]:
    """Comparisons that neither the adapter nor this generation of it came back meanwhile."""
    return absent(keys.adapter(record.pool, record.name)), absent(_history_key(record, keys))


def restore_reads(change: RestoreHistory, keys: Keys) -> tuple[Range, ...]:
    """Reads of a restored history."""
    history = keys.history_of(change.pool, change.name)
    return (
        Range(keys.pool(change.pool)),
        Range(keys.adapter(change.pool, change.name)),
        Range(history, prefix_end(history), keys_only=True),
    )


def plan_restore(change: RestoreHistory, view: ReadSet, context: Context) -> Planned:
    """The transaction that puts the next generation into history behind those that stand there, if history keeps it.

    Each has a revision of its own: readers find the newest by it, so that a name goes on from it wherever a restoration
    breaks off. What is written says who restored it, whatever it said before.

    Raises:
        NotFound: there is no such pool.
        AlreadyExists: the adapter exists, and has a history of its own.
        FailedPrecondition: a generation is too far above those that are known.
        InvalidArgument: a record becomes too large.
    """
    keys = context.keys
    present_pool(view, keys, change.pool, field="pool")
    if view.key(keys.adapter(change.pool, change.name)) is not None:
        raise AlreadyExists(
            Reason.ADAPTER_EXISTS, f"adapter {change.name!r} exists, and has a history of its own", field="name"
        )
    standing = {generation_of_key(kv) for kv in view.all_below(keys.history_of(change.pool, change.name))}
    _check_reach(change, max(standing, default=0))
    wanted = {one.generation: one for one in (*change.generations, *_as_deleted(change.last, context))}
    newest, last = max([*standing, *wanted], default=0), max(standing, default=0)
    taken = [one for number, one in sorted(wanted.items()) if number > max(last, newest - HISTORY_KEPT)]
    by = Restoration(principal=context.caller.principal.name, at=context.at)
    records = [one.model_copy(update={"restored_by": by}) for one in taken[:1]]
    compare = [absent(keys.history(change.pool, change.name, one.generation)) for one in records]
    draft = TxnBuilder(
        scope=change.pool,
        method="RestoreHistory",
        compare=(absent(keys.adapter(change.pool, change.name)), *compare),
        success=(*_restored_puts(change, records, keys), *_outdated(change, records, standing, context)),
        audit=tuple(AuditChange(kind="history", name=change.name, before=None, after=shown(one)) for one in records),
        reply=ChangeReply(etag=None if records else 0),
    )
    return check_fits(finish(draft, view, context), context.limits)


def _check_reach(change: RestoreHistory, known: int) -> None:
    """Refuses a generation so high that its name could soon have no further one: nobody can tell whether it was so.

    Each may be a thousand above the one before it, of those that stand and those that are given. Of a name without any,
    the first may be any that somebody can have come to.
    """
    told = {one.generation: f"generations[{at}].generation" for at, one in enumerate(change.generations)}
    if change.last is not None:
        told[change.last.generation] = "last.generation"
    for generation in sorted(told):
        most = known + MAX_RESTORED_STEP if known else MAX_RESTORED_FIRST
        if generation > most:
            above = f"{known}, the newest that is known of it" if known else "0, since none is known of it"
            raise FailedPrecondition(
                Reason.GENERATION_TOO_HIGH,
                f"generation {generation} of {change.name!r} is more than {most - known:,} above {above}; leave it out",
                field=told[generation],
                metadata={"known": str(known)},
            )
        known = max(known, generation)


def _restored_puts(change: RestoreHistory, records: Sequence[RetiredRecord], keys: Keys) -> Iterator[Put]:
    for one in records:
        value = one.to_bytes()
        if len(value) > MAX_RECORD_BYTES:
            message = f"generation {one.generation} would have {len(value)} bytes, more than a record may; leave it out"
            raise InvalidArgument(Reason.TOO_LARGE, message, field="generations")
        yield Put(keys.history(change.pool, change.name, one.generation), value)


def _outdated(
    change: RestoreHistory, records: Sequence[RetiredRecord], standing: Collection[int], context: Context
) -> Iterator[Delete]:
    """Generations then too old for history, so that it does not grow with each restoration."""
    newest = records[-1].generation if records else 0
    old = [number for number in sorted(standing) if number <= newest - HISTORY_KEPT]
    for number in old[: context.limits.max_ops // 2]:
        yield Delete(context.keys.history(change.pool, change.name, number))


def _as_deleted(last: AdapterRecord | None, context: Context) -> tuple[RetiredRecord, ...]:
    if last is None:
        return ()
    retired = {"retired_by_request": context.caller.request_id, "deleted": True, "restored_by": None}
    return (RetiredRecord.model_validate(last.model_dump(by_alias=True) | retired),)
