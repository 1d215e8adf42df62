"""Form of bundles and statements that strangers wrote. Pure."""

from __future__ import annotations

from typing import Any

from registry.lora.findings import UnfitAdapter
from registry.lora.json_files import json_object
from registry.lora.text import printable

MAX_TEXT = 512
SIGN_ANEW = "sign the folder anew with `model_signing sign` or `loraplane sign`"


class BadBundle(ValueError):
    """A bundle or its statement is not of the form; the message says what was found, expected, and to be done."""


def whole(content: bytes, what: str) -> dict[str, Any]:
    """The JSON object that `what` is. Raises BadBundle."""
    try:
        return json_object(what, content)
    except UnfitAdapter as error:
        raise BadBundle(f"{what} is {error.findings[0].found}, expected a JSON object; {SIGN_ANEW}") from error


def other(field: str, found: object, expected: str) -> BadBundle:
    """Error for a field that has something else than it has to have."""
    return BadBundle(f"its {field} is {printable(f'{found!r}'[:200])}, expected {expected}; {SIGN_ANEW}")


def object_of(value: object, field: str) -> dict[str, Any]:
    """The field, which has to be an object. Raises BadBundle."""
    if not isinstance(value, dict):
        raise other(field, value, "a JSON object")
    return value


def list_of(value: object, field: str, least: int, most: int) -> list[Any]:
    """The field, which has to be a list of so many. Raises BadBundle."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise other(field, value, f"a list of {least} to {most}" if least < most else f"a list of {most}")
    return value


def text_of(value: object, field: str) -> str:
    """The field, which has to be a text that is neither empty nor long. Raises BadBundle."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT:
        raise other(field, value, f"1 to {MAX_TEXT} characters")
    return value
