"""audit: who did what, old and new value, and what was refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from registry.cli.commands import events
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import BUSY, Refusal

MORE = {"next_page_token": "t"}


def record(uri: str, priority: int = 0, **more: object) -> str:
    spec = {"source": {"uri": uri}, "priority": priority, "labels": {}, **more}
    return json.dumps({"name": "acme/a", "generation": 2, "spec": spec, "updated_at": uri})


def entry(revision: int, *changes: pb.AuditedChange, **more: object) -> pb.AuditEntry:
    told = {"principal": "alice", "role": "publisher", "method": "ApplyAdapters", "pool": "dev"} | more
    return pb.AuditEntry(
        id=f"id{revision}", at=f"2026-01-01T00:00:0{revision}Z", revision=revision, changes=changes, **told
    )


CREATED = pb.AuditedChange(kind="adapter", name="acme/a", action="created", after_json=record("file:///a"))
UPDATED = pb.AuditedChange(
    kind="adapter", name="acme/a", action="updated", before_json=record("file:///a", labels={"x": "y"}),
    after_json=record("file:///b", 7, description="d" * 100),
)  # fmt: skip
DELETED = pb.AuditedChange(kind="adapter", name="acme/b", action="deleted", before_json=record("file:///b"))
TENANT = pb.AuditedChange(
    kind="tenant", name="acme", action="updated", before_json="[]", after_json='{"max_adapters": 5}'
)
EMPTY = pb.AuditedChange(kind="pool", name="dev", action="updated", before_json="rubbish", after_json="rubbish")
DENIED = pb.AuditDenial(reason="PERMISSION_DENIED", message="you may not", tenant="other", times=3)


@pytest.fixture
def world(admin):
    """Two pages, in the order of the service."""
    first = pb.ListAuditResponse(
        entries=[entry(5, UPDATED, DELETED), entry(3, CREATED)], **MORE, revision=9, unreadable=["u"]
    )
    denied = entry(
        4, role="", principal="", denial=DENIED, peer="ipv4:10.0.0.1:5", user_agent="curl", fingerprint="sha256:0"
    )
    second = pb.ListAuditResponse(entries=[denied, entry(6, TENANT, EMPTY, pool="")], revision=9)
    admin.answers["ListAudit"] = [first, second]
    return admin


CHANGED = "source.uri: file:///a → file:///b; priority: 0 → 7; labels.x: y → -; labels: - → {}; "
CHANGED += f"description: - → {'d' * 60}…"
ROWS = [
    "2026-01-01T00:00:03Z alice publisher created adapter dev acme/a file:///a",
    "2026-01-01T00:00:04Z - - denied ApplyAdapters (3 times) dev other you may not",
    "2026-01-01T00:00:05Z alice publisher updated adapter dev acme/a " + CHANGED,
    "2026-01-01T00:00:05Z alice publisher deleted adapter dev acme/b file:///b",
    "2026-01-01T00:00:06Z alice publisher updated tenant - acme unreadable: [] → -; max_adapters: - → 5",
    "2026-01-01T00:00:06Z alice publisher updated pool - dev -",
]


def test_each_change_is_a_row_in_the_order_in_which_they_were_made(cli, world):
    """W7 audit-complete: who, in which role, and each field before and after."""
    ran = cli("audit")
    head, *rows = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert (ran.code, head) == (0, "TIME PRINCIPAL ROLE ACTION POOL NAME CHANGED")
    assert rows == ROWS
    assert "the audit record u cannot be read" in ran.err
    _, denied, quota, *_ = [" ".join(line.split()) for line in cli("-o", "wide", "audit").out.splitlines()]
    assert (denied, quota) == (f"{ROWS[1]} - sha256:0 ipv4:10.0.0.1:5 curl - - -", ROWS[4] + 7 * " -")


def test_what_is_asked_for_is_asked_of_the_service(cli, world):
    cli("audit", "acme/a", "--pool", "dev", "--since", "2h", "--principal", "alice")
    asked = world.asked("ListAudit")[0]
    assert (asked.about, asked.pool, asked.principal) == ("acme/a", "dev", "alice")
    assert abs(datetime.fromisoformat(asked.since) - datetime.now(UTC) + timedelta(hours=2)) < timedelta(minutes=1)


def test_of_very_many_the_newest_are_shown(cli, world, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(events, "MAX_SHOWN", 1)
    ran = cli("-o", "json", "audit")
    assert [one["revision"] for one in ran.json["items"]] == [5, 6]
    assert "there are more than the 1" in ran.err


@pytest.mark.parametrize("away", [Refusal(grpc.StatusCode.UNAVAILABLE, "ADMIN_UNAVAILABLE"), BUSY])
def test_a_watch_goes_on_where_it_was_when_its_connection_breaks(cli, world, rounds, away):
    """A5 tamper-evident: no entry is shown twice, and none is left out."""
    later = pb.WatchAuditResponse(entries=[entry(7, CREATED)], revision=7, unreadable=["v"])
    world.answers["WatchAudit"] = [
        [pb.WatchAuditResponse(revision=9), later, away],
        [pb.WatchAuditResponse(revision=12)],
    ]
    ran = cli("-o", "json", "audit", "-w")
    lines = [json.loads(line)["item"]["revision"] for line in ran.out.splitlines()]
    assert (ran.code, lines) == (130, [3, 4, 5, 6, 7])
    assert [one.start_revision for one in world.asked("WatchAudit")] == [10, 8, 13]
    assert "the audit record v cannot be read" in ran.err


def test_a_watch_ends_where_it_cannot_go_on(cli, world, rounds):
    refused = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "REVISION_COMPACTED", "etcd does not keep revision 10")
    world.answers["WatchAudit"] = [[refused]]
    ran = cli("audit", "-w", "--pool", "dev")
    assert (ran.code, "etcd does not keep" in ran.err) == (4, True)
    assert world.asked("WatchAudit")[0].pool == "dev"
    assert [" ".join(line.split()) for line in ran.out.splitlines()][1:] == ROWS, "rows, not a table"
