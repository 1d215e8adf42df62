"""The layers of tests, the cheapest first, and what a run of one came to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SEEDS = 24
# A bug may make tests wait for ever: each has so long, and a whole layer.
TEST_SECONDS = 60
LAYER_SECONDS = 420
_FAILED = 1


@dataclass(frozen=True, slots=True)
class Layer:
    """A run of tests: arguments of Python, and whether pytest writes of it."""

    name: str
    arguments: tuple[str, ...]
    is_pytest: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a run. `failed` is the first test that failed; None: none did. `broken`: it could not be run."""

    failed: str | None = None
    broken: str = ""


def _pytest(*arguments: str) -> tuple[str, ...]:
    quiet = ("-q", "-x", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}")
    return ("-m", "pytest", *quiet, *arguments)


UNIT = Layer("unit", _pytest("tests/unit", "--ignore=tests/unit/dev", "--ignore=tests/unit/test_mutants.py"))
PROPERTIES = Layer("properties", _pytest("tests/properties"))
SIMULATION = Layer("simulation", ("-m", "tests.support.mutants.seeds", str(SEEDS)), is_pytest=False)
CHEAP = (UNIT, PROPERTIES, SIMULATION)


def near_layers(tree: Path, touched: Iterable[str]) -> list[Layer]:
    """The unit tests that lie in folders named as the code's own are: most often one of them fails, and soon."""
    names = dict.fromkeys(part for path in touched for part in Path(path).parent.parts)
    folders = [f"tests/unit/{name}" for name in names if (tree / "tests" / "unit" / name).is_dir()]
    return [Layer("unit", _pytest(*folders))] if folders else []


def named_layers(tests: Iterable[str]) -> list[Layer]:
    """A layer for each file of slow tests; it is called as the folder below ``tests`` that the file is in."""
    return [Layer(test.split("/")[1], _pytest(test)) for test in tests]


def run_layer(layer: Layer, tree: Path) -> Verdict:
    """Runs a layer on a copy of the code."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        flags = [f"--junitxml={report}", "--basetemp", str(Path(folder, "basetemp"))] if layer.is_pytest else []
        command = [sys.executable, *layer.arguments, *flags]
        # The copy comes before the checkout that the environment was installed from, in children too.
        environment = os.environ | {"PYTHONPATH": str(tree)}
        try:
            done = subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LAYER_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Verdict(broken=f"{layer.name} took more than {LAYER_SECONDS} s")
        if done.returncode == 0:
            return Verdict()
        failed = _first_failure(report) if layer.is_pytest else done.stderr.strip().rpartition("\n")[2]
        if done.returncode == _FAILED and failed:
            return Verdict(failed)
        return Verdict(broken=f"{layer.name} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def _first_failure(report: Path) -> str:
    """The first test of a report that did not pass."""
    cases = ET.parse(report).getroot().iter("testcase") if report.exists() else ()  # noqa: S314 - written by our pytest
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            return f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
    return ""
