"""The methods of etcd's v3 API that we call, with paths given by hand: our messages live in a package of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from registry.etcd3 import rpc_pb2 as rpc

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
DELETE = Method("/etcdserverpb.KV/DeleteRange", rpc.DeleteRangeRequest, rpc.DeleteRangeResponse, writes=True)
WATCH = Method("/etcdserverpb.Watch/Watch", rpc.WatchRequest, rpc.WatchResponse)
# Granting or revoking twice is harmless: a lease that nobody knows of expires by itself.
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", rpc.LeaseGrantRequest, rpc.LeaseGrantResponse)
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", rpc.LeaseRevokeRequest, rpc.LeaseRevokeResponse)
LEASE_KEEPALIVE = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", rpc.LeaseKeepAliveRequest, rpc.LeaseKeepAliveResponse, streams=True
)
STATUS = Method("/etcdserverpb.Maintenance/Status", rpc.StatusRequest, rpc.StatusResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", rpc.AuthenticateRequest, rpc.AuthenticateResponse)
