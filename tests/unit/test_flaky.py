"""Tests that fail by chance: which failures let a run of everything go on, and what is found beside busy loops."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.flaky import Failed, Played, busy_loops, hunt, once_more, read, told

ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.flaky"]
COVERED = ("-p", "pytest_cov", "--cov=product", "--cov-fail-under=100")
# Each fails at its first so many runs.
SUITE = """
import os, pathlib, pytest, time, product

def fails(name, times):
    file = pathlib.Path(__file__).with_name(name)
    count = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(count))
    return count <= times

@pytest.mark.parametrize("name", NAMES)
def test_it(name):
    if name == "crashes":
        os._exit(9)
    if name == "hangs":
        time.sleep(600)
    assert not fails(name, {"once": 1, "other": 1, "known": 1, "twice": 2, "thrice": 3}.get(name, 0)), "seed 7"
    product.work(name)

@pytest.fixture
def part():
    yield
    assert not fails("part", 1)
"""
ONCE, KNOWN = "test_made_up.py::test_it[once]", "test_made_up.py::test_it[known]"


@pytest.fixture
def suite(tmp_path, monkeypatch) -> Callable[..., list[str]]:
    """Makes a suite; how it is run, and writes what fails."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COVERAGE_FILE", str(tmp_path / ".coverage"))  # not that of who measures these tests
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "product.py").write_text("def work(name):\n    if name == 'once':\n        return 1\n    return 2\n")

    def make(*names: str, more: str = "", flags: tuple[str, ...] = ()) -> list[str]:
        (tmp_path / "test_made_up.py").write_text(f"NAMES = {names}\n{SUITE}\n{more}\n")
        return [*PYTEST, *flags]

    return make


@pytest.fixture
def played(tmp_path, suite) -> Callable[..., tuple[str, ...]]:
    """Plays a made-up suite as `.ci/run` plays ours; which of its tests fail by chance."""

    def play(*names: str, **options: object) -> tuple[str, ...]:
        record, command = tmp_path / "failures", suite(*names, **options)
        alone = [*command, "--cov-append"] if command[-len(COVERED) :] == [*COVERED] else PYTEST
        return once_more([*command, f"--failures={record}"], alone, record, {KNOWN: "why"}, tmp_path)

    return play


def test_what_failed_once_by_chance_is_named(played):
    assert played("passes") == ()
    assert played("passes", more="def test_part(part): pass") == ("test_made_up.py::test_part",), "at its end"
    assert sorted(played("once", "known", flags=("-p", "xdist", "-n2"))) == [KNOWN, ONCE]


def test_what_a_test_did_not_execute_when_it_failed_is_executed_alone(played):
    assert played("passes", "once", flags=COVERED) == (ONCE,)


@pytest.mark.parametrize(
    ("names", "options", "why"),
    [
        (("thrice",), {}, r"test_it\[thrice\] fails again, alone"),
        (("once", "other"), {}, "2 tests have failed; no more than one"),
        (("crashes",), {"flags": ("-p", "xdist", "-n1")}, r"not a test alone has failed: .*::test_it\[crash"),
        (("once",), {"more": "import nothing"}, "not a test alone has failed: test_made_up.py"),
        (("once",), {"flags": ("--no-such-flag",)}, "not a test alone has failed: see above"),
        (("passes",), {"flags": COVERED}, "not a test alone has failed: see above"),
    ],
    ids=["always", "two", "a worker crashes", "collection", "never begun", "coverage"],
)
def test_what_is_no_chance_fails_the_run(played, names, options, why):
    with pytest.raises(Failed, match=why):
        played(*names, **options)


def test_workers_of_make_test_follow_the_settings(suite, tmp_path, tmp_path_factory):
    """They look for them beside any file of the command line that exists: the record would be one."""
    command = suite("passes", more="def check_it():\n    assert not fails('check', 1)")
    (tmp_path / "pytest.ini").write_text("[pytest]\npython_functions = check_*\n")
    record = tmp_path_factory.mktemp("elsewhere") / "failures"
    target = subprocess.run(
        ["make", "--dry-run", "test", f"FAILURES={record}"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    asked = target.stdout.partition("-p tests.support.flaky ")[2].splitlines()[0].split()
    played = subprocess.run(
        [*command, "-p", "xdist", "-n1", *asked], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert read(record).tests == ("test_made_up.py::check_it",), played.stdout


def test_what_ever_fails_is_found_and_told(suite, tmp_path):
    runs = list(hunt(suite("passes", "twice"), 3, 0, 600, tmp_path / "logs", tmp_path))
    assert [run.tests for run in runs] == [("test_made_up.py::test_it[twice]",)] * 2 + [()]
    text = told(runs, tmp_path / "logs")
    assert text.startswith(f"failed 2 of 3 times: test_made_up.py::test_it[twice] ({tmp_path}/logs/1.txt)")
    assert "seed 7" in text
    assert told([Played((), (), {}, 0), Played((), (), {}, 3)], Path("logs")) == "ended with 3: logs/2.txt"
    [run] = hunt(suite("once", "hangs"), 9, 0, 5, tmp_path / "logs", tmp_path)
    assert run.tests[:1] in {(), (ONCE,)}, "as far as a slow machine came"


def test_busy_loops_end():
    with busy_loops(2) as pids:
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
