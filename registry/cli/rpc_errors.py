"""From what gRPC reports to what the user is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from registry.cli.failure import EXIT_OF, Exit, Failure
from registry.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    RegistryError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

_DETAILS_KEY = "grpc-status-details-bin"

# Which of our errors a status stands for; the exit code follows from that. OK never fails.
KIND_OF: Mapping[grpc.StatusCode, type[RegistryError]] = {
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.UNKNOWN: Internal,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.UNIMPLEMENTED: FailedPrecondition,
    grpc.StatusCode.INTERNAL: Internal,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DATA_LOSS: Internal,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
}

# The reason where the server, or the connection, gives none.
_REASON_OF: Mapping[grpc.StatusCode, Reason] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE: Reason.ADMIN_UNAVAILABLE,
    grpc.StatusCode.CANCELLED: Reason.ADMIN_UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED: Reason.UNSUPPORTED,
    # gRPC itself refuses a message above the server's limit.
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.TOO_LARGE,
}
_REPEATABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True, slots=True)
class _Details:
    reason: str = ""
    metadata: Mapping[str, str] | None = None
    field: str | None = None


def worth_repeating(error: BaseException) -> bool:
    """True if the same request, with the same request_id, may succeed on another try."""
    return isinstance(error, grpc.RpcError) and error.code() in _REPEATABLE


def rpc_failure(error: grpc.RpcError, address: str, request_id: str = "") -> Failure:
    """What to tell of a failed call to the admin service at `address`.

    `request_id` is told where the outcome may be unknown, so that the user can repeat with it.
    """
    code = error.code()
    details = _details(error)
    exit_code = EXIT_OF[KIND_OF[code]]
    return Failure(
        exit_code,
        details.reason or _REASON_OF.get(code, Reason.INTERNAL),
        _message(error, code, details, address),
        details.field,
        details.metadata or {},
        request_id if exit_code is Exit.UNAVAILABLE else "",
    )


def _message(error: grpc.RpcError, code: grpc.StatusCode, details: _Details, address: str) -> str:
    told = error.details() or code.name
    if details.reason:
        return told
    match code:
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return (
                f"no connection to the admin service at {address} ({told}); start it (loraplane-admin, or loraplane "
                "dev up), or name another with --admin or LORAPLANE_ADMIN"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"the admin service at {address} did not answer in time; see its log, or allow more with --timeout"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"what answers at {address} does not know this call ({told}); is it a loraplane-admin of this age?"
        case _:
            return f"the admin service at {address} failed: {told}"


def _details(error: grpc.RpcError) -> _Details:
    for datum in error.trailing_metadata() or ():
        if datum.key == _DETAILS_KEY:
            return _parsed(datum.value)
    return _Details()


def _parsed(value: str | bytes) -> _Details:
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    try:
        for detail in status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode()).details:
            detail.Unpack(info)
            detail.Unpack(bad)
    except DecodeError:
        return _Details()
    field = bad.field_violations[0].field if bad.field_violations else None
    return _Details(info.reason, dict(info.metadata), field)
