"""What of a seed's course is played, and how long: all of it, or the little that a shrunk failure needs."""

from __future__ import annotations

from dataclasses import dataclass, field

# Parts that are not single events: the order of what is ready, and answers that take their time.
ORDER, SLOW = "order", "slow"


@dataclass(frozen=True)
class Cut:
    """What is played of a course.

    Each single event has a name: a letter and its number among its kind. `f`: faults, `w`: watches that are hurt, `s`:
    steps of the operator, `t`: requests to engines, `n`: news that comes amid what it is about, `p`: programs, `k`:
    commands, `r`: files that are replaced, `u`: updates of admin services, `c`: ways of callers that are hurt, `b`:
    power cuts. What is left out shifts no draw of another one.

    Attributes:
        seconds: how long faults last; None: as long as the seed draws.
        only: names of what is played; None: all.
    """

    seconds: float | None = None
    only: frozenset[str] | None = None

    def has(self, name: str) -> bool:
        """Whether it is played."""
        return self.only is None or name in self.only

    def arguments(self) -> str:
        """Those of the command that plays it."""
        seconds = "" if self.seconds is None else f" SECONDS={self.seconds:g}"
        names = ",".join(sorted(self.only or (), key=_place)) or "nothing"
        return seconds if self.only is None else f"{seconds} ONLY={names}"


def read_cut(only: str | None, seconds: float | None) -> Cut:
    """What the command was given."""
    return Cut(seconds, None if only is None else frozenset(only.split(",")))


ALL = Cut()


@dataclass(frozen=True)
class Part:
    """An event that was played."""

    name: str
    at: float
    text: str


@dataclass
class Parts:
    """The events of a course, as they come."""

    cut: Cut
    played: list[Part] = field(default_factory=list)

    def plays(self, name: str, at: float, text: str) -> bool:
        """Notes an event, and says whether it is to happen."""
        if self.cut.has(name):
            self.played.append(Part(name, at, text))
        return self.cut.has(name)


def _place(name: str) -> tuple[str, int]:
    return (name[0], int(name[1:])) if name[1:].isdigit() else ("", 0)
