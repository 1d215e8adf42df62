"""Protocol of the resolver's socket: one line of JSON each way. Pure.

The plugin writes questions and reads answers inside vLLM, the sidecar reads questions and writes answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

SCHEMA = 1
MAX_NAME_LENGTH = 200
MAX_QUESTION_BYTES = 4096
MAX_ANSWER_BYTES = 8192
MAX_PATH_LENGTH = 4096
# What the kernel takes as the address of a socket, without the byte that ends it.
MAX_SOCKET_PATH_BYTES = 107

NoReason = Literal["unknown_adapter", "not_lazy", "staging", "refused", "no_room", "not_ready", "bad_question"]


class BadAnswer(Exception):
    """What came back is no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The adapter is in the directory `path`, and may be loaded from there. `prove`: then its effect is proven."""

    path: str
    prove: bool = False


@dataclass(frozen=True, slots=True)
class Unresolved:
    """It may not be loaded; `reason` is stable."""

    reason: NoReason


Answer = Resolved | Unresolved


def is_askable(name: str) -> bool:
    """False for what cannot be the name of a record: too long, or with control characters."""
    return 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()


def write_question(name: str, base_model: str) -> bytes:
    """The line that asks for `name` on the base model whose path is `base_model`."""
    return json.dumps({"schema": SCHEMA, "name": name, "base_model": base_model}).encode() + b"\n"


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
        case Resolved(path, prove):
            fields: dict[str, object] = {"schema": SCHEMA, "path": path} | ({"prove": True} if prove else {})
        case Unresolved(reason):  # pragma: no branch - mypy knows that this is the last case
            fields = {"schema": SCHEMA, "path": None, "reason": reason}
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def read_answer(line: bytes) -> Resolved | None:
    """The absolute directory that an answer names; None: there is none, and the sidecar says so.

    Raises:
        BadAnswer: it is cut short, no JSON, or not as agreed.
    """
    if not line.endswith(b"\n"):
        raise BadAnswer("it is not a whole line")
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        raise BadAnswer("it is no JSON") from None
    match answer:
        case {"schema": 1, "path": None, "reason": str()}:
            return None
        case {"schema": 1, "path": str(path)} if path.startswith("/") and len(path) <= MAX_PATH_LENGTH:
            return Resolved(path, answer.get("prove") is True)
        case _:
            raise BadAnswer("it names neither an absolute path nor a reason")
