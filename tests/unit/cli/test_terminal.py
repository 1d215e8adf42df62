"""The command line as a process: on a terminal, interrupted, and with a reader that leaves."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Hold

SERVING = pb.RolloutReplica(replica="r1", state=pb.RolloutReplica.SERVING)
PENDING = pb.RolloutReplica(replica="r1", state=pb.RolloutReplica.PENDING, reason="staging")
SQL = pb.Adapter(name="sql", pool="dev", generation=1)


def command(address: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "registry.cli.main", "--admin", address, *arguments]


def on_a_terminal(command: list[str]) -> tuple[int, str]:
    """Exit code and what a person sees, escape sequences included."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        command, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm", "COLUMNS": "60"}
    ) as process:
        os.close(its)
        seen = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    return process.returncode, seen.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how Linux tells the end of a terminal
        return b""


def test_a_rollout_on_a_terminal_is_shown_live(address, admin):
    news = [
        pb.Rollout(name="sql", generation=2, replicas=[PENDING]),
        pb.Rollout(name="sql", generation=2, replicas=[SERVING], done=True),
    ]
    admin.answers["WatchRollout"] = [news]
    code, seen = on_a_terminal(command(address, "rollout", "sql"))
    assert code == 0
    assert "\x1b[" in seen
    assert "1 of 1 replicas serve it" in seen


def test_a_table_on_a_narrow_terminal_loses_nothing(address, admin):
    uri = "file:///adapters/" + "".join(f"part{number}/" for number in range(12))
    adapter = pb.Adapter(name="sql", pool="dev", spec=pb.AdapterSpec(source=pb.Source(uri=uri)))
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[adapter])]
    code, seen = on_a_terminal(command(address, "get", "adapters"))
    assert code == 0
    assert "…" not in seen


@pytest.mark.parametrize("arguments", [("get", "adapters", "-w"), ("rollout", "sql")])
def test_an_interrupt_ends_it_at_once_without_a_traceback(address, admin, arguments):
    admin.answers["WatchAdapters"] = [
        [pb.WatchAdaptersResponse(revision=1, events=[pb.AdapterEvent(put=SQL)], snapshot=True), Hold()]
    ]
    admin.answers["WatchRollout"] = [[pb.Rollout(name="sql", generation=2, replicas=[PENDING]), Hold()]]
    pipe = subprocess.PIPE
    with subprocess.Popen(command(address, *arguments), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        while "sql" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_a_reader_that_leaves_ends_it_without_a_traceback(address, admin):
    endless = (pb.WatchAdaptersResponse(revision=n, events=[pb.AdapterEvent(put=SQL)]) for n in range(1, 100_000_000))
    admin.answers["WatchAdapters"] = [endless]
    pipe = subprocess.PIPE
    with subprocess.Popen(command(address, "get", "adapters", "-w"), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == -signal.SIGPIPE
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_what_nobody_foresaw_is_told_in_one_line_too(address):
    get = command(address, "get", "pools")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(get, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith("error: INTERNAL: OSError: [Errno 28] No space left on device (at ")
