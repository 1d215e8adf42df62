"""How the sidecar is asked for the files of an adapter: one line of JSON there, one back. Pure."""

from __future__ import annotations

import json

SCHEMA = 1
MAX_NAME_LENGTH = 200
MAX_QUESTION_BYTES = 4096
MAX_ANSWER_BYTES = 8192
MAX_PATH_LENGTH = 4096


class BadAnswer(Exception):
    """What came back is no answer; the message says why."""


def is_askable(name: str) -> bool:
    """False for what cannot be the name of a record: too long, or with control characters."""
    return 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()


def question(name: str, base_model: str) -> bytes:
    """The line that asks for `name` on the base model whose path is `base_model`."""
    return json.dumps({"schema": SCHEMA, "name": name, "base_model": base_model}).encode() + b"\n"


def read_answer(line: bytes) -> str | None:
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
            return path
        case _:
            raise BadAnswer("it names neither an absolute path nor a reason")
