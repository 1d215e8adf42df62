"""The unix socket on which an engine asks: made where the operator says, and never taken from a process that lives."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

# What the kernel takes, without the byte that ends it.
MAX_PATH_BYTES = 107
# The engine may run as another user of the same group (see docs/operations.md).
MODE = 0o660
BACKLOG = 128


class SocketUnusable(Exception):
    """The socket cannot be made; the message says why and what to do."""


def check_socket_path(path: Path) -> None:
    """Raises ValueError if no socket can be at `path`, wherever it is."""
    size = len(os.fsencode(path))
    if size > MAX_PATH_BYTES:
        raise ValueError(f"{path} has {size} bytes, a socket's path has at most {MAX_PATH_BYTES}: use a shorter one")
    if not path.is_absolute():
        raise ValueError(f"{path} is not absolute: engine and sidecar must mean the same file")


def check_directory(path: Path) -> None:
    """Raises SocketUnusable if there is no directory for a socket at `path`."""
    if not path.parent.is_dir():
        raise SocketUnusable(f"--resolver-socket: there is no directory {path.parent}; make it, for the engine too")


class SocketFile:
    """A listening socket; `close` removes its file."""

    def __init__(self, path: Path) -> None:
        """Makes the socket, in place of one that a dead process left.

        Raises:
            SocketUnusable: its directory is missing, something else has the path, or a living process listens there.
        """
        check_directory(path)
        self._path = path
        try:
            _clear(path)
            self.listener = _listen(path)
        except OSError as error:
            raise SocketUnusable(f"--resolver-socket: {path} cannot be made: {error.strerror}") from error

    def close(self) -> None:
        """Takes no more connections."""
        with contextlib.suppress(OSError):  # the next process clears it away
            self._path.unlink()
        self.listener.close()


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.settimeout(0)  # asyncio waits
        listener.bind(os.fspath(path))
        path.chmod(MODE)  # before anybody can connect
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _clear(path: Path) -> None:
    """Removes the socket of a dead process. Raises SocketUnusable, OSError."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise SocketUnusable(f"--resolver-socket: {path} is no socket; move it away or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise SocketUnusable(f"--resolver-socket: another process listens at {path}; give each replica its own")
