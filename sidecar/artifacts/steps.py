"""The points of a staging, and of a removal, at which a process may die; tests kill it at each."""

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


class RemovalStep(StrEnum):
    """What has just been done, in the order in which an artifact leaves the store."""

    LET_GO = "let_go"
    LEASES_WRITTEN = "leases_written"
    CHOSEN = "chosen"
    SET_ASIDE = "set_aside"
    FILES_REMOVED = "files_removed"
    REPORT_REMOVED = "report_removed"


OnStep = Callable[[Step | RemovalStep], None]


def ignore(step: Step | RemovalStep) -> None:
    """Does nothing at a step."""
