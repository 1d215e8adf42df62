"""Ports that are handed out, and stay whose they are until a server has them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import deque

import pytest

from registry.tools.devstack import processes
from registry.tools.devstack.processes import free_ports

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


def ask_elsewhere(port: int) -> subprocess.CompletedProcess[str]:
    """Asks for the port in another process."""
    return subprocess.run(
        [sys.executable, "-c", ASK.format(port=port)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_port_is_handed_out_once(only):
    with pytest.raises(OSError, match=f"no 1 ports from {only} to {only} are free"):
        free_ports(1)
    asked = ask_elsewhere(only)
    assert (asked.returncode, f"no 1 ports from {only}" in asked.stderr) == (1, True)


def test_its_server_listens_on_it_and_restarts(only):
    for _ in range(2):
        with socket.create_server(("127.0.0.1", only)), socket.create_connection(("127.0.0.1", only)):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", only))
        with pytest.raises(OSError, match="are free"):
            free_ports(1)


def test_no_more_are_held_than_some(monkeypatch):
    monkeypatch.setattr(processes, "_held", deque())
    monkeypatch.setattr(processes, "_MAX_HELD", 2)
    first, second, third = free_ports(3)
    assert [one.getsockname()[1] for one in processes._held] == [second, third]
    with socket.socket() as anybody:
        anybody.bind(("127.0.0.1", first))
    for one in processes._held:
        one.close()


def test_all_ports_of_a_large_stack_are_held_until_their_servers_have_them(monkeypatch):
    monkeypatch.setattr(processes, "_held", deque())
    ports = free_ports(40)
    assert len(set(ports)) == 40
    for port in ports:
        with socket.socket() as anybody, pytest.raises(OSError, match="in use"):
            anybody.bind(("127.0.0.1", port))
    for one in processes._held:
        one.close()


def test_ports_that_are_known_already_are_not_given_again(monkeypatch):
    monkeypatch.setattr(processes, "_held", deque())
    (port,) = free_ports(1)
    processes._held.pop().close()
    monkeypatch.setattr(processes, "FIRST", port)
    monkeypatch.setattr(processes, "LAST", port)
    with pytest.raises(OSError, match="are free"):
        free_ports(1, taken={port})
