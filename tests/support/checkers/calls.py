"""Checks of what callers were told against a history: W1, W3, W4, W8, W9. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from registry.model.stored import Part
from registry.tools.verify.history import Violation
from tests.support.checkers.index import HistoryIndex

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
        """The request as `HistoryIndex.requests` has it."""
        return f"{self.caller}/{self.request_id}" if self.caller else self.request_id


def check_calls(index: HistoryIndex, calls: Iterable[LoggedCall]) -> tuple[list[Violation], Counter[str]]:
    """Findings, and how many calls were ok, refused, found applied or not applied after an unknown outcome."""
    findings: list[Violation] = []
    counts: Counter[str] = Counter()
    replies: dict[str, set[int]] = defaultdict(set)
    for call in calls:
        counts[_settled(index, call)] += 1
        findings += _check(index, call)
        if call.outcome == "ok" and not call.validate_only:
            replies[call.request].add(call.revision)
    for request, revisions in replies.items():
        if len(revisions) > 1:
            findings.append(Violation("W3", 0, request, f"the same request was answered with {sorted(revisions)}"))
    return findings, counts


def _settled(index: HistoryIndex, call: LoggedCall) -> str:
    if call.outcome != "unknown":
        return call.outcome
    return "unknown, applied" if _applied(index, call) else "unknown, not applied"


def _applied(index: HistoryIndex, call: LoggedCall) -> int:
    """The revision at which the request took effect; 0: it did not."""
    revision, record = index.requests.get(call.request, (0, {}))
    return revision if record.get("reply") is not None else 0


def _check(index: HistoryIndex, call: LoggedCall) -> list[Violation]:
    applied = _applied(index, call)
    if call.validate_only:
        found = [Violation("W9", applied, call.request_id, "a dry run made a revision")] if applied else []
    elif call.outcome == "refused":
        found = (
            [Violation("W8", applied, call.request_id, 'answered "not applied", and was applied')] if applied else []
        )
    elif call.outcome == "ok" and index.first_revision < call.revision:
        found = [*_durable(call, applied), *_etags(index, call)]
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


def _etags(index: HistoryIndex, call: LoggedCall) -> list[Violation]:
    return [
        Violation("W4", call.revision, key, f"changed with etag {etag}, when it was {was}")
        for key, etag in call.etags.items()
        if (was := index.before(key, call.revision)) != etag
    ]
