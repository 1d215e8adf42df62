"""Field `model` of a request's body: found, and exchanged alone. Pure.

The rest of a body is passed on byte for byte: what is parsed and written anew changes numbers, and keys that stand
twice.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_BLANKS = re.compile(r"[ \t\n\r]*")
_VALUE = json.JSONDecoder()
_FORM = 'send a JSON object with "model": "NAME"'
# Far more than any API has. Each is looked at in Python, and a body of nothing but names would hold all other requests.
MAX_MEMBERS = 10_000


class UnreadableBody(ValueError):
    """A body names no model; the message says why, and what to send."""


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """The model that a body asks for, and where its value stands in the text, quotes included."""

    name: str
    start: int
    end: int
    text: str

    def renamed(self, name: str) -> bytes:
        """The body with another model."""
        return f"{self.text[: self.start]}{json.dumps(name)}{self.text[self.end :]}".encode()


def model_of(body: bytes) -> RequestedModel:
    """The model that a body asks for.

    Raises:
        UnreadableBody: it is no JSON object, has very many names, or has no `model`, two of them, or one that is no
            text.
    """
    try:
        text = body.decode()
        found = _models(text)
    except UnreadableBody:
        raise
    except UnicodeDecodeError as error:
        raise UnreadableBody(f"the body is not text in UTF-8; {_FORM}") from error
    except (ValueError, RecursionError, IndexError) as error:
        raise UnreadableBody(f"the body is no JSON object; {_FORM}") from error
    if len(found) != 1:
        problem = "twice, and readers differ in which one counts" if found else "not"
        raise UnreadableBody(f"model stands {problem} in the body; {_FORM}")
    name, start, end = found[0]
    if not isinstance(name, str) or not name:
        raise UnreadableBody(f"model is no text; {_FORM}")
    return RequestedModel(name, start, end, text)


def _models(text: str) -> list[tuple[Any, int, int]]:
    """Each value of the key `model` of an object, and where it stands. Raises ValueError and others: it is none."""
    at, members = _after_blanks(text, 0), 0
    found: list[tuple[Any, int, int]] = []
    if text[at] != "{":
        raise ValueError(at)
    at = _after_blanks(text, at + 1)
    while text[at] != "}":
        members += 1
        if members > MAX_MEMBERS:
            raise UnreadableBody(f"the body has more than {MAX_MEMBERS} names; {_FORM}")
        key, value, start, end = _member(text, at)
        if key == "model":
            found.append((value, start, end))
        at = _after_comma(text, _after_blanks(text, end))
    if _after_blanks(text, at + 1) != len(text):
        raise ValueError(at)
    return found


def _member(text: str, at: int) -> tuple[str, Any, int, int]:
    """A key that begins there, and its value with where it stands."""
    if text[at] != '"':
        raise ValueError(at)
    key, at = _VALUE.raw_decode(text, at)
    at = _after_blanks(text, at)
    if text[at] != ":":
        raise ValueError(at)
    start = _after_blanks(text, at + 1)
    value, end = _VALUE.raw_decode(text, start)
    return key, value, start, end


def _after_comma(text: str, at: int) -> int:
    """Place of the next key, or of the end of the object."""
    if text[at] == ",":
        at = _after_blanks(text, at + 1)
        if text[at] == '"':
            return at
    elif text[at] == "}":
        return at
    raise ValueError(at)


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at
