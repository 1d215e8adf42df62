"""Errors that users may see, each with a stable reason.

    RegistryError
    ├── InvalidArgument      the request itself is wrong; the field says where
    ├── NotFound
    ├── AlreadyExists
    ├── Conflict             a stale etag or a lost race; read again and repeat
    ├── FailedPrecondition   right in itself, but not in the present state
    ├── ResourceExhausted    a quota, a size or etcd's space
    ├── PermissionDenied
    ├── Unauthenticated
    ├── Unavailable          not carried out, or not known to be: repeat with the same request_id
    └── Internal             a broken invariant of ours

Translated once at each boundary: to a gRPC status (``registry.admin``), to an exit code (``registry.cli``).
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Stable reasons. Programs may depend on them; the sentences beside them may change."""

    INVALID_NAME = "INVALID_NAME"
    RESERVED_NAME = "RESERVED_NAME"
    NAME_IS_BASE_MODEL = "NAME_IS_BASE_MODEL"
    INVALID_FIELD = "INVALID_FIELD"
    INVALID_MANIFEST = "INVALID_MANIFEST"
    INVALID_PAGE_TOKEN = "INVALID_PAGE_TOKEN"
    INVALID_FILTER = "INVALID_FILTER"
    DUPLICATE_NAME = "DUPLICATE_NAME"
    UNSUPPORTED = "UNSUPPORTED"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    TOO_MANY_CHANGES = "TOO_MANY_CHANGES"
    TOO_MANY_CALLS = "TOO_MANY_CALLS"
    TOO_LARGE = "TOO_LARGE"
    ADAPTER_NOT_FOUND = "ADAPTER_NOT_FOUND"
    GENERATION_NOT_FOUND = "GENERATION_NOT_FOUND"
    POOL_NOT_FOUND = "POOL_NOT_FOUND"
    REPLICA_NOT_FOUND = "REPLICA_NOT_FOUND"
    REPLICA_LIVES = "REPLICA_LIVES"
    TENANT_NOT_FOUND = "TENANT_NOT_FOUND"
    POOL_EXISTS = "POOL_EXISTS"
    ADAPTER_EXISTS = "ADAPTER_EXISTS"
    ADAPTER_UNFIT = "ADAPTER_UNFIT"
    DIGEST_REQUIRED = "DIGEST_REQUIRED"
    DIGEST_MISMATCH = "DIGEST_MISMATCH"
    CANNOT_PUBLISH = "CANNOT_PUBLISH"
    DESTINATION_TAKEN = "DESTINATION_TAKEN"
    UPLOAD_UNFINISHED = "UPLOAD_UNFINISHED"
    SOURCE_REFUSED = "SOURCE_REFUSED"
    SOURCE_UNREADABLE = "SOURCE_UNREADABLE"
    ETAG_MISMATCH = "ETAG_MISMATCH"
    LOST_RACE = "LOST_RACE"
    POOL_NOT_EMPTY = "POOL_NOT_EMPTY"
    POOL_FULL = "POOL_FULL"
    GENERATION_RESTORED = "GENERATION_RESTORED"
    GENERATION_TOO_HIGH = "GENERATION_TOO_HIGH"
    GENERATION_MISMATCH = "GENERATION_MISMATCH"
    NO_ROLLOUT = "NO_ROLLOUT"
    CANARY_TOO_LARGE = "CANARY_TOO_LARGE"
    FUTURE_SCHEMA = "FUTURE_SCHEMA"
    UNREADABLE_RECORD = "UNREADABLE_RECORD"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    QUOTA_BELOW_USE = "QUOTA_BELOW_USE"
    REVISION_COMPACTED = "REVISION_COMPACTED"
    ETCD_NO_SPACE = "ETCD_NO_SPACE"
    ETCD_UNAVAILABLE = "ETCD_UNAVAILABLE"
    ETCD_PERMISSION = "ETCD_PERMISSION"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    ADMIN_UNAVAILABLE = "ADMIN_UNAVAILABLE"
    SIDECAR_UNAVAILABLE = "SIDECAR_UNAVAILABLE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    ROLLOUT_FAILED = "ROLLOUT_FAILED"
    USAGE = "USAGE"
    STACK_NOT_FOUND = "STACK_NOT_FOUND"
    STACK_NOT_READY = "STACK_NOT_READY"
    STACK_NOT_TRUSTED = "STACK_NOT_TRUSTED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    INTERNAL = "INTERNAL"


# Where the metadata of an error has a reason that only a newer admin service knows.
UNKNOWN_REASON = "reason"


class RegistryError(Exception):
    """Base of all errors that a user may see.

    Args:
        reason: stable reason, one of `Reason`.
        message: one sentence that says what is wrong and what to do about it; never a secret.
        field: path of the field at fault as the caller wrote it, e.g. ``changes[2].upsert.spec.load``; or None.
        metadata: facts for programs, e.g. ``{"max_changes": "41"}``.
    """

    def __init__(
        self, reason: Reason, message: str, *, field: str | None = None, metadata: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.metadata = metadata or {}

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class InvalidArgument(RegistryError):
    """The request is wrong in itself, whatever the state."""


class NotFound(RegistryError):
    """The thing that the request names does not exist."""


class AlreadyExists(RegistryError):
    """The thing that the request would create exists."""


class Conflict(RegistryError):
    """A stale etag or a lost race. Nothing was changed."""


class FailedPrecondition(RegistryError):
    """The present state does not allow it. Nothing was changed."""


# Of an error's facts: after how many seconds to try again.
RETRY_AFTER = "retry_after_seconds"


class ResourceExhausted(RegistryError):
    """A quota, a size or etcd's space is used up. Nothing was changed."""


class PermissionDenied(RegistryError):
    """The caller, or we towards etcd, may not do this."""


class Unauthenticated(RegistryError):
    """The caller is not known."""


class Unavailable(RegistryError):
    """Not carried out, or not known to be. Repeat with the same request_id."""


class Internal(RegistryError):
    """A broken invariant of ours."""
