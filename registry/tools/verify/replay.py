"""Replays a whole history and checks everything against it. Pure.

Calls are held against it here (W1, W3, W4, W8, W9); logs, listings and statuses by the modules beside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from registry.model.keys import Keys
from registry.model.stored import Part
from registry.tools.verify.fold import Fold
from registry.tools.verify.history import Document, HistoryBase, Revision, Step, Violation
from registry.tools.verify.logs import processes
from registry.tools.verify.replicas import EngineListing, check_files, check_listings, check_log
from registry.tools.verify.retries import check_retries, check_waits
from registry.tools.verify.truth import check_truth

Log = tuple[str, Sequence[Document]]


def check_replicas(
    fold: Fold, pool: str, logs: Sequence[Log], listings: Sequence[EngineListing]
) -> tuple[list[Violation], Counter[str]]:
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
    looks = sum(fold.covers(listing.revision) for listing in listings)
    return findings + check_listings(fold, pool, listings), counts + Counter({"looks": looks})


def check_seen(
    fold: Fold, pool: str, logs: Sequence[Log], listings: Sequence[EngineListing]
) -> tuple[list[Violation], Counter[str]]:
    """Of that what holds of stores that were replaced too: R7 and R9."""
    known = [process for where, lines in logs for process in processes(where, lines)]
    untrue, statuses = check_truth(fold, pool, known)
    gone, removals = check_files(known, listings)
    return untrue + gone, statuses + removals


def replay(keys: Keys, steps: Iterable[Step]) -> Fold:
    """Folds a whole history; its `findings` say what does not hold."""
    fold = Fold(keys)
    for step in steps:
        match step:
            case HistoryBase(revision, kvs):
                fold.begin(revision, kvs)
            case Revision(revision, events):  # pragma: no branch - mypy knows that this is the last case
                fold.take(revision, events)
    return fold


Outcome = Literal["ok", "refused", "unknown"]


class LoggedCall(Part):
    """A caller's note of one call.

    Attributes:
        caller: whose request id it is, as the request record's key has it; empty: of somebody without a certificate.
        outcome: ok; refused: a reply that says "not applied"; unknown: UNAVAILABLE or no reply at all.
        revision: of an ok reply.
        changed: an ok reply said that something changed.
        validate_only: it was a dry run.
        etags: key in etcd to the etag that the caller gave for it.
    """

    request_id: str
    caller: str = ""
    outcome: Outcome
    revision: int = 0
    changed: bool = True
    validate_only: bool = False
    etags: Mapping[str, int] = Field(default_factory=dict)

    @property
    def request(self) -> str:
        """The request as `Fold.requests` has it."""
        return f"{self.caller}/{self.request_id}" if self.caller else self.request_id


def check_calls(fold: Fold, calls: Iterable[LoggedCall]) -> tuple[list[Violation], Counter[str]]:
    """Findings, and how many calls were ok, refused, found applied or not applied after an unknown outcome."""
    findings: list[Violation] = []
    counts: Counter[str] = Counter()
    replies: dict[str, set[int]] = defaultdict(set)
    for call in calls:
        counts[_settled(fold, call)] += 1
        findings += _check(fold, call)
        if call.outcome == "ok" and not call.validate_only:
            replies[call.request].add(call.revision)
    for request, revisions in replies.items():
        if len(revisions) > 1:
            findings.append(Violation("W3", 0, request, f"the same request was answered with {sorted(revisions)}"))
    return findings, counts


def _settled(fold: Fold, call: LoggedCall) -> str:
    if call.outcome != "unknown":
        return call.outcome
    return "unknown, applied" if _applied(fold, call) else "unknown, not applied"


def _applied(fold: Fold, call: LoggedCall) -> int:
    """The revision at which the request took effect; 0: it did not."""
    revision, record = fold.requests.get(call.request, (0, {}))
    return revision if record.get("reply") is not None else 0


def _check(fold: Fold, call: LoggedCall) -> list[Violation]:
    applied = _applied(fold, call)
    if call.validate_only:
        found = [Violation("W9", applied, call.request_id, "a dry run made a revision")] if applied else []
    elif call.outcome == "refused":
        found = (
            [Violation("W8", applied, call.request_id, 'answered "not applied", and was applied')] if applied else []
        )
    elif call.outcome == "ok" and fold.first_revision < call.revision:
        found = [*_durable(call, applied), *_etags(fold, call)]
    else:
        found = []
    return found


def _durable(call: LoggedCall, applied: int) -> list[Violation]:
    if applied == call.revision or not (call.changed or applied):
        return []
    told = f"acknowledged at revision {call.revision}, and "
    return [
        Violation("W1", call.revision, call.request_id, told + (f"applied at {applied}" if applied else "is not there"))
    ]


def _etags(fold: Fold, call: LoggedCall) -> list[Violation]:
    return [
        Violation("W4", call.revision, key, f"changed with etag {etag}, when it was {was}")
        for key, etag in call.etags.items()
        if (was := fold.before(key, call.revision)) != etag
    ]
