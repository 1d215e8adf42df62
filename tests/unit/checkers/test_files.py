"""What was removed from stores, held against what was listed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.changes import POOL
from tests.support.checkers.replay import check_replicas
from tests.support.checkers.replicas import EngineListing
from tests.unit.checkers.story import GRACE_SECONDS, Story, path_of


def removed(story: Story, digit: str = "1") -> None:
    story.log("artifact_removed", artifact=digit * 64, size_bytes=1)


def swapped(idle_seconds: float) -> Story:
    """a is listed from 1, then from 2, and so long after 1 was seen for the last time, it is removed."""
    story = Story()
    story.start()
    story.look(whole=True, a="1")
    story.now += 100.0
    story.look(b="3")
    story.now += 10.0
    story.look(a="2")
    story.now += idle_seconds - 10.0
    removed(story)
    return story


def at_time(story: Story, seconds: float, digit: str, **fields: str) -> EngineListing:
    """Somebody's look at r1's engine, so long after now."""
    about = {"replica": "r1", "incarnation": "e1"} | fields
    return EngineListing(revision=0, adapters={"a": path_of(digit), "t": "/x"}, at=story.now + seconds, **about)


def test_what_others_saw_counts_if_they_say_when_and_of_which_process():
    """R7: no sidecar's look showed it, so nothing else can tell."""
    story = swapped(GRACE_SECONDS)
    assert story.check() == ([], {"removals": 1})
    for listing in (
        at_time(story, -GRACE_SECONDS, "1"),
        at_time(story, 1.0, "1"),
        at_time(story, -9.0, "2"),
        at_time(story, -9.0, "1", incarnation="e2"),
        at_time(story, -9.0, "1", replica="r2"),
        at_time(story, -9.0, "1").model_copy(update={"at": None}),
    ):
        assert [one for one in story.found(listing) if one.guarantee == "R7"] == []
    found, counts = story.check(at_time(story, -9.0, "1"))
    assert (found, counts["of them at a known time"]) == (["R7"], 1)


def test_a_store_that_replicas_share_is_one():
    """R7: the sidecar that removes is not the one whose engine lists; another store has an artifact of its own."""
    ours, theirs = Story(), Story()
    ours.start()
    ours.now += 10.0
    removed(ours)
    theirs.start(replica="r2", store="s")
    theirs.look(whole=True, a="1")

    def found() -> list[str]:
        logs = [("r1.log", ours.lines), ("r2.log", theirs.lines)]
        return [f"{one}" for one in check_replicas(ours.index(), POOL, logs, [])[0]]

    assert ["r2's engine had listed it 10.0 s before" in one for one in found()] == [True]
    theirs.lines[0]["store"] = "another"
    assert found() == []


@pytest.mark.parametrize("fault", ["clock", "clock before", "undated", "unknown store", "torn", "seen later"])
def test_what_cannot_be_dated_or_placed_is_not_judged(fault):
    story = swapped(20.0)
    match fault:
        case "clock":
            stamp = datetime.fromtimestamp(story.now - 3600.0, UTC).isoformat()
            story.lines.insert(-1, {"event": "any", "timestamp": stamp})
        case "clock before":
            stamp = datetime.fromtimestamp(story.now + 3600.0, UTC).isoformat()
            story.lines.insert(0, {"event": "any", "timestamp": stamp})
        case "undated":
            del story.lines[1]["timestamp"]
        case "unknown store":
            del story.lines[0]
        case "torn":
            del story.lines[1]
        case "seen later":
            story.lines.insert(1, story.lines.pop())
    assert story.found() == []
