"""events: what happened, from the audit trail, statuses and a sidecar's ring."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import grpc
import pytest

from registry.cli import options, sidecars
from registry.cli.commands import events
from registry.runtime.page_guard import error_body
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, Refusal


def ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


def change(action: str, name: str = "sql", minutes: float = 10, **more: Any) -> pb.RecordedChange:
    parts = {"at": ago(minutes), "principal": "alice", "method": "ApplyAdapters", "kind": "adapter"} | more
    return pb.RecordedChange(action=action, name=name, **parts)


def status(**parts: Any) -> str:
    return json.dumps({"updated_at": ago(3), "ready": True, **parts})


def test_what_one_request_did_to_many_is_one_row_that_opens(cli, admin):
    same = [change("updated", f"a{number}", request_id="q1", fields=["labels"]) for number in range(500)]
    others = [change("created", "b", request_id="q1"), change("updated", "c", request_id="q2")]
    admin.answers["ListChanges"] = [pb.ListChangesResponse(changes=[*same, *others])]
    ran = cli("events", "--pool", "dev")
    assert len(ran.lines) == 1 + 3
    [row] = [line for line in ran.lines if "500 adapters" in line]
    assert "ApplyAdapters: labels; loraplane events --request q1 names them" in row
    assert len(cli("events", "--pool", "dev", "--request", "q1").lines) == 1 + 501
    assert len(cli("events", "--pool", "dev", "--all").lines) == 1 + 502
    assert len(cli("-o", "json", "events", "--pool", "dev").json["items"]) == 502
    assert "q2" in cli("events", "--pool", "dev").out
    same[0].fields.append("priority")
    admin.answers["ListChanges"] = [pb.ListChangesResponse(changes=[*same, *others])]
    assert "ApplyAdapters: labels, priority and more;" in cli("events", "--pool", "dev").out


def value(path: str, before: str, after: str) -> pb.ChangedValue:
    return pb.ChangedValue(path=path, before_json=before, after_json=after)


def test_who_changed_what_from_which_value_to_which_by_which_request(cli, admin):
    values = [value("placement.replicas", "6", "7"), value("labels.team", "", '"bi"'), value("x", "?", "[" * 5000)]
    one = change("updated", generation=4, request_id="q1", fields=["labels", "placement", "retry", "x"], values=values)
    admin.answers["ListChanges"] = [pb.ListChangesResponse(changes=[one])]
    row = cli("events", "--pool", "dev").lines[1]
    assert " alice q1 placement.replicas: 6 → 7; labels.team: - → bi; x: ? → [[" in " ".join(row.split())
    assert row.endswith("…; retry (ApplyAdapters)")
    [told] = cli("-o", "json", "events", "--pool", "dev").json["items"]
    assert told["values"][0] == {"path": "placement.replicas", "before": "6", "after": "7"}
    same = [change("updated", f"a{number}", request_id="q2", fields=["x"], values=values[:1]) for number in range(3)]
    admin.answers["ListChanges"] = [pb.ListChangesResponse(changes=same)]
    assert (
        "placement.replicas: 6 → 7; x (ApplyAdapters); loraplane events --request q2 names them"
        in cli("events", "--pool", "dev").out
    )


FAILED = {"name": "Law", "generation": 2, "reason": "rank_too_high", "message": "64 > 16", "request_id": "q"}
PENDING = {"name": "sql", "generation": "?", "reason": "staging", "message": None}


@pytest.fixture
def world(admin) -> FakeAdmin:
    """A pool with changes and replicas that are well, unwell and gone."""
    found = [
        change("halted", minutes=5, generation=4, note="2 of 2 refused", fields=["rollout"]),
        change("updated", minutes=7, generation=4, fields=["priority", "source"]),
        change("drain", "r1", kind="replica", method="DrainReplica"),
        change("updated", "dev", kind="pool", method="UpdatePool"),
    ]
    well = pb.Replica(name="r1", pool="dev", started_at=ago(20), version="1.0", status_json=status())
    old = {"started_at": ago(600), "leaving": True}
    unwell = status(ready=False, note="away", held="13 would go", degraded="half", failed=[FAILED], pending=[PENDING])
    replicas = [well, pb.Replica(name="r2", pool="dev", status_json=unwell, **old)]
    gone = pb.MissingReplica(name="r3", last_seen=ago(900))
    admin.answers["ListChanges"] = [pb.ListChangesResponse(changes=found)]
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=replicas, missing=[gone])]
    admin.answers["ListAdapterHistory"] = [pb.ListAdapterHistoryResponse()]
    return admin


def shown(ran: Any) -> list[str]:
    keys = ("event", "kind", "name", "replica", "generation", "reason", "message", "by")
    return [" ".join(str(one[key]) for key in keys if one[key]) for one in ran.json["items"]]


ALL = """\
missing replica r3 r3|started replica r1 r1 version 1.0|drain replica r1 r1 DrainReplica alice|\
updated pool dev UpdatePool alice|updated adapter sql 4 ApplyAdapters: priority, source alice|\
halted adapter sql 4 2 of 2 refused alice|drains replica r2 r2|not_ready replica r2 r2 away|\
held replica r2 r2 13 would go|degraded replica r2 r2 half|failing adapter Law r2 2 rank_too_high 64 > 16""".split("|")


def test_what_happened_in_a_pool_the_oldest_first(cli, world):
    ran = cli("-o", "json", "events")
    assert (ran.code, shown(ran)) == (0, ALL)
    (asked,) = world.asked("ListChanges")
    assert asked.pool == "dev"
    assert timedelta(minutes=59) < datetime.now(UTC) - datetime.fromisoformat(asked.since) < timedelta(minutes=70)
    header, first, *_ = cli("events").out.splitlines()
    assert header.split() == ["TIME", "EVENT", "KIND", "NAME", "REPLICA", "GENERATION", "BY", "REQUEST", "WHY"]
    assert first.split()[1:] == ["missing", "replica", "r3", "r3", "-", "-", "-", "-"]
    world.answers["ListAdapterHistory"] = [Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "none")]
    for words, says in (
        ("--replica r9", "REPLICA_NOT_FOUND: there is no replica 'r9' in pool"),
        ("none", "ADAPTER_NO"),
    ):
        ran = cli("events", *words.split())
        assert (ran.code, ran.out, ran.err.count("\n"), says in ran.err) == (3, "", 1, True)


@contextmanager
def sidecar(body: bytes, code: int = 200, path: str = "/events") -> Iterator[str]:
    """A server that answers so; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code if self.path == path else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def ring(*found: object) -> bytes:
    return json.dumps({"schema": 1, "replica": "r1", "pool": "dev", "events": found}).encode()


def test_the_ring_of_a_sidecar(cli, admin):
    """Also while the admin service is away: it is not asked."""
    swapped = {"at": ago(1), "event": "swapped", "name": "sql", "generation": 3, "number": 2}
    started = {"at": ago(2), "event": "started", "name": "", "generation": 0, "message": "\x1b", "number": 1}
    old = {"at": ago(100), "event": "loaded", "name": "sql"}
    odd = {"at": "1 January", "event": ["?"], "name": 7, "generation": "x"}
    unzoned = {"at": "2026-01-01T00:00:00", "event": "loaded", "name": "b"}
    with sidecar(ring(odd, unzoned, old, started, swapped, "?")) as address:
        whole = cli("-o", "json", "events", "--sidecar", address)
        one = cli("events", "SQL", "--sidecar", address)
    told = {"replica r1 r1", "loaded adapter b r1", "started replica r1 r1 \x1b", "swapped adapter sql r1 3"}
    assert set(shown(whole)) == told
    assert ([line.split()[1] for line in one.out.splitlines()[1:]], admin.requests) == (["swapped"], [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        *((["SQL"], [ALL[4], ALL[5], "pending adapter sql r2 staging"]), (["law"], [ALL[10]])),
        (["--replica", "r1"], [ALL[1], ALL[2]]),
        (["--replica", "r2"], [*ALL[6:11], "pending adapter sql r2 staging"]),
        (["law", "--replica", "r1"], []),
        (["--replica", "r3", "--since", "7d"], [ALL[0]]),
        (["--replica", "r1", "--since", "999999d"], [ALL[1], ALL[2]]),
        (["--replica", "r1", "--since", "5m"], []),
    ],
)
def test_of_one_adapter_or_replica(cli, world, words, expected):
    """What waits is told of one alone: of all it would be much, and soon over. A replica may be called like one."""
    world.answers["ListChanges"][0].changes.append(change("drain", "law", kind="replica", method="DrainReplica"))
    assert {*shown(cli("-o", "json", "events", *words))} == {*expected}


@pytest.mark.parametrize(("most", "is_noted"), [(3, False), (2, True)])
def test_what_cannot_be_read_and_what_is_too_much_is_noted(cli, world, monkeypatch, most, is_noted):
    """X2: no more than a bound is kept, the newest of it."""
    monkeypatch.setattr(events, "MAX_SHOWN", most)
    found = [change(f"a{at}", minutes=9 - at) for at in range(3)]
    world.answers["ListChanges"] = [pb.ListChangesResponse(changes=found, unreadable=["2026-x"])]
    world.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[pb.Replica(name="new", pool="dev")])]
    ran = cli("-o", "json", "events")
    assert [one["event"] for one in ran.json["items"]] == ["a0", "a1", "a2"][-most:]
    assert "1 audit records cannot be read, and are left out: 2026-x" in ran.err
    assert (f"more than the {most} that are shown" in ran.err) == is_noted


def test_a_watch_notes_what_it_cannot_read_once(cli, world, rounds):
    """Not at each look, every two seconds, until somebody upgrades the admin service that is asked."""
    world.answers["ListChanges"] = [pb.ListChangesResponse(unreadable=["2026-x"])]
    ran = cli("events", "-w")
    assert (len(world.asked("ListChanges")) > 1, ran.err.count("cannot be read")) == (True, 1)


def test_a_watch_prints_what_is_new_and_survives_an_outage(cli, world, rounds, clock):
    first, second = world.answers["ListChanges"][0], pb.ListChangesResponse(changes=[change("deleted", minutes=4)])
    away = Refusal(grpc.StatusCode.UNAVAILABLE, "ADMIN_UNAVAILABLE")
    world.answers["ListChanges"] = [first, clock.late(away), second]
    (later,) = [pb.ListReplicasResponse.FromString(one.SerializeToString()) for one in world.answers["ListReplicas"]]
    later.replicas[1].status_json = status(ready=False, note="still away", held="13 would go", failed=[FAILED])
    world.answers["ListReplicas"] = [world.answers["ListReplicas"][0], later]
    ran = cli("-o", "json", "events", "-w")
    lines = [json.loads(line)["item"] for line in ran.out.splitlines()]
    assert (ran.code, [one["event"] for one in lines]) == (130, [*[one.split()[0] for one in ALL], "deleted"])
    since = [datetime.fromisoformat(one.since) for one in world.asked("ListChanges")]
    newest = datetime.fromisoformat(first.changes[0].at)
    assert (since[1:], since[1] > since[0]) == ([newest - timedelta(seconds=60)] * 2, True)
    world.answers["ListReplicas"].append(Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND"))
    rounds.pauses.clear()
    ran = cli("events", "--watch")
    assert (ran.code, len(rounds.pauses)) == (3, 1), "an error that will stay ends it"


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b'{"events": []}', 200, None),
        (b'{"events": 1}', 200, None),
        (b'{"events": []}' + b" " * 136, 200, None),
        (b'{"events": []}' + b" " * 137, 200, "status 200, and no events"),
        (b"[]", 200, "status 200, and no events"),
        (b"no", 200, "Expecting value"),
        (ring(), 404, "status 404, and no events"),
        (json.dumps(error_body("host", "start it with --http-names")).encode(), 421, "start it with --http-names"),
        (b'{"error": "as earlier releases said it"}', 421, "as earlier releases said it"),
        (b'{"error": 1}', 421, "status 421, and no events"),
    ],
)
def test_what_is_no_ring_is_refused(cli, monkeypatch, body, code, says):
    """R16 bounded."""
    monkeypatch.setattr(sidecars, "_MAX_PAGE_BYTES", 150)
    with sidecar(body, code) as address:
        ran = cli("-o", "json", "events", "--sidecar", address)
    if says is None:
        assert (ran.code, ran.json) == (0, {"items": []})
    else:
        assert (ran.code, ran.error["reason"], says in ran.error["message"]) == (6, "SIDECAR_UNAVAILABLE", True)
    for nobody, why in ((address, "[Errno "), ("999.1.1.1:1", "Invalid IPv4 address")):
        assert f"no events of a sidecar at {nobody}: {why}" in cli("events", "--sidecar", nobody).err


def test_where_a_sidecar_is_and_how_long_ago():
    for text in ("r1:1", "127.0.0.1:65535", "[::1]:7602", "http://r1:1", "https://r1:1"):
        assert sidecars.sidecar_address(text) == text
    spans = {"0s": 0, "90s": 90, "30m": 1800, "2h": 7200, "7d": 604_800, "366d": 31_622_400, "999999d": 31_622_400}
    assert {text: options.span_of(text).total_seconds() for text in spans} == spans
