"""Which tests execute a line: their coverage, each in a context of its own, kept until a file changes."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coverage import CoverageData

_PRODUCT = ("loraplane", "registry", "sidecar")
# They look at all of the tree, as a checkout: a change of a line is none of theirs.
_LEFT_OUT = ("tests/unit/test_house.py", "tests/unit/test_mutants.py", "tests/unit/test_mutation.py")
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
)
# What runs outside of all tests, as the head of a module does when it is imported.
_IMPORT = ""


class NotMeasured(Exception):
    """The tests do not pass as they are, so that nothing can be said of any change."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What was measured.

    Attributes:
        lines: of each file, the tests that executed each line.
        seconds: how long each test took under coverage.
        importers: of each file, those that import it or something of it.
    """

    lines: dict[str, dict[int, frozenset[str]]]
    seconds: dict[str, float]
    importers: dict[str, list[str]] = field(default_factory=dict)

    def tests(self, path: str, lines: Iterable[int]) -> list[str]:
        """The tests to be asked, the quickest first.

        Of what runs at the import: all that execute anything of the file, or of one that imports it.
        """
        of_file = self.lines.get(path, {})
        found = frozenset[str]().union(*(of_file.get(line, frozenset()) for line in lines))
        if _IMPORT in found:
            files = (of_file, *(self.lines.get(one, {}) for one in self.importers.get(path, ())))
            found = frozenset[str]().union(*(tests for of_one in files for tests in of_one.values()))
        return sorted(found - {_IMPORT}, key=lambda test: (self.seconds.get(test, 0.0), test))

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
    return _read(json.loads(kept.read_text()))


def _measure(root: Path, tests: Sequence[str], cache: Path, workers: int) -> dict[str, object]:
    data, log = cache.resolve() / ".coverage", cache.resolve() / "durations.txt"
    command = [sys.executable, "-m", "pytest", *_ARGUMENTS, f"--numprocesses={workers}", "--dist=loadfile", "--cov"]
    command += [*(f"--ignore={path}" for path in _LEFT_OUT), *tests]
    environment = os.environ | {"PYTHONPATH": str(root), "COVERAGE_FILE": str(data)}
    with log.open("w") as told:
        done = subprocess.run(command, cwd=root, env=environment, stdout=told, stderr=subprocess.STDOUT, check=False)
    # What it says of coverage that is too low is none of our business: fail_under has an exit code of failures, too.
    if done.returncode and " failed" in log.read_text()[-2000:]:
        raise NotMeasured(f"tests fail without any change, mend that first: {log}")
    found = CoverageData(basename=str(data))
    found.read()
    ids = dict[str, int]()
    lines = {path: _of_file(found, str(root / path), ids) for path in product_files(root)}
    data.unlink()
    seconds = _durations(log.read_text())
    return {"tests": list(ids), "lines": lines, "seconds": seconds, "importers": importers(root)}


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


def _read(kept: dict[str, object]) -> Executed:
    tests: list[str] = kept["tests"]  # type: ignore[assignment]
    lines: dict[str, dict[str, list[int]]] = kept["lines"]  # type: ignore[assignment]
    return Executed(
        {
            path: {int(line): frozenset(tests[number] for number in numbers) for line, numbers in of_file.items()}
            for path, of_file in lines.items()
        },
        kept["seconds"],  # type: ignore[arg-type]
        kept["importers"],  # type: ignore[arg-type]
    )
