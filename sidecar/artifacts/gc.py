"""Garbage collection of artifacts that no engine of the host may read.

Leases decide, under the artifact's lock; whatever cannot be read keeps everything.
"""

from __future__ import annotations

import os
import stat
import time
import uuid
from contextlib import suppress
from pathlib import Path

import structlog

from registry.runtime.failpoints import Point, hit
from registry.runtime.local_files import sync_directory
from registry.sources.base import Stop
from sidecar.artifacts.disk import SizeIndex
from sidecar.artifacts.files import locked_at_once, remove_whole
from sidecar.artifacts.layout import StoreLayout
from sidecar.artifacts.leases import LeasesUnreadable, everybodys_leases, may_be_read
from sidecar.metrics import STORE_REMOVED

_log = structlog.get_logger()


class GarbageCollector:
    """The only one that takes artifacts out of a store. Used in worker threads."""

    def __init__(self, layout: StoreLayout, index: SizeIndex, grace_seconds: float) -> None:
        """Keeps artifacts that were used, or let go of, less than `grace_seconds` ago."""
        self._layout = layout
        self._index = index
        self._grace_seconds = grace_seconds

    def collect(self, wanted_bytes: int, stop: Stop) -> int:
        """Removes what is neither leased nor young, the longest unused first, until so many bytes are free.

        Returns:
            How many bytes were removed; less than wanted if that was all.

        Raises:
            OSError: the store failed.
        """
        removed_bytes = 0
        for artifact in self._unleased() if wanted_bytes > 0 else ():
            stop.check()
            removed_bytes += self._remove_if_free(artifact)
            if removed_bytes >= wanted_bytes:
                break
        return removed_bytes

    def _unleased(self) -> list[str]:
        """Candidates, the longest unused first. It is looked at each again, under its lock."""
        try:
            leased = everybodys_leases(self._layout.leases)
        except LeasesUnreadable as error:
            _log.error("nothing_removed", why=str(error), remedy="start the sidecar of that replica, which mends it")
            return []
        return sorted(self._layout.staged_ids() - leased, key=self._used_at)

    def _used_at(self, artifact: str) -> float:
        """Time of last use by this machine's clock: that of its lock file."""
        try:
            return self._layout.lock(artifact).stat().st_mtime
        except FileNotFoundError:
            return time.time()

    def _remove_if_free(self, artifact: str) -> int:
        """Removes it unless somebody uses it. Gives the bytes that it had."""
        with locked_at_once(self._layout.lock(artifact)) as is_locked:
            # A clock that was set back must not keep anything for ever.
            is_old = abs(time.time() - self._used_at(artifact)) >= self._grace_seconds
            # Whoever leases from now on looks for the directory only once we have given the lock back.
            if not is_locked or not is_old or may_be_read(artifact, self._layout.leases):
                return 0
            hit(Point.CHOSEN)
            size_bytes = self.take_out(artifact)
        if size_bytes:
            STORE_REMOVED.inc()
            _log.info("artifact_removed", artifact=artifact, size_bytes=size_bytes)
        return size_bytes

    def take_out(self, artifact: str) -> int:
        """Removes a directory, whose lock the caller holds and which nobody leases, and its report; gives its bytes."""
        aside = self._layout.temporary(artifact, f"{uuid.uuid4().hex}.removed")
        directory = self._layout.adapter(artifact)
        try:
            with self._index.removing(artifact):
                directory.rename(aside)
        except FileNotFoundError:
            return 0  # somebody else of the host was first
        sync_directory(directory.parent)
        hit(Point.SET_ASIDE)
        # What is no directory, somebody put there, to lead elsewhere.
        is_directory = stat.S_ISDIR(aside.lstat().st_mode)
        size_bytes = sum(path.lstat().st_size for path in aside.iterdir()) if is_directory else 0
        remove_whole(aside)
        hit(Point.FILES_REMOVED)
        self._layout.report(artifact).unlink(missing_ok=True)
        hit(Point.REPORT_REMOVED)
        return size_bytes

    def make_way(self, artifact: str, *, but: Path) -> bool:
        """Removes what is damaged, unless an engine other than that of the lease file `but` may be reading it.

        The caller holds its lock. Gives whether it is gone.
        """
        if may_be_read(artifact, self._layout.leases, but=but):
            return False
        self.take_out(artifact)
        return True

    def tidy(self, stop: Stop) -> None:
        """Removes what killed processes left in ``tmp/``; what a living one still works on has a lock that is held.

        Raises:
            OSError: the store cannot be read.
        """
        for path in sorted(path for path in (self._layout.root / "tmp").iterdir() if not path.name.startswith(".")):
            stop.check()
            with locked_at_once(self._layout.lock(path.name.partition(".")[0])) as is_locked, suppress(OSError):
                if is_locked:
                    remove_whole(path)  # one that resists is left to the next round


def mark_used(layout: StoreLayout, artifact: str, *, seconds_ago: float = 0.0) -> None:
    """Notes when an artifact was used. That it cannot be noted costs the order of removals, nothing else."""
    at = time.time() - seconds_ago
    with suppress(OSError):
        os.utime(layout.lock(artifact), (at, at))
