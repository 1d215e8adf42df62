"""The table of failures: each row, and that every error can come out of it."""

from __future__ import annotations

import pytest

from registry.etcd3 import errors
from registry.etcd3.classify import classify, classify_cancel, may_repeat
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
    OtherCluster,
    RequestTooLarge,
    ResponseTooLarge,
    Timeout,
    TlsFailed,
    TooManyRequests,
    WatchCanceled,
)

REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused"
TLS = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed "
    "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED"
)
HOST = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Custom verification check failed with "
    "error: UNAUTHENTICATED: Hostname Verification Check failed."
)
# The word is what some servers of TLS 1.3 make of a refused certificate; the rest is as of other failures.
REFUSED_US = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Unwrap failed (TSI_DATA_CORRUPTED)"
)
OLD_HOST = "failed to connect to all addresses; last error: UNKNOWN: Peer name etcd is not in peer certificate"

# code, sentence, error of a call that writes, whether it may have been applied
ROWS = [
    ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Compacted, False),
    ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", FutureRevision, False),
    ("OUT_OF_RANGE", "etcdserver: too large lease TTL", EtcdInvalidArgument, False),
    ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", NoSpace, False),
    ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", TooManyRequests, False),
    ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (3 vs. 2)", RequestTooLarge, False),
    ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (3 vs. 2)", ResponseTooLarge, True),
    ("INVALID_ARGUMENT", "etcdserver: request is too large", RequestTooLarge, False),
    ("INVALID_ARGUMENT", "etcdserver: too many operations in txn request", RequestTooLarge, False),
    ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", EtcdUnauthenticated, False),
    ("INVALID_ARGUMENT", "etcdserver: user name is empty", EtcdUnauthenticated, False),
    ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", EtcdUnauthenticated, False),
    ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", EtcdInvalidArgument, False),
    ("NOT_FOUND", "etcdserver: requested lease not found", LeaseExpired, False),
    ("NOT_FOUND", "etcdserver: member not found", EtcdInvalidArgument, False),
    ("FAILED_PRECONDITION", "etcdserver: authentication is not enabled", EtcdInvalidArgument, False),
    ("UNAUTHENTICATED", "etcdserver: invalid auth token", EtcdUnauthenticated, False),
    ("PERMISSION_DENIED", "etcdserver: permission denied", EtcdPermissionDenied, False),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded", Timeout, True),
    ("UNAVAILABLE", "etcdserver: no leader", NoLeader, False),
    ("UNAVAILABLE", "etcdserver: leader changed", EtcdUnavailable, True),
    ("UNAVAILABLE", "etcdserver: request timed out", EtcdUnavailable, True),
    ("UNAVAILABLE", "Socket closed", EtcdUnavailable, True),
    # What etcd says only begins with its sentence: a proxy that quotes it knows no more of what became of a write.
    ("UNAVAILABLE", "upstream: etcdserver: no leader", EtcdUnavailable, True),
    ("UNAVAILABLE", "Socket closed; before: failed to connect to all addresses", EtcdUnavailable, True),
    ("UNAVAILABLE", TLS, TlsFailed, False),
    ("UNAVAILABLE", REFUSED_US, TlsFailed, True),
    ("UNAVAILABLE", HOST, TlsFailed, False),
    ("UNAVAILABLE", OLD_HOST, TlsFailed, False),
    ("UNAVAILABLE", REFUSED, EtcdUnavailable, False),
    ("UNAVAILABLE", "DNS resolution failed for etcd.example:2379", EtcdUnavailable, False),
    ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", EtcdUnavailable, False),
    ("UNKNOWN", "raft proposal dropped", EtcdUnavailable, True),
    ("UNKNOWN", "auth: authentication failed, password was given for no password user", EtcdUnauthenticated, False),
    ("CANCELLED", "", EtcdUnavailable, True),
    ("INTERNAL", "stream reset", EtcdUnavailable, True),
    ("DATA_LOSS", "etcdserver: corrupt cluster", EtcdUnavailable, True),
]


GO = "rpc error: code = PermissionDenied desc = "
CANCELS = [
    ("", 7, Compacted),
    ("etcdserver: mvcc: required revision has been compacted", 7, Compacted),
    ("etcdserver: permission denied", 0, EtcdPermissionDenied),
    (GO + "etcdserver: permission denied", 0, EtcdPermissionDenied),
    (GO + "etcdserver: invalid auth token", 0, EtcdUnauthenticated),
    (GO + "etcdserver: user name is empty", 0, EtcdUnauthenticated),
    (GO + "etcdserver: revision of auth store is old", 0, EtcdUnauthenticated),
    ("etcdserver: no leader", 0, NoLeader),
    ("mvcc: watcher duplicate", 0, WatchCanceled),
    ("", 0, WatchCanceled),
]


def test_every_error_comes_out_of_the_table():
    """A new error class without a way to arise would be an unkept promise; OtherCluster is the protocol's own."""
    arising = {row[2] for row in ROWS} | {row[2] for row in CANCELS} | {OtherCluster}
    public = {kind for kind in _subclasses(EtcdError) if not kind.__name__.startswith("_")}
    assert arising == public
    assert public == {value for value in vars(errors).values() if isinstance(value, type) and value in public}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EtcdUnavailable("", maybe_applied=False), True),
        (EtcdUnavailable("", maybe_applied=True), False),
        (Timeout("", maybe_applied=False), True),
        (Timeout("", maybe_applied=True), False),
        (NoLeader(""), True),
        (TooManyRequests(""), True),
        (TlsFailed("", maybe_applied=False), False),
        (NoSpace(""), False),
        (EtcdPermissionDenied(""), False),
        (EtcdUnauthenticated(""), False),
        (EtcdInvalidArgument(""), False),
    ],
)
def test_only_what_passes_by_itself_and_was_not_applied_is_repeated(error, expected):
    assert may_repeat(error) is expected


def _subclasses(kind: type) -> set[type]:
    return {kind for direct in kind.__subclasses__() for kind in (direct, *_subclasses(direct))}


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize(("code", "details", "kind", "maybe_applied"), ROWS)
def test_a_failed_call(code, details, kind, maybe_applied, writes):
    """W8 no-false-fail: what may have been applied says so, and a read applied nothing."""
    error = classify(code, details, writes=writes, endpoint="here:1")
    assert type(error) is kind
    assert error.certainly_not_applied is not (maybe_applied and writes)
    assert str(error).startswith("here:1: ")


@pytest.mark.parametrize(("reason", "compact_revision", "kind"), CANCELS)
def test_a_cancelled_watch(reason, compact_revision, kind):
    error = classify_cancel(reason, compact_revision, endpoint="here:1")
    assert type(error) is kind
    assert getattr(error, "compact_revision", 0) == compact_revision
