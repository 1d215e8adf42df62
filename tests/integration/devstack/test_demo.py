"""The demonstration itself, on simulated engines: it holds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import child
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(1500)
COMMAND = [sys.executable, "-m", "tests.e2e.demo", "--engine", "sim"]


def environment(folder: Path) -> dict[str, str]:
    """Ours, with a folder for temporary files that shows what is left."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("LORAPLANE_")}, "TMPDIR": str(folder)}


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


@pytest.mark.skipif(not os.environ.get("NIGHTLY"), reason="sessions are played by make sessions")
def test_every_step_holds_and_nothing_is_left(tmp_path):
    """R3 converge, R5 no-silent-base, R6 unload-eventual, R13 static-stable: on the whole stack, from outside."""
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, env=environment(tmp_path), timeout=1000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "All 7 steps held" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_an_interrupt_cleans_up(tmp_path):
    with child(COMMAND, stdout=subprocess.PIPE, text=True, env=environment(tmp_path)) as demo:
        asyncio.run(eventually(lambda: any("etcd" in line for line in processes_of(tmp_path))))
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=400)
    assert demo.returncode != 0
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []
