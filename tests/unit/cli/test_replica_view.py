"""What is read of a replica's status, of any release: numbers, times, room, and what replicas do not agree about."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from registry.cli.views.replica_view import (
    ReplicaView,
    cell,
    disagreements,
    missing_view,
    replica_view,
    replica_views,
    short_span,
    span,
)
from registry.v1 import registry_pb2 as pb

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def view(status: Any = None, **fields: Any) -> ReplicaView:
    text = status if isinstance(status, str) else json.dumps(status) if status is not None else ""
    return replica_view(pb.Replica(name="r1", pool="p", status_json=text, **fields))


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ({"observed_revision": 9, "served": {"count": 3}, "pending": [{}], "failed": [{}, {}]}, 6),
        ({"observed_revision": 8, "served": {"count": 3}, "pending": [{}], "failed": [{}, {}]}, 10),
        ({"observed_revision": 10, "served": {"count": 3}, "pending_count": 40, "failed_count": 50}, 93),
        ({"observed_revision": "9", "served": {"count": 3}}, 7),
        ({"observed_revision": 9, "served": {"count": 1_000_000_000}}, 0),
        ({"observed_revision": 9, "served": {"count": 999_999_999}}, 999_999_999),
        ({}, 4),
    ],
)
def test_what_a_replica_is_to_hold_counts_what_it_has_not_seen_yet(status, wanted):
    """Once it has seen the change, what was created is among what it tells."""
    assert view(status).wanted_since(9, 4) == wanted
    seen = view({"observed_revision": 9, "served": {"count": 3}})
    assert seen.wanted_since(0, 4) == 7, "a dry run has no revision, so nobody has seen anything of it"
    rooms = [(16, 0, 16), (16, 8, 8), (8, 16, 8), (0, 5, 5), (None, 5, 5), (None, 0, 0), ("many", 3, 3), (-4, 0, 0)]
    rooms += [(999_999_999, 0, 999_999_999), (1_000_000_000, 7, 7), (9_999_999_999, 0, 0), (1, 0, 1)]
    for of_engine, of_pool, room in rooms:  # X2: a number that nobody means is none
        assert view({"engine": {"limits": {"max_cpu_loras": of_engine}}}).room(of_pool) == room


def test_lists_of_a_status_are_read_as_far_as_they_are_such():
    """As programs get it, those that do not live, with when they were seen last, follow those that do."""
    seen = view({"failed": [{"name": "a"}, 7, "x"], "pending": "none", "pending_count": 5, "failed_count": "two"})
    assert (seen.items("failed"), seen.items("pending"), seen.items("kept")) == ([{"name": "a"}], [], [])
    assert (seen.total("failed"), seen.total("pending"), seen.total("kept")) == ("1", "5", "0")
    assert view().total("failed") == "-"
    assert view({"lazy": {"resident": [{"name": "z"}, 7]}}).resident() == [{"name": "z"}]
    for lazy in (None, [], "x", {"resident": 7}, {}):
        assert view({"lazy": lazy}).resident() == []
    live = view(
        {"ready": True}, labels={"b": "2", "a": "1"}, incarnation="i", started_at="t", version="1", leaving=True
    )
    whole = {"name": "r1", "pool": "p", "labels": {"a": "1", "b": "2"}, "incarnation": "i", "started_at": "t"}
    whole |= {"version": "1", "leaving": True, "engine_url": None, "withheld_engine_url": None}
    assert (live.as_dict(), [*live.labels]) == (whole | {"status": {"ready": True}}, ["a", "b"])
    bare = view(withheld_engine_url="http://x").as_dict()
    assert (bare["version"], bare["status"], bare["withheld_engine_url"]) == (None, None, "http://x")
    missing = [
        pb.MissingReplica(name="r2", labels={"b": "2", "a": "1"}),
        pb.MissingReplica(name="r3", last_seen="then"),
    ]
    found = pb.ListReplicasResponse(replicas=[pb.Replica(name="z", pool="p")], missing=missing, lacking=1)
    told = [one.as_dict() for one in replica_views("p", found)]
    assert [(one["name"], one["pool"], one.get("missing"), one.get("last_seen")) for one in told] == [
        *(("z", "p", None, None), ("r2", "p", True, None), ("r3", "p", True, "then")),
    ]
    assert [*told[1]["labels"]] == ["a", "b"]


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    ("text", "note"),
    [
        *(("", None), ("{", "its status is not JSON"), ("[" * 100_000, "its status is not JSON")),
        *(("[1]", "its status is not a JSON object"), ("7", "its status is not a JSON object")),
        (nested(31), None),
        (nested(32), "its status is nested too deeply"),
        ('{"a":' + "[" * 32 + "]" * 32 + "}", "its status is nested too deeply"),
        ('{"a":' + "[" * 31 + "]" * 31 + "}", None),
    ],
)
def test_a_status_that_cannot_be_shown_is_told_as_that(text, note):
    """X2 unbreakable: whatever a sidecar of any release, or somebody else, writes there."""
    assert view(text).status.get("note") == note


def test_replicas_disagree_about_one_generation_of_one_name_alone():
    """W6 one-digest: another generation is other files, and one digest is none to disagree about."""

    def finds(name: str, *found: tuple[str, int, str]) -> ReplicaView:
        listed = [{"name": what, "generation": generation, "digest": digest} for what, generation, digest in found]
        return replica_view(pb.Replica(name=name, pool="p", status_json=json.dumps({"found": listed})))

    replicas = [
        finds("r1", ("b", 1, "x"), ("a", 1, "x"), ("c", 1, "x")),
        finds("r2", ("b", 1, "y"), ("a", 2, "y"), ("c", 1, "x")),
        finds("r3", ("b", 1, "x"), ("a", 2, "z")),
    ]
    first, second = disagreements(replicas)
    assert first.as_dict() == {"name": "a", "generation": "2", "digests": {"y": ["r2"], "z": ["r3"]}}
    assert second.as_dict() == {"name": "b", "generation": "1", "digests": {"x": ["r1", "r3"], "y": ["r2"]}}
    assert second.line() == (
        "error: digests_differ: b generation 1: x on r1, r3; y on r2; apply the digest that is meant"
    )


WORDS = "0=0 s,119=119 s,120=2 min,179=2 min,7199=119 min,7200=2 h,10799=2 h,10800=3 h,864000=240 h".split(",")
AGES = (
    "0=0s 59=59s 60=1m 61=1m1s 119=1m59s 599=9m59s 600=10m 601=10m 3599=59m 3600=1h 3659=1h 3660=1h1m 35999=9h59m "
    "36000=10h 86399=23h 86400=1d 89999=1d 90000=1d1h 273600=3d4h 863999=9d23h 864000=10d 867600=10d"
).split()


def test_a_span_is_told_in_the_largest_unit_that_matters():
    """In words, in one of which there are two; an age has a second unit while that says something. A clock that is
    ahead makes no negative time.
    """
    for tell, cases in ((span, WORDS), (short_span, AGES)):
        assert [f"{one.partition('=')[0]}={tell(int(one.partition('=')[0]))}" for one in cases] == cases
    seen = {"2025-12-31T23:59:59Z": "1 s", "2026-01-01T00:00:00Z": "0 s", "2026-01-01T00:00:40Z": "0 s"}
    told = {one: f"last seen {ago} ago" for one, ago in (seen | {"2025-12-31T20:00:00Z": "4 h"}).items()}
    told |= dict.fromkeys(("", "2025-12-31T20:00:00"), "just gone")
    gone = {one: missing_view("p", pb.MissingReplica(name="r", last_seen=one)).seen_ago(NOW) for one in told}
    assert gone == told
    values = [None, "", [], True, False, 0, [1, "b"], "x", 1.5]
    assert [cell(one) for one in values] == ["-", "-", "-", "yes", "no", "0", "1, b", "x", "1.5"]
