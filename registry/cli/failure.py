"""Failures of a command: one line, one stable reason, one exit code. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from registry.lora.text import printable
from registry.model.errors import (
    RETRY_AFTER,
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


# What to do about an error of the admin service whose message does not say it.
_REMEDIES: Mapping[str, str] = {
    Reason.ADAPTER_NOT_FOUND: "loraplane get adapters lists those there are",
    # What follows from what stands is another request by now if it was this one that was made.
    Reason.REQUEST_ID_REUSED: "loraplane events -o wide shows what was done under it",
}

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

# Refusals of a caller, or of anything for now: another request of the same would be refused as well.
_OF_ANY_REQUEST = frozenset(
    {
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
        Reason.TOO_MANY_CALLS,
        Reason.ETCD_NO_SPACE,
        Reason.ETCD_PERMISSION,
    }
)


@dataclass(frozen=True, slots=True)
class CommandFailure:
    """Why a command failed. `reason` may be one that only a newer admin service knows, so it is plain text."""

    exit: Exit
    reason: str
    message: str
    field: str | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    request_id: str = ""

    @property
    def is_of_request(self) -> bool:
        """True for a refusal of what was asked, which says nothing of other requests."""
        return self.exit is Exit.REFUSED and self.reason not in _OF_ANY_REQUEST

    @property
    def passes(self) -> bool:
        """True if the same may succeed in a moment: nobody answered, or it was one call too many."""
        return self.exit is Exit.UNAVAILABLE or RETRY_AFTER in self.metadata

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

    def __init__(self, failure: CommandFailure) -> None:
        super().__init__(failure.line())
        self.failure = failure


class ChangeInterrupted(KeyboardInterrupt):
    """An interrupt while a change is under way: nobody here knows whether it is made."""

    def __init__(self, request_id: str) -> None:
        super().__init__()
        told = f"interrupted before the answer; loraplane events --request {request_id} tells whether it is made"
        self.failure = CommandFailure(Exit.INTERRUPTED, Reason.OUTCOME_UNKNOWN, told, request_id=request_id)


def usage(message: str) -> CliError:
    """The command line itself is wrong."""
    return CliError(CommandFailure(Exit.USAGE, Reason.USAGE, message))


def refused(reason: Reason, message: str, *, field: str | None = None) -> CliError:
    """Wish that cannot be fulfilled; found out before anything was sent."""
    return CliError(CommandFailure(Exit.REFUSED, reason, message, field))


def not_found(reason: Reason, message: str) -> CliError:
    """The thing that the command names does not exist."""
    return CliError(CommandFailure(Exit.NOT_FOUND, reason, message))


def unavailable(reason: Reason, message: str) -> CliError:
    """A part that the command needs does not answer, or not in time; a repetition may succeed."""
    return CliError(CommandFailure(Exit.UNAVAILABLE, reason, message))


def failure_of(error: RegistryError, request_id: str = "") -> CommandFailure:
    """An error of the registry's own tree as the CLI tells it.

    `request_id` is told where the outcome may be unknown, so that the user can repeat with it.
    """
    exit_code = EXIT_OF[type(error)]
    metadata = dict(error.metadata)
    reason = metadata.pop(UNKNOWN_REASON, error.reason)
    told_id = request_id if exit_code is Exit.UNAVAILABLE else ""
    failure = CommandFailure(exit_code, reason, error.message, error.field, metadata, told_id)
    return with_remedy(failure, _REMEDIES[reason]) if reason in _REMEDIES else failure


def with_remedy(failure: CommandFailure, remedy: str) -> CommandFailure:
    """The same failure, with what to do about it at its end."""
    return replace(failure, message=f"{failure.message}; {remedy}")
