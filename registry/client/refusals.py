"""From what gRPC reports of a failed call to the registry's own errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

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

# Which of our errors a status stands for. OK never fails.
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
class Details:
    """What a refusal says for programs; a reason may be one that only a newer admin service knows."""

    reason: str = ""
    metadata: Mapping[str, str] | None = None
    field: str | None = None


def worth_repeating(error: BaseException) -> bool:
    """True if the same request, with the same request_id, may succeed on another try."""
    return isinstance(error, grpc.RpcError) and error.code() in _REPEATABLE


def reason_without_details(code: grpc.StatusCode) -> Reason:
    """What a status alone says."""
    return _REASON_OF.get(code, Reason.INTERNAL)


def details_of(error: grpc.RpcError) -> Details:
    """The reason, the facts and the field that came with a refusal; empty where none came."""
    # Pairs in a blocking call as in one on an event loop, though of different types.
    for key, value in cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ()):
        if key == _DETAILS_KEY:
            return _parsed(value)
    return Details()


def _parsed(value: str | bytes) -> Details:
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    try:
        for detail in status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode()).details:
            detail.Unpack(info)
            detail.Unpack(bad)
    except DecodeError:
        return Details()
    field = bad.field_violations[0].field if bad.field_violations else None
    return Details(info.reason, dict(info.metadata), field)


def error_of(error: grpc.RpcError, request_id: str = "") -> RegistryError:
    """The error that a failed call stands for; ``metadata["request_id"]`` is what to repeat it with."""
    code, details = error.code(), details_of(error)
    known = details.reason in Reason.__members__
    metadata = dict(details.metadata or {}) | ({"request_id": request_id} if request_id else {})
    if details.reason and not known:
        metadata["reason"] = details.reason
    reason = Reason(details.reason) if known else reason_without_details(code)
    return KIND_OF[code](reason, error.details() or code.name, field=details.field, metadata=metadata)
