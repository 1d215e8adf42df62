"""What a sidecar's log says of its connection to etcd."""

from __future__ import annotations

import json
from pathlib import Path


class EtcdLink:
    """Follows the log. Each line is read once, for the log of ten minutes is long and is asked often.

    Attributes:
        endpoint: the member that is watched; empty while one is looked for.
        losses: how often the connection was lost.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read_bytes = 0
        self.endpoint = ""
        self.losses = 0

    def look(self) -> None:
        """Takes in what was logged since the last time."""
        with self._log.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                self._take(json.loads(line))

    def _take(self, line: dict[str, object]) -> None:
        match line["event"]:
            case "etcd_connected":
                self.endpoint = str(line["endpoint"])
            case "etcd_disconnected":
                self.endpoint = ""
                self.losses += 1
