"""Runs `loraplane` where torch and PEFT are: with the engine's interpreter, our own packages behind its own."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.tools.devstack.engine_environment import find_engine_python
from tests.support.processes import child

PROJECT = Path(__file__).parents[2]
# What both environments have is the engine's. Torch takes seconds to be imported, so one process runs all commands.
_WORKER = """
import contextlib, io, json, sys
sys.path += [{ours!r}]
from registry.cli.main import run
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(json.loads(line))
    print(json.dumps([int(code), out.getvalue(), err.getvalue()]), flush=True)
"""


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """What it printed."""
        assert self.code == 0, self.err
        value: dict[str, Any] = json.loads(self.out)
        return value


class LoraplaneWithTorch:
    """Command lines of `loraplane` with the extra `publish`, one after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, *arguments: str) -> Ran:
        """Runs one command line. The test's own timeout is the deadline."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return Ran(*json.loads(self._process.stdout.readline()))


@contextmanager
def loraplane_with_torch() -> Iterator[LoraplaneWithTorch]:
    """The process, which ends with the context."""
    worker = _WORKER.format(ours=sysconfig.get_paths()["purelib"])
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "2"}
    command = [str(find_engine_python()), "-c", worker]
    pipe = subprocess.PIPE
    with child(command, env=environment, stdin=pipe, stdout=pipe, text=True, cwd=PROJECT) as process:
        yield LoraplaneWithTorch(process)
