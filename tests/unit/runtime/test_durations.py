"""Spans of time as people write them, and back."""

from __future__ import annotations

import re

import pytest

from registry.runtime.clock import SPAN_PATTERN, seconds_of, span_text

SPANS = {"90s": 90, "10m": 600, "36h": 129_600, "7d": 604_800, "0s": 0, "999999999d": 86_399_999_913_600}


@pytest.mark.parametrize(("text", "seconds"), SPANS.items())
def test_a_span_means_seconds(text: str, seconds: int):
    assert (seconds_of(text), re.match(SPAN_PATTERN, text) is not None) == (seconds, True)


@pytest.mark.parametrize("text", ["", "10", "m", "-10m", "1.5h", "10 m", "10M", "1w", "1h30m", "1234567890s", "٣m"])
def test_what_is_none_is_refused_with_what_to_write(text: str):
    with pytest.raises(ValueError, match="write a number and s, m, h or d, such as 30m"):
        seconds_of(text)
    assert re.match(SPAN_PATTERN, text) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "90s"), (600, "10m"), (7200, "2h"), (86_400, "1d"), (315_360_000, "3650d")]
)
def test_the_shortest_span_that_is_exact(seconds: int, text: str):
    assert (span_text(seconds), seconds_of(text)) == (text, seconds)
