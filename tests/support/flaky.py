"""Tests that fail by chance: `.ci/run` goes on after one, and `make flaky` looks for them.

As a plugin of pytest (``-p tests.support.flaky --failures=FILE``, one word: a worker of pytest-xdist would look for its
settings beside a file that stands by itself) it writes down what failed, a line each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import pytest

from tests.support.processes import child

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / "tests" / "flaky.toml"
LOGS = ROOT / "build" / "flaky"
_PYTEST = (sys.executable, "-m", "pytest", "-p", "tests.support.flaky")
# What a test that failed has not executed is measured now; else its pure room would lack it.
_ALONE = ("--cov", "--cov-pure", "--cov-append", "--cov-report=")
_PHASES = {"setup", "call", "teardown"}  # a test of a worker that crashed has none of them
_TESTS_FAILED = 1  # pytest's exit code
_END_SECONDS = 60.0
_SHOWN_LINES = 15
_SHOWN_TESTS = 20
# A busy loop is gone soon after whoever started it, however that ended.
_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file."""
    parser.addoption("--failures", type=Path, help="where to write what fails")


def pytest_configure(config: pytest.Config) -> None:
    """Workers tell their master."""
    if (file := config.getoption("--failures")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(file), "failures")


class Failures:
    """Writes what fails as it happens: a run may come to no end."""

    def __init__(self, file: Path) -> None:
        """Begins anew."""
        self._file = file
        file.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test, or a worker with it."""
        if report.failed:
            self._write(
                test=report.nodeid if report.when in _PHASES else "", what=report.nodeid, why=report.longreprtext
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported."""
        if report.failed:
            self._write(test="", what=report.nodeid, why=report.longreprtext)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """The end, which tells of internal errors, too."""
        self._write(exit=int(exitstatus))

    def _write(self, **line: object) -> None:
        with self._file.open("a") as file:
            file.write(f"{json.dumps(line)}\n")


@dataclass(frozen=True, slots=True)
class Played:
    """What a run of pytest left: tests that failed, other things that did, why each, and its exit code; None: none."""

    tests: tuple[str, ...]
    others: tuple[str, ...]
    why: Mapping[str, str]
    code: int | None


def read(file: Path) -> Played:
    """What failed in a run that may never have begun."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    failed = [line for line in lines if "what" in line]
    tests = dict.fromkeys(line["test"] for line in failed if line["test"])
    others = tuple(line["what"] for line in failed if not line["test"])
    why = {line["what"]: line["why"] for line in reversed(failed)}
    return Played(tuple(tests), others, why, next((line["exit"] for line in lines if "exit" in line), None))


class Failed(Exception):
    """What failed did not fail by chance."""


def once_more(
    first: Sequence[str], alone: Sequence[str], record: Path, known: Mapping[str, str], root: Path = ROOT
) -> tuple[str, ...]:
    """Runs all tests, and what failed twice again, each alone; which tests fail by chance.

    Args:
        first: the command that runs all and writes the record.
        alone: the command to which the name of a test is added.
        record: where the first writes what fails.
        known: tests that are known to fail by chance; of others one may.
        root: where both run.

    Raises:
        Failed: more than that has failed.
    """
    if not subprocess.run(first, cwd=root, check=False).returncode:
        return ()
    played = read(record)
    if played.code != _TESTS_FAILED or played.others or not played.tests:
        raise Failed(f"not a test alone has failed: {', '.join(played.others) or 'see above'}")
    if len(unknown := [test for test in played.tests if test not in known]) > 1:
        shown = ", ".join(unknown[:_SHOWN_TESTS])
        raise Failed(f"{len(unknown)} tests have failed; no more than one may fail by chance: {shown}")
    for test in played.tests * 2:
        if subprocess.run([*alone, test], cwd=root, check=False).returncode:
            raise Failed(f"{test} fails again, alone")
    return played.tests


def _once_more(told: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "failures")
        try:
            flaky = once_more(
                ["make", "test", f"FAILURES={record}"], [*_PYTEST, *_ALONE], record, tomllib.loads(KNOWN.read_text())
            )
        except Failed as error:
            sys.exit(f"\n{error}")
    told.write_text(
        "".join(f"\n!! FLAKY: {test} failed, and passed twice alone. Mend it: make flaky\n" for test in flaky)
    )


@contextmanager
def busy_loops(count: int) -> Iterator[list[int]]:
    """So many loops that want a core each; their process ids."""
    with ExitStack() as stack:
        yield [stack.enter_context(child([sys.executable, "-S", "-c", _LOOP])).pid for _ in range(count)]


def hunt(
    command: Sequence[str], times: int, loops: int, seconds: float, logs: Path, root: Path = ROOT
) -> Iterator[Played]:
    """Runs pytest so often beside busy loops, until the time is up; what failed each time, its output in `logs`."""
    logs.mkdir(parents=True, exist_ok=True)
    until = monotonic() + seconds
    with busy_loops(loops):
        for number in range(1, times + 1):
            if (left := until - monotonic()) > 0:
                record = logs / f"{number}.failures"
                code = _run([*command, f"--failures={record}"], logs / f"{number}.txt", left, root)
                yield replace(read(record), code=code)


def _run(command: Sequence[str], log: Path, seconds: float, root: Path) -> int | None:
    """The exit code; None: the time was up, and it was interrupted, so that it ends what it started."""
    with (
        log.open("wb") as output,
        child(command, cwd=root, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def told(runs: Sequence[Played], logs: Path) -> str:
    """What ever failed, how often, in which log, and the end of what it said: seeds stand there."""
    # What ends with the time, as a worker does, is no failure.
    failed = Counter(what for run in runs for what in (*run.tests, *(run.others if run.code is not None else ())))
    parts = []
    for what, times in failed.most_common():
        number, run = next((number, run) for number, run in enumerate(runs, 1) if what in run.why)
        lines = run.why[what].splitlines()[-_SHOWN_LINES:]
        parts.append("\n    ".join([f"failed {times} of {len(runs)} times: {what} ({logs / f'{number}.txt'})", *lines]))
    for number, run in enumerate(runs, 1):
        if not run.tests and not run.others and run.code:
            parts.append(f"ended with {run.code}: {logs / f'{number}.txt'}")
    return "\n\n".join(parts)


def _hunt(asked: argparse.Namespace) -> None:
    files = asked.only.split(",") if asked.only else ["tests"]
    workers = min(asked.workers, len(files)) if asked.only else asked.workers
    spread = (f"--numprocesses={workers}", "--dist=loadfile", "--no-loadscope-reorder")
    runs: list[Played] = []
    for run in hunt([*_PYTEST, *spread, *files], asked.times, asked.loops, asked.seconds, LOGS):
        runs.append(run)
        sys.stdout.write(f"{len(runs)} of {asked.times}: {len(run.tests) + len(run.others)} failed\n")
        sys.stdout.flush()
    failed = told(runs, LOGS)
    if len(runs) < asked.times or runs[-1].code is None:
        sys.stdout.write(f"the time was up in run {len(runs)} of {asked.times}\n")
    sys.exit(f"\n{failed}" if failed else 0)


def main() -> None:
    """The commands."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.flaky")
    commands = parser.add_subparsers(required=True)
    again = commands.add_parser("once-more", help="make test, and what failed once more")
    again.add_argument("told", type=Path, help="where to write which tests fail by chance")
    again.set_defaults(run=lambda asked: _once_more(asked.told))
    hunting = commands.add_parser("hunt", help="what fails by chance beside busy loops")
    hunting.add_argument("--only", default="", help="files, with commas between them; else all")
    hunting.add_argument("--times", type=int, default=20, help="how often each file is run")
    hunting.add_argument("--loops", type=int, default=16, help="how many busy loops run beside them")
    hunting.add_argument("--seconds", type=float, default=8 * 3600.0, help="it ends after this time")
    hunting.add_argument("--workers", type=int, default=4, help="how many files are run at once")
    hunting.set_defaults(run=_hunt)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
