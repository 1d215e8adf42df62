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
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Literal

from tests.support.mutants.copies import ROOT
from tests.support.mutation.executed import Executed
from tests.support.mutation.forks import Answer
from tests.support.mutation.kinds import Mutation

Outcome = Literal["killed", "survived", "not run", "too long"]
# A test may take so long, and that many times what it takes without a change: what is over it is a loop without end, or
# a wake-up that is missed.
TEST_SECONDS, FACTOR = 8.0, 10.0
# As much of tests as are asked by what they take without a change; the quickest of them are asked first.
BUDGET_SECONDS = 20.0
# Beside them, of those that play the whole for a second each: the quickest would leave them no time.
SEEDS, SEEDS_SECONDS = "tests/support/mutation/seeds.py", 20.0
START_SECONDS = 60.0
# Nobody reads why one failed, and what pytest rewrites for that, hypothesis too, takes half of most trials.
_PYTEST = (sys.executable, "-B", "-m", "pytest", "-q", "--assert=plain", "-p", "no:cacheprovider")
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
    chosen = asked or executed.tests_beside(mutation.path)
    seeds = [test for test in chosen if test.startswith(SEEDS)]
    others = [test for test in chosen if test not in seeds]
    within = _within(others, BUDGET_SECONDS, executed) + _within(seeds, SEEDS_SECONDS, executed)
    return within, bool(asked)


def _within(tests: Sequence[str], seconds: float, executed: Executed) -> list[str]:
    """The first tests of this time, at least one."""
    ends = list(accumulate(executed.seconds.get(test, 0.0) for test in tests))
    return [test for number, test in enumerate(tests) if not number or ends[number] <= seconds]


class Copy:
    """A copy of the code with its tests collected, to be asked of one change after another."""

    def __init__(self, tree: Path, tests: Sequence[str]) -> None:
        """Begins to collect. The copy is nobody else's, and stays as it is between two questions."""
        self.tree = tree
        self._tests = tests
        self._begin()

    def _begin(self) -> None:
        flags = ["-s", "-m", "not engine", "-p", "tests.support.mutation.forks", f"--basetemp={self.tree}/.temp"]
        self._process = subprocess.Popen(
            [*_PYTEST, *flags, *self._tests],
            cwd=self.tree,
            env=_environment(self.tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        _running.add(self._process.pid)
        assert self._process.stdin
        assert self._process.stdout
        self._told, self._answers = self._process.stdin, self._process.stdout
        self._is_ready = False

    def _wait(self) -> None:
        if not self._is_ready and self._answers.readline() != "ready\n":
            raise NotCollected(f"pytest could not collect {' '.join(self._tests)}")
        self._is_ready = True

    def close(self) -> None:
        """Ends it; the copy may go then."""
        _end(self._process.pid)
        self._process.communicate()
        _running.discard(self._process.pid)

    def ask(self, mutation: Mutation, tests: Sequence[str], executed: Executed) -> Outcome:
        """What tests say of a change.

        Raises:
            NotCollected: the tests cannot be collected.
        """
        self._wait()  # it imports the code as it is
        file = self.tree / mutation.path
        whole = file.read_bytes()
        changed = mutation.apply(whole)
        limits = [TEST_SECONDS + FACTOR * executed.seconds.get(test, 0.0) for test in tests]
        # For what is imported only then, and for processes that tests start.
        file.write_bytes(changed)
        try:
            answer = self._answer(
                path=mutation.path,
                before=whole.decode(),
                after=changed.decode(),
                tests=list(zip(tests, limits, strict=True)),
                seconds=_all_seconds(tests, executed),
            )
            return _start(tests, self.tree, executed) if answer == "not in place" else answer
        finally:
            file.write_bytes(whole)
            if self._process.poll() is not None:
                self.close()
                self._begin()

    def _answer(self, **question: object) -> Answer:
        self._told.write(f"{json.dumps(question)}\n")
        self._told.flush()
        if answer := self._answers.readline().strip():
            return answer  # type: ignore[return-value] # the other side has the type
        self.close()  # the change has ended what asks
        return "killed"


class NotCollected(Exception):
    """The tests cannot be collected, so that none can be asked."""


def try_out(mutation: Mutation, copy: Copy, executed: Executed) -> Trial:
    """Puts the change into a copy, asks its tests, and takes it out again."""
    (tests, is_executed), started = chosen_tests(mutation, executed), perf_counter()
    if not tests:
        return Trial(mutation, "not run", 0, 0.0)
    outcome = copy.ask(mutation, tests, executed)
    if not is_executed and outcome == "survived":
        outcome = "not run"
    return Trial(mutation, outcome, len(tests), round(perf_counter() - started, 1))


def _all_seconds(tests: Sequence[str], executed: Executed) -> float:
    took = [executed.seconds.get(test, 0.0) for test in tests]
    return START_SECONDS + FACTOR * (sum(took) + max(took))


def _environment(tree: Path) -> dict[str, str]:
    """Our own; but a change may write anything into the home of whoever has it."""
    return os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}", "HOME": f"{tree}/.home"}


def _start(tests: Sequence[str], tree: Path, executed: Executed) -> Outcome:
    """What tests say that are started anew: of what runs when a module is imported."""
    each = TEST_SECONDS + FACTOR * max(executed.seconds.get(test, 0.0) for test in tests)
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "tests.txt")
        names.write_text("\n".join(tests) + "\n")
        command = [*_PYTEST, "-x", f"--timeout={each}", "--basetemp", f"{folder}/temp", f"@{names}"]
        told = Path(folder, "told.txt")
        code = _run(command, tree, _all_seconds(tests, executed), told)
        gone = set(_NOT_FOUND.findall(told.read_text(errors="replace")))
    if code is None:
        return "too long"
    # A change may give other parameters to some tests; the others are asked all the same.
    if gone and (left := [test for test in tests if not any(name.endswith(test) for name in gone)]) != tests:
        return _start(left, tree, executed) if left else "survived"
    # What cannot be imported any more was noticed, too.
    return "survived" if code == 0 else "killed"


def _run(command: list[str], tree: Path, seconds: float, told: Path) -> int | None:
    """The exit code; None: it took longer. Whatever it started and did not end is ended with it."""
    with (
        told.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=tree,
            env=_environment(tree),
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
