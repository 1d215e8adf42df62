"""How a command fails: one line, one stable reason, one exit code. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

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
from registry.lora.findings import printable


class Exit(IntEnum):
    """Exit codes of `loraplane`. Scripts depend on them."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    CONFLICT = 5
    UNAVAILABLE = 6
    ROLLOUT_FAILED = 7
    INTERRUPTED = 130


EXIT_OF: Mapping[type[RegistryError], Exit] = {
    InvalidArgument: Exit.REFUSED,
    NotFound: Exit.NOT_FOUND,
    AlreadyExists: Exit.CONFLICT,
    Conflict: Exit.CONFLICT,
    FailedPrecondition: Exit.REFUSED,
    ResourceExhausted: Exit.REFUSED,
    PermissionDenied: Exit.REFUSED,
    Unauthenticated: Exit.REFUSED,
    Unavailable: Exit.UNAVAILABLE,
    Internal: Exit.INTERNAL,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a command failed. `reason` may be one that only a newer admin service knows, so it is plain text."""

    exit: Exit
    reason: str
    message: str
    field: str | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    request_id: str = ""

    def line(self) -> str:
        """The failure in one line, for people."""
        where = f"{self.field}: " if self.field else ""
        request = f" (request id {self.request_id})" if self.request_id else ""
        return printable(" ".join(f"error: {self.reason}: {where}{self.message}{request}".split()))

    def as_dict(self) -> dict[str, object]:
        """The failure for programs."""
        return {
            "reason": self.reason,
            "message": self.message,
            "field": self.field,
            "metadata": dict(self.metadata),
            "request_id": self.request_id or None,
            "exit_code": int(self.exit),
        }


class CliError(Exception):
    """Ends a command. Raised anywhere below a command, reported once in `main`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.line())
        self.failure = failure


def usage(message: str) -> CliError:
    """The command line itself is wrong."""
    return CliError(Failure(Exit.USAGE, Reason.USAGE, message))


def refused(reason: Reason, message: str, *, field: str | None = None) -> CliError:
    """What the user wants cannot be done; found out before anything was sent."""
    return CliError(Failure(Exit.REFUSED, reason, message, field))


def not_found(reason: Reason, message: str) -> CliError:
    """What the command names does not exist."""
    return CliError(Failure(Exit.NOT_FOUND, reason, message))


def failure_of(error: RegistryError) -> Failure:
    """An error of the registry's own tree as the CLI tells it."""
    return Failure(EXIT_OF[type(error)], error.reason, error.message, error.field, error.metadata)


def with_remedy(failure: Failure, remedy: str) -> Failure:
    """The same failure, with what to do about it at its end."""
    return replace(failure, message=f"{failure.message}; {remedy}")
