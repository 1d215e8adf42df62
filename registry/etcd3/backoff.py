"""Exponential backoff with full jitter and a cap. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Two bounds to a number between them: `random.Random().uniform`, or what a test puts in its place.
Uniform = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Backoff:
    """The bound doubles from `base_seconds` up to `cap_seconds`; the wait is uniform below it.

    So a thousand clients that failed together do not come back together.
    """

    base_seconds: float
    cap_seconds: float

    def delay(self, failures: int, uniform: Uniform) -> float:
        """Seconds to wait after so many failures in a row (0: none, no wait)."""
        if failures == 0:
            return 0.0
        bound = min(self.cap_seconds, self.base_seconds * 2.0 ** min(failures - 1, 30))
        return uniform(0.0, bound)
