"""Method paths and codecs between our values and etcd's messages. Pure.

The paths are given by hand, since our messages live in a package of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never

from google.protobuf.message import Message

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
    SortTarget,
    Txn,
    TxnResult,
)

Req = TypeVar("Req", bound=Message)
Res = TypeVar("Res", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Req, Res]):
    """One remote method.

    `writes`: a broken call may have changed what readers see. `streams`: one question and one answer on a stream.
    """

    path: str
    request: type[Req]
    response: type[Res]
    writes: bool = False
    streams: bool = False


RANGE = Method("/etcdserverpb.KV/Range", rpc.RangeRequest, rpc.RangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", rpc.TxnRequest, rpc.TxnResponse, writes=True)
READ_TXN = Method("/etcdserverpb.KV/Txn", rpc.TxnRequest, rpc.TxnResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", rpc.WatchRequest, rpc.WatchResponse)
# Granting or revoking twice is harmless: a lease that nobody knows of expires by itself.
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", rpc.LeaseGrantRequest, rpc.LeaseGrantResponse)
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", rpc.LeaseRevokeRequest, rpc.LeaseRevokeResponse)
LEASE_KEEPALIVE = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", rpc.LeaseKeepAliveRequest, rpc.LeaseKeepAliveResponse, streams=True
)
STATUS = Method("/etcdserverpb.Maintenance/Status", rpc.StatusRequest, rpc.StatusResponse)
MEMBER_LIST = Method("/etcdserverpb.Cluster/MemberList", rpc.MemberListRequest, rpc.MemberListResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", rpc.AuthenticateRequest, rpc.AuthenticateResponse)
AUTH_STATUS = Method("/etcdserverpb.Auth/AuthStatus", rpc.AuthStatusRequest, rpc.AuthStatusResponse)
USER_LIST = Method("/etcdserverpb.Auth/UserList", rpc.AuthUserListRequest, rpc.AuthUserListResponse)
USER_GET = Method("/etcdserverpb.Auth/UserGet", rpc.AuthUserGetRequest, rpc.AuthUserGetResponse)
ROLE_LIST = Method("/etcdserverpb.Auth/RoleList", rpc.AuthRoleListRequest, rpc.AuthRoleListResponse)
ROLE_GET = Method("/etcdserverpb.Auth/RoleGet", rpc.AuthRoleGetRequest, rpc.AuthRoleGetResponse)


def _change(name: str, request: type[Req]) -> Method[Req, rpc.AuthChangeResponse]:
    return Method(f"/etcdserverpb.Auth/{name}", request, rpc.AuthChangeResponse, writes=True)


USER_ADD = _change("UserAdd", rpc.AuthUserAddRequest)
USER_DELETE = _change("UserDelete", rpc.AuthUserDeleteRequest)
USER_CHANGE_PASSWORD = _change("UserChangePassword", rpc.AuthUserChangePasswordRequest)
USER_GRANT_ROLE = _change("UserGrantRole", rpc.AuthUserGrantRoleRequest)
ENABLE = _change("AuthEnable", rpc.AuthEnableRequest)
ROLE_ADD = _change("RoleAdd", rpc.AuthRoleAddRequest)
ROLE_DELETE = _change("RoleDelete", rpc.AuthRoleDeleteRequest)
ROLE_GRANT_PERMISSION = _change("RoleGrantPermission", rpc.AuthRoleGrantPermissionRequest)
ROLE_REVOKE_PERMISSION = _change("RoleRevokePermission", rpc.AuthRoleRevokePermissionRequest)


_TARGETS = (rpc.Compare.VERSION, rpc.Compare.CREATE, rpc.Compare.MOD, rpc.Compare.VALUE, rpc.Compare.LEASE)
_RELATIONS = (rpc.Compare.EQUAL, rpc.Compare.GREATER, rpc.Compare.LESS, rpc.Compare.NOT_EQUAL)
_SORT_TARGETS = {SortTarget.KEY: rpc.RangeRequest.KEY, SortTarget.MOD: rpc.RangeRequest.MOD}
_VALUE_FIELDS = ("version", "create_revision", "mod_revision", "value", "lease")


def range_request(op: Range) -> rpc.RangeRequest:
    """The message of a linearizable read."""
    request = rpc.RangeRequest()
    _fill_range(request, op)
    return request


def txn_request(txn: Txn) -> rpc.TxnRequest:
    """The message of a transaction. Filled in place: parts that are made apart and then copied cost three times that.

    One that only reads has an empty transaction in its failure branch, so that etcd does not know it as such and sends
    it through its log. Of one that etcd does know, releases up to 3.5.4 panic when the caller leaves, by whatever way,
    while a member is at it (etcd#14110).

    Raises:
        ValueError: a `Range` in it names a revision.
    """
    request = rpc.TxnRequest()
    for compare in txn.compare:
        _fill_compare(request.compare.add(), compare)
    for op in txn.success:
        _fill_op(request.success.add(), op)
    for op in txn.failure:
        _fill_op(request.failure.add(), op)
    if not writes(txn):
        request.failure.add().request_txn.SetInParent()
    return request


def _fill_compare(message: rpc.Compare, compare: Compare) -> None:
    message.key = compare.key
    message.target = _TARGETS[compare.target]
    message.result = _RELATIONS[compare.relation]
    setattr(message, _VALUE_FIELDS[compare.target], compare.value)
    if compare.range_end:
        message.range_end = compare.range_end


def _fill_op(message: rpc.RequestOp, op: Op) -> None:
    match op:
        case Range():
            if op.revision:
                raise ValueError("a Range inside a Txn must not name a revision: members could diverge")
            _fill_range(message.request_range, op)
        case Put():
            put = message.request_put
            put.key, put.value, put.lease = op.key, op.value, op.lease
        case Delete():
            delete = message.request_delete_range
            delete.key, delete.range_end = op.key, op.range_end
        case _:
            assert_never(op)


def _fill_range(message: rpc.RangeRequest, op: Range) -> None:
    message.key = op.key
    if op.range_end:
        message.range_end = op.range_end
    if op.limit:
        message.limit = op.limit
    if op.revision:
        message.revision = op.revision
    if op.keys_only:
        message.keys_only = True
    if op.count_only:
        message.count_only = True
    if op.descending_by is not None:
        message.sort_order = rpc.RangeRequest.DESCEND
        message.sort_target = _SORT_TARGETS[op.descending_by]


def writes(txn: Txn) -> bool:
    """True if the transaction could change the store."""
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
    ours = (one for one in response.responses if not one.HasField("response_txn"))  # see txn_request
    responses = tuple(_op_result(one, revision) for one in ours)
    return TxnResult(response.succeeded, revision, responses)
