"""The parent of the programs that tests start: what it forks is as a process of its own would be."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import Program

LOOK = """
import os, sys
paths = [f'/proc/self/fd/{one}' for one in os.listdir('/proc/self/fd') if int(one) not in (1, 2)]
print([os.readlink(one) for one in paths if os.path.lexists(one)], os.getcwd(), os.environ.get('OURS'), sys.argv[1])
print('and this', file=sys.stderr)
"""
REMEMBER = """
import os, random
print(os.environ.get('OURS'), getattr(random, 'was', 0), random.random())
random.was = 1
"""


def running(statement: str, folder: Path, **environment: str) -> Program:
    """A program that runs the statement."""
    program = Program("timeit", ["-n1", "-r1", statement], folder / "log", environment)
    program.start()
    return program


def test_it_has_what_it_was_given_and_nothing_of_its_parent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    others = [running("import time; time.sleep(600)", tmp_path / name) for name in ("before", "beside")]
    others[0].kill()
    try:
        program = running(LOOK, tmp_path, OURS="1")
        assert program.wait() == 0
    finally:
        others[1].kill()
    said = program.log.read_text()
    assert f"['/dev/null'] {tmp_path} 1 -n1" in said
    assert "and this" in said


def test_the_next_one_knows_nothing_of_the_last(tmp_path):
    said = []
    for environment in ({"OURS": "1"}, {}):
        program = running(REMEMBER, tmp_path / str(len(said)), **environment)
        assert program.wait() == 0
        said.append(program.log.read_text().split()[:3])
    (first, *_, one), (second, *_, other) = said
    assert (first, second) == ("1", "None")
    assert [was for _, was, _ in said] == ["0", "0"]
    assert one != other


def test_how_it_ended_is_told(tmp_path):
    program = running("import os; os._exit(7)", tmp_path)
    assert (program.wait(), program.is_running, program.wait()) == (7, False, 7)
    program = running("import time; time.sleep(600)", tmp_path)
    assert program.is_running
    program.kill()
    assert program.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)


def test_whoever_waits_too_long_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.processes.END_SECONDS", 0.1)
    program = running("import time; time.sleep(600)", tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait()
    program.signal(signal.SIGKILL)
    monkeypatch.undo()
    assert program.wait() == -signal.SIGKILL


def test_what_is_read_at_a_start_is_given_to_one(tmp_path):
    statement = "import sys; print(sys.flags.hash_randomization)"
    program = running(statement, tmp_path, PYTHONHASHSEED="0")
    assert program.wait() == 0
    assert program.log.read_text().startswith("0")
