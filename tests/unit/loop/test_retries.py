"""What is tried again when: each by itself, all together, and at news."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from registry.model.names import PROOF_PREFIX
from registry.model.records import AskedRetry
from registry.runtime.clock import Clock
from registry.sources.base import ArtifactError, SourceUnchanged
from sidecar.artifacts.types import ArtifactRef, Stage
from sidecar.desired.informer import DesiredAdapter
from sidecar.engines.driver import USUAL
from sidecar.engines.observed import (
    Done,
    EngineFacts,
    EngineGone,
    EnginePaused,
    NoEffect,
    Observed,
    Outcome,
    Refused,
    Transient,
    Unknown,
)
from sidecar.loop.executor import Attempt
from sidecar.loop.retries import RELEASED_FOR_EACH, UNTOLD_SECONDS, RetryTracker
from sidecar.plan.backoff import CONTRADICTIONS_UNPACED, LOOK_SECONDS, REFUSED_PACE_SECONDS, TRIES_UNPACED

NAMES = [f"a{number}" for number in range(100)]


class Held(random.Random):
    """Every pause is as long as it can be, and the time is set by hand."""

    now = 0.0

    def uniform(self, _a: float, b: float) -> float:
        return b


class Time(Clock):
    """The time of `Held`."""

    def monotonic(self) -> float:
        assert isinstance(self.rng, Held)
        return self.rng.now


def attempt(name: str, outcome: Outcome) -> Attempt:
    return Attempt(name, name, f"/{name}", ArtifactRef(f"file:///{name}", None), "e1", outcome)


def refuse(tracker: RetryTracker, names: Iterable[str], times: int = 1) -> None:
    for _ in range(times):
        tracker.take_up([attempt(name, Refused("no")) for name in names])


def observed(*names: str) -> Observed:
    return Observed(EngineFacts("vllm", "1", "u", "e1"), ("base",), {name: f"/{name}" for name in names})


def load(tracker: RetryTracker, *names: str) -> None:
    tracker.take_up([attempt(name, Done()) for name in names])
    tracker.settle(observed(*names), turns=True)


def due(tracker: RetryTracker, now: float) -> set[str]:
    return {key for key, one in tracker.failures.items() if one.retry_at is not None and one.retry_at <= now}


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def tracker(held) -> RetryTracker:
    return RetryTracker(Time(held), "r1")


@pytest.mark.parametrize("began", [0.0, 5000.0], ids=["at once", "after a quiet time"])
def test_what_is_refused_again_and_again_takes_turns(began, held, tracker):
    """R8, R17: after a few tries of each, one of all of them in so long; turns that nobody took are not made up for."""
    refuse(tracker, NAMES, TRIES_UNPACED - 1)
    assert due(tracker, 2.0) == set(NAMES)
    held.now = began
    refuse(tracker, NAMES)
    seconds = 10 * REFUSED_PACE_SECONDS
    assert len(due(tracker, began + seconds)) == 10
    held.now = began + seconds
    refuse(tracker, due(tracker, held.now))
    assert len(due(tracker, held.now + seconds)) == 10
    tracker.take_up([attempt("busy", Transient("m")), attempt("none", NoEffect("m"))])
    assert [tracker.failures[key].retry_at for key in ("busy", "none")] == [held.now + 1.0, None], "out of turn"


def test_another_process_of_the_engine_waits_for_no_turns_of_the_one_before(held, tracker):
    """R17 heals: while it warms up it refuses all, and is asked again as soon as the first one was."""
    refuse(tracker, NAMES, TRIES_UNPACED)
    assert len(due(tracker, 10 * REFUSED_PACE_SECONDS)) == 10
    for _ in range(TRIES_UNPACED):
        tracker.take_up([replace(attempt(name, Refused("no")), incarnation="e2") for name in NAMES])
    assert len(due(tracker, 10 * REFUSED_PACE_SECONDS)) == 10


def test_the_first_that_loads_has_all_others_tried_at_once(held, tracker):
    """R17 heals: once; what is refused although others load waits for its turn again.

    R8: what our own checks refuse waits for a change of the record or the base.
    """
    refuse(tracker, NAMES, TRIES_UNPACED)
    tracker.staging_failed(Stage("bad", ArtifactRef("file:///bad", None), ""), ArtifactError("not_finite", "m"))
    load(tracker, "new")
    assert due(tracker, held.now) == set(NAMES)
    assert tracker.failures["bad"].retry_at is None
    refuse(tracker, NAMES)
    load(tracker, "newer")
    assert due(tracker, held.now) == set()


@pytest.mark.parametrize("uri", ["https://[x/y/", "s3://[a]b/c", "https://h\u2048/x/"])
def test_a_source_that_no_uri_names_holds_up_no_other(held, tracker, uri):
    """R8, R14: of a record that was written past the admin service."""
    bad, fine = Stage("bad", ArtifactRef(uri, None), ""), Stage("fine", ArtifactRef("https://h/x/", None), "")
    for stage in (bad, fine):
        tracker.staging_failed(stage, ArtifactError("source_timeout", "m"))
    tracker.staged(fine)
    assert set(tracker.failures) == {"bad"}


def test_each_that_recovers_has_a_few_of_the_others_tried_the_least_tried_first(held, tracker):
    """R8, R17: those that can recover do so as fast as they do, and those that cannot cost little."""
    refuse(tracker, NAMES)
    load(tracker, "new")
    refuse(tracker, NAMES[1:], TRIES_UNPACED)
    refuse(tracker, NAMES[9:])
    load(tracker, "a0")
    assert due(tracker, held.now) == set(NAMES[1 : 1 + RELEASED_FOR_EACH])
    assert 1 <= RELEASED_FOR_EACH <= 5, "or nothing would heal fast, or a refusal would cost much"


def test_an_unload_does_not_have_what_would_not_load_tried_at_once(held, tracker):
    """R8 paced: where somebody puts other files behind a name as often as we do, ours go ever later, not at once."""
    theirs = Observed(EngineFacts("vllm", "1", "u", "e1"), ("base",), {"a": "/theirs"})
    unload = replace(attempt("a", Done()), path=None, ref=None)
    for tries in range(1, 4):
        tracker.take_up([attempt("a", Done())])
        tracker.settle(theirs, turns=True)
        tracker.take_up([unload])
        tracker.settle(observed(), turns=True)
        assert (tracker.failures["a"].reason, tracker.failures["a"].attempts) == ("not_listed", tries)
        assert due(tracker, held.now) == set()
    load(tracker, "a")
    assert tracker.failures == {}


def miss(tracker: RetryTracker, names: Iterable[str], seen: Observed) -> None:
    tracker.take_up([attempt(name, Done()) for name in names])
    tracker.settle(seen, turns=True)


def test_an_engine_that_lists_nothing_of_what_it_did_is_asked_ever_more_rarely(held, tracker):
    """R8: by the replica, however many adapters there are; one that is listed ends it.

    R17: what is listed late is mended and has the others tried; nobody has to load it once more for that.
    """
    miss(tracker, NAMES, observed())
    assert len(due(tracker, 60.0)) <= CONTRADICTIONS_UNPACED + 5
    load(tracker, "new")
    assert due(tracker, held.now) == set(NAMES)
    miss(tracker, NAMES, observed())
    assert due(tracker, held.now) == set()
    tracker.settle(observed("a0"), turns=True)
    assert "a0" not in tracker.failures
    assert len(due(tracker, held.now)) == RELEASED_FOR_EACH
    assert tracker.failures["a1"].attempts == 2


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        ({"A": "/a"}, "'A'"),
        ({"x/a": "/a", "b": "/b"}, "'x/a'"),
        ({f"{PROOF_PREFIX}0": "/a"}, "something else may drive"),
        ({"a": "/b", "A": "/a"}, "something else may drive"),
        ({"b": "/b"}, "something else may drive"),
    ],
)
def test_another_name_for_the_same_files_is_named(listed, named, tracker):
    """R9: whoever reads it knows where to look."""
    miss(tracker, ["a"], Observed(EngineFacts("vllm", "1", "u", "e1"), ("base",), listed))
    assert named in tracker.failures["a"].message


def test_files_that_were_refused_are_looked_at_and_are_the_same_refusal_until_they_change(held, tracker):
    """R8: a look is no try, and what is asked for meanwhile is judged anew."""
    ref = ArtifactRef("file:///a", None)
    error = ArtifactError("not_finite", "m")
    error.version = "one"
    tracker.staging_failed(Stage("a", ref, ""), error)
    before = tracker.failures["a"]
    held.now = 100.0
    tracker.staging_failed(Stage("a", ref, "", "one"), SourceUnchanged())
    assert tracker.failures["a"] == replace(before, look_at=100.0 + LOOK_SECONDS)
    tracker.failures.clear()
    tracker.staging_failed(Stage("a", ref, "", "one"), SourceUnchanged())
    assert tracker.failures == {}


@pytest.mark.parametrize(
    ("generation", "retry", "is_dropped"),
    [
        (1, None, False),
        (2, None, True),
        (1, AskedRetry(request_id="q1"), True),
        (1, AskedRetry(request_id="q1", replica="r1"), True),
        (1, AskedRetry(request_id="q1", replica="r2"), False),
    ],
    ids=["the same", "applied anew", "asked of all", "asked of this one", "asked of another"],
)
def test_what_is_applied_or_asked_for_again_is_tried_at_once(generation, retry, is_dropped, tracker):
    """R17, R8: also what our own checks refused; once for each time."""
    ref = ArtifactRef("file:///a", None)
    desired = DesiredAdapter("a", "a", 1, 1, ref, 0, "", "")
    asked = replace(desired, generation=generation, retry=retry)

    def fail() -> None:
        tracker.staging_failed(Stage("a", ref, ""), ArtifactError("not_finite", "m"))

    fail()
    tracker.ask_again(lambda _key: desired)
    assert "a" in tracker.failures
    tracker.ask_again(lambda _key: asked)
    assert ("a" in tracker.failures) != is_dropped
    fail()
    tracker.ask_again(lambda _key: asked)
    tracker.ask_again(lambda _key: asked)
    assert "a" in tracker.failures


def test_a_failure_is_forgotten_with_what_it_was_of(tracker):
    """R8, R6: a load's with the ref that is desired, an unload's once the name is not listed any more.

    An unload that failed is nobody's to ask for.
    """
    ref, other = ArtifactRef("file:///a", None), ArtifactRef("file:///other", None)
    adapter = DesiredAdapter("a", "a", 1, 1, ref, 0, "", "")

    def left(observed: Observed, wanted: DesiredAdapter | None) -> set[str]:
        tracker.take_up([attempt("a", Refused("no"))])
        tracker.take_up([Attempt("gone", "gone", None, None, "e1", Refused("no"))])
        tracker.forget_others(observed, lambda key: wanted if key == "a" else None)
        return set(tracker.failures)

    assert left(observed("gone"), adapter) == {"a", "gone"}
    for _ in range(2):
        tracker.ask_again(lambda _key: None)
    assert "gone" in tracker.failures
    assert left(observed("a"), adapter) == {"a"}
    assert left(observed("a", "gone"), replace(adapter, ref=other)) == {"gone"}
    assert left(observed("a", "gone"), None) == {"gone"}
    assert left(observed(), None) == set()


@pytest.mark.parametrize(
    ("turns", "ended_at"),
    [(True, 0.0), (None, UNTOLD_SECONDS), (False, math.inf)],
    ids=["it turns", "untold", "it hangs"],
)
def test_a_lost_answer_is_settled_by_the_listing_once_its_call_has_ended(turns, ended_at, held, tracker):
    """R17: "cannot tell" is not "hangs"; a second load is not made before."""
    assert USUAL.load_seconds <= UNTOLD_SECONDS <= 2 * USUAL.load_seconds, "it is given the time that it may take"
    held.now = 1000.0
    tracker.take_up([attempt("a", Unknown("lost"))])
    for now in (0.0, UNTOLD_SECONDS - 0.1, UNTOLD_SECONDS):
        held.now = 1000.0 + now
        tracker.settle(observed(), turns=turns)
        assert tracker.unsettled == (set() if now >= ended_at else {"a"})
        assert bool(tracker.failures) == (now >= ended_at)


@pytest.mark.parametrize("outcome", [Done(), Unknown("lost")])
def test_what_a_process_was_told_that_is_gone_is_no_failure_of_the_next(outcome, tracker):
    """R8, R17: it never heard of it, and is told at once."""
    tracker.take_up([attempt("a", outcome)])
    other = Observed(EngineFacts("vllm", "1", "u", "e2"), ("base",), {})
    tracker.settle(other, turns=False)
    assert (tracker.failures, tracker.loads(), tracker.unsettled) == ({}, set(), set())


def test_the_first_that_comes_has_others_from_the_same_place_fetched_at_once(held, tracker):
    """R8, R17: a source that is back need not wait for each pause to end; what can never be had is left alone."""

    def stage(name: str, place: str) -> Stage:
        return Stage(name, ArtifactRef(f"{place}/{name}", None), "")

    for name, place in (("a", "s3://ours"), ("b", "s3://ours"), ("c", "s3://theirs"), ("d", "https://ours")):
        tracker.staging_failed(stage(name, place), ArtifactError("source_io", "m"))
    tracker.staging_failed(stage("e", "s3://ours"), ArtifactError("bad_archive", "m"))
    tracker.staged(stage("a", "s3://ours"))
    assert due(tracker, held.now) == {"b"}
    assert "a" not in tracker.failures
    assert tracker.failures["e"].retry_at is None
    refuse(tracker, ["f"])
    tracker.staged(stage("g", "s3://theirs"))
    assert due(tracker, held.now) == {"b", "c"}


def test_what_calls_may_yet_come_to_is_known_until_a_look_has_told(tracker):
    """R7 files-pinned: the files of loads and swaps; an unload reads none, nor does a call that was never made."""
    unload = Attempt("gone", "gone", None, None, "e1", Done())
    lost = [attempt("x", EngineGone("it is away")), attempt("y", EnginePaused("it sleeps"))]
    tracker.take_up([attempt("a", Done()), attempt("b", Unknown("lost")), unload, *lost])
    assert (tracker.loads(), tracker.unsettled, tracker.failures) == ({("a", "/a"), ("b", "/b")}, {"b"}, {})
    tracker.settle(observed("a", "b"), turns=True)
    assert (tracker.loads(), tracker.unsettled, tracker.failures) == (set(), set(), {})


def test_what_was_found_of_files_is_forgotten_and_what_the_engine_said_is_not(tracker):
    """R8: a pool that asks for other terms has them looked at anew."""
    refuse(tracker, ["a"])
    tracker.staging_failed(Stage("b", ArtifactRef("file:///b", None), ""), ArtifactError("r", "m"))
    tracker.forget_staging()
    assert set(tracker.failures) == {"a"}


def test_an_unload_that_recovers_has_nothing_else_tried(held, tracker):
    """R8 paced: it says nothing of loads, though others load at the same time."""
    refuse(tracker, NAMES, TRIES_UNPACED)
    load(tracker, "new")
    refuse(tracker, NAMES)
    gone = Attempt("gone", "gone", None, None, "e1", Refused("no"))
    tracker.take_up([gone])
    tracker.take_up([replace(gone, outcome=Done()), attempt("newer", Done())])
    tracker.settle(observed("newer"), turns=True)
    assert "gone" not in tracker.failures
    assert due(tracker, held.now) == set()


@pytest.mark.parametrize("changes", [{"path": None, "ref": None}, {"outcome": Unknown("timeout")}])
def test_only_what_was_said_to_be_loaded_and_is_not_listed_has_loads_wait(held, tracker, changes):
    """R8: what stays listed is no load, and what had no answer was not said to be done."""
    for _ in range(CONTRADICTIONS_UNPACED + 30):
        tracker.take_up([replace(attempt("b", Done()), **changes)])
        tracker.settle(observed("b") if "ref" in changes else observed(), turns=True)
    miss(tracker, ["a"], observed())
    assert "a" in due(tracker, 10.0)


def test_after_one_recovers_the_next_refusals_take_turns_from_now(tracker):
    """R17: the queue that they stood in was of a time that is over."""
    refuse(tracker, NAMES, TRIES_UNPACED)
    load(tracker, "a0")
    refuse(tracker, NAMES[1:4])
    assert due(tracker, 20.0) >= set(NAMES[1:4])


@pytest.mark.parametrize("turns", [True, False, None])
def test_what_was_said_to_be_done_and_is_not_listed_has_failed_whether_or_not_the_engine_generates(turns, tracker):
    """R9 status-truth: it has ended, so nothing is waited for."""
    tracker.take_up([attempt("a", Done())])
    tracker.settle(observed(), turns=turns)
    assert (tracker.failures["a"].reason, tracker.loads()) == ("not_listed", set())


def test_a_look_that_shows_nothing_new_ends_no_queue(tracker):
    """R8 paced: whoever comes last is tried last."""
    refuse(tracker, NAMES, TRIES_UNPACED)
    tracker.settle(observed(), turns=True)
    load(tracker, "new")
    refuse(tracker, ["late"], TRIES_UNPACED)
    assert tracker.failures["late"].retry_at > len(NAMES) * REFUSED_PACE_SECONDS


def test_files_that_come_mend_nothing_that_the_engine_said(held, tracker):
    """R8: nor do they have more of those tried at once that failed though others came."""
    stages = {name: Stage(name, ArtifactRef(f"s3://ours/{name}", None), "") for name in "abcdef"}
    for name in "abcde":
        tracker.staging_failed(stages[name], ArtifactError("source_io", "m"))
    load(tracker, "other")
    assert due(tracker, held.now) == set(), "an engine that loads brings no files"
    tracker.staged(stages["f"])
    assert due(tracker, held.now) == set("abcde")
    held.now = 5.0
    for name in "abcde":
        tracker.staging_failed(stages[name], ArtifactError("source_io", "m"))
    tracker.staged(stages["f"])
    assert due(tracker, held.now) == set(), "none of them recovered"
    tracker.staged(stages["a"])
    assert due(tracker, held.now) == {"b", "c"}
    engines = Attempt("f", "f", "/f", stages["f"].ref, "e1", Refused("no"))
    tracker.take_up([engines])
    tracker.staged(stages["f"])
    assert tracker.failures["f"].reason == "engine_refused"
    assert due(tracker, held.now) == {"b", "c"}


def test_a_failure_that_comes_after_the_change_is_not_dropped_for_it(tracker):
    """R8 paced: what failed before it has been forgotten since."""
    ref = ArtifactRef("file:///a", None)
    first = DesiredAdapter("a", "a", 1, 1, ref, 0, "", "")
    second = replace(first, generation=2)
    tracker.take_up([Attempt("a", "a", "/a", ref, "e1", Refused("no"))])
    tracker.ask_again(lambda _key: first)
    tracker.take_up([Attempt("a", "a", "/a", ref, "e1", Done())])
    tracker.settle(observed("a"), turns=True)
    tracker.ask_again(lambda _key: second)
    tracker.take_up([Attempt("a", "a", "/a", ref, "e1", Refused("no"))])
    tracker.ask_again(lambda _key: second)
    assert "a" in tracker.failures
