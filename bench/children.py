"""Programs that measure themselves, each in a process of its own, so that neither fills the other's memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bench.figures import check


def compiled_in(folder: Path) -> dict[str, str]:
    """The environment of programs that find their modules compiled from the second run on, as installed ones do.

    Without it, where nobody may write beside the sources, each run would compile those that no installer has compiled.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}


class Child:
    """A program that is told when to begin a round, and answers with its seconds and its peak memory."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.seconds: list[float] = []
        self.peak_bytes = 0

    async def line(self) -> str:
        """The next line that it prints; empty: it has ended."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode()

    async def round(self) -> None:
        """One round, whose figures are kept.

        Raises:
            NotMeasured: the program ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        answer = await self.line()
        check(answer, "the program ended before its round did")
        seconds, self.peak_bytes = json.loads(answer)
        self.seconds.append(seconds)


@asynccontextmanager
async def child(program: str, *arguments: str) -> AsyncIterator[Child]:
    """Runs a program of Python in a process of its own, which ends with the context."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *arguments, stdin=pipe, stdout=pipe)
    try:
        yield Child(process)
    finally:
        with suppress(ProcessLookupError):  # it may have done all its rounds
            process.kill()
        await process.wait()
