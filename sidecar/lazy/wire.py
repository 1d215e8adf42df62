"""What an engine asks, and what it is told: one line of JSON each way. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

SCHEMA = 1
MAX_QUESTION_BYTES = 4096

NoReason = Literal["unknown_adapter", "not_lazy", "staging", "refused", "no_room", "not_ready", "bad_question"]


@dataclass(frozen=True, slots=True)
class Found:
    """The adapter is in the directory `path`, and may be loaded from there."""

    path: str


@dataclass(frozen=True, slots=True)
class No:
    """It may not be loaded; `reason` is stable."""

    reason: NoReason


Answer = Found | No


def read_question(line: bytes) -> str | None:
    """The name that is asked for; None: it is no question that is known here."""
    if len(line) > MAX_QUESTION_BYTES:
        return None
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match asked:
        case {"schema": 1, "name": str(name), "base_model": str()}:
            return name
        case _:
            return None


def write_answer(answer: Answer) -> bytes:
    """The answer as a line."""
    match answer:
        case Found(path):
            told: dict[str, object] = {"schema": SCHEMA, "path": path}
        case No(reason):  # pragma: no branch - mypy knows that this is the last case
            told = {"schema": SCHEMA, "path": None, "reason": reason}
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"
