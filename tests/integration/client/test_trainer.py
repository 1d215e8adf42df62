"""transformers' own Trainer with our callback, before a stack of real processes with simulated engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from loraplane import Registry
from registry.tools.devstack.engine_environment import find_engine_python

PROJECT = Path(__file__).parents[3]
pytestmark = pytest.mark.engine


@pytest.fixture
def stack(tmp_path) -> Iterator[str]:
    """The address of the admin service of a stack with two replicas."""
    folder = str(tmp_path / "stack")
    command = [sys.executable, "-m", "registry.cli.main", "dev"]
    subprocess.run([*command, "up", "--engine", "sim", "--replicas", "2", "--dir", folder], cwd=PROJECT, check=True)
    try:
        yield f"127.0.0.1:{json.loads((tmp_path / 'stack/stack.json').read_text())['ports']['admin']}"
    finally:
        subprocess.run([*command, "down", "--dir", folder], cwd=PROJECT, check=True)


def test_each_checkpoint_of_a_run_is_served_and_a_run_without_lora_is_refused(stack, tmp_path):
    """The Trainer keeps one checkpoint, the callback two versions, of which the newest is served by both replicas."""
    out = tmp_path / "stack/adapters/run"
    told = {
        "admin": stack,
        "pool": "dev",
        "name": "acme/policy",
        "steps": 3,
        "out": str(out),
        "model": str(tmp_path / "stack/model"),
        "packages": str(Path(grpc.__file__).parents[1]),
    }
    ran = subprocess.run(
        [find_engine_python(), "-m", "tests.support.trainer_run", json.dumps(told)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert (said["generation"], said["engines"], said["error"]) == (3, 2, "None")
    assert "the model of this run has no adapter" in said["refused"]
    assert [one.name for one in out.glob("checkpoint-*")] == ["checkpoint-3"]
    assert sorted(one.name for one in (out / "loraplane").iterdir()) == ["step-2", "step-3"]
    with Registry(stack) as registry:
        adapter = registry.get("acme/policy", "dev")
        assert adapter.uri == (out / "loraplane/step-3").as_uri()
        assert (adapter.labels["step"], adapter.labels["run"]) == ("3", "run-7")
        assert float(adapter.labels["eval_loss"]) > 0
