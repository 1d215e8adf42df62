"""Texts of others: their form in output, and what a record may not take. Pure.

What anybody wrote, as the name of a tensor, a label or an engine's answer, may move a terminal's cursor, end a line, or
turn the direction of what follows. No output of ours shows it as it is: tables, lines, JSON, YAML and logs go through
`printable` or `escaped`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

# Marks, embeddings, overrides and isolates of the bidirectional algorithm.
_DIRECTING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Controls, lone surrogates, separators of lines and of paragraphs.
_NOT_TEXT = frozenset({"Cc", "Cs", "Zl", "Zp"})
_ASCII_PRINTABLE = re.compile(r"[\n\x20-\x7e]*")


def printable(text: str) -> str:
    """Somebody's text in one line, in which nothing has power over a terminal: such characters as escapes."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def escaped(document: str) -> str:
    """A JSON document, or YAML with such texts in double quotes, that means the same and is printable line by line.

    Characters beyond the first 65,536 are written as two surrogates, as JSON has them.
    """
    if _ASCII_PRINTABLE.fullmatch(document):
        return document
    return "\n".join(line if line.isprintable() else "".join(map(_escape, line)) for line in document.split("\n"))


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def some_of(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def first_unfit(value: object, path: str = "") -> str | None:
    """Place in a value where a text has controls, or marks that turn its direction; None: nowhere.

    Letters of all scripts are fit, and the joiners that some of them need.
    """
    match value:
        case str():
            return path if _is_unfit(value) else None
        case Mapping():
            parts = ((f"{key}", inner, f"{path}.{key}" if path else f"{key}") for key, inner in value.items())
            found = (path or "it" if _is_unfit(key) else first_unfit(inner, at) for key, inner, at in parts)
            return next((one for one in found if one is not None), None)
        case Sequence():
            inside = (first_unfit(inner, f"{path}[{index}]") for index, inner in enumerate(value))
            return next((one for one in inside if one is not None), None)
        case _:
            return None


def _is_unfit(text: str) -> bool:
    # What is printable is fit; of the rest some is, as the joiners.
    return not text.isprintable() and any(one in _DIRECTING or unicodedata.category(one) in _NOT_TEXT for one in text)
