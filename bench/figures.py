"""What a measurement came to: samples of the floor and of ours, and the one line that tells them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


class NotMeasured(Exception):
    """The thing that was to be measured did not happen, so that a figure would be a lie."""


def check(condition: object, message: str) -> None:
    """Raises NotMeasured unless the condition holds."""
    if not condition:
        raise NotMeasured(message)


@dataclass(frozen=True, slots=True)
class Figure:
    """One ratio.

    Attributes:
        name: of the measurement.
        ratio: ours to the floor, or to the limit.
        target: what the ratio should keep to, e.g. ``<= 2``; empty: nothing was promised.
        told: what the ratio was made from.
    """

    name: str
    ratio: float
    target: str
    told: str

    def line(self) -> str:
        target = f", target {self.target}" if self.target else ""
        return f"{self.name}: ratio {self.ratio:.2f}{target} ({self.told})"


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least this share of all samples does not exceed."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def of_times(name: str, floor: Sequence[float], ours: Sequence[float], *, target: str, note: str = "") -> Figure:
    """A figure of durations in seconds: the ratio is that of the medians."""
    check(floor and ours, f"{name}: there are no samples")
    middle = statistics.median(floor), statistics.median(ours)
    tail = percentile(floor, 0.99), percentile(ours, 0.99)
    told = (
        f"floor {_ms(middle[0])}, ours {_ms(middle[1])}; p99 floor {_ms(tail[0])}, ours {_ms(tail[1])}, "
        f"ratio {tail[1] / tail[0]:.2f}; n {len(floor)}/{len(ours)}"
    )
    return Figure(name, middle[1] / middle[0], target, f"{told}; {note}" if note else told)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
