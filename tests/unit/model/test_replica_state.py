"""What the status of a replica proves of one adapter (R9 status-truth)."""

from __future__ import annotations

from typing import Any

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.names import name_key
from registry.model.replica_state import (
    Expectation,
    ReplicaState,
    Verdict,
    compare_digests,
    evaluate,
    parse_status,
    status_of,
)
from registry.model.status import Failed, Found, Kept, Lazy, Pending, Warned
from tests.support.residency_world import FAILED, PENDING, SERVING, UNKNOWN, engine_status, replica_status

KEY = name_key("acme/a")
EAGER = Expectation(KEY, 3, 7, lazy=False, pinned=True)
LAZY = Expectation(KEY, 3, 7, lazy=True, pinned=True)
PLACED = Expectation(KEY, 3, 7, lazy=False, pinned=True, members="m", weights="w")
CALM = {"members": "m", "weights": "w"}


def verdict(expected: Expectation, revision: int = 7, **fields: Any) -> Verdict:
    value = replica_status("r1", revision, **fields).to_bytes()
    return evaluate(parse_status(KeyValue(b"k", value, 1, 1, 1, 1)), expected)


def failed(**fields: Any) -> list[Failed]:
    whole = {"name": "Acme/A", "generation": 3, "reason": "x", "message": "y", "attempts": 1, "retry_at": None} | fields
    return [Failed(**whole)]


UNPROVEN = "not_seen stale engine_unreachable blocked membership_not_seen room_not_seen lazy".split()
PENDS = [Pending(name="Acme/A", generation=3, reason="staging")]
OTHER = [Pending(name="acme/b", generation=3, reason="staging")]
KEPT = [Kept(name="Acme/A", generation=2)]


@pytest.mark.parametrize(
    ("expected", "fields", "state", "reason"),
    [
        (EAGER, {}, SERVING, ""),
        (EAGER, {"pending": OTHER}, SERVING, ""),
        (EAGER, {"revision": 8}, SERVING, ""),
        (EAGER, {"revision": 6}, PENDING, "not_seen"),
        (EAGER, {"stale": True}, UNKNOWN, "stale"),
        (EAGER, {"engine": engine_status(incarnation="")}, UNKNOWN, "engine_unreachable"),
        (EAGER, {"warnings": [Warned(name="", generation=0, reason="blocked", message="")]}, UNKNOWN, "blocked"),
        (EAGER, {"warnings": [Warned(name="b", generation=0, reason="blocked", message="")]}, SERVING, ""),
        (EAGER, {"warnings": [Warned(name="", generation=0, reason="base_unknown", message="")]}, SERVING, ""),
        (EAGER, {"members": "other", "weights": "other"}, SERVING, ""),
        (PLACED, CALM, SERVING, ""),
        (PLACED, CALM | {"members": "other"}, PENDING, "membership_not_seen"),
        (PLACED, CALM | {"weights": "other"}, PENDING, "room_not_seen"),
        (EAGER, {"lazy": Lazy(count=1, servable=False)}, SERVING, ""),
        (LAZY, {"lazy": Lazy(count=1, servable=True)}, SERVING, "lazy"),
        (LAZY, {"lazy": Lazy(count=1, servable=False, reason="needs_plugin")}, FAILED, "needs_plugin"),
        (LAZY, {"lazy": Lazy(count=1, servable=False)}, FAILED, "lazy"),
        (EAGER, {"failed": failed()}, FAILED, "x"),
        (EAGER, {"failed": failed(), "pending": PENDS}, FAILED, "x"),
        (EAGER, {"failed": failed(retry_at="soon")}, PENDING, "x"),
        (EAGER, {"failed": failed(retry_at="soon", settled=True)}, FAILED, "x"),
        (EAGER, {"pending": PENDS}, PENDING, "staging"),
        (EAGER, {"omitted": 2}, UNKNOWN, "omitted"),
        (EAGER, {"omitted": 2, "serves": [("Acme/A", 3)]}, SERVING, ""),
        (EAGER, {"omitted": 2, "serves": [("Acme/A", 2)]}, PENDING, "omitted"),
        (EAGER, {"omitted": 2, "serves": [], "omitted_reason": "staging"}, PENDING, "staging"),
        (EAGER, {"omitted": 2, "omitted_reason": "staging"}, UNKNOWN, "omitted"),
        (LAZY, {"omitted": 2, "serves": [], "lazy": Lazy(count=1, servable=True)}, UNKNOWN, "omitted"),
    ],
)
def test_what_is_proven(expected, fields, state, reason):
    """Serving only where nothing says otherwise, and nothing that could say so is missing."""
    told = verdict(expected, **{"note": "", "held": ""} | fields)
    assert (told.state, told.reason) == (state, reason)
    if state is not SERVING and (reason in UNPROVEN or fields == {"omitted": 2}):
        assert (bool(told.message), told.digest, told.generation) == (True, "", 0), "it is explained, and no files are"


def value(lease: int) -> KeyValue:
    return KeyValue(b"k", b"v", 1, 1, 1, lease)


@pytest.mark.parametrize(
    ("presence", "status", "counts"),
    [
        (value(5), value(5), True),
        (value(5), value(6), False),
        (value(0), value(0), False),
        (value(5), value(0), False),
        (None, value(5), False),
        (value(5), None, False),
        (None, None, False),
    ],
)
def test_only_a_status_under_the_lease_of_a_presence_counts(presence, status, counts):
    """R9, R10: it is of the process that lives now, and of no stranger."""
    assert status_of(presence, status) is (status if counts else None)


def test_what_is_not_there_and_what_cannot_be_read():
    nothing = evaluate(None, EAGER)
    assert (nothing.state, nothing.reason) == (PENDING, "no_status")
    torn = evaluate(parse_status(KeyValue(b"k", b"{", 1, 1, 1, 1)), EAGER)
    assert (torn.state, torn.reason, bool(torn.message)) == (UNKNOWN, "unreadable_status", True)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"stale": True, "held": "13 would go", "note": "away"}, "13 would go"),
        ({"stale": True, "note": "away"}, "away"),
        ({"engine": engine_status(incarnation=""), "note": "it starts"}, "it starts"),
        ({"warnings": [Warned(name="", generation=0, reason="blocked", message="")], "note": "shared"}, "shared"),
        ({"failed": failed()}, "y"),
    ],
)
def test_what_a_replica_says_of_it_is_told(fields, told):
    assert verdict(EAGER, **fields).message == told


@pytest.mark.parametrize(
    "fields", [{"failed": failed()}, {"pending": PENDS}, {"omitted": 1}, {"omitted": 1, "serves": [("b", 1)]}]
)
def test_what_the_engine_answers_with_meanwhile_is_told(fields):
    """Clients get answers by it; 0 is an earlier generation of which nothing is known."""
    assert verdict(EAGER, **fields).kept is None
    assert verdict(EAGER, kept=KEPT, **fields).kept == 2
    assert verdict(EAGER, kept=[Kept(name="acme/a", generation=0)], **fields).kept == 0
    assert verdict(EAGER, kept=[Kept(name="acme/b", generation=2)], **fields).kept is None


def test_digests_are_compared_where_the_record_has_none():
    """W6 one-digest: of the same generation alone; nobody knows which files are meant."""
    loose = Expectation(KEY, 3, 7, lazy=False, pinned=False)

    def found(digest: str, generation: int = 3) -> Verdict:
        return verdict(loose, found=[Found(name="Acme/A", generation=generation, digest=digest)])

    assert (found("d").digest, found("d").generation, found("d", 2).digest) == ("d", 3, "")
    assert verdict(EAGER, found=[Found(name="Acme/A", generation=3, digest="d")]).digest == ""
    alike = [found("d"), found("d"), found("e", 2), verdict(loose)]
    assert compare_digests(alike) == alike
    apart = compare_digests([found("d"), found("d"), found("e"), verdict(loose)])
    assert [(one.state, one.reason) for one in apart] == [(FAILED, "digests_differ")] * 3 + [(SERVING, "")]
    assert "it found e; found in all: d on 2, e on 1" in apart[2].message
    earlier = verdict(Expectation(KEY, 2, 7, lazy=False, pinned=False)), found("d")
    assert [one.state for one in compare_digests(earlier)] == [ReplicaState.SERVING] * 2
