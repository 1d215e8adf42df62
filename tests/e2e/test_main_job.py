"""The main job on two replicas: the demo, which checks every step of it, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENGINES = ["sim", pytest.param("vllm", marks=pytest.mark.engine)][: 2 if os.environ.get("NIGHTLY") else 1]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_demo_holds(engine):
    """R3, R5, R6, R12, R13, W1, W2: applied together, answered as PEFT answers, swapped unmixed, deleted,
    and back after the kill of an engine, of a sidecar and of etcd. On real vLLM each night."""
    command = [sys.executable, "-m", "tests.e2e.demo", "--engine", engine]
    played = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert played.returncode == 0, played.stdout + played.stderr
    assert "All 7 steps held" in played.stdout
    assert "0 neither" in played.stdout
