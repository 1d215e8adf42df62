"""Time, deadlines and randomness as arguments, so that a test can hold them."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from registry.model.errors import Reason, Unavailable


def _now_utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """A source of randomness and of wall-clock time; monotonic time is the event loop's."""

    rng: random.Random = field(default_factory=random.Random)
    wall: Callable[[], datetime] = _now_utc

    def monotonic(self) -> float:
        """Seconds on the running event loop's clock."""
        return asyncio.get_running_loop().time()

    def moment(self) -> Moment:
        """Now on both clocks."""
        return Moment(self.monotonic(), self.wall())


@dataclass(frozen=True, slots=True)
class Moment:
    """Now on both clocks: `monotonic` in seconds, `wall` in UTC."""

    monotonic: float
    wall: datetime

    def wall_of(self, monotonic: float) -> str:
        """A monotonic time as RFC 3339."""
        return rfc3339(self.wall + timedelta(seconds=monotonic - self.monotonic))


def rfc3339(when: datetime) -> str:
    """A UTC time to the millisecond."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_SMALLEST_SHARE_SECONDS = 0.5
_SMALLEST_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline on the event loop's clock, which is handed on: to ask for the loop each time is a system call."""

    deadline: float
    clock: Callable[[], float]

    @classmethod
    def of(cls, seconds: float) -> Deadline:
        """One that is so far from now."""
        clock = asyncio.get_running_loop().time
        return cls(clock() + seconds, clock)

    def left(self) -> float:
        """Seconds left; not positive once the deadline has passed."""
        return self.deadline - self.clock()

    def spend(self) -> float:
        """Seconds left, to be spent on a call whose failure changes nothing.

        Raises:
            Unavailable: there are none.
        """
        left = self.left()
        if left <= 0:
            raise Unavailable(
                Reason.DEADLINE_EXCEEDED, "the time was up before anything was sent; repeat with more time"
            )
        return left

    def share(self) -> float:
        """Share of the time left that one try may take, so that another can settle what became of it; never nothing."""
        left = max(self.left(), _SMALLEST_SECONDS)
        return max(left / 2, min(left, _SMALLEST_SHARE_SECONDS))


# Spans of time as people write them.
SPAN_PATTERN = r"^[0-9]{1,9}[smhd]$"
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def seconds_of(span: str) -> int:
    """Seconds that a span means.

    Raises:
        ValueError: it is none.
    """
    if not re.fullmatch(SPAN_PATTERN, span):
        raise ValueError("write a number and s, m, h or d, such as 30m")
    return int(span[:-1]) * _UNITS[span[-1]]


def span_text(seconds: int) -> str:
    """The shortest span that means exactly so many seconds."""
    size, unit = next((size, unit) for unit, size in _UNITS.items() if seconds % size == 0)
    return f"{seconds // size}{unit}"
