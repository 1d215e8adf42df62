"""How long a source may keep us waiting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a source may keep us waiting.

    Attributes:
        connect_seconds: for a connection, and for TLS on it.
        idle_seconds: without a byte.
        min_bytes_per_second: on average over the time that was spent waiting for bytes.
        pace_seconds: how often the average is looked at.
    """

    connect_seconds: float = 10.0
    idle_seconds: float = 30.0
    min_bytes_per_second: int = 4096
    pace_seconds: float = 30.0

    def timeouts(self) -> dict[str, float]:
        """As httpcore takes them."""
        idle = self.idle_seconds
        return {"connect": self.connect_seconds, "read": idle, "write": idle, "pool": self.connect_seconds}
