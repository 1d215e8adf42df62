"""A plugin of pytest that has collected all tests, and asks some of them of one change after another, each in a fork.

It reads questions from its input, a line each, and answers on its output. A start of pytest and all imports take longer
than most tests do: here they are taken once.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import CodeType, FunctionType
from typing import Any, Literal, TextIO

import pytest

Answer = Literal["killed", "survived", "too long", "not in place"]
_OPTIMIZED = 0x1  # inspect.CO_OPTIMIZED: a function, and not the body of a module or class
_POLL_SECONDS = 0.005
_PASSED, _FAILED, _NOT_IN_PLACE = 0, 1, 3  # what a child ends with


def replaced(before: CodeType, after: CodeType) -> dict[CodeType, CodeType] | None:
    """The code of each function of a module, and what it becomes; None: what differs runs when it is imported."""
    found = dict[CodeType, CodeType]()
    return found if _pair(before, after, found) else None


def _pair(before: CodeType, after: CodeType, found: dict[CodeType, CodeType]) -> bool:
    old, new = _inner(before), _inner(after)
    if before.co_flags & _OPTIMIZED:
        found[before] = after
        # What a changed function makes when it is called, it makes of its new code.
        return len(old) != len(new) or all(_pair(one, other, found) for one, other in zip(old, new, strict=True))
    if _steps(before) != _steps(after) or len(old) != len(new):
        return False
    # A comprehension in the body of a module or class is over before anything could be put in its place.
    return all(
        _steps(one) == _steps(other)
        if one.co_name.startswith("<") and one.co_name != "<lambda>"
        else _pair(one, other, found)
        for one, other in zip(old, new, strict=True)
    )


def _inner(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _steps(code: CodeType) -> tuple[object, ...]:
    """What a code does, wherever its lines are; functions that it makes count by their names."""
    constants = tuple(one.co_name if isinstance(one, CodeType) else (type(one), one) for one in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


class Functions:
    """Every function that is there, by its code."""

    def __init__(self, root: str) -> None:
        """Looks for those of files below a folder."""
        self._found: defaultdict[CodeType, list[FunctionType]] = defaultdict(list)
        self._files = set[str]()
        gc.unfreeze()  # what is frozen is not among all objects
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(root):
                self._found[one.__code__].append(one)
                self._files.add(one.__code__.co_filename)

    def put(self, path: str, before: str, after: str) -> bool:
        """Gives the functions of a file the code of another text of it; whether that is all of the difference."""
        if path not in self._files:
            return True  # not imported yet: whoever does it reads the file
        codes = replaced(*(compile(text, path, "exec", dont_inherit=True) for text in (before, after)))
        if codes is None:
            return False
        is_there = False
        for old, new in codes.items():
            for function in self._found.get(old, ()):
                try:
                    function.__code__ = new
                except ValueError:  # another number of variables of the functions around it
                    return False
                is_there = is_there or _steps(old) != _steps(new) or _inner(old) != _inner(new)
        return is_there


def pytest_configure(config: pytest.Config) -> None:
    """Nobody reads what is written while tests are collected and asked: the output is for answers."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    config.pluginmanager.register(Forks(answers), "mutation-forks")


class Forks:
    """Answers instead of running what was collected, until the input ends."""

    def __init__(self, answers: TextIO) -> None:
        """Begins when all is collected."""
        self._answers = answers

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Says that it is ready, and reads questions."""
        if session.testsfailed:
            return True  # not all can be collected
        items = {item.nodeid: item for item in session.items}
        functions = Functions(f"{Path.cwd()}/")
        gc.collect()
        gc.freeze()  # a child copies no more of memory than it changes
        self._answers.write("ready\n")
        for line in sys.stdin:
            self._answers.write(f"{_answered(json.loads(line), items, functions)}\n")
        return True


def _answered(question: dict[str, Any], items: Mapping[str, pytest.Item], functions: Functions) -> Answer:
    if not (child := os.fork()):
        code = _FAILED
        try:
            os.setsid()
            # Ends what loops for ever also where whoever waits for it has been killed.
            most = int(question["seconds"]) + 2
            resource.setrlimit(resource.RLIMIT_CPU, (most, most))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = _ask(question, items, functions)
        finally:
            os._exit(code)
    until, pid, status = monotonic() + question["seconds"], 0, 0
    while not pid and monotonic() < until:
        sleep(_POLL_SECONDS)
        pid, status = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with whatever it started and did not end
    if not pid:
        os.waitpid(child, 0)
        return "too long"
    code = os.waitstatus_to_exitcode(status)
    return "survived" if code == _PASSED else "not in place" if code == _NOT_IN_PLACE else "killed"


def _ask(question: dict[str, Any], items: Mapping[str, pytest.Item], functions: Functions) -> int:
    """What a child ends with. Asks one test after another, until one fails."""
    if not functions.put(str(Path(question["path"]).absolute()), question["before"], question["after"]):
        return _NOT_IN_PLACE
    asked = [(items[test], limit) for test, limit in question["tests"] if test in items]
    reports = Reports()
    for item, _ in asked[:1]:
        item.config.pluginmanager.register(reports, "mutation-reports")
    for number, (item, limit) in enumerate(asked):
        item.add_marker(pytest.mark.timeout(limit), append=False)
        following = asked[number + 1][0] if number + 1 < len(asked) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if reports.is_failed:
            return _FAILED
    return _PASSED


class Reports:
    """Whether any test failed."""

    is_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one test has ended."""
        self.is_failed = self.is_failed or report.failed
