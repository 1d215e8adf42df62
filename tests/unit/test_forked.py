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
import os, random, sys
paths = [f'/proc/self/fd/{one}' for one in os.listdir('/proc/self/fd') if int(one) not in (1, 2)]
print([os.readlink(one) for one in paths if os.path.lexists(one)], os.getcwd(), os.environ.get('OURS'), sys.argv[1])
print(getattr(random, 'was', 0), random.random())
random.was = 1
print('and this', file=sys.stderr)
"""
FOR_LONG = "import time; print('here', flush=True); time.sleep(600)"


def running(statement: str, folder: Path, **environment: str) -> Program:
    """A program that runs the statement."""
    program = Program("timeit", ["-n1", "-r1", statement], folder / "log", environment)
    program.start()
    return program


def test_it_has_what_it_was_given_and_nothing_of_its_parent_nor_of_the_one_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    beside, drawn = running(FOR_LONG, tmp_path / "beside"), list[str]()
    for number, (environment, ours) in enumerate((({"OURS": "1"}, "1"), ({}, "None"))):
        program = running(LOOK, tmp_path / str(number), **environment)
        assert program.wait() == 0
        first, (was, one), told = (line.split() for line in program.log.read_text().splitlines()[:3])
        assert (first, was, told) == (["['/dev/null']", str(tmp_path), ours, "-n1"], "0", ["and", "this"])
        drawn.append(one)
    assert drawn[0] != drawn[1]
    beside.kill()
    assert beside.wait() == -signal.SIGKILL


def test_what_is_set_or_imported_around_it_is_not_its_own_and_what_is_read_at_a_start_is(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.forked._parent_of", _parent_of.__wrapped__)  # one of this test's own
    monkeypatch.setenv("LORAPLANE_OURS", "1")
    statement = "import os, sys; print(os.environ.get('LORAPLANE_OURS'), sys.flags.hash_randomization)"
    program = running(statement, tmp_path, PYTHONHASHSEED="0")
    assert (program.wait(), program.log.read_text().split()[:2]) == (0, ["None", "0"])
    program = Program("json.tool", ["--help"], tmp_path / "help")
    program.start()
    assert (program.wait(), program.log.read_text()[:6]) == (0, "usage:")


def test_how_it_ended_is_told_and_whoever_waits_too_long_hears_of_it(tmp_path, monkeypatch):
    program = running("import os; os._exit(7)", tmp_path)
    assert (program.wait(), program.is_running, program.wait()) == (7, False, 7)
    program = running(FOR_LONG, tmp_path)
    monkeypatch.setattr("tests.support.processes.END_SECONDS", 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait()
    monkeypatch.undo()
    assert program.is_running
    asyncio.run(eventually(lambda: "here" in program.log.read_text()))
    program.signal(signal.SIGINT)
    assert (program.wait(), "KeyboardInterrupt" in program.log.read_text()) == (1, True)
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
    assert (program.wait(), program.log.read_text().split()) == (7, [str(program.pid)])
