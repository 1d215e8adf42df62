"""Failpoints: named points at which tests may end a process.

Without a handler a point costs one look at a variable. Only code in the same process can install a handler: no flag,
environment variable or request reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Point(StrEnum):
    """The work that was just done; the part before the dot names the sequence to which it belongs."""

    JOURNAL_OPENED = "journal.opened"
    BASE_WRITTEN = "journal.base_written"
    BASE_SYNCED = "journal.base_synced"
    BASE_NAMED = "journal.base_named"
    BASE_KEPT = "journal.base_kept"
    OLD_FORGOTTEN = "journal.old_forgotten"
    ENTRY_APPENDED = "journal.entry_appended"
    ENTRY_SYNCED = "journal.entry_synced"

    LEASE_HELD = "report.lease_held"
    PRESENCE_WRITTEN = "report.presence_written"
    STATUS_WRITTEN = "report.status_written"

    LOAD_SENT = "engine.load_sent"
    LOADED = "engine.loaded"
    UNLOAD_SENT = "engine.unload_sent"
    UNLOADED = "engine.unloaded"
    PROOF_SENT = "engine.proof_sent"
    PROVEN = "engine.proven"
    REPLACEMENT_SENT = "engine.replacement_sent"
    REPLACED = "engine.replaced"

    # In the order of an unpinned artifact's staging.
    PIN_LOCKED = "staging.pin_locked"
    RECEIVING = "staging.receiving"
    RECEIVED = "staging.received"
    VERIFIED = "staging.verified"
    LEASED = "staging.leased"
    LOCKED = "staging.locked"
    PREPARED = "staging.prepared"
    REPORTED = "staging.reported"
    PLACED = "staging.placed"
    PINNED = "staging.pinned"

    # In the order in which an artifact leaves the store.
    LET_GO = "removal.let_go"
    LEASES_WRITTEN = "removal.leases_written"
    CHOSEN = "removal.chosen"
    SET_ASIDE = "removal.set_aside"
    FILES_REMOVED = "removal.files_removed"
    REPORT_REMOVED = "removal.report_removed"


Handler = Callable[[Point], object]
# The handlers of this process. It is replaced whole, so that a worker thread reads the old one or the new one.
_handlers: tuple[Handler, ...] = ()


def hit(point: Point) -> None:
    """Passes a point; calls the handlers, in the thread that came to it."""
    for handler in _handlers:
        handler(point)


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """Calls `handler` at every point that this process passes within the body, in whatever thread. For tests."""
    global _handlers  # noqa: PLW0603 - one set for the process is the point
    before = _handlers
    _handlers = (*before, handler)
    try:
        yield
    finally:
        _handlers = before
