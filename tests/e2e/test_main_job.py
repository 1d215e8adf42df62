"""The main job on two replicas: the demo, which checks every step of it, run as a user runs it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from registry.tools.devstack.stack_parts import our_environment
from tests.support.processes import child
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(1800)
ENGINES = ["sim", pytest.param("vllm", marks=pytest.mark.engine)][: 2 if os.environ.get("NIGHTLY") else 1]
COMMAND = [sys.executable, "-m", "tests.e2e.demo", "--engine"]


def environment(folder: Path) -> dict[str, str]:
    """Ours, with a folder for temporary files that shows what is left."""
    return {**our_environment(), "TMPDIR": str(folder)}


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that were started with the folder in their environment, as all of a stack are."""
    marked = (path for path in Path("/proc").glob("[0-9]*") if str(folder).encode() in _read(path / "environ"))
    return [_read(path / "cmdline").decode().replace("\0", " ") for path in marked]


def _read(path: Path) -> bytes:
    """Empty if the process has ended since it was listed."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("engine", ENGINES)
def test_the_demo_holds(engine, tmp_path):
    """R3, R5, R6, R12, R13, W1, W2: applied together, answered as PEFT answers, swapped unmixed, deleted,
    and back after the kill of an engine, of a sidecar and of etcd; nothing is left. On real vLLM each night."""
    command, own = [*COMMAND, engine], environment(tmp_path)
    played = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False, env=own)
    assert played.returncode == 0, played.stdout + played.stderr
    assert "All 7 steps held" in played.stdout
    assert "0 neither" in played.stdout
    assert processes_of(tmp_path) == []
    if engine == "sim":  # torch leaves files of its own
        assert list(tmp_path.iterdir()) == []


def test_an_interrupt_cleans_up(tmp_path):
    with child([*COMMAND, "sim"], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)) as demo:
        asyncio.run(eventually(lambda: any("etcd" in line for line in processes_of(tmp_path))))
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=400)
    assert demo.returncode != 0
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []
