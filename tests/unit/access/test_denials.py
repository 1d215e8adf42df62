"""Refusals in a flood: which of them are recorded, and that all others are counted in those."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from registry.access.denials import (
    AT_START,
    BUCKET,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MAX_CAUSES,
    REFILL_SECONDS,
    DenialSampler,
)

EVE, BOB = ("eve", "ApplyAdapters", "PERMISSION_DENIED"), ("bob", "ApplyAdapters", "PERMISSION_DENIED")


def test_the_first_of_a_cause_is_recorded_at_once():
    sampler = DenialSampler[str](0.0)
    assert sampler.take(EVE, "1", 0.0) == ("1", 1)
    assert sampler.take(BOB, "2", 0.0) == ("2", 1)
    assert sampler.wants(EVE)
    assert sampler.take(EVE, "3", 1.0) is None
    assert not sampler.wants(EVE), "the first of those that wait is enough"
    assert sampler.take(EVE, None, 2.0) is None


def test_the_next_record_waits_ever_longer_and_stands_for_all_since():
    """A5 tamper-evident: none is lost but in the sum."""
    sampler = DenialSampler[str](0.0)
    told = [(at, chosen[1]) for at in range(20_000) if (chosen := sampler.take(EVE, "x", float(at)))]
    assert [at for at, _ in told[:6]] == [0, 60, 180, 420, 900, 1860]
    assert [later - at for (at, _), (later, _) in pairwise(told[7:])] == [LONGEST_PAUSE_SECONDS] * 3
    assert sum(times for _, times in told) == told[-1][0] + 1


def test_what_was_not_told_yet_is_due_after_the_pause():
    sampler = DenialSampler[str](0.0)
    for at in (0.0, 1.0, 2.0):
        sampler.take(EVE, f"{at}", at)
    assert list(sampler.due(FIRST_PAUSE_SECONDS - 1)) == []
    assert list(sampler.due(FIRST_PAUSE_SECONDS)) == [("1.0", 2)]
    assert list(sampler.due(10 * FIRST_PAUSE_SECONDS)) == []


def test_after_an_hour_without_any_a_cause_is_new():
    sampler = DenialSampler[str](0.0)
    for at in (0.0, 60.0, 180.0):
        assert sampler.take(EVE, "x", at)
    assert sampler.take(EVE, "x", 181.0) is None
    assert list(sampler.due(500.0)) == [("x", 1)]
    later = 181.0 + LONGEST_PAUSE_SECONDS
    assert sampler.take(EVE, "x", later) == ("x", 1)
    assert [sampler.take(EVE, "x", later + 59), sampler.take(EVE, "x", later + 60)] == [None, ("x", 2)]


def test_of_more_causes_than_have_a_place_the_one_that_was_silent_for_longest_goes():
    sampler = DenialSampler[str](0.0)
    causes = [(f"{number}", "m", "r") for number in range(MAX_CAUSES)]
    for cause in (*causes, causes[0], EVE):
        sampler.take(cause, "x", 1.0)
    assert [*sampler._causes] == [*causes[2:], causes[0], EVE]


@pytest.mark.no_cover  # what it executes, quicker tests do too
def test_a_flood_of_causes_costs_no_more_than_the_bound():
    """R16 bounded: whoever calls, and however often; a start of the service gives no more places."""
    rng, sampler = random.Random(0), DenialSampler[str](0.0)
    told = Counter()
    seconds = 4 * 3600
    for at in range(0, seconds, 4):
        told[at // 3600] += sampler.take((f"{rng.random()}", "m", "r"), "x", float(at)) is not None
        told[at // 3600] += len(list(sampler.due(float(at))))
        assert len(sampler._causes) <= MAX_CAUSES
    assert told[0] <= AT_START + 3600 / REFILL_SECONDS + 1
    assert sum(told.values()) <= seconds // REFILL_SECONDS + 1 + AT_START
    assert sum(told.values()) >= seconds / REFILL_SECONDS


def test_a_service_that_had_rest_has_a_whole_bucket():
    sampler = DenialSampler[str](0.0)
    rested = BUCKET * REFILL_SECONDS
    assert sum(bool(sampler.take((f"{n}", "m", "r"), "x", rested)) for n in range(2 * BUCKET)) == BUCKET
