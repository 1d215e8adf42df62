"""How much time a call has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import Reason, Unavailable

_SMALLEST_SHARE_SECONDS = 0.5
_SMALLEST_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Budget:
    """A deadline on the event loop's clock, which is handed on: to ask for the loop each time is a system call."""

    deadline: float
    clock: Callable[[], float]

    @classmethod
    def of(cls, seconds: float) -> Budget:
        """A budget that starts now."""
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
        """What one try may take of the time left, so that another can settle what became of it; never nothing."""
        left = max(self.left(), _SMALLEST_SECONDS)
        return max(left / 2, min(left, _SMALLEST_SHARE_SECONDS))
