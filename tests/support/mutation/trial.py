"""One change, put into a copy of the code, and what its tests say of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

from tests.support.mutation.executed import Executed
from tests.support.mutation.kinds import Mutation

Outcome = Literal["killed", "survived", "not run", "too long"]
# So long without a change, and as long again for each second of it: a loop without end, or a wake-up that is missed.
TEST_SECONDS, FACTOR = 20.0, 10.0
# As much of tests as are asked by what they take without a change; the quickest of them are asked first.
BUDGET_SECONDS = 60.0
START_SECONDS = 60.0
_NOT_FOUND = re.compile(r"^ERROR: not found: (.*)$", re.MULTILINE)
_running: set[int] = set()


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one change.

    Attributes:
        mutation: the change.
        outcome: `not run`: no test is seen to execute it; `too long`: not all of its tests were asked in the time.
        tests: how many were asked.
        seconds: how long it took.
    """

    mutation: Mutation
    outcome: Outcome
    tests: int
    seconds: float

    def to_json(self) -> str:
        """One line of the file of results."""
        return json.dumps(asdict(self))


def from_json(line: str) -> Trial:
    """A line of the file of results."""
    fields = json.loads(line)
    return Trial(Mutation(**fields.pop("mutation")), **fields)


def chosen_tests(mutation: Mutation, executed: Executed) -> tuple[list[str], bool]:
    """The tests to be asked, as far as the budget reaches, and whether they are seen to execute it."""
    lines = range(mutation.line, mutation.line + mutation.was.count("\n") + 1)
    asked = executed.tests(mutation.path, lines)
    chosen, spent = list[str](), 0.0
    for test in asked or executed.tests_beside(mutation.path):
        spent += executed.seconds.get(test, 0.0)
        if chosen and spent > BUDGET_SECONDS:
            break
        chosen.append(test)
    return chosen, bool(asked)


def try_out(mutation: Mutation, tree: Path, executed: Executed) -> Trial:
    """Puts the change into a copy that is this trial's alone, asks the tests, and takes it out again."""
    (tests, is_executed), started = chosen_tests(mutation, executed), perf_counter()
    if not tests:
        return Trial(mutation, "not run", 0, 0.0)
    file = tree / mutation.path
    whole = file.read_bytes()
    file.write_bytes(mutation.apply(whole))
    try:
        outcome = _ask(tests, tree, executed)
    finally:
        file.write_bytes(whole)
    if not is_executed and outcome == "survived":
        outcome = "not run"
    return Trial(mutation, outcome, len(tests), round(perf_counter() - started, 1))


def _ask(tests: Sequence[str], tree: Path, executed: Executed) -> Outcome:
    took = [executed.seconds.get(test, 0.0) for test in tests]
    each = TEST_SECONDS + FACTOR * max(took)
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "tests.txt")
        names.write_text("\n".join(tests) + "\n")
        # Nobody reads why one failed, and what pytest rewrites for that, hypothesis too, takes half of most trials.
        flags = ["-q", "-x", "--assert=plain", "-p", "no:cacheprovider", f"--timeout={each}"]
        flags += ["--basetemp", f"{folder}/temp"]
        command = [sys.executable, "-B", "-m", "pytest", *flags, f"@{names}"]
        told = Path(folder, "told.txt")
        code = _run(command, tree, START_SECONDS + FACTOR * sum(took) + each, told)
        gone = set(_NOT_FOUND.findall(told.read_text(errors="replace")))
    if code is None:
        return "too long"
    # A change may give other parameters to some tests; the others are asked all the same.
    if gone and (left := [test for test in tests if not any(name.endswith(test) for name in gone)]) != tests:
        return _ask(left, tree, executed) if left else "survived"
    # What cannot be imported any more was noticed, too.
    return "survived" if code == 0 else "killed"


def _run(command: list[str], tree: Path, seconds: float, told: Path) -> int | None:
    """The exit code; None: it took longer. Whatever it started and did not end is ended with it."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    with (
        told.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        _running.add(process.pid)
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _running.discard(process.pid)
            _end(process.pid)


def _end(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def end_all() -> None:
    """Ends all trials that are under way, with whatever they started."""
    for group in list(_running):
        _end(group)
