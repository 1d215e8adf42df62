"""Builds a change's transaction: request, audit, else-branch, size. Pure.

By its request record, a request that was carried out before is recognized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from registry.access.decision import HeldRole
from registry.access.outcome import outcome_questions
from registry.access.principal import CREDENTIAL_KINDS
from registry.etcd3.ops import Compare, KeyValue, Op, Put, Range, Txn, absent
from registry.model.audit import AuditChange, AuditRecord, RequestRecord
from registry.model.errors import FailedPrecondition, InvalidArgument, Reason
from registry.model.records import ChangeReply
from registry.model.stored import MAX_RECORD_BYTES
from registry.transactions.context import Context, TxnLimits
from registry.transactions.decode import ReadSet, named

# What a record gets besides when it goes into history, also that of another store, which must be readable too.
_RETIRED_BYTES = 512
# Scope of audit records that belong to no pool.
TENANT_SCOPE = "_"
_OVERHEAD_BYTES = 32  # of one compare or operation on the wire, generously


@dataclass(frozen=True, slots=True)
class TxnBuilder:
    """Comparisons and operations of a change, before its bookkeeping. No `success`: nothing changes.

    `reason`: why the admin service does it by itself; empty: somebody asked for it.
    """

    scope: str
    method: str
    compare: tuple[Compare, ...]
    success: tuple[Op, ...]
    audit: tuple[AuditChange, ...]
    reply: ChangeReply
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction to send, and the reply if it succeeds. Its else-branch reads what the plan was made from.

    `changes` False: it only remembers that the request changed nothing.
    """

    txn: Txn
    reply: ChangeReply
    changes: bool


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Everything is already so, and nobody needs to be told twice: nothing is sent."""

    reply: ChangeReply


Planned = Commit | Unchanged


def finish(draft: TxnBuilder, view: ReadSet, context: Context) -> Planned:
    """The transaction of a draft that was made from a view.

    Raises:
        PermissionDenied: its caller may not do what it comes to.
    """
    if not draft.success and not context.caller.request_id_given:
        return Unchanged(draft.reply)
    allowed_by = _allowed_by(draft, context)
    bookkeeping: tuple[Op, ...] = (_request_put(draft.reply, context),)
    if draft.success:
        bookkeeping += (_audit_put(draft, context, allowed_by),)
    unused = (absent(key) for key in _request_keys(context) if key == context.request_key or view.key(key) is None)
    txn = Txn((*unused, *draft.compare), (*draft.success, *bookkeeping), view.reads)
    return Commit(txn, draft.reply, changes=bool(draft.success))


def fence(context: Context) -> Txn:
    """Makes sure that nothing that was sent for this request can take effect any more: all of it compares that the
    request record is absent. Fails if something did take effect; its else-branch reads the request record.
    """
    return Txn((absent(context.request_key),), (_request_put(None, context),), request_reads(context))


def _request_put(reply: ChangeReply | None, context: Context) -> Put:
    record = RequestRecord(payload_digest=context.payload_digest, reply=reply)
    return Put(context.request_key, record.to_bytes(), context.leases.request)


def _allowed_by(draft: TxnBuilder, context: Context) -> tuple[HeldRole, ...]:
    """Bindings that allow what a draft comes to; none: nothing asks for any. Raises PermissionDenied."""
    grant = context.caller.grant
    if grant is None:
        return ()
    pool = None if draft.scope == TENANT_SCOPE else draft.scope
    asked = outcome_questions(draft.method, pool, draft.audit)
    return tuple(dict.fromkeys(grant.check_any(*each) for each in asked))


def _audit_put(draft: TxnBuilder, context: Context, allowed_by: tuple[HeldRole, ...]) -> Put:
    principal, trace = context.caller.principal, context.caller.trace
    record = AuditRecord(
        at=context.at,
        principal=principal.name,
        role=",".join(sorted({one.role for one in allowed_by})) or principal.usual_role,
        bindings=sorted({one.number for one in allowed_by}),
        credential=CREDENTIAL_KINDS[principal.credential],
        fingerprint=trace.fingerprint,
        peer=trace.peer,
        user_agent=trace.user_agent,
        request_id=context.caller.request_id,
        method=draft.method,
        changes=list(draft.audit),
        reason=draft.reason,
    )
    return Put(context.keys.audit(draft.scope, context.audit_id), record.to_bytes(), context.leases.audit)


def fits(planned: Planned, limits: TxnLimits) -> bool:
    """True if etcd takes it as one transaction."""
    match planned:
        case Unchanged():
            return True
        case Commit(txn=txn):
            most = max(len(txn.compare), len(txn.success), len(txn.failure))
            return most <= limits.max_ops and _size_bytes(txn) <= limits.max_bytes
    assert_never(planned)


def check_fits(planned: Planned, limits: TxnLimits) -> Planned:
    """Returns `planned`.

    Raises:
        InvalidArgument: etcd would not take it as one transaction.
    """
    if not fits(planned, limits):
        raise InvalidArgument(Reason.TOO_LARGE, "the change does not fit into one etcd transaction; make it smaller")
    return planned


def put_record(key: bytes, value: bytes, *, field: str) -> Put:
    """Puts a record.

    Raises:
        InvalidArgument: it is larger than readers take.
    """
    if len(value) > MAX_RECORD_BYTES - _RETIRED_BYTES:
        raise InvalidArgument(
            Reason.TOO_LARGE,
            f"the record would have {len(value)} bytes, more than the {MAX_RECORD_BYTES - _RETIRED_BYTES} that one may "
            "have",
            field=field,
        )
    return Put(key, value)


def request_reads(context: Context) -> tuple[Range, ...]:
    """Reads the request record, wherever it may stand."""
    return tuple(map(Range, _request_keys(context)))


def _request_keys(context: Context) -> tuple[bytes, ...]:
    earlier = context.earlier_request_key
    return (context.request_key, earlier) if earlier else (context.request_key,)


def _size_bytes(txn: Txn) -> int:
    parts: tuple[Compare | Op, ...] = (*txn.compare, *txn.success, *txn.failure)
    return _OVERHEAD_BYTES * len(parts) + sum(map(_part_bytes, parts))


def _part_bytes(part: Compare | Op) -> int:
    return len(part.key) + len(part.value if isinstance(part, Put) else part.range_end)


@dataclass(frozen=True, slots=True)
class Settled:
    """A reply with its revision."""

    reply: ChangeReply
    revision: int


def replay(view: ReadSet, context: Context) -> Settled | None:
    """The first reply to this request; None if it was not carried out.

    Raises:
        InvalidArgument: the request id was used for another request, or for one that was refused.
        FailedPrecondition: the request record cannot be read.
    """
    kv = view.key(context.request_key) or _earlier(view, context)
    if kv is None:
        return None
    record = _record(kv)
    if record.payload_digest != context.payload_digest:
        raise InvalidArgument(
            Reason.REQUEST_ID_REUSED,
            f"request_id {context.caller.request_id!r} was used for another request within 24 hours; use a new one",
            field="request_id",
        )
    if record.reply is None:
        raise InvalidArgument(
            Reason.REQUEST_ID_REUSED,
            f"the request {context.caller.request_id!r} was refused before; use a new request_id to try it again",
            field="request_id",
        )
    return Settled(record.reply, kv.mod_revision)


def is_fenced(view: ReadSet, context: Context) -> bool:
    """True if this very request was refused for good: nothing of it took effect, and nothing will.

    Raises:
        FailedPrecondition: the request record cannot be read.
    """
    kv = view.key(context.request_key)
    if kv is None:
        return False
    record = _record(kv)
    return record.reply is None and record.payload_digest == context.payload_digest


def _earlier(view: ReadSet, context: Context) -> KeyValue | None:
    """Note of an earlier release about this very request. With another payload it may be anybody's."""
    key = context.earlier_request_key
    kv = view.key(key) if key else None
    return kv if kv is not None and _record(kv).payload_digest == context.payload_digest else None


def _record(kv: KeyValue) -> RequestRecord:
    try:
        return RequestRecord.parse(kv.value)
    except FailedPrecondition as error:
        raise named(error, kv, "use a new request_id") from error
