"""Entries of the audit as clients see them: what was done, and what was refused."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from registry.client import admin_api as api
from registry.client.transport import AdminCalls
from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True, slots=True)
class AuditedChange:
    """One value before and after.

    Attributes:
        kind: ``adapter``, ``pool``, ``replica``, ``tenant`` or ``history``.
        name: of that.
        action: such as ``updated``.
        before: as it was stored; None: it was absent.
        after: as it is stored since; None: it is absent.
    """

    kind: str
    name: str
    action: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class AuditDenial:
    """Refusal of a call, which stands for those like it.

    Attributes:
        reason: ``PERMISSION_DENIED`` or ``UNAUTHENTICATED``.
        message: as the caller was told.
        tenant: that it was about; empty: about none in particular.
        times: refusals of the same caller, method and reason since the entry before.
    """

    reason: str
    message: str
    tenant: str
    times: int


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One record of the audit.

    Attributes:
        id: sorts by time within a pool.
        revision: of etcd, at which it was done.
        at: RFC 3339, by the clock of the admin service.
        pool: empty: it is of none.
        principal: empty: nobody knew who called.
        credential: ``certificate``, ``token``, ``socket`` or ``service``; empty: none was needed.
        fingerprint: of the certificate or the token, ``sha256:`` and 64 hex digits; empty: neither was shown.
        peer: address that the call came from, as gRPC names it.
        user_agent: as the client said.
        role: that allowed it.
        bindings: their numbers in the access file.
        request_id: of the change.
        method: of the API, as ``ApplyAdapters``, or the page.
        changes: what was done; empty: it was refused.
        denial: None: it was done.
        reason: why the admin service did it by itself, as ``ttl``; empty: somebody asked for it.
    """

    id: str
    revision: int
    at: str
    pool: str
    principal: str
    credential: str
    fingerprint: str
    peer: str
    user_agent: str
    role: str
    bindings: tuple[int, ...]
    request_id: str
    method: str
    changes: tuple[AuditedChange, ...]
    denial: AuditDenial | None
    reason: str = ""


def entry_of(wire: pb.AuditEntry) -> AuditEntry:
    """The entry of a message."""
    denial = wire.denial
    return AuditEntry(
        id=wire.id,
        revision=wire.revision,
        at=wire.at,
        pool=wire.pool,
        principal=wire.principal,
        credential=wire.credential,
        fingerprint=wire.fingerprint,
        peer=wire.peer,
        user_agent=wire.user_agent,
        role=wire.role,
        bindings=tuple(wire.bindings),
        request_id=wire.request_id,
        method=wire.method,
        changes=tuple(
            AuditedChange(one.kind, one.name, one.action, _value(one.before_json), _value(one.after_json))
            for one in wire.changes
        ),
        denial=AuditDenial(denial.reason, denial.message, denial.tenant, denial.times)
        if wire.HasField("denial")
        else None,
        reason=wire.reason,
    )


def _value(text: str) -> Mapping[str, Any] | None:
    """A value that was sent as JSON; what is no object is shown as it came."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {"unreadable": text}
    return found if isinstance(found, dict) else {"unreadable": text}


class AuditAccess:
    """Part of a client that reads the audit; its caller needs the role auditor."""

    _calls: AdminCalls

    async def audit(
        self,
        *,
        pool: str = "",
        about: str = "",
        principal: str = "",
        since: datetime | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[AuditEntry, None]:
        """Entries of what was done and what was refused: pool by pool, each the oldest first.

        Args:
            pool: only of this one; empty: of all.
            about: only of the adapter, pool, tenant or replica of this name; empty: of all.
            principal: only by this one; empty: by all.
            since: no older than this, which needs a time zone; None: all.
            timeout_seconds: of each page, repetitions included; None: that of the connection.

        Raises:
            PermissionDenied: the caller has no role auditor.
            Unavailable: no answer in time.
            RegistryError: as the admin service refused it otherwise.
        """
        asked = pb.ListAuditRequest(
            pool=pool, about=about, principal=principal, since=since.isoformat() if since else ""
        )
        pages = self._calls.pages(api.LIST_AUDIT, asked, timeout_seconds)
        async with aclosing(pages):
            async for page in pages:
                for entry in page.entries:
                    yield entry_of(entry)

    async def watch_audit(
        self,
        *,
        pool: str = "",
        about: str = "",
        principal: str = "",
        start_revision: int = 0,
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[AuditEntry, None]:
        """Entries from now on, or from a revision on, each once and in order; without end.

        When the connection breaks it is made again, and goes on where it was. Close the generator at the end.

        Args:
            pool: as in `audit`.
            about: as in `audit`.
            principal: as in `audit`.
            start_revision: one more than that of the last entry which is known; 0: from now on.
            timeout_seconds: how long the admin service may be out of reach; None: for ever.

        Raises:
            FailedPrecondition: with reason REVISION_COMPACTED, etcd does not keep `start_revision`: list anew.
            PermissionDenied: the caller has no role auditor.
            Unavailable: the admin service was out of reach for longer than `timeout_seconds`.
            RegistryError: as the admin service refused it otherwise.
        """
        asked = pb.WatchAuditRequest(pool=pool, about=about, principal=principal, start_revision=start_revision)
        answers = self._calls.follow(api.WATCH_AUDIT, asked, timeout_seconds)
        async with aclosing(answers):
            async for answer in answers:
                asked.start_revision = answer.revision + 1  # each beginning sends this request as it stands
                for entry in answer.entries:
                    yield entry_of(entry)
