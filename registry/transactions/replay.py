"""Whether a request was carried out before, as its request record says."""

from __future__ import annotations

from dataclasses import dataclass

from registry.errors import FailedPrecondition, InvalidArgument, Reason
from registry.etcd3.ops import KeyValue
from registry.model.records import ChangeReply, RequestRecord
from registry.transactions.context import Context
from registry.transactions.stored import named
from registry.transactions.view import View


@dataclass(frozen=True, slots=True)
class Settled:
    """A reply with its revision."""

    reply: ChangeReply
    revision: int


def replay(view: View, context: Context) -> Settled | None:
    """The first reply to this request; None if it was not carried out.

    Raises:
        InvalidArgument: the request id was used for another request, or for one that was refused.
        FailedPrecondition: the request record cannot be read.
    """
    kv = view.key(context.keys.request(context.caller.request_id))
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


def is_fenced(view: View, context: Context) -> bool:
    """Whether this very request was refused for good: nothing of it took effect, and nothing will.

    Raises:
        FailedPrecondition: the request record cannot be read.
    """
    kv = view.key(context.keys.request(context.caller.request_id))
    if kv is None:
        return False
    record = _record(kv)
    return record.reply is None and record.payload_digest == context.payload_digest


def _record(kv: KeyValue) -> RequestRecord:
    try:
        return RequestRecord.parse(kv.value)
    except FailedPrecondition as error:
        raise named(error, kv, "use a new request_id") from error
