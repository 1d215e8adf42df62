"""Which artifacts a replica's engine may be reading, on disk, so that nobody on the host removes them.

A lease belongs to the engine's process: it survives the sidecar, and outlives the adapter's unload until that engine
is known to have let go of it. The file has an id in each line and only grows.
"""

from __future__ import annotations

import re
from pathlib import Path
from threading import Lock

from sidecar.artifacts.files import append_line

_ID = re.compile(r"[0-9a-f]{64}")


class Leases:
    """The leases of one replica. Safe for threads, and for two processes that take themselves for that replica."""

    def __init__(self, file: Path) -> None:
        """Reads what earlier processes leased.

        Raises:
            OSError: there is a file, and it cannot be read.
        """
        self._file = file
        self._mutex = Lock()
        self._ids = read_leases(file)

    def __contains__(self, artifact: str) -> bool:
        return artifact in self._ids

    def add(self, artifact: str) -> None:
        """Returns when the lease is in the file. It need not survive a power cut: no engine does.

        Raises:
            OSError: it could not be written.
        """
        with self._mutex:
            if artifact not in self._ids:
                append_line(self._file, artifact)
                self._ids.add(artifact)


def read_leases(file: Path) -> set[str]:
    """The ids in a lease file. A line that was cut off was never relied upon, and is left out."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return set()
    return {line for line in lines if _ID.fullmatch(line)}
