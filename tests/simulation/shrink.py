"""A failing seed, shrunk: events are left out, and time, as long as the same guarantee is violated all the same."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.simulation.cut import ORDER, SLOW, Cut
from tests.simulation.simulation import SimulationFailed, simulate

# So many lines of the trace are read to the end by a person.
LINES = 60
# What a sidecar or the world tells all the time.
CHATTER = ("engine_listed", "base_not_read")
# Longer than anybody looks on.
MOST_SECONDS = 120.0


@dataclass
class Shrinking:
    """Tries smaller and smaller courses of one failure.

    Attributes:
        smallest: the failure of the smallest course so far.
        guarantee: that must be violated.
        tries: how many courses may still be played.
        until: processor time at which it is enough.
    """

    smallest: SimulationFailed
    guarantee: str
    tries: int
    until: float
    seen: set[Cut] = field(default_factory=set)

    def takes(self, cut: Cut) -> bool:
        """Plays a smaller course; True if it fails alike, and is the smallest from now on."""
        if cut in self.seen or self.tries <= 0 or time.process_time() > self.until:
            return False
        self.seen.add(cut)
        self.tries -= 1
        try:
            simulate(self.smallest.seed, has_nets=self.smallest.has_nets, cut=cut, until=self.guarantee)
        except SimulationFailed as failure:
            if any(_guarantee(violation) == self.guarantee for violation in failure.violations):
                self.smallest = failure
                return True
        return False

    @property
    def names(self) -> list[str]:
        """What is played, the last first."""
        whole = [name for name in (ORDER, SLOW) if self.smallest.cut.has(name)]
        return [*whole, *(part.name for part in reversed(self.smallest.parts))]

    def without(self, names: Sequence[str]) -> bool:
        """Leaves these out, if it can be."""
        only = frozenset(self.names) - frozenset(names)
        return self.takes(replace(self.smallest.cut, only=only))

    def shorten(self) -> None:
        """Leaves out time at the end."""
        last = max((part.at for part in self.smallest.parts), default=0.0)
        for seconds in (0.5, math.ceil(last + 1.0), math.ceil(_first_at(self.smallest)) + 1.0):
            if seconds < self.smallest.seconds and self.takes(replace(self.smallest.cut, seconds=seconds)):
                return

    def thin_out(self) -> None:
        """Leaves out each kind, then halves of what is left, quarters, and so on down to single events."""
        for kind in dict.fromkeys(part.name[0] for part in self.smallest.parts):
            self.without([name for name in self.names if name.startswith(kind) and name not in {ORDER, SLOW}])
        for name in (ORDER, SLOW):
            if self.smallest.cut.has(name):
                self.without([name])
        size = math.ceil(len(self.names) / 2)
        while size and self.tries > 0:
            found = [self.without(chunk) for chunk in _chunks(self.names, size)]
            size = size if size == 1 and any(found) else size // 2


def shrunk(failure: SimulationFailed, tries: int = 300) -> SimulationFailed:
    """The same failure in the smallest course that was found with so many tries."""
    work = Shrinking(failure, _guarantee(failure.violations[0]), tries, time.process_time() + MOST_SECONDS)
    if not work.takes(failure.cut):
        return failure
    work.without([])
    work.shorten()
    work.thin_out()
    work.shorten()
    return work.smallest


def told(failure: SimulationFailed) -> str:
    """A failure as a person reads it: what plays it, what was played, and what came of that."""
    parts = "".join(f"{part.at:10.4f} {part.name} {part.text}\n" for part in failure.parts)
    found = "\n".join(dict.fromkeys(failure.violations[:10]))
    return f"{failure.command}\n{parts}...\n" + "\n".join([*_readable(failure.trace)][-LINES:]) + f"\n\n{found}"


def _readable(trace: Sequence[str]) -> Iterator[str]:
    """Without chatter, what is said twice in a row, and digests that nobody reads."""
    before = ""
    for line in trace:
        said = " ".join(line.split()[1:3])
        if not any(word in said for word in CHATTER) and (said != before or "world:" in said):
            yield re.sub(r"\b([0-9a-f]{8})[0-9a-f]{20,}", r"\1", line)
        before = said


def _chunks(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]


def _guarantee(violation: str) -> str:
    """The guarantee that a violation names, behind its time."""
    return violation.partition(" s: ")[2].partition(" ")[0] or violation.partition(" ")[0]


def _first_at(failure: SimulationFailed) -> float:
    return float(failure.violations[0].partition(" ")[0])
