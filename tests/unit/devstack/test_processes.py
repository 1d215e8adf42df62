"""Processes are found again by pid and start time, and no other is ever touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from registry.tools.devstack.processes import Process, find_marked, recall, remember, spawn, wait_until
from tests.support.processes import child

FOREVER = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
DEAF = [sys.executable, "-c", f"{IGNORE}; [signal.pause() for _ in iter(int, 1)]"]


@pytest.fixture
def started(tmp_path):
    """Starts a process and waits until it has written something."""
    processes = []

    def start(command: list[str]) -> Process:
        log = tmp_path / "logs" / f"{len(processes)}.log"
        processes.append(spawn(command, dict(os.environ), log))
        assert wait_until(lambda: "up" in log.read_text(), 60)
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def test_a_process_is_recalled_and_ended(started, tmp_path):
    process = started(FOREVER)
    remember(tmp_path / "run" / "one.json", process)
    recalled = recall(tmp_path / "run" / "one.json")
    assert recalled == process
    assert recalled.is_running()
    recalled.stop(60)
    assert not process.is_running()


def test_one_that_ignores_the_polite_signal_is_killed(started):
    process = started(DEAF)
    process.stop(0.2)
    assert not process.is_running()


def test_a_killed_child_counts_as_dead_though_it_is_a_zombie(started):
    process = started(FOREVER)
    os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: not process.is_running(), 60)


def test_a_pid_that_belongs_to_another_by_now_is_left_alone():
    """The pid file of a stack may outlive its process, and the pid be given again."""
    with child(FOREVER, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        stale = Process(other.pid, started=1)
        assert not stale.is_running()
        stale.stop(1)
        stale.kill()
        assert other.poll() is None


def test_what_a_killed_process_leaves_behind_is_ended_with_it(started):
    """vLLM's API server may be killed alone; its engine core would stay for good."""
    another = "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])"
    leader = started(
        [
            sys.executable,
            "-c",
            f"import signal, subprocess, sys; print('up', {another}.pid, flush=True); signal.pause()",
        ]
    )
    left = _session(leader.pid) - {leader.pid}
    os.kill(leader.pid, signal.SIGKILL)
    assert wait_until(lambda: not leader.is_running(), 60)
    assert _session(leader.pid) == left != set()
    leader.stop(1)
    assert wait_until(lambda: not _session(leader.pid), 60)


def _session(leader: int) -> set[int]:
    """Living processes of the session that `leader` leads or led."""
    seen = ((pid, *_session_and_state(pid)) for pid in _pids())
    return {pid for pid, session, state in seen if session == leader and state not in {"Z", "X"}}


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _session_and_state(pid: int) -> tuple[int, str]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[3]), fields[0]


def test_a_process_of_before_the_machine_started_anew_is_none(tmp_path):
    """Its pid and its start in ticks may well be another's by now."""
    file = tmp_path / "one.json"
    remember(file, Process(os.getpid(), 1))
    assert recall(file) == Process(os.getpid(), 1)
    file.write_text(file.read_text().replace('"boot": "', '"boot": "x'))
    assert recall(file) is None


def test_it_outlives_the_session_of_who_started_it(started):
    process = started(FOREVER)
    assert os.getsid(process.pid) == process.pid != os.getsid(0)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": "x", "started": 1}', '{"pid": null, "started": 1}'])
def test_a_pid_file_that_cannot_be_read_is_no_process(tmp_path, text):
    file = tmp_path / "one.json"
    assert recall(file) is None
    file.write_text(text)
    assert recall(file) is None


def test_waiting_ends_when_the_time_is_up():
    assert not wait_until(lambda: False, 0.01)


def test_a_process_that_nobody_wrote_down_is_found_by_its_mark(tmp_path):
    """Whoever started it may be killed before he has written down its pid."""
    log = tmp_path / "log"
    process = spawn(FOREVER, {**os.environ, "MARK_OF_TEST": str(tmp_path)}, log)
    try:
        assert wait_until(lambda: "up" in log.read_text(), 60)
        assert find_marked("MARK_OF_TEST", str(tmp_path)) == process
        assert find_marked("MARK_OF_TEST", f"{tmp_path}x") is None
    finally:
        process.kill()
    assert find_marked("MARK_OF_TEST", str(tmp_path)) is None
