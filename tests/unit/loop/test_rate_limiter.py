"""Rounds are not delayed, but in a flood."""

from __future__ import annotations

from sidecar.loop.rounds import FLOOD_ROUNDS, REST_SECONDS, RateLimiter


def test_single_changes_are_looked_at_at_once():
    """R3: twenty changes a second wait for nothing."""
    rounds = RateLimiter()
    assert {rounds.rest_seconds(number * 0.05) for number in range(200)} == {0.0}


def test_a_flood_is_taken_in_by_fewer_rounds():
    """R16 bounded: what comes every millisecond makes fifty rounds a second, and the flood's end ends that."""
    rounds, now, made = RateLimiter(), 0.0, 0
    while now < 10.0:
        now += 0.001 + rounds.rest_seconds(now)
        made += 1
    assert made < FLOOD_ROUNDS + 10.0 / REST_SECONDS
    assert rounds.rest_seconds(now + 5.0) == 0.0
