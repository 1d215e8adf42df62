"""The main job on two real vLLM replicas: the demo, which checks every step of it, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_demo_holds_on_real_engines():
    """R3, R5, R6, R12, R13, W1, W2 on real vLLM: applied together, answered as PEFT answers, swapped without a mixed
    answer, deleted, and back after the kill of an engine, of a sidecar and of etcd."""
    played = subprocess.run(
        [sys.executable, "-m", "registry.tools.devstack.demo", "--engine", "vllm"],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert played.returncode == 0, played.stdout + played.stderr
    assert "All 7 steps held" in played.stdout
    assert "0 neither" in played.stdout
