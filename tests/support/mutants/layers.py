"""The layers of tests, the cheapest first, and what a run of one came to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SEEDS = 24
# A bug may make tests wait for ever: each has so long, and a whole layer.
TEST_SECONDS = 120
LAYER_SECONDS = 420
_FAILED = 1
# Of the installation, the local stack, and this program itself; none of them can notice a bug in what is served.
_LEFT_OUT = tuple(
    f"--ignore=tests/unit/{path}" for path in ("engines/test_engine_env.py", "devstack", "test_mutants.py")
)
_ROOMS_OF_SIDECAR = ("artifacts", "desired", "engines", "loop", "plan", "report", "resolver", "sidecar", "vllm_plugin")
_running: set[int] = set()  # groups of processes


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
    return ("-m", "pytest", *quiet, *_LEFT_OUT, *arguments)


UNIT = Layer("unit", _pytest("tests/unit"))
# No other unit test can notice what is wrong in the sidecar: import contracts say that the registry never imports it.
UNIT_OF_SIDECAR = Layer("unit", _pytest(*(f"tests/unit/{room}" for room in _ROOMS_OF_SIDECAR)))
PROPERTIES = Layer("properties", _pytest("tests/properties"))
SIMULATION = Layer("simulation", ("-m", "tests.support.mutants.seeds", str(SEEDS)), is_pytest=False)
CHEAP = (UNIT, PROPERTIES, SIMULATION)


def cheap_layers(tree: Path, touched: Sequence[str]) -> list[Layer]:
    """The layers that each deliberate bug goes through.

    First come the unit tests in folders that are named as the code's own are: most often one of them fails, and soon.
    """
    names = dict.fromkeys(part for path in touched for part in Path(path).parent.parts)
    folders = [f"tests/unit/{name}" for name in names if (tree / "tests" / "unit" / name).is_dir()]
    near = [Layer("unit", _pytest(*folders))] if folders else []
    is_of_sidecar = all(path.startswith("sidecar/") for path in touched)
    return [*near, UNIT_OF_SIDECAR if is_of_sidecar else UNIT, PROPERTIES, SIMULATION]


def named_layers(tests: Iterable[str]) -> list[Layer]:
    """A layer for each file of slow tests; it is called as the folder below ``tests`` that the file is in."""
    return [Layer(test.split("/")[1], _pytest(test)) for test in tests]


def run_twice(layer: Layer, tree: Path) -> Verdict:
    """As `run_layer`, but what failed has to fail again: a test that fails now and then has caught nothing."""
    verdict = run_layer(layer, tree)
    if verdict.failed is None or not layer.is_pytest:
        return verdict
    file = "tests/" + verdict.failed.partition("::")[0].replace(".", "/") + ".py"
    return run_layer(Layer(layer.name, _pytest(file)), tree)


def run_layer(layer: Layer, tree: Path) -> Verdict:
    """Runs a layer on a copy of the code."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        flags = [f"--junitxml={report}", "--basetemp", str(Path(folder, "basetemp"))] if layer.is_pytest else []
        command = [sys.executable, *layer.arguments, *flags]
        # The copy comes before the checkout that the environment was installed from, in children too.
        environment = os.environ | {"PYTHONPATH": str(tree)}
        try:
            code, said = _run(command, tree, environment)
        except subprocess.TimeoutExpired:
            return Verdict(broken=f"{layer.name} took more than {LAYER_SECONDS} s")
        if code == 0:
            return Verdict()
        failed = _first_failure(report) if layer.is_pytest else said.strip().rpartition("\n")[2]
        return (
            Verdict(failed) if code == _FAILED and failed else Verdict(broken=f"{layer.name}: {code}, {said[-2000:]}")
        )


def _run(command: list[str], tree: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output. Whatever the program started and did not end is ended with it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        _running.add(process.pid)
        try:
            said, _ = process.communicate(timeout=LAYER_SECONDS)
        finally:
            _running.discard(process.pid)
            _end(process.pid)
    return process.returncode, said


def _end(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def end_all() -> None:
    """Ends all runs that are under way, with whatever they started."""
    for group in list(_running):
        _end(group)


def _first_failure(report: Path) -> str:
    """The first test of a report that did not pass."""
    cases = ET.parse(report).getroot().iter("testcase") if report.exists() else ()  # noqa: S314 - written by our pytest
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            return f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
    return ""
