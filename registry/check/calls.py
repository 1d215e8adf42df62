"""Holds what callers were told against the history: W1, W3, W4, W8 and W9. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from registry.check.findings import Finding
from registry.check.fold import Fold
from registry.model.base import Part

Outcome = Literal["ok", "refused", "unknown"]


class Call(Part):
    """What a caller noted of one call.

    Attributes:
        outcome: ok; refused: a reply that says "not applied"; unknown: UNAVAILABLE or no reply at all.
        revision: of an ok reply.
        changed: an ok reply said that something changed.
        validate_only: it was a dry run.
        etags: key in etcd to the etag that the caller gave for it.
    """

    request_id: str
    outcome: Outcome
    revision: int = 0
    changed: bool = True
    validate_only: bool = False
    etags: Mapping[str, int] = Field(default_factory=dict)


def check_calls(fold: Fold, calls: Iterable[Call]) -> tuple[list[Finding], Counter[str]]:
    """Findings, and how many calls were ok, refused, found applied or not applied after an unknown outcome."""
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    replies: dict[str, set[int]] = defaultdict(set)
    for call in calls:
        counts[_settled(fold, call)] += 1
        findings += _check(fold, call)
        if call.outcome == "ok" and not call.validate_only:
            replies[call.request_id].add(call.revision)
    for request_id, revisions in replies.items():
        if len(revisions) > 1:
            findings.append(Finding("W3", 0, request_id, f"the same request was answered with {sorted(revisions)}"))
    return findings, counts


def _settled(fold: Fold, call: Call) -> str:
    if call.outcome != "unknown":
        return call.outcome
    return "unknown, applied" if _applied(fold, call) else "unknown, not applied"


def _applied(fold: Fold, call: Call) -> int:
    """The revision at which the request took effect; 0: it did not."""
    revision, record = fold.requests.get(call.request_id, (0, {}))
    return revision if record.get("reply") is not None else 0


def _check(fold: Fold, call: Call) -> list[Finding]:
    applied = _applied(fold, call)
    if call.validate_only:
        found = [Finding("W9", applied, call.request_id, "a dry run made a revision")] if applied else []
    elif call.outcome == "refused":
        found = [Finding("W8", applied, call.request_id, 'answered "not applied", and was applied')] if applied else []
    elif call.outcome == "ok" and fold.first_revision < call.revision:
        found = [*_durable(call, applied), *_etags(fold, call)]
    else:
        found = []
    return found


def _durable(call: Call, applied: int) -> list[Finding]:
    if applied == call.revision or not (call.changed or applied):
        return []
    told = f"acknowledged at revision {call.revision}, and "
    return [
        Finding("W1", call.revision, call.request_id, told + (f"applied at {applied}" if applied else "is not there"))
    ]


def _etags(fold: Fold, call: Call) -> list[Finding]:
    return [
        Finding("W4", call.revision, key, f"changed with etag {etag}, when it was {was}")
        for key, etag in call.etags.items()
        if (was := fold.before(key, call.revision)) != etag
    ]
