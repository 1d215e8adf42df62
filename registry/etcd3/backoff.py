"""How long to wait before the next try: full jitter, so that a thousand clients do not come back at once. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The bound doubles from `base_seconds` up to `cap_seconds`; the wait is uniform below it."""

    base_seconds: float
    cap_seconds: float

    def delay(self, failures: int, rng: random.Random) -> float:
        """Seconds to wait after so many failures in a row (0: none, no wait)."""
        if failures == 0:
            return 0.0
        bound = min(self.cap_seconds, self.base_seconds * 2.0 ** min(failures - 1, 30))
        return rng.uniform(0.0, bound)
