"""Processes are found again by pid and start time, no other is ever touched; and a port is handed out once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.tools.devstack import processes
from registry.tools.devstack.processes import Process, find_marked, free_ports, recall, remember, spawn, wait_until
from tests.support.processes import child

FOREVER = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
PIDS = ('"x"', "null", "Infinity", "NaN", "{}")
DEAF = [sys.executable, "-c", f"{IGNORE}; [signal.pause() for _ in iter(int, 1)]"]


@pytest.fixture
def started(tmp_path):
    """Starts a process and waits until it has written something."""
    begun = []

    def start(command: list[str], **environment: str) -> Process:
        log = tmp_path / "logs" / f"{len(begun)}.log"
        begun.append(spawn(command, os.environ | environment, log))
        assert wait_until(lambda: "up" in log.read_text(), 60)
        return begun[-1]

    yield start
    for process in begun:
        process.kill()


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


def test_a_process_outlives_who_started_it_and_is_recalled_and_ended(started, tmp_path):
    """It keeps nothing of him: what it reads is nothing, what it says goes into its log. One that nobody wrote down is
    found by its mark: whoever started it may be killed before. Also one that ignores the polite signal is ended; a
    zombie counts as dead.
    """
    process, deaf, child_of_ours = started(FOREVER, MARK_OF_TEST=str(tmp_path)), started(DEAF), started(FOREVER)
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    read, *written = (Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in range(3))
    assert (str(read), {one.parent.name for one in written}) == (os.devnull, {"logs"})
    opened = Path(f"/proc/{process.pid}/fdinfo/1").read_text().split("flags:")[1].split()[0]
    assert int(opened, 8) & os.O_APPEND, "a log goes on where it was"
    os.umask(mask := os.umask(0))
    assert written[0].stat().st_mode & 0o777 == 0o644 & ~mask
    assert (find_marked("MARK_OF_TEST", str(tmp_path)), find_marked("MARK_OF_TEST", f"{tmp_path}x")) == (process, None)
    remember(tmp_path / "run" / "one.json", process)
    recalled = recall(tmp_path / "run" / "one.json")
    assert (recalled, recalled.is_running()) == (process, True)
    recalled.stop(60)
    deaf.stop(0.2)
    os.kill(child_of_ours.pid, signal.SIGKILL)
    assert (process.is_running(), deaf.is_running()) == (False, False)
    assert (wait_until(lambda: not child_of_ours.is_running(), 60), find_marked("MARK_OF_TEST", str(tmp_path))) == (
        True,
        None,
    )


def test_what_a_killed_process_leaves_behind_is_ended_with_it(started):
    """vLLM's API server may be killed alone; its engine core would stay for good."""
    another = "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])"
    program = f"import signal, subprocess, sys; print('up', {another}.pid, flush=True); signal.pause()"
    leader = started([sys.executable, "-c", program])
    left = _session(leader.pid) - {leader.pid}
    os.kill(leader.pid, signal.SIGKILL)
    assert wait_until(lambda: not leader.is_running(), 60)
    assert _session(leader.pid) == left != set()
    leader.stop(1)
    assert wait_until(lambda: not _session(leader.pid), 60)


def _session(leader: int) -> set[int]:
    """Living processes of the session that `leader` leads or led."""
    seen = {int(pid): processes._look(int(pid)) for pid in os.listdir("/proc") if pid.isdecimal()}  # noqa: PTH208 - names
    return {pid for pid, one in seen.items() if one and one.session == leader and one.state not in {"Z", "X"}}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "[" * 30_000, *(f'{{"boot": BOOT, "pid": {pid}, "started": 1}}' for pid in PIDS)],
    ids=["empty", "half", "list", "nothing", "deep", *PIDS],
)
def test_a_pid_file_that_cannot_be_read_is_no_process(tmp_path, text):
    """However it came to be so; no process is ended by it, nor by one of before the machine started anew: its pid and
    its start in ticks may well be another's by now.
    """
    file = tmp_path / "one.json"
    assert recall(file) is None
    remember(file, Process(os.getpid(), 1))
    boot = json.dumps(json.loads(file.read_text())["boot"])
    file.write_text(text.replace("BOOT", boot))
    assert recall(file) is None
    file.write_text(f'{{"boot": {boot}, "pid": 7, "started": 1}}')
    assert recall(file) == Process(7, 1)
    file.write_text(file.read_text().replace('"boot": "', '"boot": "x'))
    assert recall(file) is None


DEAD = 9_999_999  # more than Linux gives


@pytest.mark.parametrize(
    ("leader", "other", "is_ended"),
    [
        *((None, ("S", DEAD, 50), True), (("Z", DEAD, 40), ("S", DEAD, 50), True)),
        *((("Z", DEAD, 40), ("S", DEAD, 40), True), (("S", DEAD, 41), ("S", DEAD, 50), False)),
        *((None, ("S", 8, 50), False), (None, ("S", DEAD, 39), False), (None, None, False)),
    ],
    ids=["gone", "zombie", "the same tick", "another's pid", "another session", "older than it", "ended"],
)
def test_only_what_a_dead_leader_left_behind_is_ended(monkeypatch, leader, other, is_ended):
    """Its pid, and so its session's number, may be another's by now, and what is older was none of its."""
    ours, ended = os.getpid(), list[tuple[int, int]]()
    table = {DEAD: leader and processes._Seen(*leader), ours: other and processes._Seen(*other)}
    monkeypatch.setattr(processes, "_look", table.get)
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append((pid, number)))
    Process(DEAD, 40).kill()
    assert ended == ([(ours, signal.SIGKILL)] if is_ended else [])


def test_a_stop_is_polite_first_and_waits_as_long_as_it_is_told(monkeypatch):
    did: list[str] = []
    states = {"runs": True}

    def wait(check: Callable[[], bool], seconds: float) -> bool:
        did.append(f"wait {seconds:g} {check()}")
        states["runs"] = "SIGKILL" not in did[-2] and states["runs"]
        return not states["runs"]

    monkeypatch.setattr(processes, "_look", lambda pid: processes._Seen("S", DEAD, 40) if states["runs"] else None)
    monkeypatch.setattr(processes, "wait_until", wait)
    monkeypatch.setattr(os, "kill", lambda _, number: did.append(signal.Signals(number).name))
    Process(DEAD, 40).stop(5.0)
    assert did == ["SIGTERM", "wait 5 False", "SIGKILL", "wait 30 False"]


def test_waiting_asks_until_it_is_so_and_no_longer(monkeypatch):
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += 1.0

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert wait_until(lambda: True, 0.0)
    assert slept == []
    assert wait_until(lambda: now[0] >= 103.0, 3.0)
    assert len(slept) == 3
    assert not wait_until(lambda: False, 2.0)
    assert now[0] == 106.0


@pytest.mark.parametrize(
    ("seen", "is_it"),
    [(("S", True), True), (("R", True), True), (("Z", True), False), (("S", False), False), (None, False)],
    ids=["sleeps", "runs", "zombie", "not its leader", "ended since"],
)
def test_what_is_found_by_its_mark_is_the_leader_and_lives(monkeypatch, seen, is_it):
    ours = os.getpid()
    found = processes._Seen(seen[0], ours if seen[1] else 1, 40) if seen else None
    monkeypatch.setattr(processes, "_environment", lambda entry: [b"A=b"] if entry.name == str(ours) else [])
    monkeypatch.setattr(processes, "_look", {ours: found}.get)
    assert find_marked("A", "b") == (Process(ours, 40) if is_it else None)
    assert find_marked("A", "c") is None


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_what_ends_just_before_it_is_ended_is_no_error_and_what_may_not_be_ended_is_told(monkeypatch, error):
    leader, left = processes._Seen("S", DEAD, 40), processes._Seen("S", DEAD, 50)
    looks = iter([leader])
    table = {os.getpid(): left}
    monkeypatch.setattr(processes, "_look", lambda pid: next(looks, None) if pid == DEAD else table.get(pid))

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "kill", refuse)
    if error is ProcessLookupError:
        Process(DEAD, 40).kill()
        assert next(looks, None) is None
    else:
        with pytest.raises(PermissionError):
            Process(DEAD, 40).signal(signal.SIGTERM)


ASK = (
    "from registry.tools.devstack import processes; processes.FIRST = processes.LAST = {port}; processes.free_ports(1)"
)


@pytest.fixture
def only(monkeypatch) -> int:
    """A port that was handed out here, and is the only one there is."""
    (port,) = free_ports(1)
    monkeypatch.setattr(processes, "FIRST", port)
    monkeypatch.setattr(processes, "LAST", port)
    return port


def test_a_port_is_handed_out_once_and_its_server_listens_on_it_and_restarts(only):
    command = [sys.executable, "-c", ASK.format(port=only)]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (asked.returncode, f"no 1 ports from {only} to {only} are free" in asked.stderr) == (1, True)
    command = [sys.executable, "-X", "dev", "-c", "from registry.tools.devstack import processes as p; p.free_ports(2)"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (asked.returncode, asked.stderr) == (0, ""), "nobody is told of what was held until the end"
    for _ in range(2):
        with pytest.raises(OSError, match=f"no 1 ports from {only} to {only} are free"):
            free_ports(1)
        with socket.create_server(("127.0.0.1", only)), socket.create_connection(("127.0.0.1", only)):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", only))


def is_taken(port: int) -> bool:
    with socket.socket() as anybody:
        try:
            anybody.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


@pytest.mark.parametrize(("most", "count"), [(None, 40), (2, 3)], ids=["a large stack", "too many"])
def test_ports_are_held_until_their_servers_have_them_and_no_more_than_some(monkeypatch, most, count):
    monkeypatch.setattr(processes, "_held", deque())
    if most:
        monkeypatch.setattr(processes, "_MAX_HELD", most)
    ports = free_ports(count)
    assert (len(set(ports)), [*map(is_taken, ports)]) == (count, [False] * (most == 2) + [True] * (most or count))
    for one in processes._held:
        one.close()
    monkeypatch.setattr(processes, "FIRST", ports[-1])
    monkeypatch.setattr(processes, "LAST", ports[-1])
    with pytest.raises(OSError, match="are free"):
        free_ports(1, taken={ports[-1]})
