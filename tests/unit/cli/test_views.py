"""How replicas, adapters and pools are: what is read of statuses of any release, and of where an adapter is."""

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
from registry.cli.views.residency_view import (
    PoolStatus,
    pool_status,
    reasons_cell,
    residency_dict,
    rows,
    status_dict,
    where_cell,
)
from registry.residency.health import AdapterRow, counts, reasons, state
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


SERVING, PENDING, FAILED, UNKNOWN = map(pb.RolloutReplica.State.Value, ("SERVING", "PENDING", "FAILED", "UNKNOWN"))


def count(replicas: int, state: int, reason: str = "", **wanted: Any) -> pb.ResidenceCount:
    return pb.ResidenceCount(replicas=replicas, state=state, reason=reason, **wanted)


def counted(*counts: pb.ResidenceCount, **fields: Any) -> pb.AdapterResidency:
    return pb.AdapterResidency(**{"name": "a", "generation": 3, "counts": counts, **fields})


def row(residency: pb.AdapterResidency | None, generation: int = 3, halted: str = "") -> AdapterRow:
    record = pb.Adapter(name="a", generation=generation)
    if halted:
        record.rollout.halted = halted
    return AdapterRow(record, residency)


def test_reasons_come_the_most_first_and_then_by_name():
    loading = count(1, SERVING, wanted_state=PENDING, wanted_reason="loading")
    others = (loading, count(3, UNKNOWN), count(9, SERVING), count(1, PENDING, "bad"))
    one = counted(count(1, PENDING, "staging"), count(2, FAILED, "bad"), *others)
    assert list(reasons(one).items()) == [("bad", 3), ("unknown", 3), ("loading", 1), ("staging", 1)]
    assert reasons_cell(row(one)) == "3 × bad, 3 × unknown, 1 × loading, 1 × staging"
    assert reasons_cell(row(one, halted="2 of 2 refused")).startswith("2 of 2 refused, 3 × bad")
    assert (reasons_cell(row(None)), reasons_cell(row(counted(note="no replica lives")))) == ("-", "no replica lives")
    assert reasons_cell(row(counted(count(1, SERVING)))) == "-"
    assert reasons_cell(row(counted(count(1, SERVING)), halted="refused")) == "refused"


PARTS = {
    "r1": pb.Residence(replica="r1", state=SERVING, generation=3),
    "r1@2": pb.Residence(replica="r1", state=SERVING, generation=2),
    "r1@?": pb.Residence(replica="r1", state=SERVING),
    "r1 pending: staging": pb.Residence(replica="r1", state=PENDING, generation=3, reason="staging"),
    "r1 leaving": pb.Residence(replica="r1", state=SERVING, generation=3, reason="leaving"),
    "r1 used today": pb.Residence(replica="r1", state=SERVING, generation=3, last_used="today"),
    "r1@2 (generation 3 failed: bad)": pb.Residence(
        replica="r1", state=SERVING, generation=2, wanted_generation=3, wanted_state=FAILED, wanted_reason="bad"
    ),
}


def test_only_what_is_not_as_it_should_be_is_spelled_out():
    cells = [where_cell(row(pb.AdapterResidency(generation=3, replicas=[part]))) for part in PARTS.values()]
    assert cells == [*PARTS]


def listed(*replicas: tuple[bool | None, bool], lacking: int = 0) -> pb.ListReplicasResponse:
    """Live replicas by whether they say that they are ready, and whether they drain."""
    status = {True: '{"ready": true}', False: '{"ready": false}', None: ""}
    live = [
        pb.Replica(name=f"r{at}", status_json=status[ready], leaving=away) for at, (ready, away) in enumerate(replicas)
    ]
    return pb.ListReplicasResponse(replicas=live, lacking=lacking)


WELL, LATE, BAD = counted(count(1, SERVING)), counted(count(1, PENDING)), counted(count(1, FAILED))
POOLS = {
    "empty": (listed(), [], PoolStatus("Healthy", 0, 0, 0, 0)),
    "well": (listed((True, False), (True, False)), [WELL, WELL], PoolStatus("Healthy", 2, 2, 2, 2)),
    "one is not ready": (listed((True, False), (False, False)), [WELL], PoolStatus("Progressing", 1, 2, 1, 1)),
    "one has not reported": (listed((True, False), (None, False)), [WELL], PoolStatus("Progressing", 1, 2, 1, 1)),
    "one drains": (listed((True, False), (False, True)), [WELL], PoolStatus("Healthy", 1, 1, 1, 1)),
    "an adapter is late": (listed((True, False)), [WELL, LATE], PoolStatus("Progressing", 1, 1, 1, 2)),
    "an adapter is bad": (listed((True, False)), [WELL, BAD, LATE], PoolStatus("Degraded", 1, 1, 1, 3)),
    "one is halted": (listed((True, False)), [counted(halted="no")], PoolStatus("Degraded", 1, 1, 0, 1)),
    "one is missing": (listed((True, False), lacking=2), [WELL], PoolStatus("Degraded", 1, 3, 1, 1)),
}


WELL_OFF, OLD = [count(1, SERVING)], 4
STATES = [
    ("Healthy", row(counted(count(2, SERVING)))),
    ("Progressing", row(counted(count(2, SERVING), count(1, PENDING, "staging")))),
    ("Degraded", row(counted(count(2, SERVING), count(1, FAILED, "bad")))),
    ("Degraded", row(counted(count(2, SERVING), count(1, UNKNOWN)))),
    ("Degraded", row(counted(count(1, SERVING, wanted_state=FAILED)))),
    ("Progressing", row(counted(count(1, SERVING, wanted_state=PENDING)))),
    ("Healthy", row(counted(count(1, SERVING), count(1, FAILED, "leaving")))),
    ("Progressing", row(counted(count(1, SERVING, "leaving")))),
    ("Progressing", row(counted())),
    ("Halted", row(counted(*WELL_OFF), halted="refused")),
    ("Halted", row(counted(*WELL_OFF, halted="refused"))),
    ("", row(None)),
    ("Halted", row(None, halted="refused")),
    ("Progressing", row(counted(*WELL_OFF), OLD)),
    ("Degraded", row(counted(count(1, FAILED)), OLD)),
]


def test_the_state_of_an_adapter_and_of_a_pool():
    """R9 status-truth, as it is told: nothing is healthy of which a replica says otherwise, or what is not known."""
    assert [state(of) for _, of in STATES] == [expected for expected, _ in STATES]
    told = {case: pool_status(found, adapters) for case, (found, adapters, _) in POOLS.items()}
    assert told == {case: expected for case, (*_, expected) in POOLS.items()}


def test_how_an_adapter_and_its_replicas_are_for_programs():
    """Also where a service does not count: it is counted for."""
    wanted = {"wanted_generation": 3, "wanted_state": PENDING, "wanted_reason": "staging"}
    behind = pb.Residence(
        replica="r1", model="a", state=SERVING, loaded=True, engine_url="http://r1", last_used="now", **wanted
    )
    labels = {"b": "2", "a": "1"}
    plain = pb.Residence(replica="r2", model="a@3", generation=3, state=FAILED, reason="bad", labels=labels)
    one = pb.AdapterResidency(name="a", generation=3, load="lazy", note="n", replicas=[behind, plain])
    assert ((counts(one).serving, counts(one).wanted), reasons(one)) == ((1, 2), {"bad": 1, "staging": 1})
    assert rows(one) == [
        ("r1", "a", "?", "serving", "generation 3 pending: staging", "yes", "now", "http://r1"),
        ("r2", "a@3", "3", "failed", "bad", "no", "-", "-"),
    ]
    value = residency_dict(one)
    first, second = value.pop("replicas")
    assert value == {"name": "a", "generation": 3, "load": "lazy", "note": "n"}
    assert first["wanted"] == {"generation": 3, "state": "pending", "reason": "staging"}
    said = {"replica": "r2", "model": "a@3", "generation": 3, "state": "failed", "reason": "bad", "loaded": False}
    said |= {"earlier_generations": [], "engine_url": "", "last_used": "", "wanted": None}
    assert second == said | {"labels": {"a": "1", "b": "2"}}
    assert [*second["labels"]] == ["a", "b"]
    told = {"state": "Degraded", "serving": 1, "replicas": 2, "reasons": {"bad": 1, "staging": 1}, "note": "n"}
    assert (status_dict(row(one)), status_dict(row(None))) == (told, None)
    assert [where_cell(row(of)) for of in (None, counted())] == ["-", "-"]
