"""The page of faults leaves none out, and names tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS = range(1, 41)
TITLES = "| fault | expected | played by |"


def rows() -> Iterator[tuple[str, str]]:
    """What each row of the table says first and last: which faults, and what plays them."""
    table = (ROOT / "docs/faults.md").read_text().partition(TITLES)[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        fault, _, played_by = line.strip("| ").split(" | ")
        yield fault, played_by


def numbers(fault: str) -> set[int]:
    """Those of ``18 to 23 the engine…`` and of ``37, 38 races…``."""
    if span := re.match(r"(\d+) to (\d+) ", fault):
        return {*range(int(span[1]), int(span[2]) + 1)}
    return {int(one) for one in re.split(", ", re.match(r"\d+(, \d+)*", fault)[0])}


def test_every_fault_is_played_by_tests_that_exist():
    assert set().union(*(numbers(fault) for fault, _ in rows())) == {*FAULTS}
    named = {path for _, played_by in rows() for path in re.findall(r"\w+/[\w/]+\.py|\w+/\w+/(?=,)", played_by)}
    assert len(named) > 30
    assert {path for path in named if not (ROOT / "tests" / path).exists()} == set()
