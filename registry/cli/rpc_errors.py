"""From what gRPC reports to what the user is told."""

from __future__ import annotations

import grpc

from registry.cli.failure import EXIT_OF, Exit, Failure
from registry.client.refusals import KIND_OF, Details, details_of, reason_without_details


def rpc_failure(error: grpc.RpcError, address: str, request_id: str = "") -> Failure:
    """What to tell of a failed call to the admin service at `address`.

    `request_id` is told where the outcome may be unknown, so that the user can repeat with it.
    """
    code = error.code()
    details = details_of(error)
    exit_code = EXIT_OF[KIND_OF[code]]
    return Failure(
        exit_code,
        details.reason or reason_without_details(code),
        _message(error, code, details, address),
        details.field,
        details.metadata or {},
        request_id if exit_code is Exit.UNAVAILABLE else "",
    )


def _message(error: grpc.RpcError, code: grpc.StatusCode, details: Details, address: str) -> str:
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
