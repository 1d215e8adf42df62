"""Syncs one directory for all who ask at about the same time."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from sidecar.artifacts.files import sync_directory


class SharedSync:
    """The names in one directory. Whoever asks while a sync runs waits for the next one, which serves all of them."""

    def __init__(self, directory: Path) -> None:
        """Does nothing yet."""
        self._directory = directory
        self._running = Lock()
        self._begun = 0
        self._done = 0

    def sync(self) -> None:
        """Returns when the names that are in the directory now survive a power cut.

        Raises:
            OSError: they may not.
        """
        # One that has begun already may have looked before our name was there.
        wanted = self._begun + 1
        with self._running:
            if self._done >= wanted:
                return
            self._begun += 1
            begun = self._begun
            sync_directory(self._directory)
            self._done = begun
