"""Holds what is tried again against the rules for that (R8). Pure.

Between two tries any time may pass, down to none: a back-off is drawn by chance, so only its bound can be checked. But
what an engine refuses again and again keeps a distance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from registry.model.errors import RegistryError
from registry.model.replica_reasons import LONGEST_ASKED_SECONDS, LONGEST_PAUSE_SECONDS, RetryClass, retry_rule
from registry.model.status import Failed, ReplicaStatus
from registry.tools.verify.history import Document, Violation, part_of
from tests.support.checkers.engine_names import key_of
from tests.support.checkers.index import HistoryIndex
from tests.support.checkers.logs import seconds_of
from tests.support.checkers.replicas import is_everywhere

# No retry is put off for longer than this, where there is no rule that lets it wait longer.
CAP_SECONDS = 15.0
REFUSED_REASON = "engine_refused"
# What an engine refused so often in a row is tried again so rarely, all such adapters taken together. The generation
# that was served last has its own tries beside those of the newest, and a log does not tell them apart.
REFUSALS_UNPACED = 3
PACE_SECONDS = 2.0
_MAY_HAVE_LOADED = ("Done(", "AlreadyThere(", "Unknown(")
# Both times in a status are cut to milliseconds.
_ROUNDING_SECONDS = 0.01


def check_waits(index: HistoryIndex) -> list[Violation]:
    """No status says that a retry is further away than the longest back-off."""
    findings: list[Violation] = []
    for revision, value in index.statuses.items():
        try:
            status = ReplicaStatus.parse(value)
        except RegistryError:
            continue
        for failed in status.failed:
            longest = _longest_seconds(status, failed)
            if (seconds := _wait_seconds(status, failed)) > longest + _ROUNDING_SECONDS:
                message = f"{failed.name!r} is tried again in {seconds:.0f} s; the longest back-off is {longest:.0f}"
                findings.append(Violation("R8", revision, status.replica, message))
    return findings


def _longest_seconds(status: ReplicaStatus, failed: Failed) -> float:
    """By the rule of its reason, and of what a source may ask for; what an engine refuses waits for its turn, too."""
    if failed.reason != REFUSED_REASON:
        is_slow = retry_rule(failed.reason).retry is RetryClass.LATER
        return LONGEST_PAUSE_SECONDS + LONGEST_ASKED_SECONDS if is_slow else CAP_SECONDS
    refused = sum(one.reason == REFUSED_REASON for one in status.failed) + status.omitted
    return max(LONGEST_PAUSE_SECONDS, PACE_SECONDS * (refused + 1))


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
    """Refusals in a row of one record by one process of an engine; `refused_at`: the last, in seconds."""

    of: tuple[str, int]
    refusals: int = 0
    refused_at: float = -math.inf


@dataclass
class _Trials:
    """A sidecar's, from its log."""

    index: HistoryIndex
    pool: str
    incarnation: str = ""
    revision: int = 0
    trials: dict[str, _Trial] = field(default_factory=dict)
    loads: int = 0

    def take(self, line: Document) -> str:
        """Finding on the next line; empty: none."""
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
        if line["call"] != "unload" and line["outcome"].startswith(_MAY_HAVE_LOADED):
            self.trials.clear()  # one that loads tells that the engine does: what was refused may be tried at once
        if line["call"] == "unload" or record is None or not self.incarnation:
            self.trials.pop(key, None)
            return ""
        self.loads += 1
        if not line["outcome"].startswith("Refused("):
            self.trials.pop(key, None)
            return ""
        trial = self.trials.get(key)
        if trial is None or trial.of != (self.incarnation, record):
            trial = self.trials[key] = _Trial((self.incarnation, record))
        at, refused_at = seconds_of(line.get("timestamp")), trial.refused_at
        trial.refusals, trial.refused_at = trial.refusals + 1, -math.inf if at is None else at
        is_soon = at is not None and 0.0 <= at - refused_at < PACE_SECONDS - _ROUNDING_SECONDS
        if at is None or not is_soon or trial.refusals <= self._unpaced(key):
            return ""
        return f"{line['name']!r} was tried again {at - refused_at:.1f} s after refusal {trial.refusals - 1}"

    def _unpaced(self, key: str) -> int:
        record = self.index.adapter_at(self.pool, key, self.revision) or {}
        return REFUSALS_UNPACED * (2 if record.get("generation") != 1 else 1)

    def _record(self, key: str) -> int | None:
        """Time of the desired record under a name; None: what that is for this replica may change without it."""
        if not self.index.covers(self.revision):
            return None
        record = self.index.adapter_at(self.pool, key, self.revision) or {}
        is_eager = part_of(record, "spec").get("load") == "eager"
        if not is_eager or record.get("rollout") or not is_everywhere(record):
            return None
        return max(at for at, _ in self.index.adapters[self.pool, key] if at <= self.revision)


def check_retries(
    index: HistoryIndex, pool: str, where: str, lines: Iterable[Document]
) -> tuple[list[Violation], Counter[str]]:
    """Check that refused loads are tried again rarely: findings, and how many loads were compared."""
    trials = _Trials(index, pool)
    findings = [Violation("R8", trials.revision, where, message) for line in lines if (message := trials.take(line))]
    return findings, Counter({"loads": trials.loads})
