"""Which tests check which guarantee, by what their docstrings say. As a program: writes the list in the docs anew."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "guarantees.md"
HEADING = "## Which tests check what\n"
_NUMBER = re.compile(r"\b(?:W[1-9]|R(?:[1-9]|1[0-6])|X1)\b")
_ROW = re.compile(r"^\| ((?:W|R|X)\d+ [a-z-]+) \|", re.MULTILINE)
_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


def promised() -> dict[str, str]:
    """The names of the guarantees in the document by number, e.g. ``{"R3": "R3 converge"}``, in its order."""
    return {name.split()[0]: name for name in _ROW.findall(DOCUMENT.read_text())}


def cited() -> dict[str, set[str]]:
    """Files of tests, below ``tests/``, by the number of a guarantee that a docstring in them names."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for docstring in _docstrings(path):
            for number in _NUMBER.findall(docstring):
                found[number].add(path.relative_to(TESTS).as_posix())
    return found


def listed() -> dict[str, set[str]]:
    """The list as it stands in the document."""
    lines = DOCUMENT.read_text().partition(HEADING)[2].splitlines()
    rows = [line.removeprefix("- ").partition(": ") for line in lines if line.startswith("- ")]
    return {name.split()[0]: set(paths.split(", ")) for name, _, paths in rows}


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, _Documented):
            yield ast.get_docstring(node) or ""


def main() -> None:
    """Writes the list."""
    before, heading, after = DOCUMENT.read_text().partition(HEADING)
    introduction = after.partition("\n- ")[0].rstrip()
    tests = cited()
    rows = [f"- {name}: {', '.join(sorted(tests[number]))}" for number, name in promised().items() if tests[number]]
    DOCUMENT.write_text(f"{before}{heading}{introduction}\n\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
