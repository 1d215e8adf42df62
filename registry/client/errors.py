"""Translation of failed gRPC calls into the errors of the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from registry.etcd3.cancellation import is_cancelled
from registry.model.errors import (
    UNKNOWN_REASON,
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


@dataclass(frozen=True, slots=True)
class _Details:
    """Reason, facts and field of a refusal; empty where the service sent none."""

    reason: str = ""
    metadata: Mapping[str, str] | None = None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class CallErrors:
    """Turns failures of calls to one admin service into errors of the registry.

    Attributes:
        address: of the admin service, for messages.
        remedies: added to the message of a failure that came without a reason, by the reason that is given it here.
    """

    address: str
    remedies: Mapping[Reason, str]

    @contextmanager
    def translated(self, request_id: str = "") -> Iterator[None]:
        """Raises a failure of gRPC as RegistryError; its ``metadata["request_id"]`` is what to repeat the call with.

        grpc.aio raises CancelledError also where the other side ended the call. That is a failure like others, while
        the cancellation of our own task has to pass through.
        """
        try:
            yield
        except grpc.RpcError as error:
            raise self._error_of(error, request_id) from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise self._error(grpc.StatusCode.CANCELLED, "the call was cancelled", _Details(), request_id) from error

    def unreachable(self, why: str, request_id: str = "") -> RegistryError:
        """The error of a service that takes no connection."""
        return self._error(grpc.StatusCode.UNAVAILABLE, why, _Details(), request_id)

    def endless_pages(self, method: str) -> Internal:
        """The error of a listing whose pages lead in a circle."""
        told = f"the pages of {method} lead in a circle: page_token came twice; upgrade it, or ask another"
        return Internal(Reason.INTERNAL, f"the admin service at {self.address} failed: {told}", field="page_token")

    def _error_of(self, error: grpc.RpcError, request_id: str) -> RegistryError:
        return self._error(error.code(), error.details() or error.code().name, _details_of(error), request_id)

    def _error(self, code: grpc.StatusCode, told: str, details: _Details, request_id: str) -> RegistryError:
        metadata = dict(details.metadata or {}) | ({"request_id": request_id} if request_id else {})
        reason = _REASON_OF.get(code, Reason.INTERNAL)
        if details.reason in Reason.__members__:
            reason = Reason(details.reason)
        elif details.reason:
            metadata[UNKNOWN_REASON] = details.reason
        message = told if details.reason else self._message(code, told) + self._remedy(reason)
        return KIND_OF[code](reason, message, field=details.field, metadata=metadata)

    def _message(self, code: grpc.StatusCode, told: str) -> str:
        match code:
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                return f"no connection to the admin service at {self.address} ({told})"
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"the admin service at {self.address} did not answer in time"
            case grpc.StatusCode.UNIMPLEMENTED:
                return f"what answers at {self.address} does not know this call ({told})"
            case _:
                return f"the admin service at {self.address} failed: {told}"

    def _remedy(self, reason: Reason) -> str:
        return f"; {self.remedies[reason]}" if reason in self.remedies else ""


def _details_of(error: grpc.RpcError) -> _Details:
    for key, value in cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ()):
        if key == _DETAILS_KEY:
            return _parsed(value)
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
