"""Reads what is in the store again, slowly, and compares it with what its report says that was written."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from registry.lora.manifest import FILES, FileEntry, manifest_digest
from registry.sources.stop import Stop
from sidecar.artifacts.files import locked_at_once
from sidecar.artifacts.layout import Layout
from sidecar.artifacts.leases import may_be_read
from sidecar.artifacts.removal import Removal
from sidecar.artifacts.reports import parse_report

_log = structlog.get_logger()
BYTES_PER_SECOND = 10 << 20
# Each artifact is read once in this time, by one of the host's sidecars.
PERIOD_SECONDS = 24 * 3600.0
# If all was looked at of late, the next search for what was not is after this time.
IDLE_SECONDS = 60.0
_CHUNK_BYTES = 1 << 20


class Scrub:
    """Looks at one artifact at a time. What is damaged and leased is remembered, and not touched."""

    def __init__(self, layout: Layout, removal: Removal, on_damage: Callable[[str], None]) -> None:
        """`on_damage` is called with each artifact that is found damaged, before anything is done about it."""
        self._layout = layout
        self._removal = removal
        self._on_damage = on_damage
        self._next_at = 0.0
        # And which directory it was, for a new one of that name is another matter.
        self._damaged: dict[str, tuple[int, int]] = {}

    def is_damaged(self, artifact: str) -> bool:
        """True if the directory that stands there now was found damaged."""
        found = self._damaged.get(artifact)
        return found is not None and found == _identity(self._layout.adapter(artifact))

    def count_damaged(self) -> int:
        """How many are damaged and still there."""
        return sum(map(self.is_damaged, list(self._damaged)))

    def step(self, stop: Stop) -> None:
        """Sets aside what is damaged and free now; looks at one more artifact, if it is time.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store cannot be read.
        """
        for artifact in list(self._damaged):
            self._set_aside(artifact)
        now = time.monotonic()
        if now < self._next_at:
            return
        oldest = self._oldest()
        if oldest is None:
            self._next_at = now + IDLE_SECONDS
        else:
            self._look_at(oldest, stop)

    def _oldest(self) -> str | None:
        """What was written or looked at the longest time ago, by the time of its report; None: all were of late.

        Without a report nothing is known of what was written.
        """
        artifacts = self._layout.staged_ids() - self._damaged.keys()
        looked_at = {one: at for one in artifacts if (at := _modified(self._layout.report(one))) is not None}
        oldest = min(looked_at, key=looked_at.__getitem__, default=None)
        return oldest if oldest and time.time() - looked_at[oldest] >= PERIOD_SECONDS else None

    def _look_at(self, artifact: str, stop: Stop) -> None:
        """Compares one artifact with its report."""
        directory = self._layout.adapter(artifact)
        identity, expected = _identity(directory), self._expected(artifact)
        found = _read(directory, stop)
        if found == expected or expected is None or identity is None or identity != _identity(directory):
            with suppress(OSError):
                os.utime(self._layout.report(artifact))
            return
        _log.error("artifact_damaged", artifact=artifact, found=found, expected=expected)
        self._damaged[artifact] = identity
        self._on_damage(artifact)
        self._set_aside(artifact)

    def _expected(self, artifact: str) -> str | None:
        try:
            report = parse_report(self._layout.report(artifact).read_bytes())
        except FileNotFoundError:
            return None
        return report.prepared if report else None

    def _set_aside(self, artifact: str) -> None:
        """Removes what is damaged unless it is leased; whoever wants it next fetches it again."""
        with locked_at_once(self._layout.lock(artifact)) as is_locked:
            if not is_locked or may_be_read(artifact, self._layout.leases):
                return
            if self.is_damaged(artifact):
                self._removal.take_out(artifact)
                _log.warning("artifact_set_aside", artifact=artifact)
            del self._damaged[artifact]


def _identity(directory: Path) -> tuple[int, int] | None:
    """Tells a directory from a later one of its name, which may be given the same inode."""
    try:
        status = directory.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _read(directory: Path, stop: Stop) -> str:
    """The manifest digest of what stands in a directory; of what cannot be read, what was met."""
    try:
        entries = [_entry(directory / name, stop) for name in FILES]
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    return manifest_digest(entries)


def _entry(path: Path, stop: Stop) -> FileEntry:
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            stop.check(len(chunk) / BYTES_PER_SECOND)
            digest.update(chunk)
            size_bytes += len(chunk)
    return FileEntry(path.name, size_bytes, digest.hexdigest())
