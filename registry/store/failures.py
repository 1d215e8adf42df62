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


def _unavailable(message: str) -> RegistryError:
    return Unavailable(Reason.ETCD_UNAVAILABLE, f"etcd does not answer, nothing was changed: {message}")


def _denied(message: str) -> RegistryError:
    return PermissionDenied(
        Reason.ETCD_PERMISSION, f"etcd refuses the admin service; check its user, role and certificates: {message}"
    )


def _no_space(message: str) -> RegistryError:
    return ResourceExhausted(
        Reason.ETCD_NO_SPACE,
        f"etcd has used up its quota: compact and defragment it, or raise --quota-backend-bytes, and disarm: {message}",
    )


def _compacted(message: str) -> RegistryError:
    return FailedPrecondition(
        Reason.REVISION_COMPACTED, f"etcd no longer keeps that revision; start again from the present one: {message}"
    )


def _future(message: str) -> RegistryError:
    return FailedPrecondition(
        Reason.REVISION_COMPACTED, f"etcd has not reached that revision; start again from the present one: {message}"
    )


def _too_large(message: str) -> RegistryError:
    return InvalidArgument(
        Reason.TOO_LARGE,
        f"etcd takes no transaction of that size; --max-txn-ops of the admin service must not exceed etcd's: {message}",
    )


def _internal(message: str) -> RegistryError:
    return Internal(Reason.INTERNAL, f"etcd did not understand the admin service: {message}")


REFUSALS: Mapping[type[etcd.EtcdError], _Make] = {
    etcd.EtcdUnavailable: _unavailable,
    etcd.TlsFailed: _denied,
    etcd.Timeout: _unavailable,
    etcd.NoLeader: _unavailable,
    etcd.TooManyRequests: _unavailable,
    etcd.LeaseExpired: _unavailable,
    etcd.WatchCanceled: _unavailable,
    etcd.OtherCluster: _unavailable,
    etcd.Compacted: _compacted,
    etcd.FutureRevision: _future,
    etcd.EtcdUnauthenticated: _denied,
    etcd.EtcdPermissionDenied: _denied,
    etcd.RequestTooLarge: _too_large,
    etcd.ResponseTooLarge: _internal,
    etcd.NoSpace: _no_space,
    etcd.EtcdInvalidArgument: _internal,
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
