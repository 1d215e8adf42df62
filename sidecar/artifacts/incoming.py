"""A directory in which an artifact arrives: written and hashed in one go, checked, and put in its place whole."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BufferedReader, BytesIO
from pathlib import Path

from registry.lora.base import BaseModules
from registry.lora.config import MAX_CONFIG_BYTES
from registry.lora.directory import Examined, examine_files
from registry.lora.findings import UnfitAdapter
from registry.lora.manifest import CONFIG_FILE, WEIGHTS_FILE, FileEntry, manifest_digest
from registry.lora.policy import Limits, Policy
from registry.sources.errors import ArtifactError, unfit
from registry.sources.stop import Stop
from sidecar.artifacts.files import sync_directory
from sidecar.artifacts.layout import Layout
from sidecar.artifacts.room import CHECK_BYTES, Reservation, Room
from sidecar.artifacts.writing import Writing

DEFAULT_MAX_WEIGHTS_BYTES = 16 << 30
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Incoming:
    """Files that arrive in `directory`. `entries` are those that are there to the last byte."""

    def __init__(
        self,
        directory: Path,
        max_weights_bytes: int,
        reservation: Reservation,
        stop: Stop,
        on_receiving: Callable[[], None],
    ) -> None:
        self.directory = directory
        self._reservation = reservation
        self.entries: list[FileEntry] = []
        self._begun: set[str] = set()
        self.is_placed = False
        # Small files as they were hashed, so that they need not be read again to be looked at.
        self._contents: dict[str, bytes] = {}
        self._caps = {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: max_weights_bytes}
        self._stop = stop
        self._on_receiving = on_receiving

    def take(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        """Writes one file, read-only and synced; what came of it before is gone. The source has promised its size.

        Raises:
            ArtifactError: ``source_incomplete``, ``too_large``, ``disk_full``, ``store_full``, or what the source
                raises.
            OSError: the store failed.
        """
        self._check_size(name, size_bytes)
        self._drop(name)
        self._reservation.admit(size_bytes, name)
        descriptor = os.open(f"{self.directory}/{name}", _NEW_FILE, 0o644)
        self._begun.add(name)
        try:
            os.fchmod(descriptor, 0o444)
            writing = Writing(descriptor)
            sha256 = writing.take(self._watched(name, size_bytes, chunks))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.entries.append(FileEntry(name, writing.size_bytes, sha256))
        if writing.whole is not None:
            self._contents[name] = writing.whole

    def _watched(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks as they arrive, while this staging may go on and there is room for the rest."""
        arrived_bytes = 0
        for chunk in chunks:
            self._stop.check()
            yield chunk
            arrived_bytes += len(chunk)
            self._on_receiving()
            if arrived_bytes % CHECK_BYTES < len(chunk):
                self._reservation.check_disk(max(0, size_bytes - arrived_bytes), name)

    def _drop(self, name: str) -> None:
        if name not in self._begun:
            return
        (self.directory / name).unlink(missing_ok=True)
        self.entries = [entry for entry in self.entries if entry.path != name]
        self._contents.pop(name, None)

    def _check_size(self, name: str, size_bytes: int) -> None:
        if size_bytes == 0:
            message = f"{name} is empty; it is tried again, in case it is still being written"
            raise ArtifactError("source_incomplete", message, permanent=False)
        if size_bytes > self._caps[name]:
            message = f"{name} has {size_bytes} bytes, at most {self._caps[name]} are taken; publish less"
            raise ArtifactError("too_large", message, permanent=True)

    def verify(self, base: BaseModules | None, policy: Policy) -> Examined:
        """Checks that what arrived is an adapter that may be served for that base.

        A replica's own limits are the planner's matter: they may change while the artifact does not.

        Raises:
            ArtifactError: it is none.
        """
        try:
            return examine_files(self._open, base, Limits(), policy)
        except UnfitAdapter as error:
            raise unfit(error.findings) from error

    def _open(self, name: str) -> BufferedReader | BytesIO:
        content = self._contents.get(name)
        return (self.directory / name).open("rb") if content is None else BytesIO(content)

    def digest(self) -> str:
        """The manifest digest of what arrived."""
        return manifest_digest(self.entries)

    def place(self, final: Path, naming: AbstractContextManager[None]) -> None:
        """Gives the directory its name, within `naming`; all that is in it survives a power cut, if the name does."""
        sync_directory(self.directory)
        with naming:
            self.directory.rename(final)
        self.is_placed = True


@contextmanager
def incoming(
    layout: Layout, key: str, max_weights_bytes: int, room: Room, stop: Stop, on_receiving: Callable[[], None]
) -> Iterator[Incoming]:
    """A fresh directory for `key`, whose lock the caller holds; gone at the end unless it was placed.

    Whatever an earlier holder of the lock left is removed, for the holder of a lock is known to be alone, and the
    number of a process is not known to be dead.
    """
    directory = layout.temporary(key, uuid.uuid4().hex)
    for left in directory.parent.iterdir():
        if left.name.startswith(f"{key}."):
            _remove(left)
    directory.mkdir()
    # Whatever our umask is: the engine may run as another user.
    directory.chmod(0o755)
    with room.reservation() as reservation:
        arriving = Incoming(directory, max_weights_bytes, reservation, stop, on_receiving)
        try:
            yield arriving
        finally:
            if not arriving.is_placed:
                # A directory that cannot be removed is left to the next holder of the lock.
                with suppress(OSError):
                    _remove(directory)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
