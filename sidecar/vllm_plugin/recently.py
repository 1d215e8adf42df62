"""What was noted a short time ago: names that were asked for in vain, and what the log was told."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Recently:
    """Remembers texts for `seconds`, at most `capacity` of them: those that came last."""

    def __init__(self, seconds: float, capacity: int, now: Callable[[], float]) -> None:
        """`now` gives seconds of a clock that never goes back."""
        self._seconds = seconds
        self._capacity = capacity
        self._now = now
        self._until: OrderedDict[str, float] = OrderedDict()

    def __contains__(self, text: str) -> bool:
        return self._until.get(text, self._now()) > self._now()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, text: str) -> None:
        """Remembers `text` from now on."""
        self._until[text] = self._now() + self._seconds
        self._until.move_to_end(text)
        if len(self._until) > self._capacity:
            self._until.popitem(last=False)
