"""From what a change does to its transaction: request record, audit record, else-branch and size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from registry.errors import InvalidArgument, Reason
from registry.etcd3.ops import Compare, Op, Put, Range, Txn, absent
from registry.keys import Keys
from registry.model.base import MAX_RECORD_BYTES
from registry.model.records import AuditChange, AuditRecord, ChangeReply, Removed, RequestRecord
from registry.transactions.context import Context, Limits
from registry.transactions.view import View

# What a record gets besides when it goes into history, which must be readable too.
_RETIRED_BYTES = 256
_OVERHEAD_BYTES = 32  # of one compare or operation on the wire, generously


@dataclass(frozen=True, slots=True)
class Draft:
    """What a change compares and does, before its bookkeeping. No `success`: nothing changes."""

    scope: str
    method: str
    compare: tuple[Compare, ...]
    success: tuple[Op, ...]
    audit: tuple[AuditChange, ...]
    reply: ChangeReply
    removed: Removed | None = None


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


def finish(draft: Draft, view: View, context: Context) -> Planned:
    """The transaction of a draft that was made from a view."""
    if not draft.success and not context.caller.request_id_given:
        return Unchanged(draft.reply)
    bookkeeping: tuple[Op, ...] = (_request_put(draft.reply, context),)
    if draft.success:
        bookkeeping += (_audit_put(draft, context),)
    unused = absent(context.keys.request(context.caller.request_id))
    txn = Txn((unused, *draft.compare), (*draft.success, *bookkeeping), view.reads)
    return Commit(txn, draft.reply, changes=bool(draft.success))


def fence(context: Context) -> Txn:
    """Makes sure that nothing that was sent for this request can take effect any more: all of it compares that the
    request record is absent. Fails if something did take effect; its else-branch reads the request record.
    """
    key = context.keys.request(context.caller.request_id)
    return Txn((absent(key),), (_request_put(None, context),), (request_read(context.keys, context.caller.request_id),))


def _request_put(reply: ChangeReply | None, context: Context) -> Put:
    record = RequestRecord(payload_digest=context.payload_digest, reply=reply)
    return Put(context.keys.request(context.caller.request_id), record.to_bytes(), context.leases.request)


def _audit_put(draft: Draft, context: Context) -> Put:
    record = AuditRecord(
        at=context.at,
        principal=context.caller.principal,
        role=context.caller.role,
        request_id=context.caller.request_id,
        method=draft.method,
        changes=list(draft.audit),
        removed=draft.removed,
    )
    return Put(context.keys.audit(draft.scope, context.audit_id), record.to_bytes(), context.leases.audit)


def fits(planned: Planned, limits: Limits) -> bool:
    """Whether etcd takes it as one transaction."""
    match planned:
        case Unchanged():
            return True
        case Commit(txn=txn):
            most = max(len(txn.compare), len(txn.success), len(txn.failure))
            return most <= limits.max_ops and _size_bytes(txn) <= limits.max_bytes
    assert_never(planned)


def check_fits(planned: Planned, limits: Limits) -> Planned:
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


def request_read(keys: Keys, request_id: str) -> Range:
    """Reads the request record."""
    return Range(keys.request(request_id))


def _size_bytes(txn: Txn) -> int:
    parts: tuple[Compare | Op, ...] = (*txn.compare, *txn.success, *txn.failure)
    return _OVERHEAD_BYTES * len(parts) + sum(map(_part_bytes, parts))


def _part_bytes(part: Compare | Op) -> int:
    return len(part.key) + len(part.value if isinstance(part, Put) else part.range_end)
