"""Programs of ours as forks of a process that has imported them: half of what a start takes is its imports.

``python -m tests.support.forked MODULE`` is that process. It reads requests from the socket that is its input, and ends
with it. A program has nothing of it but what is imported: arguments, environment, folder and outputs are its own.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

_ROOT = Path(__file__).parents[2]
_MAX_REQUEST_BYTES = 1 << 17
_ABOVE_ALL_FILES = 1 << 20


class Fork:
    """A program that runs, with what is used here of `subprocess.Popen`."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> None:
        """Starts it as ``python -m`` would; both outputs go to the log."""
        self._told, theirs = _packets()
        request = json.dumps([str(Path.cwd()), list(arguments), dict(environment)]).encode()
        assert len(request) < _MAX_REQUEST_BYTES
        with theirs:
            socket.send_fds(_parent_of(module), [request], [log.fileno(), theirs.fileno()])
        self.pid = int(self._read())
        self.returncode: int | None = None

    def __del__(self) -> None:
        self._told.close()

    def poll(self) -> int | None:
        """Its exit code once it has ended, as `subprocess` gives it."""
        return self.wait() if self._has_ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns the exit code. Raises `subprocess.TimeoutExpired`."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        if self.returncode is None:
            self.returncode = int(self._read())
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _has_ended(self, seconds: float | None) -> bool:
        return self.returncode is not None or bool(select.select([self._told], [], [], seconds)[0])

    def _read(self) -> bytes:
        said = self._told.recv(16)
        assert said, "the parent of the programs has ended"
        return said


def _packets() -> tuple[socket.socket, socket.socket]:
    """A pair on which what is sent apart is read apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@cache
def _parent_of(module: str) -> socket.socket:
    """Where to ask for a program; each has a parent of its own, where nothing else is imported."""
    ours, theirs = _packets()
    with theirs:
        command = [sys.executable, "-m", "tests.support.forked", module]
        process = subprocess.Popen(command, cwd=_ROOT, stdin=theirs.fileno())

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class _Parent:
    """Forks a program for each request, and tells how it ended."""

    def __init__(self) -> None:
        self._asked = socket.socket(fileno=os.dup(0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._asked, selectors.EVENT_READ)

    def serve(self) -> list[str] | None:
        """Returns in each program, with its arguments; None: in the parent, at its end."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._tell(key.fd, *key.data)
                    continue
                request, files, _, _ = socket.recv_fds(self._asked, _MAX_REQUEST_BYTES, 2)
                if not request:
                    return None
                if not (pid := os.fork()):
                    return self._become(json.loads(request), *files)
                log, told = files
                os.close(log)
                os.write(told, str(pid).encode())
                self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))

    def _tell(self, ended: int, pid: int, told: int) -> None:
        self._selector.unregister(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(BrokenPipeError):
            os.write(told, str(code).encode())
        os.close(ended)
        os.close(told)

    def _become(self, request: tuple[str, list[str], dict[str, str]], log: int, told: int) -> list[str]:
        """Leaves behind what is the parent's."""
        folder, arguments, environment = request
        self._asked.close()
        self._selector.close()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, _ABOVE_ALL_FILES)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return arguments


def _main(module: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = find_spec(module)
    assert spec is not None
    entry = f"{module}.__main__" if spec.submodule_search_locations else module
    import_module(entry)
    del sys.modules[entry]  # it is to run once more, as __main__
    arguments = _Parent().serve()
    if arguments is not None:
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1])
