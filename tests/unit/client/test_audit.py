"""The audit for programs: entries to the last field, and a watch that goes on where it was."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import grpc

from loraplane import AuditDenial, AuditedChange, AuditEntry
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Hold, Refusal

BOTH: dict[str, Any] = {
    "id": "i",
    "revision": 7,
    "at": "2026-01-01T00:00:00Z",
    "pool": "p",
    "principal": "alice",
    "credential": "token",
    "fingerprint": "sha256:0",
    "peer": "ipv4:10.0.0.1:5",
    "user_agent": "curl",
    "role": "publisher",
    "request_id": "r",
    "method": "ApplyAdapters",
}
WIRE = pb.AuditEntry(
    **BOTH,
    bindings=[3, 4],
    changes=[pb.AuditedChange(kind="adapter", name="a", action="created", after_json='{"x": 1}')],
)
ENTRY = AuditEntry(
    **BOTH,
    bindings=(3, 4),
    changes=(AuditedChange("adapter", "a", "created", None, {"x": 1}),),
    denial=None,
)

MORE = {"next_page_token": "t"}


def test_an_entry_has_all_that_the_service_told(registry, admin):
    denied = pb.AuditEntry(denial=pb.AuditDenial(reason="UNAUTHENTICATED", message="m", tenant="t", times=2))
    odd = pb.AuditEntry(changes=[pb.AuditedChange(before_json="[" * 100_000, after_json="[1]")])
    admin.answers["ListAudit"] = [
        pb.ListAuditResponse(entries=[WIRE], **MORE),
        pb.ListAuditResponse(entries=[denied, odd]),
    ]
    since = datetime(2026, 1, 1, tzinfo=UTC)
    first, second, third = registry.audit(pool="p", about="a", principal="alice", since=since)
    assert first == ENTRY
    assert second.denial == AuditDenial("UNAUTHENTICATED", "m", "t", 2)
    assert (third.changes[0].before, third.changes[0].after) == ({"unreadable": "[" * 100_000}, {"unreadable": "[1]"})
    asked = admin.asked("ListAudit")[0]
    assert (asked.pool, asked.about, asked.principal, asked.since) == ("p", "a", "alice", "2026-01-01T00:00:00+00:00")
    assert list(registry.audit())[-1].id == ""
    assert admin.asked("ListAudit")[-1].since == ""


def test_a_watch_tells_each_entry_once_over_connections_that_break(registry, admin):
    """A5 tamper-evident."""
    away = Refusal(grpc.StatusCode.UNAVAILABLE, "ADMIN_UNAVAILABLE")
    admin.answers["WatchAudit"] = [
        [pb.WatchAuditResponse(revision=6), pb.WatchAuditResponse(entries=[WIRE], revision=7), away],
        [pb.WatchAuditResponse(revision=7), pb.WatchAuditResponse(entries=[WIRE], revision=8), Hold()],
    ]
    with closing(registry.watch_audit(pool="p", about="a", principal="alice")) as entries:
        assert [one.revision for one in islice(entries, 2)] == [7, 7]
    assert admin.asked("WatchAudit")[0].pool == "p"
    assert [one.start_revision for one in admin.asked("WatchAudit")] == [0, 8]
