"""What a plan has to know of lazy adapters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.desired import DesiredAdapter
from sidecar.failures import Failure


@dataclass(frozen=True, slots=True)
class Wanted:
    """The few of them that count at present.

    Attributes:
        residents: those that are loaded and stay so.
        asked: name keys of which questions are open, or whose records have moved on: nothing is called for these.
        troubles: those that were asked for and refused, as far as that still holds, with why.
    """

    residents: tuple[DesiredAdapter, ...] = ()
    asked: frozenset[str] = frozenset()
    troubles: tuple[tuple[DesiredAdapter, Failure], ...] = ()


NOTHING_LAZY = Wanted()


@dataclass(frozen=True, slots=True)
class LazySituation:
    """What there is to say of lazy adapters beside the plan.

    Attributes:
        count: how many of the pool there are.
        room: how many of them the engine is to hold at once.
        used_at: monotonic seconds of the last use of those that are loaded, by name key.
    """

    count: int = 0
    room: int = 0
    used_at: Mapping[str, float] = field(default_factory=dict)
