"""Records of the audit and of requests: what was done, and what was refused. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from registry.model.records import ChangeReply
from registry.model.stored import MAX_TRANSACTION_BYTES, Number, Part, Stored


class AuditChange(Part):
    """One value before and after a change, as it stands in etcd; None: absent."""

    kind: Literal["adapter", "pool", "tenant", "replica", "history"]
    name: str
    before: dict[str, object] | None
    after: dict[str, object] | None


class AuditRecord(Stored):
    """Principal, request and values of a change: one for each changing revision.

    Attributes:
        bindings: numbers of those of the access file that allowed it; 0: the host's administrator did it.
        credential: kind of that which names the principal, as "certificate"; empty: none was needed, or an earlier
            release wrote this.
        fingerprint: of the certificate or the token, ``sha256:`` and 64 hex digits; empty: neither was shown.
        peer: address that it came from, as gRPC names it.
        user_agent: as the client says.
        reason: why the admin service did it by itself, as ``ttl``; empty: somebody asked for it.
    """

    max_bytes = MAX_TRANSACTION_BYTES
    at: str
    principal: str
    role: str
    bindings: list[Number] = []
    credential: str = ""
    fingerprint: str = ""
    peer: str = ""
    user_agent: str = ""
    request_id: str
    method: str
    changes: list[AuditChange]
    reason: str = ""


class DenialRecord(Stored):
    """Refusal of a call for want of a right or of a credential, which stands for those like it. It changed nothing.

    Attributes:
        principal: empty: nobody knew who called; then `fingerprint` is of what was shown.
        pool: that it was about; empty: about none.
        tenant: that it was about; empty: about none in particular.
        times: refusals of the same caller, method and reason since the record before.
    """

    at: str
    principal: str
    credential: str
    fingerprint: str
    peer: str
    user_agent: str
    method: str
    reason: str
    message: str
    pool: str = ""
    tenant: str = ""
    times: Annotated[Number, Field(ge=1)] = 1


class RequestRecord(Stored):
    """Record of a settled request: the digest of its payload, and its reply. The revision is the record's own.

    `reply` None: it was refused after its outcome had been unknown, and the record keeps what was sent then from
    taking effect later.
    """

    max_bytes = MAX_TRANSACTION_BYTES
    payload_digest: str
    reply: ChangeReply | None
