"""The points of snapshot, publication and engine calls at which a process may die; tests kill it at each.

Those of a staging are `sidecar.artifacts.steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """What has just been done."""

    JOURNAL_OPENED = "journal_opened"
    BASE_WRITTEN = "base_written"
    BASE_SYNCED = "base_synced"
    BASE_NAMED = "base_named"
    BASE_KEPT = "base_kept"
    OLD_FORGOTTEN = "old_forgotten"
    ENTRY_APPENDED = "entry_appended"
    ENTRY_SYNCED = "entry_synced"
    LEASE_HELD = "lease_held"
    PRESENCE_WRITTEN = "presence_written"
    STATUS_WRITTEN = "status_written"
    LOAD_SENT = "load_sent"
    LOADED = "loaded"
    UNLOAD_SENT = "unload_sent"
    UNLOADED = "unloaded"
    PROOF_SENT = "proof_sent"
    PROVEN = "proven"
    REPLACEMENT_SENT = "replacement_sent"
    REPLACED = "replaced"


OnStep = Callable[[StrEnum], None]


def ignore(step: StrEnum) -> None:
    """Does nothing at a step."""
