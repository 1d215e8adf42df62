"""Quota of calls by caller: so many in a second, and so many at once. Pure.

A caller's calls in a second are a bucket that fills by itself: who was quiet may make as many at once as there are in a
second. What is refused costs nothing of it, so that whoever waits as long as is said finds a place.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from registry.model.errors import RETRY_AFTER, Reason, ResourceExhausted

# Callers whose buckets are kept. One that is forgotten has a full one again.
MAX_CALLERS = 4096
_SHORTEST_SECONDS = 0.05


class CallerRate:
    """Bucket of each caller. `now`: the time by any clock that does not go back, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is used up, and when that was so

    def wait_seconds(self, caller: str, per_second: float, burst: float) -> float:
        """Time until a caller may make one more; 0: at once."""
        return max(0.0, (self._level(caller, per_second) + 1 - burst) / per_second)

    def note(self, caller: str, per_second: float) -> None:
        """Notes one more of a caller."""
        self._used[caller] = self._level(caller, per_second) + 1, self._now()
        self._used.move_to_end(caller)
        if len(self._used) > MAX_CALLERS:
            self._used.popitem(last=False)

    def _level(self, caller: str, per_second: float) -> float:
        used, then = self._used.get(caller, (0.0, 0.0))
        return max(0.0, used - (self._now() - then) * per_second)


class RequestQuota:
    """Calls of each principal. `now`: see `CallerRate`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._rate = CallerRate(now)
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def held(self, caller: str, per_second: int | None, at_once: int | None) -> Iterator[None]:
        """The body is one call of a caller, within these bounds; None: there is none.

        Raises:
            ResourceExhausted: it would be too many; the error tells when to try again.
        """
        if at_once is not None and self._under_way[caller] >= at_once:
            raise too_many(f"you have {at_once} calls under way, which is all that the access file allows", 1.0)
        if per_second is not None:
            if wait := self._rate.wait_seconds(caller, per_second, per_second):
                raise too_many(f"the access file allows {per_second} calls in a second", wait)
            self._rate.note(caller, per_second)
        self._under_way[caller] += 1
        try:
            yield
        finally:
            self._under_way[caller] -= 1
            if not self._under_way[caller]:
                del self._under_way[caller]


def too_many(why: str, wait_seconds: float) -> ResourceExhausted:
    """The refusal of one call too many; it tells when to try again."""
    seconds = math.ceil(max(wait_seconds, _SHORTEST_SECONDS) * 100) / 100
    return ResourceExhausted(
        Reason.TOO_MANY_CALLS,
        f"{why}; nothing was done, try again in {seconds:g} s",
        metadata={RETRY_AFTER: f"{seconds:g}"},
    )
