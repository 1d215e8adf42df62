"""How a command line ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


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
