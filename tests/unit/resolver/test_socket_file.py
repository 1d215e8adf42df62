"""The socket's file: made anew where a dead process left it, never taken from a living one."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.resolver.server import MODE, SocketFile, SocketUnusable, check_socket_path


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="lp-"))
    yield made
    shutil.rmtree(made)


def test_the_group_may_ask_and_the_file_goes_with_its_process(folder):
    made = SocketFile(folder / "s")
    assert (folder / "s").stat().st_mode & 0o777 == MODE
    made.close()
    assert not (folder / "s").exists()


def test_what_a_dead_process_left_is_replaced(folder):
    dead = SocketFile(folder / "s")
    dead.listener.close()
    new = SocketFile(folder / "s")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "s"))
    new.close()
    new.close()


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


def test_a_path_that_no_kernel_takes_is_refused():
    check_socket_path(Path("/" + "a" * 106))
    with pytest.raises(ValueError, match="108 bytes"):
        check_socket_path(Path("/" + "a" * 107))
    with pytest.raises(ValueError, match="not absolute"):
        check_socket_path(Path("s"))
