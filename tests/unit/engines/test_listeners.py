"""An engine's process is told by its listening socket, as the kernel lists it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sidecar.engines import listeners
from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.listeners import ListenerProcess, listener_identity

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"


def row(address: str, port: int, state: str, inode: int) -> str:
    queues = "00000000:00000000 00:00000000 00000000"
    return f"   0: {address}:{port:04X} 00000000:0000 {state} {queues}  1000  0 {inode} 1 0"


@pytest.fixture
def proc(tmp_path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("boot\n")
    rows = [row("0100007F", 8000, "0A", 11), row("0100007F", 8000, "01", 12), row("00000000", 8001, "0A", 13)]
    (tmp_path / "net/tcp").write_text("\n".join([HEADER, *rows, ""]))
    return tmp_path


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("http://127.0.0.1:8000", "boot:11"),
        ("http://localhost:8001/base", "boot:13"),
        ("http://[::1]:8000", "boot:11"),
        ("http://127.0.0.1:8002", ""),
        ("http://127.0.0.1", ""),
        ("https://127.0.0.1", ""),
        ("http://10.0.0.1:8000", ""),
        ("http://engine:8000", ""),
        ("http:///", ""),
    ],
)
def test_the_socket_that_listens_there_is_the_identity(proc, url, identity):
    """R9: an engine elsewhere, or none, has no identity; a connection to it is none."""
    assert listener_identity(url, proc) == identity


def test_several_sockets_count_together_over_both_tables(proc):
    (proc / "net/tcp6").write_text("\n".join([HEADER, row("0" * 32, 8000, "0A", 9)]))
    assert listener_identity("http://127.0.0.1:8000", proc) == "boot:11+9"


@pytest.mark.parametrize(("scheme", "identity"), [("http", "boot:1"), ("https", "boot:2")])
def test_without_a_port_it_is_that_of_the_scheme(proc, scheme, identity):
    """R9: the one to which the calls go."""
    rows = [row("0100007F", port, "0A", inode) for port, inode in ((80, 1), (443, 2), (81, 3), (444, 4))]
    (proc / "net/tcp").write_text("\n".join([HEADER, *rows, ""]))
    assert listener_identity(f"{scheme}://127.0.0.1", proc) == identity


def test_a_host_without_the_tables_of_its_kernel_shows_no_process(tmp_path):
    """R12: as without IPv6, or elsewhere than on Linux."""
    assert listener_identity("http://127.0.0.1:8000", tmp_path) == ""


@pytest.mark.parametrize("file", ["net/tcp", "net/tcp6", "sys/kernel/random/boot_id"])
def test_for_want_of_descriptors_no_process_is_seen_and_no_other(proc, monkeypatch, file):
    """R9, R7: of a part of it another identity would be made, and the engine would count as restarted."""
    (proc / "net/tcp6").write_text("\n".join([HEADER, row("0" * 32, 8000, "0A", 9)]))
    whole = Path.read_text

    def read(path: Path) -> str:
        if path == proc / file:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return whole(path)

    monkeypatch.setattr(Path, "read_text", read)
    assert listener_identity("http://127.0.0.1:8000", proc) == ""


def test_a_look_is_of_one_process(monkeypatch):
    """R9 status-truth: one that was replaced meanwhile was not seen; one that is not to be seen cannot be driven."""
    seen: list[str] = []

    def identity(url: str) -> str:
        assert url == "http://127.0.0.1:8000"
        return seen[-1]

    monkeypatch.setattr(listeners, "listener_identity", identity)
    process = ListenerProcess("http://127.0.0.1:8000")
    seen.append("p1")
    assert process.identity() == process.known("p1") == "p1"
    with pytest.raises(EngineUnreachable, match="restarted"):
        process.known("p0")
    with pytest.raises(EngineUnreachable, match="restarted"):
        process.known("")
    seen.append("")
    for before in ("", "p1"):
        with pytest.raises(EngineUnusable, match="network namespace") as told:
            process.known(before)
        assert told.value.reason == "engine_unsupported"
