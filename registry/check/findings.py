"""What a check found. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A guarantee that does not hold. `revision` 0: at none in particular; `where`: a key, a request, or a line."""

    guarantee: str
    revision: int
    where: str
    message: str

    def __str__(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"{self.guarantee}{at}, {self.where}: {self.message}"
