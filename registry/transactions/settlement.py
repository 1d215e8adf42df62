"""What a removal under NOSPACE left undone is written afterwards: history, counter and audit record (W2, W5, W7)."""

from __future__ import annotations

from registry.errors import FailedPrecondition, InvalidArgument, Reason
from registry.etcd3.ops import Compare, KeyValue, Range, absent, mod_is
from registry.keys import Keys
from registry.model.names import tenant_of
from registry.model.records import AdapterOutcome, AdapterRecord, AuditChange, ChangeReply, RetiredRecord
from registry.transactions.changes import SettleRemoval
from registry.transactions.context import Context
from registry.transactions.draft import Draft, Planned, finish, request_read
from registry.transactions.history import HISTORY_KEPT, retire_record
from registry.transactions.steps import Step
from registry.transactions.stored import generation_of_key, shown
from registry.transactions.tenants import count_all
from registry.transactions.view import View, newest_in


def settle_reads(change: SettleRemoval, keys: Keys, request_id: str) -> tuple[Range, ...]:
    """What a settlement is planned from."""
    record = change.record
    return (
        request_read(keys, request_id),
        Range(keys.tenant(tenant_of(record.name))),
        Range(keys.adapter(record.pool, record.name)),
        newest_in(keys.history_of(record.pool, record.name)),
        Range(_history_key(record, keys)),
    )


def plan_settle(change: SettleRemoval, view: View, context: Context) -> Planned:
    """The transaction that settles a removal; one that is settled already changes nothing.

    Raises:
        InvalidArgument: the removal lies at a revision that is still to come.
        FailedPrecondition: the record was not removed, its generation was given again since or is too old to tell, or
            the tenant's record cannot be read.
    """
    if change.removed.revision > view.revision:
        message = f"etcd is at revision {view.revision}; this is no receipt of this store"
        raise InvalidArgument(Reason.INVALID_FIELD, message, field="removal.revision")
    record = change.record
    there = view.key(context.keys.adapter(record.pool, record.name))
    if there is not None and there.mod_revision <= change.removed.revision:
        message = f"{record.name!r} was not removed: its record is of revision {there.mod_revision}"
        raise FailedPrecondition(Reason.NOT_REMOVED, message)
    step = _step(record, there, context, is_settled=_is_settled(record, view, context.keys))
    counts = count_all([step], view, context)
    draft = Draft(
        scope=record.pool,
        method="SettleRemoval",
        compare=(*step.compare, *(count.compare for count in counts.values())),
        success=(*step.success, *(count.put for count in counts.values())),
        audit=(step.audit,) if step.audit else (),
        reply=ChangeReply(adapters=[step.outcome]),
        removed=change.removed,
    )
    return finish(draft, view, context)


def _step(record: AdapterRecord, there: KeyValue | None, context: Context, *, is_settled: bool) -> Step:
    key = context.keys.adapter(record.pool, record.name)
    unmoved: Compare = mod_is(key, there.mod_revision) if there is not None else absent(key)
    return Step(
        tenant=tenant_of(record.name),
        count=0 if is_settled else -1,
        compare=() if is_settled else (unmoved, absent(_history_key(record, context.keys))),
        success=() if is_settled else retire_record(record, context, deleted=True),
        outcome=AdapterOutcome(outcome="deleted", name=record.name, record=record, etag=None),
        audit=None if is_settled else AuditChange(kind="adapter", name=record.name, before=shown(record), after=None),
    )


def _is_settled(record: AdapterRecord, view: View, keys: Keys) -> bool:
    """Whether history has the record already.

    Raises:
        FailedPrecondition: its place there is another's, or nobody can tell any more.
    """
    kept = view.key(_history_key(record, keys))
    newest = generation_of_key(view.below(keys.history_of(record.pool, record.name)))
    if kept is None and newest < record.generation + HISTORY_KEPT:
        return False
    if kept is not None and _is_same(record, kept):
        return True
    why = (
        "was given again before its removal was settled, so history has no place for it"
        if kept is not None
        else f"is too old: history keeps {HISTORY_KEPT} and has {newest}, so nobody can tell whether it was settled"
    )
    message = f"generation {record.generation} of {record.name!r} {why}; the tenant's counter may be too high by one"
    raise FailedPrecondition(Reason.GENERATION_REUSED, message)


def _is_same(record: AdapterRecord, kept: KeyValue) -> bool:
    retired = RetiredRecord.parse(kept.value)
    return retired.deleted and shown(record).items() <= shown(retired).items()


def _history_key(record: AdapterRecord, keys: Keys) -> bytes:
    return keys.history(record.pool, record.name, record.generation)
