"""Spans of time as people write them: a number and s, m, h or d."""

from __future__ import annotations

import re

SPAN_FORM = "a number and s, m, h or d, such as 30m"
SPAN_PATTERN = r"^[0-9]{1,9}[smhd]$"
_SPAN = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def seconds_of(span: str) -> int:
    """Seconds that a span means.

    Raises:
        ValueError: it is none.
    """
    match = _SPAN.fullmatch(span)
    if match is None:
        raise ValueError(f"write {SPAN_FORM}")
    return int(match[1]) * _UNITS[match[2]]


def span_text(seconds: int) -> str:
    """The shortest span that means exactly so many seconds."""
    size, unit = next((size, unit) for unit, size in _UNITS.items() if seconds % size == 0)
    return f"{seconds // size}{unit}"
