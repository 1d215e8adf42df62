"""What outcomes mean, and how long retries wait."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from registry.model.replica_reasons import LONGEST_PAUSE_SECONDS
from registry.sources.base import ArtifactError, SourceUnchanged
from sidecar.artifacts.types import ArtifactRef
from sidecar.engines.observed import (
    NoEffect,
    NotAsExpected,
    PathMissing,
    Refused,
    Transient,
)
from sidecar.plan.backoff import (
    CONTRADICTIONS_UNPACED,
    LOOK_AWAY_SECONDS,
    LOOK_SECONDS,
    REFUSED_PACE_SECONDS,
    RETRY,
    TRIES_UNTIL_READY,
    Failure,
    after_call,
    after_staging,
    not_borne_out,
    pace_of,
)

REF = ArtifactRef("file:///a", None)


def longest(_: float, bound: float) -> float:
    return bound


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(PathMissing("m"), "engine_cannot_see_store"), (Transient("m"), "engine_busy"), (Refused("m"), "engine_refused")],
)
def test_failed_calls_are_retried_later(outcome, reason):
    failure = after_call(outcome, REF, "e1", None, now=10.0, uniform=longest)
    assert (failure.reason, failure.attempts, failure.retry_at, failure.message) == (reason, 1, 11.0, "m")
    assert not failure.is_settled()


def refused(at: float = 0.0, previous: Failure | None = None, *, ref: ArtifactRef | None = REF) -> Failure:
    failure = after_call(Refused("m"), ref, "e1", previous, now=at, uniform=longest)
    assert failure is not None
    return failure


@pytest.mark.parametrize(("outcome", "reason"), [(NoEffect("m"), "no_effect"), (NotAsExpected("m"), "not_as_expected")])
def test_what_is_not_right_waits_for_a_change(outcome, reason):
    """R22 applied-whole, R8: of the record or of the engine's process."""
    failure = after_call(outcome, REF, "e1", None, now=10.0, uniform=longest)
    assert (failure.reason, failure.retry_at, failure.final_at, failure.is_settled()) == (reason, None, 10.0, True)
    assert failure.message.startswith("m")
    assert not failure.forbids(replace(REF, expect="{}"), "e1", 11.0), "another expectation is another question"
    assert failure.forbids(REF, "e1", 1e9)
    assert not failure.forbids(REF, "e2", 11.0)


def test_a_refusal_is_never_final_by_count():
    """R17 heals: it is tried at the cap, and rarer the longer it lasts."""
    failure, at = refused(), 0.0
    for _ in range(99):
        assert failure.retry_at is not None
        assert failure.forbids(REF, "e1", failure.retry_at - 0.1)
        assert not failure.forbids(REF, "e1", failure.retry_at)
        at = failure.retry_at
        failure = refused(at, failure)
    assert (failure.attempts, failure.since) == (100, 0.0)
    # In numbers, for each is a promise: five minutes at the most, and a minute at first.
    assert failure.retry_at == at + 300.0
    assert refused(400.0, failure).retry_at == 400.0 + 60.0
    assert not failure.forbids(REF, "e2", 0.0)
    assert after_call(Refused("m"), REF, "e2", failure, now=0.0, uniform=longest).attempts == 1


def test_an_engine_that_lists_nothing_of_what_it_did_gets_ever_fewer_loads():
    """R8: whichever adapter it is; what loads elsewhere is no contradiction."""
    failure = not_borne_out(REF, "e1", None, now=0.0, uniform=longest, listed_as="A")
    assert "'A'" in failure.message
    paces = [pace_of(failure, count) for count in range(CONTRADICTIONS_UNPACED - 1, CONTRADICTIONS_UNPACED + 30)]
    assert paces[:5] == [0.0, 0.0, 4.0, 8.0, 15.0]
    assert paces[-1] == 15.0


def staging_failed(reason: str, at: float, previous: Failure | None = None, ref: ArtifactRef = REF) -> Failure:
    failure = after_staging(ArtifactError(reason, "m"), ref, previous, now=at, uniform=longest)
    assert failure is not None
    return failure


@pytest.mark.parametrize(("uri", "seconds"), [("file:///a", LOOK_SECONDS), ("s3://b/a", LOOK_AWAY_SECONDS)])
def test_files_that_are_wrong_for_good_are_looked_at_for_a_change(uri, seconds):
    """R8: whatever the engine; at once an answer for rollouts, and nothing for a replica to wait for."""
    ref, error = ArtifactRef(uri, None), ArtifactError("not_finite", "m")
    error.version = "1"
    first = after_staging(error, ref, None, now=10.0, uniform=longest)
    assert first is not None
    assert (first.retry_at, first.look_at, first.refused) == (None, 10.0 + seconds, "1")
    assert first.forbids(ref, "any", first.look_at - 0.1)
    assert not first.forbids(ref, "any", first.look_at)
    assert first.is_settled()
    assert first.final_at == first.since == 10.0
    later = after_staging(SourceUnchanged(), ref, first, now=1e6, uniform=longest)
    assert later == replace(first, look_at=1e6 + LONGEST_PAUSE_SECONDS)
    for previous in (None, replace(first, ref=REF)):
        other = ArtifactRef("https://other/", None)
        assert after_staging(SourceUnchanged(), other, previous, now=0.0, uniform=longest) is None


def test_what_may_pass_is_tried_for_ever_with_pauses_that_grow_to_minutes():
    """R8: within seconds while it is new, and a tenth as often as it has lasted."""
    failure, at, pauses = None, 0.0, []
    for _ in range(60):
        failure = staging_failed("source_io", at, failure)
        assert failure.retry_at is not None
        assert failure.refused is None
        pauses.append(failure.retry_at - at)
        at = failure.retry_at
    assert pauses[:6] == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_SECONDS)
    assert max(pauses) < LONGEST_PAUSE_SECONDS + 0.1
    assert (failure.final_at, failure.is_settled()) == (math.inf, True)


def test_a_source_that_asks_for_a_pause_gets_it():
    """R8: and a little of our own, so that not all come back together."""
    error = ArtifactError("rate_limited", "m", pause_seconds=60.0)
    failure = after_staging(error, REF, None, now=0.0, uniform=longest)
    assert failure is not None
    assert failure.retry_at == 61.0


def test_what_the_listing_does_not_bear_out_is_retried_with_growing_delays():
    load, unload = (not_borne_out(ref, "e1", None, now=0.0, uniform=longest) for ref in (REF, None))
    assert (load.reason, unload.reason) == ("not_listed", "still_listed")
    for _ in range(TRIES_UNTIL_READY):
        load = not_borne_out(REF, "e1", load, now=0.0, uniform=longest)
    assert load.is_settled()


@pytest.mark.parametrize(
    ("ref", "incarnation", "is_about"),
    [(REF, "e1", True), (REF, "e2", False), (replace(REF, uri="file:///b"), "e1", False), (None, "e1", False)],
)
def test_a_failure_is_of_what_was_asked_for_and_of_the_engine_that_refused_it(ref, incarnation, is_about):
    """R8, R17."""
    of_engine = Failure(REF, "e1", "engine_refused", "m", 1, 20.0)
    assert of_engine.is_about(ref, incarnation) == is_about
    assert of_engine.forbids(ref, incarnation, 10.0) == is_about
    no_more = replace(of_engine, retry_at=None)
    assert (no_more.forbids(ref, incarnation, 1e9), no_more.is_settled()) == (is_about, True), "nothing to wait for"
    of_files = replace(of_engine, incarnation=None)
    assert of_files.is_about(ref, incarnation) == (ref == REF)
    assert (of_engine.is_engines, of_files.is_engines, replace(of_engine, ref=None).is_engines) == (True, False, False)


def test_what_is_tried_again_is_counted_on_while_it_is_the_same():
    """R8: since when, how often, and whether others succeeded meanwhile; another is another matter."""
    first = refused(10.0)
    assert (first.attempts, first.since, first.others_succeed) == (1, 10.0, False)
    second = refused(20.0, replace(first, others_succeed=True))
    assert (second.attempts, second.since, second.others_succeed) == (2, 10.0, True)
    for other in (refused(30.0, second, ref=replace(REF, uri="file:///b")), refused(30.0, second, ref=None)):
        assert (other.attempts, other.since, other.others_succeed) == (1, 30.0, False)
    staged = staging_failed("source_io", 40.0, second)
    assert (staged.attempts, staged.since, staged.retry_at) == (1, 40.0, 41.0)


def test_what_has_lasted_is_tried_rarer_by_its_age_and_no_rarer_than_all_five_minutes():
    """R17, in numbers: once a minute at first, then after a tenth of the time that it has lasted."""
    many = replace(refused(100.0), attempts=50)
    waits = {age: refused(100.0 + age, many).retry_at - (100.0 + age) for age in (0.0, 500.0, 1000.0, 2000.0, 9000.0)}
    assert waits == {0.0: 60.0, 500.0: 60.0, 1000.0: 100.0, 2000.0: 200.0, 9000.0: 300.0}


def test_the_numbers_that_operators_are_told():
    """R8, R17, R18: a few tries, then one of all that are refused in some seconds; a minute until it is an answer.

    That is by time as well as by count, since an engine that warms up refuses for a while.
    Unloads are not paced, nor what passes by itself, which is tried every quarter of a minute however long it lasts.
    """
    failures = [refused(0.0)]
    for _ in range(9):
        failures.append(refused(0.0, failures[-1]))
    assert [one.attempts for one in failures if pace_of(one, 0)] == list(range(3, 11))
    assert [one.attempts for one in failures if one.is_settled()] == list(range(3, 11))
    assert [one.final_at for one in failures] == [math.inf] * 2 + [60.0] * 8
    assert not_borne_out(REF, "e1", failures[-1], now=5.0, uniform=longest).final_at == math.inf
    assert {pace_of(one, 99) for one in failures} == {0.0, REFUSED_PACE_SECONDS}
    assert REFUSED_PACE_SECONDS == 2.0
    assert pace_of(replace(failures[-1], ref=None), 99) == 0.0
    passing = ours = None
    for attempts in range(40):
        passing = after_call(Transient("m"), REF, "e1", passing, now=1000.0 * attempts, uniform=longest)
        ours = staging_failed("internal_error", 1000.0 * attempts, ours)
    assert passing is not None
    assert (passing.attempts, passing.retry_at, passing.final_at) == (40, 39_015.0, math.inf)
    assert (pace_of(passing, 99), ours.retry_at) == (0.0, 39_015.0)
    assert RETRY.delay(5, lambda low, _: low) == 0.0, "full jitter"
