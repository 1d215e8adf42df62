"""How long answers from outside take: most are prompt, some slow, a few take as long as anybody waits for one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

# Neither prompt nor endless: longer than a round of the loop, shorter than what anybody gives up upon.
SLOW_SECONDS = (0.05, 2.0)
LONGEST_SECONDS = 30.0
# Of so many answers one is slow, and of so many slow ones one takes long; 0: none ever.
ONE_IN = (0, 20, 5)
LONG_ONE_IN = 8


@dataclass
class Pace:
    """The pace of one part of the world, until all is healed.

    A world that is slow everywhere at once comes to nothing: leases end, and whoever was asked is given up. So each
    part draws for itself whether it is slow at all, and how often.

    Attributes:
        one_in: of so many answers one is slow; 0: none.
        left: seconds until all is healed; what is slow comes by then.
    """

    rng: random.Random
    one_in: int = 0
    left: Callable[[], float] = lambda: LONGEST_SECONDS

    def seconds(self) -> float:
        """What the next answer takes beside its usual time."""
        if not self.one_in or self.rng.random() * self.one_in >= 1.0:
            return 0.0
        is_long = self.rng.random() * LONG_ONE_IN < 1.0
        seconds = self.rng.uniform(*((SLOW_SECONDS[1], LONGEST_SECONDS) if is_long else SLOW_SECONDS))
        return min(seconds, max(0.0, self.left()))

    def heal(self) -> None:
        """From now on all is prompt."""
        self.one_in = 0


@dataclass
class Halts:
    """When somebody could not go on: dead, paused, or with work in a slow thread."""

    _spans: list[tuple[float, float]] = field(default_factory=list)

    def note(self, since: float, until: float) -> None:
        """Between these."""
        self._spans.append((since, until))

    def done_before(self, now: float, seconds: float) -> float:
        """What was begun before this moment is done now, if it takes so long where nothing halts it."""
        at = now - seconds
        for since, until in sorted(self._spans, reverse=True):
            if until > at:
                at = min(at, since - seconds)
        return at


def paced(rng: random.Random, left: Callable[[], float], *, rarely: int = 1) -> Pace:
    """A part of the world whose pace is drawn; `rarely`: so many times less often, where answers are many."""
    return Pace(rng, rng.choice(ONE_IN) * rarely, left)
