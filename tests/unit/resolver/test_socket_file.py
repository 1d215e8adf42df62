"""The socket's file: made anew where a dead process left it, never taken from a living one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sidecar.resolver.server import MODE, SocketFile, SocketUnusable


def test_the_group_may_ask_and_what_a_dead_process_left_is_replaced(folder):
    dead = SocketFile(folder / "s")
    assert (folder / "s").stat().st_mode & 0o777 == MODE
    dead.listener.close()
    new = SocketFile(folder / "s")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "s"))
    new.close()
    new.close()
    assert not (folder / "s").exists(), "it goes with its process"


def test_a_living_process_keeps_its_socket(folder):
    living = SocketFile(folder / "s")
    with pytest.raises(SocketUnusable, match="another process listens"):
        SocketFile(folder / "s")
    living.close()


def test_a_living_process_that_takes_no_connection_keeps_no_other_waiting(folder, monkeypatch):
    """R12: one that is stopped, with a full queue before it, would else hold up the start for ever."""

    class Stopped(socket.socket):
        def connect(self, _address: object) -> None:
            assert self.gettimeout(), "it would wait without end"
            raise TimeoutError

    living = SocketFile(folder / "s")
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Stopped)
        with pytest.raises((SocketUnusable, TimeoutError)):
            SocketFile(folder / "s")
    assert (folder / "s").exists()
    living.close()


def test_what_is_no_socket_is_left_alone(folder):
    (folder / "s").write_text("precious")
    with pytest.raises(SocketUnusable, match="is no socket"):
        SocketFile(folder / "s")
    assert (folder / "s").read_text() == "precious"


def test_a_missing_directory_and_a_closed_one_are_named(folder):
    with pytest.raises(SocketUnusable, match="there is no directory"):
        SocketFile(folder / "no" / "s")


@pytest.fixture
def made(monkeypatch) -> list[socket.socket]:
    """The sockets that were made, in order."""
    sockets: list[socket.socket] = []

    class Noted(socket.socket):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            sockets.append(self)

    monkeypatch.setattr(socket, "socket", Noted)
    return sockets


def test_nobody_can_connect_before_the_group_alone_may(folder, made, monkeypatch):
    """X1: and asyncio waits on it, never the process."""
    modes: list[int] = []
    listen = socket.socket.listen

    def noting(self: socket.socket, *backlog: int) -> None:
        modes.append((folder / "s").stat().st_mode & 0o777)
        listen(self, *backlog)

    monkeypatch.setattr(socket.socket, "listen", noting)
    file = SocketFile(folder / "s")
    assert modes == [0o660]
    assert file.listener.gettimeout() == 0
    file.close()
    assert [one.fileno() for one in made] == [-1]


def test_a_socket_that_cannot_be_made_is_named_and_leaves_none_open(folder, made, monkeypatch):
    """R12, R16."""

    def refused(_path: Path, _mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(SocketUnusable, match="cannot be made: Operation not permitted"):
        SocketFile(folder / "s")
    assert [one.fileno() for one in made] == [-1]


def test_a_fault_of_ours_is_no_unusable_socket(folder, made, monkeypatch):
    """R12: and a probe that fails otherwise than for want of a listener proves nothing of the file."""

    def failing(error: Exception):
        def fail(*_: object) -> None:
            raise error

        return fail

    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "s"))
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "connect", failing(PermissionError(13, "Permission denied")))
        with pytest.raises(SocketUnusable, match="Permission denied"):
            SocketFile(folder / "s")
    assert (folder / "s").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "chmod", failing(ZeroDivisionError()))
        with pytest.raises(ZeroDivisionError):
            SocketFile(folder / "s")
    for one in made:
        one.close()
