"""Clocks, what is left of the time of a call, and spans of time as people write them."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from registry.model.errors import Reason, Unavailable
from registry.runtime.clock import SPAN_PATTERN, Clock, Deadline, Moment, rfc3339, seconds_of, span_text
from tests.simulation.loop import play

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)


def test_a_time_of_the_event_loop_is_told_as_one_of_the_wall_in_utc():
    told = {50.0: "12:00:00.123", 48.5: "11:59:58.623", 110.0: "12:01:00.123"}
    assert {at: Moment(50.0, NOON).wall_of(at) for at in told} == {at: f"2026-01-31T{one}Z" for at, one in told.items()}
    assert rfc3339(NOON.astimezone(timezone(timedelta(hours=5)))) == "2026-01-31T12:00:00.123Z"


def test_now_is_of_the_running_loop_and_of_the_wall_and_a_deadline_is_so_far_from_it():
    async def scene() -> None:
        clock = Clock(wall=lambda: NOON)
        await asyncio.sleep(7)
        assert (clock.monotonic(), clock.moment()) == (7.0, Moment(7.0, NOON))
        deadline = Deadline.of(5)
        assert (deadline.deadline, deadline.left()) == (12.0, 5.0)
        await asyncio.sleep(4)
        assert (deadline.left(), deadline.share()) == (1.0, 0.5)

    play(scene())
    before = datetime.now(UTC)
    assert before <= Clock().wall() <= datetime.now(UTC)
    assert (Clock().wall().tzinfo, Clock().rng.random() == Clock().rng.random()) == (UTC, False)


@pytest.mark.parametrize(("left", "is_some"), [(0.001, True), (0.0, False), (-1.0, False)])
def test_what_is_left_is_spent_if_there_is_any(left, is_some):
    """W8 no-false-fail: without any, nothing is sent, and it is said so."""
    deadline = Deadline(10.0 + left, lambda: 10.0)
    assert deadline.left() == pytest.approx(left)
    if is_some:
        assert deadline.spend() == pytest.approx(left)
        return
    with pytest.raises(Unavailable) as told:
        deadline.spend()
    assert told.value.reason is Reason.DEADLINE_EXCEEDED


SPANS = {"90s": 90, "10m": 600, "36h": 129_600, "7d": 604_800, "0s": 0, "999999999d": 86_399_999_913_600}


@pytest.mark.parametrize(("text", "seconds"), SPANS.items())
def test_a_span_means_seconds(text: str, seconds: int):
    assert (seconds_of(text), re.match(SPAN_PATTERN, text) is not None) == (seconds, True)


@pytest.mark.parametrize("text", ["", "10", "m", "-10m", "1.5h", "10 m", "10M", "1w", "1h30m", "1234567890s", "٣m"])
def test_what_is_none_is_refused_with_what_to_write(text: str):
    with pytest.raises(ValueError, match="write a number and s, m, h or d, such as 30m"):
        seconds_of(text)
    assert re.match(SPAN_PATTERN, text) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "90s"), (600, "10m"), (7200, "2h"), (86_400, "1d"), (315_360_000, "3650d")]
)
def test_the_shortest_span_that_is_exact(seconds: int, text: str):
    assert (span_text(seconds), seconds_of(text)) == (text, seconds)
