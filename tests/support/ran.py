"""How a command line ended."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from registry.cli.main import run


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed."""
        assert self.out, self.err[-2000:]
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """What it said of its failure."""
        return json.loads(self.err)["error"]

    @property
    def lines(self) -> list[str]:
        """What it printed, with each run of spaces as one: columns are as wide as their longest cell."""
        return [" ".join(line.split()) for line in self.out.splitlines()]


def ran(*words: str) -> Ran:
    """Runs `loraplane` in this process; one at a time, for what it writes is everybody's."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*words])
    return Ran(int(code), out.getvalue(), err.getvalue())
