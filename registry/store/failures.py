"""Translates etcd's errors of calls that certainly changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from registry.etcd3 import errors as etcd
from registry.model.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    PermissionDenied,
    Reason,
    RegistryError,
    ResourceExhausted,
    Unavailable,
)

_Make = Callable[[str], RegistryError]


def _make(kind: Callable[[Reason, str], RegistryError], reason: Reason, what: str) -> _Make:
    return lambda message: kind(reason, f"{what}: {message}")


_AWAY = _make(Unavailable, Reason.ETCD_UNAVAILABLE, "etcd does not answer, nothing was changed")
_DENIED = _make(
    PermissionDenied, Reason.ETCD_PERMISSION, "etcd refuses the admin service; check its user, role and certificates"
)
_NO_SPACE = _make(
    ResourceExhausted,
    Reason.ETCD_NO_SPACE,
    "etcd has used up its quota: compact and defragment it, or raise --quota-backend-bytes, and disarm",
)
_COMPACTED = _make(
    FailedPrecondition,
    Reason.REVISION_COMPACTED,
    "etcd no longer keeps that revision; start again from the present one",
)
_FUTURE = _make(
    FailedPrecondition,
    Reason.REVISION_COMPACTED,
    "etcd has not reached that revision; start again from the present one",
)
_TOO_LARGE = _make(
    InvalidArgument,
    Reason.TOO_LARGE,
    "etcd takes no transaction of that size; --max-txn-ops of the admin service must not exceed etcd's",
)
_INTERNAL = _make(Internal, Reason.INTERNAL, "etcd did not understand the admin service")
REFUSALS: Mapping[type[etcd.EtcdError], _Make] = {
    etcd.EtcdUnavailable: _AWAY,
    etcd.TlsFailed: _DENIED,
    etcd.Timeout: _AWAY,
    etcd.NoLeader: _AWAY,
    etcd.TooManyRequests: _AWAY,
    etcd.LeaseExpired: _AWAY,
    etcd.WatchCanceled: _AWAY,
    etcd.OtherCluster: _AWAY,
    etcd.Compacted: _COMPACTED,
    etcd.FutureRevision: _FUTURE,
    etcd.EtcdUnauthenticated: _DENIED,
    etcd.EtcdPermissionDenied: _DENIED,
    etcd.RequestTooLarge: _TOO_LARGE,
    etcd.ResponseTooLarge: _INTERNAL,
    etcd.NoSpace: _NO_SPACE,
    etcd.EtcdInvalidArgument: _INTERNAL,
}


def refusal(error: etcd.EtcdError) -> RegistryError:
    """Error for a failure that certainly changed nothing."""
    return REFUSALS[type(error)](str(error))


def outcome_unknown(error: etcd.EtcdError | RegistryError, request_id: str = "") -> Unavailable:
    """Error for a failure after which nobody knows whether the change was made; no id: its request was not read."""
    # Behind the semicolon a refusal says that nothing was changed, or what to do instead.
    why = error.message.partition(";")[0] if isinstance(error, RegistryError) else error
    same, metadata = (f" {request_id!r}", {"request_id": request_id}) if request_id else ("", {})
    return Unavailable(
        Reason.OUTCOME_UNKNOWN,
        f"it is not known whether the change was made; retry with the same request_id{same} to learn it: {why}",
        metadata=metadata,
    )


def compacted(start: int, present: int, remedy: str) -> FailedPrecondition:
    """The refusal of a watch from a revision that etcd does not keep; `present`: where it is."""
    return FailedPrecondition(
        Reason.REVISION_COMPACTED,
        f"etcd does not keep revision {start} (it is at {present} now); {remedy}",
        field="start_revision",
        metadata={"revision": str(present)},
    )
