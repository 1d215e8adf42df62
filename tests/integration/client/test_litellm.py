"""LiteLLM's own Router with our callback, before a stack of real processes with simulated engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
PYTHON = PROJECT / ".venv-litellm/bin/python"


def loraplane(*arguments: str) -> str:
    """Runs a command line; the test's own timeout is the deadline."""
    command = [sys.executable, "-m", "registry.cli.main", *arguments]
    return subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def stack(tmp_path) -> Iterator[dict[str, int]]:
    """The ports of a stack with two replicas."""
    folder = tmp_path / "stack"
    loraplane("dev", "up", "--engine", "sim", "--replicas", "2", "--dir", str(folder))
    try:
        yield json.loads((folder / "stack.json").read_text())["ports"]
    finally:
        loraplane("dev", "down", "--dir", str(folder))


def test_no_request_goes_where_its_adapter_is_not(stack, tmp_path):
    """R5, R20, R24: through a swap, drains, a hand-over and one more replica; each is answered by who serves it."""
    assert PYTHON.exists(), "make .venv-litellm/.installed puts it there"
    admin, adapters = f"127.0.0.1:{stack['admin']}", tmp_path / "stack/adapters"

    def order(*arguments: str) -> None:
        loraplane("--admin", admin, *arguments)

    order("add", "everywhere", "--source", str(adapters / "sql"), "--wait")
    order("add", "placed", "--source", str(adapters / "legal"), "--replicas", "1", "--wait")
    engines = [f"http://127.0.0.1:{stack[f'engine-{name}']}" for name in ("r1", "r2")]
    told = {"admin": admin, "pool": "dev", "engines": engines, "models": ["everywhere", "placed"], "rate": 20}
    traffic = subprocess.Popen(
        [str(PYTHON), "-m", "tests.support.litellm_traffic", json.dumps(told)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert traffic.stdout is not None
        assert traffic.stdout.readline() == "begun\n"
        order("set", "everywhere", "--source", str(adapters / "sql-v2"), "--wait")
        for replica in ("r1", "r2"):
            order("drain", replica, "--wait")
            order("undrain", replica)
            order("rollout", "placed")
        order("set", "placed", "--replicas", "2", "--wait")
        order("set", "placed", "--replicas", "1", "--wait")
        output, _ = traffic.communicate()
    finally:
        traffic.kill()
    found = json.loads(output.splitlines()[-1])
    assert found["failed"] == []
    assert found["sent"] > 40
