"""All that sidecars' logs and looks at engines tell, held against the history: R1 to R9 and R11. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from registry.check.files import check_files
from registry.check.findings import Finding
from registry.check.fold import Fold
from registry.check.logs import processes
from registry.check.replicas import Listing, check_listings, check_log
from registry.check.retries import check_retries, check_waits
from registry.check.truth import check_truth
from registry.check.values import Document

Log = tuple[str, Sequence[Document]]


def check_replicas(
    fold: Fold, pool: str, logs: Sequence[Log], listings: Sequence[Listing]
) -> tuple[list[Finding], Counter[str]]:
    """Findings, and how much was compared.

    Args:
        fold: of the history.
        pool: of the sidecars.
        logs: each sidecar's, named, from its first line to its last, over any number of restarts.
        listings: each replica's in the order in which they were taken.
    """
    findings, counts = check_seen(fold, pool, logs, listings)
    findings += check_waits(fold)
    for where, lines in logs:
        counts["plans"] += sum(line.get("event") == "plan_made" for line in lines)
        refused, loads = check_retries(fold, pool, where, lines)
        findings += [*check_log(fold, pool, where, lines), *refused]
        counts += loads
    return findings + check_listings(fold, pool, listings), counts + Counter({"looks": len(listings)})


def check_seen(
    fold: Fold, pool: str, logs: Sequence[Log], listings: Sequence[Listing]
) -> tuple[list[Finding], Counter[str]]:
    """Of that what holds of stores that were replaced too: R7 and R9."""
    known = [process for where, lines in logs for process in processes(where, lines)]
    untrue, statuses = check_truth(fold, pool, known)
    gone, removals = check_files(known, listings)
    return untrue + gone, statuses + removals
