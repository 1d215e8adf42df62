"""What is tried again, held against the rules for that."""

from __future__ import annotations

import pytest

from registry.check.retries import CAP_SECONDS, REFUSALS_UNTIL_PERMANENT
from registry.model.records import Placement
from registry.model.status import Failed
from sidecar import failures
from tests.support.changes import KEYS, POOL, upsert
from tests.unit.check.story import Story

REFUSED = "Refused(message='no')"


def test_the_rules_are_the_sidecars_own():
    assert failures.BACKOFF_CAP_SECONDS == CAP_SECONDS
    assert failures.REFUSALS_UNTIL_PERMANENT == REFUSALS_UNTIL_PERMANENT


def told(name: str = "a", **placed: object) -> Story:
    """A log of a sidecar that is about to load what is desired under a name."""
    story = Story()
    at = story.write(upsert(name, **placed))
    story.start()
    story.look(whole=True)
    story.log("plan_made", revision=at, state_hash=f"{story.fold().hash_at(POOL, at):064x}")
    return story


def load(story: Story, *outcomes: str, call: str = "load", name: str = "a") -> None:
    for outcome in outcomes:
        story.log("engine_call", call=call, name=name, outcome=outcome)


def test_three_refusals_are_the_last_ones():
    """R8 isolation."""
    story = told()
    load(story, REFUSED, REFUSED, REFUSED)
    assert story.check() == ([], {"plans": 1, "loads": 3})
    load(story, "Done()")
    (finding,) = story.found()
    assert "'a' was tried again after 3 refusals by the same engine process" in str(finding)


@pytest.mark.parametrize(
    "between",
    [
        lambda story: load(story, "Transient(message='busy')"),
        lambda story: load(story, "Done()", call="unload"),
        lambda story: story.log("artifact_failed", name="a", reason="x"),
        lambda story: story.look("e2", whole=True),
        lambda story: (story.start(), story.look(whole=True)),
        lambda story: story.log("removals_confirmed", revision=2),
    ],
    ids=[
        "it came otherwise",
        "it was unloaded",
        "its files failed",
        "another engine",
        "another sidecar",
        "a new store",
    ],
)
def test_what_begins_anew_is_tried_anew(between):
    """R8: refusals count in a row, of one engine's process, as one sidecar remembers them."""
    story = told()
    load(story, REFUSED, REFUSED)
    between(story)
    load(story, REFUSED, REFUSED, REFUSED, name="A")
    assert story.found() == []


def test_another_record_is_tried_anew():
    """R8: also one that says the same again, since there was another between them."""
    story = told()
    load(story, REFUSED, REFUSED, REFUSED)
    story.write(upsert("a", "v2"))
    at = story.write(upsert("a"))
    story.log("plan_made", revision=at, state_hash=f"{story.fold().hash_at(POOL, at):064x}")
    load(story, REFUSED)
    assert story.found() == []


@pytest.mark.parametrize("fault", ["placed", "lazy", "no look", "no plan", "a plan of another store"])
def test_what_may_have_changed_unseen_is_not_judged(fault):
    fields = {"placed": {"placement": Placement(replicas=1)}, "lazy": {"load": "lazy"}}
    story = told(**fields.get(fault, {}))
    missing = {"no look": "engine_listed", "no plan": "plan_made"}.get(fault)
    story.lines = [line for line in story.lines if line["event"] != missing]
    if fault == "a plan of another store":
        story.log("plan_made", revision=99, state_hash="")
    load(story, *[REFUSED] * 5)
    assert story.found() == []


def waits(seconds_after: str | None) -> Failed:
    return Failed(name="a", generation=1, reason="x", message="", attempts=9, retry_at=seconds_after)


@pytest.mark.parametrize(
    ("retry_at", "found"),
    [
        (None, []),
        ("2026-01-01T00:01:00.000Z", []),
        ("2026-01-01T00:01:01.000Z", ["R8"]),
        ("2026-01-01T00:01:01", []),
        ("soon", []),
    ],
)
def test_a_retry_is_never_further_away_than_the_cap(retry_at, found):
    """R8: by the time of the status itself, whatever clocks there are."""
    story = Story()
    story.say(1, failed=[waits(retry_at)])
    story.desk.etcd.put(KEYS.status(POOL, "r2"), b"{}")
    assert story.check()[0] == found
