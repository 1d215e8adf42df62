"""What outcomes mean, and how long retries wait."""

from __future__ import annotations

import pytest

from registry.sources.errors import ArtifactError
from sidecar.artifacts.types import ArtifactRef
from sidecar.failures import (
    BACKOFF_CAP_SECONDS,
    REFUSALS_UNTIL_PERMANENT,
    TRIES_UNTIL_READY,
    after_call,
    after_staging,
    backoff_seconds,
    not_borne_out,
)
from sidecar.observed import AlreadyThere, Done, Gone, NotThere, PathMissing, Refused, Transient, Unknown

REF = ArtifactRef("file:///a", None)


def longest(_: float, bound: float) -> float:
    return bound


@pytest.mark.parametrize("outcome", [Done(), AlreadyThere(), NotThere(), Unknown("?"), Gone("?")])
def test_what_only_a_listing_can_tell_is_no_failure(outcome):
    assert after_call(outcome, REF, "e1", None, now=0.0, uniform=longest) is None


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(PathMissing("m"), "engine_cannot_see_store"), (Transient("m"), "engine_busy"), (Refused("m"), "engine_refused")],
)
def test_failed_calls_are_retried_later(outcome, reason):
    failure = after_call(outcome, REF, "e1", None, now=10.0, uniform=longest)
    assert (failure.reason, failure.attempts, failure.retry_at, failure.message) == (reason, 1, 11.0, "m")
    assert not failure.is_settled()


def test_a_refusal_becomes_permanent_for_this_engine_and_artifact():
    """R8 isolation: retries are bounded."""
    failure = None
    for _ in range(REFUSALS_UNTIL_PERMANENT):
        failure = after_call(Refused("m"), REF, "e1", failure, now=0.0, uniform=longest)
    assert failure.retry_at is None
    assert failure.forbids(REF, "e1", 1e9)
    assert not failure.forbids(REF, "e2", 0.0)
    assert after_call(Refused("m"), REF, "e2", failure, now=0.0, uniform=longest).attempts == 1


def test_an_unload_is_tried_for_ever_and_not_waited_for():
    """R6 unload-eventual: an engine that refuses it passes through a bad time, as far as anybody can tell."""
    failure = None
    for _ in range(TRIES_UNTIL_READY + REFUSALS_UNTIL_PERMANENT):
        failure = after_call(Refused("m"), None, "e1", failure, now=0.0, uniform=longest)
    assert failure.retry_at is not None
    assert failure.is_settled()


def test_staging_failures_hold_whatever_the_engine():
    permanent = after_staging(ArtifactError("r", "m", permanent=True), REF, None, now=0.0, uniform=longest)
    assert permanent.retry_at is None
    assert permanent.forbids(REF, "any", 0.0)
    assert permanent.is_settled()
    passing = after_staging(ArtifactError("r", "m", permanent=False), REF, permanent, now=0.0, uniform=longest)
    assert (passing.attempts, passing.retry_at) == (2, 2.0)


def test_what_the_listing_does_not_bear_out_is_retried_with_growing_delays():
    load, unload = (not_borne_out(ref, "e1", None, now=0.0, uniform=longest) for ref in (REF, None))
    assert (load.reason, unload.reason) == ("not_listed", "still_listed")
    for _ in range(TRIES_UNTIL_READY):
        load = not_borne_out(REF, "e1", load, now=0.0, uniform=longest)
    assert load.is_settled()


def test_backoff_grows_to_a_cap_and_may_be_anything_below():
    """R8 isolation: full-jitter backoff with a cap."""
    bounds = [backoff_seconds(attempts, longest) for attempts in range(40)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0.5
    assert bounds[-1] == BACKOFF_CAP_SECONDS
    assert backoff_seconds(5, lambda low, _: low) == 0.0
