"""Verdicts on adapters of tiny models: ours, the engine's, and which of both is wrong. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

# The engine adds numbers up in another order than torch: right answers are some 3e-6 apart.
TOLERANCE = 2e-3
# A base is computed as by transformers if it is not further apart; what adds to more would spoil the comparison.
BASE_TOLERANCE = TOLERANCE / 10
# An adapter that changes less than this is not told from one that is ignored.
LEAST_EFFECT = 10 * TOLERANCE

Answer = Literal["right", "as the base", "wrong", "refused", "unknown"]
Verdict = Literal["served", "prepared", "refused", "refused, though right", "unknown", "SILENT", "LOUD"]
Rows = Sequence[Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Judged:
    """One adapter on one architecture.

    Attributes:
        verdict: what both came to; SILENT: accepted and served wrongly; LOUD: accepted and refused by the engine.
        reasons: for which our check refuses it.
        asked: for which it would be refused by what the engine says when it is asked, without our table.
        raw: what the engine makes of it as it is.
        prepared: what it makes of it once it is prepared; None: it is not accepted, or as it is.
        said: what the engine says where it refuses it.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    asked: tuple[str, ...]
    raw: Answer
    prepared: Answer | None = None
    said: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As it is kept."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", ())}


def distance(one: Rows, other: Rows) -> float:
    """The largest difference of two logprobs, as long as both went on with the same tokens."""
    found = 0.0
    for mine, theirs in zip(one, other, strict=True):
        for left, right in zip(mine, theirs, strict=True):
            # The engine fills the vocabulary up.
            pairs = zip(left["logprobs"], right["logprobs"], strict=False)
            found = max([found, *(abs(a - b) if math.isfinite(a - b) else math.inf for a, b in pairs)])
            if left["token"] != right["token"]:
                break
    return found


def answer_of(told: Mapping[str, Any] | None, base: Rows, wanted: Rows, base_wanted: Rows) -> Answer:
    """What an engine that answers `base` for its base made of an adapter that has to be answered as `wanted`."""
    if told is None:
        return "unknown"
    if "answers" not in told:
        return "refused"
    if distance(told["answers"], base) == 0:
        return "as the base"
    # Where both compute the base otherwise, nothing but an adapter without any effect is sure.
    if distance(base, base_wanted) > BASE_TOLERANCE or distance(wanted, base_wanted) < LEAST_EFFECT:
        return "unknown"
    return "right" if distance(told["answers"], wanted) <= TOLERANCE else "wrong"


def verdict_of(is_accepted: bool, raw: Answer, prepared: Answer | None) -> Verdict:
    """What our check and the engine came to. `prepared` None: there was nothing to prepare."""
    if not is_accepted:
        return "refused, though right" if raw == "right" else "refused"
    match prepared or raw:
        case "right":
            return "served" if prepared is None else "prepared"
        case "refused":
            return "LOUD"
        case "unknown":
            return "unknown"
        case _:
            return "SILENT"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What became otherwise since the last matrix, in lines for people."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = _cells(old.get(name)), _cells(new.get(name))
        kinds = sorted(before.keys() | after.keys())
        lines += [
            f"{name}, {kind}: {before.get(kind, 'not run')} -> {after.get(kind, 'not run')}"
            for kind in kinds
            if before.get(kind) != after.get(kind)
        ]
    return lines


def _cells(family: Mapping[str, Any] | None) -> dict[str, str]:
    return {kind: one["verdict"] for kind, one in (family or {}).get("kinds", {}).items()}
