"""Many processes of ours at once, forked from one that has done the imports: fifty would take a minute otherwise."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.support.processes import Program

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["sidecar.main", "bench.raw_replica"])


@dataclass
class ForkedSidecar(Program):
    """A sidecar's process that skips the imports, and is like any other from then on."""

    _fork: ForkServerProcess | None = None

    @classmethod
    def like(cls, program: Program) -> ForkedSidecar:
        """The same program with the same arguments."""
        return cls(program.module, program.arguments, program.log, program.environment)

    @property
    def pid(self) -> int:
        assert self._fork is not None
        assert self._fork.pid is not None
        return self._fork.pid

    @property
    def is_running(self) -> bool:
        return self._fork is not None and self._fork.is_alive()

    def start(self) -> None:
        """See `Program.start`."""
        self._fork = CONTEXT.Process(target=_run_sidecar, args=(self.arguments, self.log), daemon=True)
        self._fork.start()

    def kill(self) -> None:
        """See `Program.kill`."""
        if self._fork is not None:
            self._fork.kill()
            self._fork.join()


def _run_sidecar(arguments: Sequence[str], log: Path) -> None:
    from sidecar.main import main  # noqa: PLC0415 - only where it runs

    for name in [name for name in os.environ if name.startswith("LORAPLANE_")]:
        del os.environ[name]
    sys.argv = ["loraplane-sidecar", *arguments]
    with log.open("a") as sys.stderr:
        main()
