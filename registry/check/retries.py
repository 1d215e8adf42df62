"""Holds what is tried again against the rules for that (R8). Pure.

Between two tries any time may pass, down to none: a back-off is drawn by chance, so only its bound can be checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from registry.check.findings import Finding
from registry.check.fold import Fold
from registry.check.listed import key_of
from registry.check.replicas import is_everywhere
from registry.check.values import Document
from registry.errors import RegistryError
from registry.model.status import Failed, ReplicaStatus

# No retry is put off for longer than this.
CAP_SECONDS = 60.0
# What an engine refused so often in a row is not tried again in that process.
REFUSALS_UNTIL_PERMANENT = 3
# Both times in a status are cut to milliseconds.
_ROUNDING_SECONDS = 0.01


def check_waits(fold: Fold) -> list[Finding]:
    """No status says that a retry is further away than the longest back-off."""
    findings: list[Finding] = []
    for revision, value in fold.statuses.items():
        try:
            status = ReplicaStatus.parse(value)
        except RegistryError:
            continue
        for failed in status.failed:
            if (seconds := _wait_seconds(status, failed)) > CAP_SECONDS + _ROUNDING_SECONDS:
                message = (
                    f"{failed.name!r} is tried again in {seconds:.0f} s; the longest back-off is {CAP_SECONDS:.0f}"
                )
                findings.append(Finding("R8", revision, status.replica, message))
    return findings


def _wait_seconds(status: ReplicaStatus, failed: Failed) -> float:
    """By one clock, at one moment: as the replica derived its status."""
    if failed.retry_at is None:
        return 0.0
    try:
        until, now = datetime.fromisoformat(failed.retry_at), datetime.fromisoformat(status.updated_at)
        return (until - now).total_seconds()
    except (ValueError, TypeError):
        return 0.0


@dataclass
class _Trial:
    """Refusals in a row of one record by one process of an engine."""

    of: tuple[str, int]
    refusals: int = 0


@dataclass
class _Trials:
    """A sidecar's, from its log."""

    fold: Fold
    pool: str
    incarnation: str = ""
    revision: int = 0
    trials: dict[str, _Trial] = field(default_factory=dict)
    loads: int = 0

    def take(self, line: Document) -> str:
        """What is wrong with the next line; empty: nothing."""
        match line.get("event"):
            case "started" | "removals_confirmed":
                self.trials.clear()
            case "engine_listed":
                self.incarnation = line["incarnation"]
            case "plan_made":
                self.revision = line["revision"]
            case "artifact_failed" | "staging_broke":
                self.trials.pop(key_of(line["name"]), None)
            case "engine_call":
                return self._call(line, key_of(line["name"]))
        return ""

    def _call(self, line: Document, key: str) -> str:
        record = self._record(key)
        if line["call"] == "unload" or record is None or not self.incarnation:
            self.trials.pop(key, None)
            return ""
        self.loads += 1
        trial = self.trials.get(key)
        if trial is None or trial.of != (self.incarnation, record):
            trial = self.trials[key] = _Trial((self.incarnation, record))
        is_over = trial.refusals >= REFUSALS_UNTIL_PERMANENT
        trial.refusals = trial.refusals + 1 if line["outcome"].startswith("Refused(") else 0
        if not is_over:
            return ""
        return f"{line['name']!r} was tried again after {REFUSALS_UNTIL_PERMANENT} refusals by the same engine process"

    def _record(self, key: str) -> int | None:
        """When what is desired under a name was written; None: what that is for this replica may change without it."""
        if not self.fold.first_revision <= self.revision <= self.fold.revision:
            return None
        record = self.fold.adapter_at(self.pool, key, self.revision) or {}
        is_eager = (record.get("spec") or {}).get("load") == "eager"
        if not is_eager or record.get("rollout") or not is_everywhere(record):
            return None
        return max(at for at, _ in self.fold.adapters[self.pool, key] if at <= self.revision)


def check_retries(fold: Fold, pool: str, where: str, lines: Iterable[Document]) -> tuple[list[Finding], Counter[str]]:
    """What an engine refused for good is not tried again: findings, and how many loads were compared."""
    trials = _Trials(fold, pool)
    findings = [Finding("R8", trials.revision, where, message) for line in lines if (message := trials.take(line))]
    return findings, Counter({"loads": trials.loads})
