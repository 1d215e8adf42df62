"""Checks of logs, listings and statuses against a history, all together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from registry.tools.verify.history import Document, Violation
from tests.support.checkers.index import HistoryIndex
from tests.support.checkers.logs import processes
from tests.support.checkers.replicas import EngineListing, check_files, check_listings, check_log
from tests.support.checkers.retries import check_retries, check_waits
from tests.support.checkers.truth import check_truth

Log = tuple[str, Sequence[Document]]


def check_replicas(
    index: HistoryIndex, pool: str, logs: Sequence[Log], listings: Sequence[EngineListing]
) -> tuple[list[Violation], Counter[str]]:
    """Findings, and how much was compared.

    Args:
        index: of the history.
        pool: of the sidecars.
        logs: each sidecar's, named, from its first line to its last, over any number of restarts.
        listings: each replica's in the order in which they were taken.
    """
    findings, counts = check_seen(index, pool, logs, listings)
    findings += check_waits(index)
    for where, lines in logs:
        counts["plans"] += sum(line.get("event") == "plan_made" for line in lines)
        refused, loads = check_retries(index, pool, where, lines)
        findings += [*check_log(index, pool, where, lines), *refused]
        counts += loads
    looks = sum(index.covers(listing.revision) for listing in listings)
    return findings + check_listings(index, pool, listings), counts + Counter({"looks": looks})


def check_seen(
    index: HistoryIndex, pool: str, logs: Sequence[Log], listings: Sequence[EngineListing]
) -> tuple[list[Violation], Counter[str]]:
    """Of that what holds of stores that were replaced too: R7 and R9."""
    known = [process for where, lines in logs for process in processes(where, lines)]
    untrue, statuses = check_truth(index, pool, known)
    gone, removals = check_files(known, listings)
    return untrue + gone, statuses + removals
