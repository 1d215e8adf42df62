"""When an adapter is let go of: what those who are to serve it have to say."""

from __future__ import annotations

from typing import Any

import pytest

from registry.model.status import EngineStatus, Failed, Pending, ReplicaStatus, Served, Warned
from sidecar.leaving import Leaving, Stuck, Taken, Waiting, judge
from sidecar.placings import NOBODY, Among

AMONG = Among("m", "w")
LEAVING = Leaving("a", "a", 7, frozenset(), ("r2", "r3"), AMONG)
ENGINE = EngineStatus(kind="vllm", version="", url="", base_models=["base"], incarnation="e1")
PENDING = Pending(name="a", generation=1, reason="loading")
FAILED = Failed(name="a", generation=1, reason="rank_too_high", message="", attempts=1, retry_at=None)
WARNED = Warned(name="", generation=0, reason="blocked", message="")


def status(replica: str = "r2", **changes: Any) -> ReplicaStatus:
    facts = {
        "engine": ENGINE,
        "observed_revision": 7,
        "ready": True,
        "stale": False,
        "served": Served(count=1, hash=""),
        "pending": [],
        "failed": [],
        "members": "m",
        "weights": "w",
        "updated_at": "",
    }
    return ReplicaStatus(replica=replica, pool="p", **(facts | changes))


def verdict(*, revision: int = 7, **changes: Any):
    statuses = {"r2": status(**changes), "r3": status("r3")}
    return judge(LEAVING, LEAVING.owners or (), statuses, revision)


def test_it_is_taken_once_everybody_says_so():
    assert verdict() == Taken()
    assert verdict(observed_revision=9) == Taken()
    assert verdict(pending=[PENDING.model_copy(update={"name": "b"})]) == Taken()


@pytest.mark.parametrize(
    "changes",
    [
        {"members": "others"},
        {"weights": "others"},
        {"members": "", "weights": ""},
        {"observed_revision": 6},
        {"stale": True},
        {"engine": ENGINE.model_copy(update={"incarnation": ""})},
        {"pending": [PENDING]},
        {"omitted": 1},
        {"warnings": [WARNED]},
    ],
    ids=repr,
)
def test_it_is_waited_for_while_somebody_does_not_say_so(changes):
    """Load before unload."""
    assert verdict(**changes) == Waiting()


def test_what_is_said_must_be_about_the_record_that_stands():
    assert verdict(revision=8) == Waiting()
    assert verdict(revision=0) == Waiting()
    assert judge(LEAVING, ("r2", "r3"), {"r2": status()}, 7) == Waiting()


def test_a_warning_about_one_adapter_blocks_nothing():
    assert verdict(warnings=[WARNED.model_copy(update={"name": "b"})]) == Taken()
    assert verdict(warnings=[WARNED.model_copy(update={"reason": "base_unknown"})]) == Taken()


def test_it_is_kept_where_somebody_cannot_and_where_there_is_nobody():
    found = verdict(failed=[FAILED], pending=[PENDING])
    assert isinstance(found, Stuck)
    assert "r2 is to serve it and cannot: rank_too_high" in found.message
    found = verdict(pending=[PENDING.model_copy(update={"reason": "over_capacity"})])
    assert isinstance(found, Stuck)
    assert "r2 is to serve it and has no room" in found.message
    assert isinstance(judge(LEAVING, (), {}, 7), Stuck)


def test_what_only_labels_decide_needs_no_word_on_the_live_replicas():
    by_label = Leaving("a", "a", 7, frozenset(), None, NOBODY)
    assert judge(by_label, ("r2",), {"r2": status(members="", weights="")}, 7) == Taken()
