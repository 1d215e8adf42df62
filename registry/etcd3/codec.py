"""Between our values (`registry.etcd3.ops`) and etcd's messages. Pure."""

from __future__ import annotations

from typing import assert_never

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.ops import (
    Compare,
    Delete,
    DeleteResult,
    Event,
    KeyValue,
    Op,
    OpResult,
    Put,
    PutResult,
    Range,
    RangeResult,
    Txn,
    TxnResult,
)

# By the value of ours, since a member of an Enum is slow to look up by.
_TARGETS = (rpc.Compare.VERSION, rpc.Compare.CREATE, rpc.Compare.MOD, rpc.Compare.VALUE, rpc.Compare.LEASE)
_RELATIONS = (rpc.Compare.EQUAL, rpc.Compare.GREATER, rpc.Compare.LESS, rpc.Compare.NOT_EQUAL)
_VALUE_FIELDS = ("version", "create_revision", "mod_revision", "value", "lease")


def range_request(op: Range) -> rpc.RangeRequest:
    """The message of a linearizable read."""
    request = rpc.RangeRequest(
        key=op.key,
        range_end=op.range_end,
        limit=op.limit,
        revision=op.revision,
        keys_only=op.keys_only,
        count_only=op.count_only,
    )
    if op.descending_by is not None:
        request.MergeFrom(rpc.RangeRequest(sort_order="DESCEND", sort_target=op.descending_by.name))
    return request


def _compare(compare: Compare) -> rpc.Compare:
    message = rpc.Compare(
        key=compare.key,
        target=_TARGETS[compare.target.value],
        result=_RELATIONS[compare.relation.value],
        range_end=compare.range_end,
    )
    setattr(message, _VALUE_FIELDS[compare.target.value], compare.value)
    return message


def delete_request(op: Delete) -> rpc.DeleteRangeRequest:
    """The message of a deletion that tells what it deleted."""
    return rpc.DeleteRangeRequest(key=op.key, range_end=op.range_end, prev_kv=True)


def _op(op: Op) -> rpc.RequestOp:
    match op:
        case Range():
            if op.revision:
                raise ValueError("a Range inside a Txn must not name a revision: members could diverge")
            return rpc.RequestOp(request_range=range_request(op))
        case Put():
            return rpc.RequestOp(request_put=rpc.PutRequest(key=op.key, value=op.value, lease=op.lease))
        case Delete():
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=op.key, range_end=op.range_end))
        case _:
            assert_never(op)


def txn_request(txn: Txn) -> rpc.TxnRequest:
    """The message of a transaction.

    Raises:
        ValueError: a `Range` in it names a revision.
    """
    return rpc.TxnRequest(
        compare=[_compare(compare) for compare in txn.compare],
        success=[_op(op) for op in txn.success],
        failure=[_op(op) for op in txn.failure],
    )


def writes(txn: Txn) -> bool:
    """Whether the transaction could change the store."""
    return any(not isinstance(op, Range) for op in (*txn.success, *txn.failure))


def key_value(kv: rpc.KeyValue) -> KeyValue:
    """A key as we know it."""
    return KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def event(message: rpc.Event) -> Event:
    """A change of one key."""
    kv = None if message.type == rpc.Event.DELETE else key_value(message.kv)
    return Event(message.kv.key, message.kv.mod_revision, kv)


def range_result(response: rpc.RangeResponse, revision: int) -> RangeResult:
    """Reply to a read; `revision` is that of the whole reply, since the parts of a Txn carry none."""
    return RangeResult(revision, tuple(key_value(kv) for kv in response.kvs), response.more, response.count)


def _op_result(response: rpc.ResponseOp, revision: int) -> OpResult:
    match response.WhichOneof("response"):
        case "response_range":
            return range_result(response.response_range, revision)
        case "response_delete_range":
            return DeleteResult(response.response_delete_range.deleted)
        case _:
            return PutResult()


def txn_result(response: rpc.TxnResponse) -> TxnResult:
    """Reply to a transaction."""
    revision = response.header.revision
    responses = tuple(_op_result(one, revision) for one in response.responses)
    return TxnResult(response.succeeded, revision, responses)
