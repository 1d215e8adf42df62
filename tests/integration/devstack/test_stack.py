"""The local stack with simulated engines: every verb is safe to run twice, and touches its own processes alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from http.client import HTTPConnection
from pathlib import Path

import pytest

from registry.tools.devstack.processes import wait_until

pytestmark = pytest.mark.timeout(1500)  # a dozen commands, each of which starts a few programs


def command_line(pid: int | None) -> bytes:
    """What a process was started with; empty if there is none, or only a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


PARTS = {"etcd", "admin", "engine-r1", "engine-r2", "sidecar-r1", "sidecar-r2"}


def answers(engine: str, model: str) -> bool:
    """True if a request for that model is served."""
    body = json.dumps({"model": model, "prompt": "x", "max_tokens": 1})
    with contextlib.closing(HTTPConnection(engine, timeout=60)) as connection:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200


def test_up_is_safe_to_run_twice_and_data_survives_down_but_not_purge(dev):
    """Also: a lazy adapter is served at its first request.

    The engine asks its sidecar, over a socket whose path the stack has to keep short.
    """
    up = dev.json("dev", "up", "--engine", "sim")
    assert {part["name"] for part in up["parts"]} == PARTS
    assert all(part["ready"] for part in up["parts"])
    pids = dev.pids()
    source = dev.folder / ".loraplane" / "adapters" / "sql"
    added = dev.json("add", "sql", "--source", str(source), "--wait")
    assert [one["state"] for one in added["rollouts"][0]["replicas"]] == ["serving", "serving"]
    dev.json("add", "lazy", "--source", str(source), "--lazy")
    engine = next(part["address"] for part in up["parts"] if part["name"] == "engine-r1")
    assert wait_until(lambda: answers(engine, "lazy"), 60)
    assert not answers(engine, "nobody")

    os.kill(pids["sidecar-r1"], signal.SIGKILL)
    os.kill(pids["engine-r2"], signal.SIGKILL)
    assert dev("dev", "status").returncode == 6
    other = dev("dev", "up", "--replicas", "1")
    assert (other.returncode, "loraplane dev down" in other.stderr) == (6, True)
    assert dev("dev", "up").returncode == 0
    after = dev.pids()
    assert {name for name in PARTS if after[name] != pids[name]} == {"sidecar-r1", "engine-r2"}

    commands = {pid: command_line(pid) for pid in after.values()}
    assert all(commands.values())
    assert dev("dev", "down").returncode == 0
    assert not any(command_line(pid) == command for pid, command in commands.items())
    assert dev("dev", "up").returncode == 0
    assert dev("rollout", "sql", "--timeout", "60").returncode == 0
    assert dev("dev", "down", "--purge").returncode == 0
    assert not (dev.folder / ".loraplane").exists()


def test_what_does_not_start_is_told_and_leaves_nothing(dev, tmp_path):
    broken = tmp_path / "broken-etcd"
    broken.write_text("#!/bin/sh\necho no disk left\nexit 1\n")
    broken.chmod(0o755)
    done = dev("dev", "up", "--engine", "sim", ETCD_BIN=str(broken))
    assert done.returncode == 6
    assert done.stderr.startswith("error: STACK_NOT_READY: etcd ended; its log ")
    assert done.stderr.endswith("ends with: no disk left\n")
