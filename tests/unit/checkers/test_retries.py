"""What is tried again, held against the rules for that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from registry.model.records import Canary, Placement, Strategy
from registry.model.status import Failed
from sidecar.plan import backoff
from tests.support.changes import KEYS, POOL, upsert
from tests.support.checkers.retries import (
    CAP_SECONDS,
    PACE_SECONDS,
    REFUSALS_UNPACED,
    REFUSED_REASON,
)
from tests.unit.checkers.story import Story

REFUSED = "Refused(message='no')"


def test_the_rules_are_the_sidecars_own():
    assert backoff.RETRY.cap_seconds == CAP_SECONDS
    assert backoff.REFUSED_PACE_SECONDS == PACE_SECONDS
    assert (backoff.TRIES_UNPACED, backoff.ENGINE_REFUSED) == (REFUSALS_UNPACED, REFUSED_REASON)


def plan(story: Story, at: int) -> None:
    story.log("plan_made", revision=at, state_hash=f"{story.index().hash_at(POOL, at):064x}")


def told(name: str = "a", **placed: object) -> Story:
    """A log of a sidecar that is about to load what is desired under a name."""
    story = Story()
    at = story.write(upsert(name, **placed))
    story.start()
    story.look(whole=True)
    plan(story, at)
    return story


def load(story: Story, *outcomes: str, call: str = "load", name: str = "a") -> None:
    for outcome in outcomes:
        story.log("engine_call", call=call, name=name, outcome=outcome)


def test_the_last_good_generation_has_tries_of_its_own():
    """R8: seed 15 found that where both are refused in turn, their tries were counted as those of one."""
    story = told()
    at = story.write(upsert("a", "v2"))
    plan(story, at)
    load(story, *[REFUSED] * 2 * REFUSALS_UNPACED)
    assert story.found() == []
    load(story, REFUSED)
    (finding,) = story.found()
    assert "'a' was tried again 0.0 s after refusal 6" in str(finding)


def test_a_line_without_a_time_is_not_judged():
    """R8."""
    story = told()
    load(story, *[REFUSED] * 5)
    for line in story.lines:
        line["timestamp"] = "?" if line["event"] == "engine_call" else line["timestamp"]
    assert [one for one in story.found() if "tried again" in one.message] == []


def again(story: Story) -> None:
    story.start()
    story.look(whole=True)


# What happens between the second refusal and the third, and whether it begins anew.
BETWEEN: dict[str, tuple[Callable[[Story], None], bool]] = {
    "it came otherwise": (lambda story: load(story, "Transient(message='busy')"), True),
    "another was loaded": (lambda story: load(story, "Done()", name="another"), True),
    "it was unloaded": (lambda story: load(story, "Done()", call="unload"), True),
    "its unload was refused": (lambda story: load(story, REFUSED, call="unload"), True),
    "its files failed": (lambda story: story.log("artifact_failed", name="A@1", reason="internal_error"), True),
    "it was not staged": (lambda story: story.log("staging_broke", name="A@1"), True),
    "another engine": (lambda story: story.look("e2", whole=True), True),
    "another sidecar": (again, True),
    "a new store": (lambda story: story.log("removals_confirmed", revision=2), True),
    "another was unloaded": (lambda story: load(story, "Done()", call="unload", name="another"), False),
    "another was refused": (lambda story: load(story, REFUSED, name="another"), False),
    "another had no files": (lambda story: story.log("artifact_failed", name="another", reason="x"), False),
    "another was not staged": (lambda story: story.log("staging_broke", name="another"), False),
    "a look": (lambda story: story.look(b="2"), False),
    "a line": (lambda story: story.log("anything"), False),
}


@pytest.mark.parametrize(("between", "is_anew"), BETWEEN.values(), ids=BETWEEN)
def test_what_begins_anew_is_tried_anew_and_only_that(between, is_anew):
    """R8: refusals count in a row, of one engine's process, as one sidecar remembers them."""
    story = told()
    load(story, REFUSED, REFUSED)
    between(story)
    load(story, REFUSED, REFUSED, *[REFUSED] * is_anew, name="A")
    again_soon = "R8 at revision 2, r1.log: 'A' was tried again 0.0 s after refusal 3"
    assert [str(one) for one in story.found() if one.guarantee == "R8"] == ([] if is_anew else [again_soon])


def test_another_record_is_tried_anew():
    """R8: also one that says the same again, since there was another between them."""
    story = told()
    load(story, REFUSED, REFUSED, REFUSED)
    story.write(upsert("a", "v2"))
    at = story.write(upsert("a"))
    plan(story, at)
    load(story, *[REFUSED] * 2 * REFUSALS_UNPACED)
    assert story.found() == []


@pytest.mark.parametrize("fault", ["", "placed", "lazy", "canaries", "no look", "no plan", "a plan of another store"])
def test_what_may_have_changed_unseen_is_not_judged(fault):
    fields = {"placed": {"placement": Placement(replicas=1)}, "lazy": {"load": "lazy"}}
    story = told(**fields.get(fault, {}))
    if fault == "canaries":
        at = story.write(upsert("a", "v2", strategy=Strategy(canary=Canary(replicas=1))))
        plan(story, at)
    missing = {"no look": "engine_listed", "no plan": "plan_made"}.get(fault)
    story.lines = [line for line in story.lines if line["event"] != missing]
    if fault == "a plan of another store":
        story.log("plan_made", revision=99, state_hash="")
    load(story, *[REFUSED] * 5)
    assert [one.guarantee for one in story.found()] == ([] if fault else ["R8", "R8"])


def waits(seconds_after: str | None, reason: str = "internal_error") -> Failed:
    return Failed(name="a", generation=1, reason=reason, message="", attempts=9, retry_at=seconds_after)


@pytest.mark.parametrize("outcome", ["Done()", "AlreadyThere()", "Unknown()", "Transient()"])
def test_what_may_have_loaded_is_tried_anew(outcome):
    """R8: and so is all else, where it may have; what is too busy says nothing of others."""
    story = told()
    at = story.write(upsert("b"))
    plan(story, at)
    load(story, REFUSED, REFUSED, REFUSED)
    load(story, outcome, name="b")
    load(story, REFUSED)
    assert len(story.found()) == (outcome == "Transient()")
    assert story.check()[1]["loads"] == 5


@pytest.mark.parametrize(
    ("seconds", "after"), [(0.0, "0.0 s"), (0.5, "0.5 s"), (1.985, "2.0 s"), (1.995, ""), (2.0, ""), (-0.5, "")]
)
def test_after_three_refusals_the_distance_is_two_seconds_but_for_what_is_rounded(seconds, after):
    """R8 isolation, R17: what is refused is tried again, and rarely. A clock that was set back tells of no distance."""
    story = told()
    load(story, REFUSED, REFUSED, REFUSED)
    story.now += seconds
    load(story, REFUSED)
    findings, counts = story.check()
    assert (len(findings), counts) == (bool(after), {"plans": 1, "loads": 4})
    assert all(f"'a' was tried again {after} after refusal 3" in str(one) for one in story.found())


@pytest.mark.parametrize(
    ("retry_at", "reason", "omitted", "told"),
    [
        (None, "internal_error", 0, ""),
        ("soon", "internal_error", 0, ""),
        ("2026-01-01T00:01:01", "internal_error", 0, ""),
        ("2026-01-01T00:10:00.000Z", "rate_limited", 0, ""),
        ("2026-01-01T00:00:15.010Z", "internal_error", 0, ""),
        ("2026-01-01T00:00:15.011Z", "internal_error", 0, "15 s; the longest back-off is 15"),
        ("2026-01-01T00:00:15.011Z", "internal_error", 999, "15 s; the longest back-off is 15"),
        ("2026-01-01T00:05:00.011Z", REFUSED_REASON, 148, "300 s; the longest back-off is 300"),
        ("2026-01-01T00:05:02.010Z", REFUSED_REASON, 149, ""),
        ("2026-01-01T00:05:02.011Z", REFUSED_REASON, 149, "302 s; the longest back-off is 302"),
    ],
)
def test_what_many_refused_adapters_wait_for_is_their_turn(retry_at, reason, omitted, told):
    """R8: two seconds each, never less than the cap, by the time of the status itself; each adapter is looked at."""
    story = Story()
    at = story.say(1, failed=[waits(None), waits(retry_at, reason)], omitted=omitted)
    story.author.etcd.put(KEYS.status(POOL, "r2"), b"{}")
    whole = f"R8 at revision {at}, r1: 'a' is tried again in {told}"
    assert [str(one) for one in story.found()] == ([whole] if told else [])
