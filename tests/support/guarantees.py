"""docs/guarantees-tests.md from the tests' docstrings: the tests that check each guarantee. As a program: writes it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "guarantees.md"
PAGE = TESTS.parent / "docs" / "guarantees-tests.md"
_NUMBER = re.compile(r"\b(?:W[1-9]|R(?:[1-9]|1[0-9]|2[0-6])|X[123]|A[1-6])\b")
_ROW = re.compile(r"^\| ((?:W|R|X|A)\d+ [a-z-]+) \|", re.MULTILINE)
_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


def promised() -> dict[str, str]:
    """The names of the guarantees in the document by number, e.g. ``{"R3": "R3 converge"}``, in its order."""
    return {name.split()[0]: name for name in _ROW.findall(DOCUMENT.read_text())}


@cache
def cited() -> Mapping[str, set[str]]:
    """Files of tests, below ``tests/``, by the number of a guarantee that a docstring in them names."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for docstring in _docstrings(path):
            for number in _NUMBER.findall(docstring):
                found[number].add(path.relative_to(TESTS).as_posix())
    return found


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, _Documented):
            yield ast.get_docstring(node) or ""


def page() -> str:
    """The whole page."""
    tests = cited()
    rows = "\n".join(_row(name, sorted(tests[number])) for number, name in promised().items())
    return f"""# Guarantees and their tests

Made from the tests' docstrings by `make docs`. [Guarantees](guarantees.md) has the promises. Paths are below `tests/`.

| guarantee | files | tests |
|---|---|---|
{rows}
"""


def _row(name: str, paths: list[str]) -> str:
    return f"| {name} | {len(paths)} | {'<br>'.join(paths)} |"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
