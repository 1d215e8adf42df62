"""Between etcd's messages and our values, as a server sees them: the reverse of `registry.etcd3.codec`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    Range,
    RangeResult,
    Relation,
    SortTarget,
    Target,
    Txn,
    TxnResult,
)

_FIELDS = {
    Target.VERSION: "version",
    Target.CREATE: "create_revision",
    Target.MOD: "mod_revision",
    Target.VALUE: "value",
    Target.LEASE: "lease",
}


def range_op(message: rpc.RangeRequest) -> Range:
    """A read."""
    descending = message.sort_order == rpc.RangeRequest.DESCEND
    return Range(
        message.key,
        message.range_end,
        limit=message.limit,
        revision=message.revision,
        keys_only=message.keys_only,
        count_only=message.count_only,
        descending_by=SortTarget(message.sort_target) if descending else None,
    )


def delete_op(message: rpc.DeleteRangeRequest) -> Delete:
    """A deletion."""
    return Delete(message.key, message.range_end)


def txn(message: rpc.TxnRequest) -> Txn:
    """A transaction. An empty one in a branch is left out: it does nothing."""
    compares = tuple(_compare(compare) for compare in message.compare)
    return Txn(compares, tuple(_ops(message.success)), tuple(_ops(message.failure)))


def _ops(branch: Iterable[rpc.RequestOp]) -> Iterator[Op]:
    return (_op(op) for op in branch if not op.HasField("request_txn"))


def _compare(message: rpc.Compare) -> Compare:
    target = Target(message.target)
    value: int | bytes = getattr(message, _FIELDS[target])
    return Compare(message.key, target, Relation(message.result), value, message.range_end)


def _op(message: rpc.RequestOp) -> Op:
    if message.HasField("request_range"):
        return range_op(message.request_range)
    if message.HasField("request_put"):
        put = message.request_put
        return Put(put.key, put.value, put.lease)
    return delete_op(message.request_delete_range)


def key_value(kv: KeyValue) -> rpc.KeyValue:
    """A key."""
    return rpc.KeyValue(
        key=kv.key,
        value=kv.value,
        create_revision=kv.create_revision,
        mod_revision=kv.mod_revision,
        version=kv.version,
        lease=kv.lease,
    )


def event(one: Event) -> rpc.Event:
    """A change."""
    if one.kv is None:
        return rpc.Event(type=rpc.Event.DELETE, kv=rpc.KeyValue(key=one.key, mod_revision=one.mod_revision))
    return rpc.Event(type=rpc.Event.PUT, kv=key_value(one.kv))


def range_response(result: RangeResult, header: rpc.ResponseHeader | None) -> rpc.RangeResponse:
    """Reply to a read; as a part of a transaction's it has no header."""
    kvs = [key_value(kv) for kv in result.kvs]
    return rpc.RangeResponse(header=header, kvs=kvs, more=result.more, count=result.count)


def txn_response(result: TxnResult, header: rpc.ResponseHeader) -> rpc.TxnResponse:
    """Reply to a transaction."""
    responses = [_response_op(one) for one in result.responses]
    return rpc.TxnResponse(header=header, succeeded=result.succeeded, responses=responses)


def _response_op(result: OpResult) -> rpc.ResponseOp:
    if isinstance(result, RangeResult):
        return rpc.ResponseOp(response_range=range_response(result, None))
    if isinstance(result, DeleteResult):
        return rpc.ResponseOp(response_delete_range=rpc.DeleteRangeResponse(deleted=result.deleted))
    return rpc.ResponseOp(response_put=rpc.PutResponse())
