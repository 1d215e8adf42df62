"""From our errors to gRPC's, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from registry.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RegistryError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

DOMAIN = "loraplane"
DETAILS_KEY = "grpc-status-details-bin"

CODES: Mapping[type[RegistryError], StatusCode] = {
    InvalidArgument: StatusCode.INVALID_ARGUMENT,
    NotFound: StatusCode.NOT_FOUND,
    AlreadyExists: StatusCode.ALREADY_EXISTS,
    Conflict: StatusCode.ABORTED,
    FailedPrecondition: StatusCode.FAILED_PRECONDITION,
    ResourceExhausted: StatusCode.RESOURCE_EXHAUSTED,
    PermissionDenied: StatusCode.PERMISSION_DENIED,
    Unauthenticated: StatusCode.UNAUTHENTICATED,
    Unavailable: StatusCode.UNAVAILABLE,
    Internal: StatusCode.INTERNAL,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A failed call as gRPC sends it; `details` is a serialized google.rpc.Status."""

    code: StatusCode
    message: str
    details: bytes


def refusal_of(error: RegistryError) -> Refusal:
    """The status of an error, with its reason, its facts and the field at fault."""
    code = CODES[type(error)]
    details: list[Message] = [ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=error.metadata)]
    if error.field:
        violation = BadRequest.FieldViolation(field=error.field, description=error.message, reason=error.reason.value)
        details.append(BadRequest(field_violations=[violation]))
    number: int = code.value[0]
    status = Status(code=number, message=error.message, details=[_packed(detail) for detail in details])
    return Refusal(code, error.message, status.SerializeToString())


def _packed(message: Message) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed
