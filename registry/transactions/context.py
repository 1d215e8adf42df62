"""Who asks, when, and within which limits: what a plan needs besides the change and what was read."""

from __future__ import annotations

from dataclasses import dataclass

from registry.keys import Keys
from registry.model.base import MAX_TRANSACTION_BYTES


@dataclass(frozen=True, slots=True)
class Limits:
    """What one transaction may hold: etcd's --max-txn-ops and a little less than its --max-request-bytes."""

    max_ops: int = 128
    max_bytes: int = MAX_TRANSACTION_BYTES


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `request_id_given`: the id is the caller's own, so a replay may come, also of what changes nothing."""

    principal: str
    role: str
    request_id: str
    request_id_given: bool


@dataclass(frozen=True, slots=True)
class Leases:
    """Leases under which request records and audit records are put."""

    request: int = 0
    audit: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """Everything about a change but the change itself. `at` is RFC 3339; `payload_digest` as in `changes`."""

    keys: Keys
    limits: Limits
    caller: Caller
    leases: Leases
    at: str
    audit_id: str
    payload_digest: str
