"""Choice of refusals to record in a flood of them. Pure.

Concept: the first refusal of a cause (caller, method, reason) is recorded at once. The next record of that cause waits
a minute, the one after it twice as long, up to an hour, and says how many refusals it stands for. All records together
are taken out of a bucket, which fills slowly; while it is empty, refusals are only counted.

Invariant: in any time, at most `BUCKET` records and one more for each `REFILL_SECONDS` of it, whoever calls. A service
that was just started has fewer, so that one that is started again and again writes no more.

Why: whoever is refused can be refused ten thousand times a second. A record of each would fill etcd, and so let
somebody without any right stop all changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Cause = tuple[str, str, str]
Told = TypeVar("Told")

AT_START, BUCKET = 20, 100
REFILL_SECONDS = 180.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60.0, 3600.0
# Between two looks of whoever writes records, no more come than the bucket holds.
MOST_PENDING = BUCKET
# Of more causes at once the one that was quiet for the longest time is forgotten; its untold refusals are only counted.
MAX_CAUSES = 1000


@dataclass(slots=True)
class _Quieted(Generic[Told]):
    next_at: float
    pause_seconds: float
    last_at: float
    untold: int = 0
    first: Told | None = None


class DenialSampler(Generic[Told]):
    """Takes refusals, and hands out those to record, each with the number that it stands for.

    `now` is, here and below, seconds of a clock that never goes back.
    """

    def __init__(self, now: float) -> None:
        self._places = float(AT_START)
        self._filled_at = now
        self._causes: OrderedDict[Cause, _Quieted[Told]] = OrderedDict()

    def wants(self, cause: Cause) -> bool:
        """True if nothing is held of a cause yet; of a flood the first refusal is enough."""
        found = self._causes.get(cause)
        return found is None or found.first is None

    def take(self, cause: Cause, told: Told | None, now: float) -> tuple[Told, int] | None:
        """The refusal to record, and the number that it stands for; None: there is to be no record now.

        `told` None: one of that cause is held.
        """
        found = self._causes.get(cause)
        if found is None or (not found.untold and now - found.last_at >= LONGEST_PAUSE_SECONDS):
            found = _Quieted(now, FIRST_PAUSE_SECONDS, now)
        self._causes[cause] = found
        self._causes.move_to_end(cause)
        if len(self._causes) > MAX_CAUSES:
            self._causes.popitem(last=False)
        found.untold, found.last_at = found.untold + 1, now
        found.first = found.first or told
        return self._due(found, now)

    def due(self, now: float) -> Iterator[tuple[Told, int]]:
        """The refusals whose records have waited long enough, and the number that each stands for."""
        for found in self._causes.values():
            if (chosen := self._due(found, now)) is not None:
                yield chosen

    def _due(self, found: _Quieted[Told], now: float) -> tuple[Told, int] | None:
        if found.first is None or now < found.next_at or not self._has_place(now):
            return None
        chosen = found.first, found.untold
        found.first, found.untold = None, 0
        found.next_at = now + found.pause_seconds
        found.pause_seconds = min(2 * found.pause_seconds, LONGEST_PAUSE_SECONDS)
        return chosen

    def _has_place(self, now: float) -> bool:
        self._places = min(float(BUCKET), self._places + (now - self._filled_at) / REFILL_SECONDS)
        self._filled_at = now
        if self._places < 1:
            return False
        self._places -= 1
        return True
