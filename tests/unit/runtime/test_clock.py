"""Clocks, and what is left of the time of a call."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from registry.model.errors import Reason, Unavailable
from registry.runtime.clock import Clock, Deadline, Moment, rfc3339
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
