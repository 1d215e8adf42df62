"""How much of its time a loop may give to what is only told, so that it never holds up what is done for long. Pure."""

from __future__ import annotations


class Allowance:
    """Time that may be spent at once, and that comes again as a share of the time that passes."""

    def __init__(self, most_seconds: float, share: float) -> None:
        """Begins with `most_seconds`, which are never exceeded; `share` of each second comes again."""
        self._most_seconds = most_seconds
        self._share = share
        self._left_seconds = most_seconds
        self._at = 0.0

    def is_left(self, now: float) -> bool:
        """True if something may be begun now; what it takes too long is owed."""
        earned = max(0.0, now - self._at) * self._share
        self._left_seconds = min(self._most_seconds, self._left_seconds + earned)
        self._at = now
        return self._left_seconds > 0.0

    def spend(self, seconds: float) -> None:
        """Notes what was spent."""
        self._left_seconds -= seconds
