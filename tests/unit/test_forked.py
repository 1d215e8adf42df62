"""The parent of the programs that tests start: what it forks is as a process of its own would be."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.forked import Fork, _parent_of
from tests.support.processes import Program
from tests.support.waiting import eventually

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


def test_what_was_set_when_its_parent_began_is_not_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.forked._parent_of", _parent_of.__wrapped__)  # one of this test's own
    monkeypatch.setenv("LORAPLANE_OURS", "1")
    program = running("import os; print(os.environ.get('LORAPLANE_OURS'))", tmp_path)
    assert program.wait() == 0
    assert program.log.read_text().startswith("None")


def test_it_is_not_said_to_have_been_imported_before(tmp_path):
    program = Program("json.tool", ["--help"], tmp_path / "log")
    program.start()
    assert program.wait() == 0
    assert program.log.read_text().startswith("usage:")


def test_how_it_ended_is_told(tmp_path):
    program = running("import os; os._exit(7)", tmp_path)
    assert (program.wait(), program.is_running, program.wait()) == (7, False, 7)
    program = running("import time; time.sleep(600)", tmp_path)
    assert program.is_running
    program.kill()
    assert program.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)
    program.signal(signal.SIGKILL)  # to nobody, as with `subprocess`


def test_what_ends_before_it_is_heard_of_is_told_apart(tmp_path, monkeypatch):
    """Its id and its exit code are two messages, however late they are read."""
    read = Fork._read

    def late(fork: Fork) -> bytes:
        hangs_up = select.poll()
        hangs_up.register(fork._told, select.POLLRDHUP)
        assert hangs_up.poll(60_000)
        return read(fork)

    monkeypatch.setattr(Fork, "_read", late)
    program = running("import os; print(os.getpid(), flush=True); os._exit(7)", tmp_path)
    assert program.wait() == 7
    assert program.log.read_text().split() == [str(program.pid)]


def test_it_can_be_interrupted(tmp_path):
    program = running("import time; print('here', flush=True); time.sleep(600)", tmp_path)
    asyncio.run(eventually(lambda: "here" in program.log.read_text()))
    program.signal(signal.SIGINT)
    assert program.wait() == 1
    assert "KeyboardInterrupt" in program.log.read_text()


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
