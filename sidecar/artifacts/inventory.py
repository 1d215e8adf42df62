"""What is in the store and how much of the disk it takes, known exactly without listing it each time.

With thousands of artifacts a listing takes as long as staging a small one. So whoever puts an artifact in its place, or
takes one out, says so in a file that all sidecars of the host share: a byte is appended just before something comes,
and another just after something came or went. While the file is as long as it was before we listed the store, plus our
own bytes, nobody else changed anything since. Nothing waits for anything here. Of a process that is killed just before
its second byte, whoever listed the store between its first byte and its rename learns at his next listing only; upkeep
makes one every few seconds, and where the budget is nearly used up each arrival does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from sidecar.artifacts.layout import Layout

# Then the file is emptied, and whoever has seen it longer lists the store again. It would have to grow by as much
# between two looks of one sidecar to deceive that, and upkeep looks every few seconds.
MAX_CHANGES_BYTES = 1 << 20
_CHANGES = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Inventory:
    """Sizes of what is in the store. A directory never changes, so each is measured once. Safe for threads."""

    def __init__(self, layout: Layout) -> None:
        """Looks at nothing yet."""
        self._layout = layout
        self._changes = layout.lock("changes")
        self._mutex = Lock()
        self._sizes: dict[str, int] = {}
        self._used_bytes = 0
        # How long the file of changes is if only we changed something since the sizes were listed; None: never listed.
        self._length: int | None = None

    def sizes(self) -> dict[str, int]:
        """Bytes of each artifact's files by id, listed anew.

        Raises:
            OSError: the store cannot be read.
        """
        with self._mutex:
            self._list()
            return dict(self._sizes)

    def used_bytes(self) -> int:
        """Bytes of all artifacts; the store is listed only if another sidecar changed something.

        Raises:
            OSError: the store cannot be read.
        """
        with self._mutex:
            if self._length is None or self._length != self._changes_bytes():
                self._list()
            return self._used_bytes

    @contextmanager
    def adding(self, artifact: str, size_bytes: int) -> Iterator[None]:
        """In the body the artifact gets its name. If that fails, too much is counted until the store is listed.

        Raises:
            OSError: nobody could be told.
        """
        descriptor = os.open(self._changes, _CHANGES, 0o644)
        try:
            self._tell(descriptor)
            try:
                yield
            finally:
                self._note(artifact, size_bytes)
                # It is announced already; only those who looked in between do not know.
                with suppress(OSError):
                    self._tell(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def removing(self, artifact: str) -> Iterator[None]:
        """In the body the artifact loses its name. That nobody can be told makes the store look fuller than it is."""
        yield
        self._note(artifact, 0)
        with suppress(OSError):
            descriptor = os.open(self._changes, _CHANGES, 0o644)
            try:
                self._tell(descriptor)
            finally:
                os.close(descriptor)

    def _list(self) -> None:
        """The caller holds the mutex."""
        # Whatever changes from here on makes the file longer than this.
        length = self._short_enough(self._changes_bytes())
        present = self._layout.staged_ids()
        for gone in self._sizes.keys() - present:
            del self._sizes[gone]
        for new in present - self._sizes.keys():
            self._sizes[new] = _size(self._layout.adapter(new))
        self._used_bytes = sum(self._sizes.values())
        self._length = length

    def _note(self, artifact: str, size_bytes: int) -> None:
        with self._mutex:
            self._used_bytes += size_bytes - self._sizes.pop(artifact, 0)
            if size_bytes:
                self._sizes[artifact] = size_bytes

    def _tell(self, descriptor: int) -> None:
        with self._mutex:
            told_bytes = os.write(descriptor, b".")
            if self._length is not None:
                self._length += told_bytes

    def _changes_bytes(self) -> int:
        try:
            return self._changes.stat().st_size
        except FileNotFoundError:
            return 0

    def _short_enough(self, length: int) -> int:
        if length <= MAX_CHANGES_BYTES:
            return length
        os.truncate(self._changes, 0)
        return 0


def _size(directory: Path) -> int:
    """0 where it vanished meanwhile."""
    try:
        return sum(path.stat().st_size for path in directory.iterdir())
    except FileNotFoundError:
        return 0
