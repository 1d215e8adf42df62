"""Which tests execute a line: their coverage, each in a context of its own, kept until a file changes."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from coverage import CoverageData

_PRODUCT = ("loraplane", "registry", "sidecar")
# They look at all of the tree, as a checkout: a change of a line is none of theirs.
_LEFT_OUT = (
    "tests/unit/test_house.py",
    "tests/unit/test_mutants.py",
    "tests/unit/test_mutation.py",
    "tests/integration/release",
)
# What plays in other processes has no context: coverage of a line there would be nobody's.
_ARGUMENTS = (
    "-q",
    "-p",
    "no:cacheprovider",
    "-m",
    "not engine",
    "--cov-context=test",
    "--cov-report=",
    "--durations=0",
    "-p",
    "tests.support.mutation.executed",
)
# What runs outside of all tests, as the head of a module does when it is imported.
_IMPORT = ""
Line = tuple[str, int]


class NotMeasured(Exception):
    """The tests do not pass as they are, so that nothing can be said of any change."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What was measured.

    Attributes:
        lines: of each file, the tests that executed each line.
        seconds: how long each test took under coverage, without what it waited for a processor.
        importers: of each file, those that import it or something of it.
        readers: of each line of each file that runs at the import, the lines that read what it binds.
    """

    lines: dict[str, dict[int, frozenset[str]]]
    seconds: dict[str, float]
    importers: dict[str, list[str]] = field(default_factory=dict)
    readers: dict[str, dict[int, list[Line]]] = field(default_factory=dict)

    def tests(self, path: str, lines: Iterable[int]) -> list[str]:
        """The tests to be asked, the quickest first.

        Of what runs at the import: first those that execute a line which reads it, then all that execute anything of
        the file, or of one that imports it.
        """
        asked = [(path, line) for line in lines]
        of_file, first = self.lines.get(path, {}), self._tests_of(asked)
        found = first
        if _IMPORT in found or any(line in self.readers.get(path, {}) for _, line in asked):
            first |= self._tests_of(self._read_by(asked))
            files = (of_file, *(self.lines.get(one, {}) for one in self.importers.get(path, ())))
            found = first.union(*(tests for of_one in files for tests in of_one.values()))
        return sorted(found - {_IMPORT}, key=lambda test: (test not in first, self.seconds.get(test, 0.0), test))

    def _tests_of(self, lines: Iterable[Line]) -> frozenset[str]:
        return frozenset[str]().union(*(self.lines.get(path, {}).get(line, frozenset()) for path, line in lines))

    def _read_by(self, lines: Iterable[Line]) -> set[Line]:
        """The lines that read what these bind; what reads it at the import binds something that others read."""
        found, left = set[Line](), [*lines]
        while left:
            path, line = left.pop()
            news = set(self.readers.get(path, {}).get(line, ())) - found
            found |= news
            left += news
        return found

    def tests_beside(self, path: str) -> list[str]:
        """The tests that play processes of the file's folders, the quickest first: what they execute is not seen."""
        folders = set(path.split("/")[:-1])
        names = {f"tests/{kind}/{folder}/" for kind in ("contract", "integration") for folder in folders}
        found = [test for test in self.seconds if any(test.startswith(name) for name in names)]
        return sorted(found, key=lambda test: (self.seconds[test], test))


def product_files(root: Path) -> list[str]:
    """The files that can be mutated; what is generated is not ours."""
    return [name for name in _code(root, _PRODUCT) if "/v1/" not in name and not name.endswith("_pb2.py")]


def _code(root: Path, folders: Iterable[str]) -> list[str]:
    return sorted(str(path.relative_to(root)) for folder in folders for path in (root / folder).rglob("*.py"))


def state_of(root: Path) -> str:
    """A digest of all code and tests: another one makes what was measured worthless."""
    made = hashlib.sha256()
    for name in [*_code(root, (*_PRODUCT, "tests")), "pyproject.toml"]:
        made.update(name.encode() + b"\0" + hashlib.sha256((root / name).read_bytes()).digest())
    return made.hexdigest()[:16]


def state_with(root: Path, tests: Sequence[str]) -> str:
    """`state_of`, and a digest of which tests are run."""
    return f"{state_of(root)}-{hashlib.sha256(chr(0).join(tests).encode()).hexdigest()[:8]}"


def executed(root: Path, tests: Sequence[str], cache: Path, workers: int) -> Executed:
    """Measures the tests of a copy of the code, so many at once, or reads what was measured of the same.

    Raises:
        NotMeasured: a test failed.
    """
    kept = cache / f"executed-{state_with(root, tests)}.json"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        made = _measure(root, tests, cache, workers)
        temporary = kept.with_suffix(".tmp")
        temporary.write_text(json.dumps(made))
        temporary.rename(kept)
    return _parsed(json.loads(kept.read_text()))


def _measure(root: Path, tests: Sequence[str], cache: Path, workers: int) -> dict[str, object]:
    data, log = cache.resolve() / ".coverage", cache.resolve() / "durations.txt"
    command = [sys.executable, "-m", "pytest", *_ARGUMENTS, f"--numprocesses={workers}", "--dist=loadfile", "--cov"]
    command += [*(f"--ignore={path}" for path in _LEFT_OUT), *tests]
    environment = os.environ | {"PYTHONPATH": str(root), "COVERAGE_FILE": str(data)}
    with log.open("w") as told:
        done = subprocess.run(command, cwd=root, env=environment, stdout=told, stderr=subprocess.STDOUT, check=False)
    # What it says of coverage that is too low is none of our business: fail_under has an exit code of failures, too.
    if done.returncode and any(word in log.read_text()[-2000:] for word in (" failed", "INTERNALERROR")):
        raise NotMeasured(f"tests fail without any change, mend that first: {log}")
    found = CoverageData(basename=str(data))
    found.read()
    ids = dict[str, int]()
    lines = {path: _of_file(found, str(root / path), ids) for path in product_files(root)}
    data.unlink()
    seconds = _durations(log.read_text())
    return {
        "tests": list(ids),
        "lines": lines,
        "seconds": seconds,
        "importers": importers(root),
        "readers": readers(root),
    }


_waited_seconds = 0.0
_read_at = os.pread  # a test may have replaced it when it is asked


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Takes off what the phase of a test waited for a processor: what else the machine does is no time of a test."""
    global _waited_seconds
    report = yield
    before, _waited_seconds = _waited_seconds, _waited_for_processor()
    report.duration = max(0.0, report.duration - (_waited_seconds - before))
    return report


def _waited_for_processor() -> float:
    """Seconds for which this process could have run since its start, and did not."""
    return int(_read_at(_schedule(), 100, 0).split()[1]) / 1e9


@cache
def _schedule() -> int:
    return os.open("/proc/self/schedstat", os.O_RDONLY)


def importers(root: Path) -> dict[str, list[str]]:
    """Of each file of the product, those that import it or something of it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in product_files(root):
        for node in ast.walk(ast.parse((root / path).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{name}" for name in names)]
            for name in names:
                found[f"{name.replace('.', '/')}.py"].append(path)
    return {path: sorted(set(found[path])) for path in product_files(root) if path in found}


def readers(root: Path) -> dict[str, dict[int, list[Line]]]:
    """Of each line of the product that binds something at the import, the lines that read it.

    They are looked for in its file, and in those that import it.
    """
    importing, found = importers(root), dict[str, dict[int, list[Line]]]()
    trees = {path: ast.parse((root / path).read_text()) for path in product_files(root)}
    reads = {path: _reads(tree.body) for path, tree in trees.items()}
    for path, tree in trees.items():
        of_file: defaultdict[int, set[Line]] = defaultdict(set)
        for node, names, body in _bound(tree.body, is_module=True):
            places = [(path, _reads(body))] if body else [(one, reads[one]) for one in {path, *importing.get(path, ())}]
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                of_file[line].update((one, at) for one, read in places for name in names for at in read.get(name, ()))
        found[path] = {line: sorted(read) for line, read in of_file.items()}
    return found


def _bound(
    statements: Iterable[ast.stmt], *, is_module: bool
) -> Iterator[tuple[ast.stmt | ast.expr, set[str], Sequence[ast.stmt]]]:
    """What is bound at the import, the names by which it is read, and where they are read; empty: everywhere."""
    for one in statements:
        if isinstance(one, ast.ClassDef):
            yield from _bound(one.body, is_module=False)
        elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            of_call = [*one.args.posonlyargs, *one.args.args]
            defaults = [*one.args.kw_defaults, *reversed(one.args.defaults)]
            for argument, default in zip([*one.args.kwonlyargs, *reversed(of_call)], defaults, strict=False):
                if default is not None:
                    yield default, {argument.arg}, one.body
        elif isinstance(one, ast.Assign | ast.AnnAssign):
            stored = {at.id for at in ast.walk(one) if isinstance(at, ast.Name) and isinstance(at.ctx, ast.Store)}
            yield one, {f".{name}" for name in stored} | (stored if is_module else set()), ()


def _reads(statements: Iterable[ast.stmt]) -> dict[str, set[int]]:
    """The lines that read each name, and each attribute with a dot before it."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for node in (node for one in statements for node in ast.walk(one)):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            found[node.id if isinstance(node, ast.Name) else f".{node.attr}"].add(node.end_lineno or node.lineno)
    return dict(found)


def _of_file(data: CoverageData, file: str, ids: dict[str, int]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for line, contexts in data.contexts_by_lineno(file).items():
        for test in {context.rpartition("|")[0] for context in contexts}:
            found[str(line)].append(ids.setdefault(test, len(ids)))
    return found


def _durations(told: str) -> dict[str, float]:
    """Seconds of each test, all its phases together, from what --durations=0 prints."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for line in told.splitlines():
        took, _, rest = line.strip().partition("s ")
        phase, _, test = rest.partition(" ")
        if phase in {"call", "setup", "teardown"}:
            seconds[test.strip()] += float(took)
    return dict(seconds)


def _parsed(kept: dict[str, object]) -> Executed:
    tests: list[str] = kept["tests"]  # type: ignore[assignment]
    lines: dict[str, dict[str, list[int]]] = kept["lines"]  # type: ignore[assignment]
    return Executed(
        {
            path: {int(line): frozenset(tests[number] for number in numbers) for line, numbers in of_file.items()}
            for path, of_file in lines.items()
        },
        kept["seconds"],  # type: ignore[arg-type]
        kept["importers"],  # type: ignore[arg-type]
        {
            path: {int(line): [(file, at) for file, at in read] for line, read in of_file.items()}
            for path, of_file in kept["readers"].items()  # type: ignore[attr-defined]
        },
    )
