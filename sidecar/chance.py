"""Time and chance as arguments, so that a test can hold them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sidecar.status import Moment


def _now_utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Chance:
    """A source of randomness and of wall-clock time; monotonic time is the event loop's."""

    rng: random.Random = field(default_factory=random.Random)
    wall: Callable[[], datetime] = _now_utc

    def monotonic(self) -> float:
        """Seconds on the running event loop's clock."""
        return asyncio.get_running_loop().time()

    def moment(self) -> Moment:
        """Now on both clocks."""
        return Moment(self.monotonic(), self.wall())
