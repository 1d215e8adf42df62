"""Classifies failed calls: gRPC status and etcd's sentences to errors. Pure.

The code alone decides where it can. Where etcd uses one code for several things, its sentences tell them
apart; they are part of its client contract (``rpctypes``) and are matched from their first word on.

| code               | sentence                                         | error                        |
|--------------------|--------------------------------------------------|------------------------------|
| OUT_OF_RANGE       | mvcc: required revision has been compacted       | Compacted                    |
| OUT_OF_RANGE       | mvcc: required revision is a future revision     | FutureRevision               |
| RESOURCE_EXHAUSTED | mvcc: database space exceeded                    | NoSpace                      |
| RESOURCE_EXHAUSTED | too many requests                                | TooManyRequests              |
| RESOURCE_EXHAUSTED | grpc: received message larger (the server's)     | RequestTooLarge              |
| RESOURCE_EXHAUSTED | anything else: our own receive limit             | ResponseTooLarge             |
| INVALID_ARGUMENT   | request is too large, too many operations in txn | RequestTooLarge              |
| INVALID_ARGUMENT   | authentication failed, user name is empty, auth revision is old | Unauthenticated |
| NOT_FOUND          | requested lease not found                        | LeaseExpired                 |
| UNAUTHENTICATED    |                                                  | Unauthenticated              |
| UNKNOWN            | auth: authentication failed (no password user)   | Unauthenticated              |
| PERMISSION_DENIED  |                                                  | PermissionDenied             |
| DEADLINE_EXCEEDED  |                                                  | Timeout, maybe applied       |
| UNAVAILABLE        | no leader                                        | NoLeader                     |
| UNAVAILABLE        | TLS handshake, host name of the certificate      | TlsFailed                    |
| UNAVAILABLE        | TSI_DATA_CORRUPTED: our certificate is refused   | TlsFailed, maybe applied     |
| UNAVAILABLE        | failed to connect, name resolution               | Unavailable, not applied     |
| UNIMPLEMENTED      | it is not etcd                                   | Unavailable, not applied     |
| other refusals     | INVALID_ARGUMENT, FAILED_PRECONDITION, …         | InvalidArgument              |
| everything else    | UNAVAILABLE in mid-flight, UNKNOWN, CANCELLED …  | Unavailable, maybe applied   |

"Maybe applied" holds for calls that write; a failed read never applied anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.etcd3.errors import (
    Compacted,
    EtcdError,
    EtcdInvalidArgument,
    EtcdPermissionDenied,
    EtcdUnauthenticated,
    EtcdUnavailable,
    FutureRevision,
    LeaseExpired,
    NoLeader,
    NoSpace,
    RequestTooLarge,
    ResponseTooLarge,
    Timeout,
    TlsFailed,
    TooManyRequests,
    WatchCanceled,
)

COMPACTED = "etcdserver: mvcc: required revision has been compacted"
_ANY = ""
_LATE = "DEADLINE_EXCEEDED"

_Make = Callable[[str, bool], EtcdError]


def _plain(kind: type[EtcdError]) -> _Make:
    return lambda message, _writes: kind(message)


def _compacted(message: str, _writes: bool) -> EtcdError:
    return Compacted(message, compact_revision=0)


def _response_too_large(message: str, writes: bool) -> EtcdError:
    return ResponseTooLarge(message, maybe_applied=writes)


def _timeout(message: str, writes: bool) -> EtcdError:
    return Timeout(message, maybe_applied=writes)


def _tls(message: str, _writes: bool) -> EtcdError:
    return TlsFailed(message, maybe_applied=False)


def _refused_certificate(message: str, writes: bool) -> EtcdError:
    """With TLS 1.3 a server refuses our certificate only after the handshake, so the call may have been sent."""
    remedy = "etcd refuses our certificate: give --etcd-tls-cert and --etcd-tls-key of an authority that it trusts"
    return TlsFailed(f"{message} ({remedy})", maybe_applied=writes)


def _not_connected(message: str, _writes: bool) -> EtcdError:
    return EtcdUnavailable(message, maybe_applied=False)


def _broken(message: str, writes: bool) -> EtcdError:
    return EtcdUnavailable(message, maybe_applied=writes)


@dataclass(frozen=True, slots=True)
class _Row:
    code: str
    says: str
    make: _Make
    anywhere: bool = False

    def fits(self, code: str, details: str) -> bool:
        if self.code != code:
            return False
        return self.says in details if self.anywhere else details.startswith(self.says)


_CONNECT = "failed to connect to all addresses"
_ROWS = (
    _Row("OUT_OF_RANGE", COMPACTED, _compacted),
    _Row("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", _plain(FutureRevision)),
    _Row("OUT_OF_RANGE", _ANY, _plain(EtcdInvalidArgument)),
    _Row("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", _plain(NoSpace)),
    _Row("RESOURCE_EXHAUSTED", "etcdserver: too many requests", _plain(TooManyRequests)),
    _Row("RESOURCE_EXHAUSTED", "grpc: received message larger than max", _plain(RequestTooLarge)),
    _Row("RESOURCE_EXHAUSTED", _ANY, _response_too_large),
    _Row("INVALID_ARGUMENT", "etcdserver: request is too large", _plain(RequestTooLarge)),
    _Row("INVALID_ARGUMENT", "etcdserver: too many operations in txn request", _plain(RequestTooLarge)),
    _Row("INVALID_ARGUMENT", "etcdserver: authentication failed", _plain(EtcdUnauthenticated)),
    _Row("INVALID_ARGUMENT", "etcdserver: user name is empty", _plain(EtcdUnauthenticated)),
    _Row("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", _plain(EtcdUnauthenticated)),
    _Row("INVALID_ARGUMENT", _ANY, _plain(EtcdInvalidArgument)),
    _Row("NOT_FOUND", "etcdserver: requested lease not found", _plain(LeaseExpired)),
    _Row("NOT_FOUND", _ANY, _plain(EtcdInvalidArgument)),
    _Row("FAILED_PRECONDITION", _ANY, _plain(EtcdInvalidArgument)),
    _Row("UNAUTHENTICATED", _ANY, _plain(EtcdUnauthenticated)),
    _Row("PERMISSION_DENIED", _ANY, _plain(EtcdPermissionDenied)),
    # etcd forgot to give it a code; nobody can log in so, however often it is tried.
    _Row("UNKNOWN", "auth: authentication failed", _plain(EtcdUnauthenticated)),
    _Row(_LATE, _ANY, _timeout),
    _Row("UNAVAILABLE", "etcdserver: no leader", _plain(NoLeader)),
    _Row("UNAVAILABLE", "SSL_ERROR_SSL", _tls, anywhere=True),
    _Row("UNAVAILABLE", "TSI_DATA_CORRUPTED", _refused_certificate, anywhere=True),
    _Row("UNAVAILABLE", "Hostname Verification", _tls, anywhere=True),
    _Row("UNAVAILABLE", "not in peer certificate", _tls, anywhere=True),
    _Row("UNAVAILABLE", _CONNECT, _not_connected),
    _Row("UNAVAILABLE", "DNS resolution failed", _not_connected),
    _Row("UNIMPLEMENTED", _ANY, _not_connected),
)


def classify(code: str, details: str, *, writes: bool, endpoint: str) -> EtcdError:
    """The error that a failed call stands for.

    Args:
        code: name of the gRPC status code, e.g. ``UNAVAILABLE``.
        details: the status' sentence.
        writes: whether the call could have changed the store.
        endpoint: who was asked, for the message.
    """
    message = f"{endpoint}: {'no answer in time' if code == _LATE else details or code}"
    for row in _ROWS:
        if row.fits(code, details):
            return row.make(message, writes)
    return _broken(message, writes)


_CANCEL_CODES = (
    ("etcdserver: permission denied", "PERMISSION_DENIED"),
    ("etcdserver: invalid auth token", "UNAUTHENTICATED"),
    ("etcdserver: user name is empty", "UNAUTHENTICATED"),
    ("etcdserver: revision of auth store is old", "UNAUTHENTICATED"),
    ("etcdserver: no leader", "UNAVAILABLE"),
)


def classify_cancel(reason: str, compact_revision: int, *, endpoint: str) -> EtcdError:
    """The error that a watch stands for when the server cancelled it, which has a sentence but no code."""
    if compact_revision:
        return Compacted(f"{endpoint}: {reason or COMPACTED}", compact_revision=compact_revision)
    for sentence, code in _CANCEL_CODES:
        if sentence in reason:  # it comes as Go prints an error: "rpc error: code = … desc = …"
            return classify(code, reason, writes=False, endpoint=endpoint)
    return WatchCanceled(f"{endpoint}: {reason or 'watch canceled'}")


def may_repeat(error: EtcdError) -> bool:
    """True if the same call may be sent again, to another member, without knowing more."""
    passing = isinstance(error, EtcdUnavailable | Timeout | NoLeader | TooManyRequests)
    return passing and error.certainly_not_applied and not isinstance(error, TlsFailed)
