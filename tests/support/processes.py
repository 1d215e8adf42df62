"""Our own programs as child processes, ended by the process id that was started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.forked import Fork

END_SECONDS = 180


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that ends with the context, as `subprocess.Popen` takes its options.

    The end of ``with Popen`` itself waits for a process, also one that hangs: the test then tells so after 15 minutes.
    """
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Program:
    """One child process that runs a module of ours; its stderr goes to `log`. `before`: how its command begins."""

    module: str
    arguments: list[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | Fork | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it; does not wait until it serves."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LORAPLANE_")} | dict(self.environment)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            if self._is_forked():
                self._process = Fork(self.module, self.arguments, environment, log)
            else:
                command = [*self.before, sys.executable, "-m", self.module, *self.arguments]
                self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _is_forked(self) -> bool:
        """Not what begins otherwise, nor what an interpreter or a loader reads at its start."""
        return not self.before and not any(name.startswith(("LD_", "PYTHON")) for name in self.environment)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and waits for the end."""
        if self.is_running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """SIGTERM, then kill -9 if that is not enough. Returns the exit code."""
        if self._process is None:
            return 0
        if self.is_running:
            self.signal(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def wait(self) -> int:
        """Waits for its end and returns the exit code."""
        return self._process.wait(END_SECONDS) if self._process else 0

    def logged(self) -> list[dict[str, Any]]:
        """The JSON lines of its log."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]
