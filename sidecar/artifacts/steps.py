"""The points of a staging at which a process may die; tests kill it at each."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """What has just been done, in the order of an unpinned artifact's staging."""

    PIN_LOCKED = "pin_locked"
    RECEIVING = "receiving"
    RECEIVED = "received"
    VERIFIED = "verified"
    LEASED = "leased"
    LOCKED = "locked"
    PREPARED = "prepared"
    REPORTED = "reported"
    PLACED = "placed"
    PINNED = "pinned"


OnStep = Callable[[Step], None]


def ignore(step: Step) -> None:
    """Does nothing at a step."""
