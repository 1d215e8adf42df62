"""Leases on artifacts that an engine may be reading, on disk.

A lease belongs to the engine's process, not to the sidecar's: it survives the sidecar, outlives the adapter's unload
until the engine is known to have let go, and passes on to the process that takes the engine's place. There is a file
for each replica and address of its engine, with an id in each line. Leases are added to its end; letting go writes it
anew. What it says is at least what the engine may read, at every moment and wherever we are killed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import structlog

from registry.runtime.local_files import make_way, read_file
from sidecar.artifacts.files import append_line, write_atomic

_log = structlog.get_logger()
_ID = re.compile(r"[0-9a-f]{64}")
# What a full disk leaves of a line. It was never relied upon.
_CUT_OFF = re.compile(r"[0-9a-f]{0,63}")


class LeasesUnreadable(Exception):
    """A lease file cannot be read, or has something in it that nobody wrote: it may be about any artifact."""


class ArtifactLeases:
    """The leases of one replica. Safe for threads; two processes may add, and only the replica's owner lets go."""

    def __init__(self, file: Path, everything: Callable[[], Iterable[str]]) -> None:
        """Reads what earlier processes leased.

        Args:
            file: where they stand.
            everything: all artifacts there are. If the file is damaged, the engine may be reading any of them.

        Raises:
            OSError: the store cannot be read.
        """
        self.file = file
        self._everything = everything
        self._mutex = Lock()  # over what is in memory; held for a moment only
        self._writing = Lock()  # over the file
        self._holds: Counter[str] = Counter()
        self._ids: set[str] = set()
        self._is_written = True
        self.read()

    def read(self) -> None:
        """Reads the file anew; of one that cannot be read everything is leased.

        Raises:
            OSError: the store cannot be read.
        """
        with self._writing, self._mutex:
            try:
                self._ids, self._is_written = read_leases(self.file), True
            except LeasesUnreadable as error:
                _log.error("leases_damaged", error=str(error), consequence="all artifacts of the store are leased")
                self._ids, self._is_written = set(self._everything()), False
                make_way(self.file)  # leases are added to it from now on

    @property
    def key(self) -> str:
        """Names the lock of whoever writes the file anew."""
        return "leases-" + hashlib.sha256(self.file.name.encode()).hexdigest()[:16]

    def __contains__(self, artifact: str) -> bool:
        return artifact in self._ids

    def all(self) -> frozenset[str]:
        """Every artifact that is leased."""
        with self._mutex:
            return frozenset(self._ids)

    def add(self, artifact: str) -> bool:
        """Returns when the lease is in the file: True, if it is a new one.

        It need not survive a power cut, for no engine does.

        Raises:
            OSError: it could not be written.
        """
        with self._writing:
            if artifact in self._ids:
                return False
            append_line(self.file, artifact)
            with self._mutex:
                self._ids.add(artifact)
            return True

    @contextmanager
    def held(self, artifact: str) -> Iterator[bool]:
        """Leases it, and does not let go of it within the body. Gives what `add` gives."""
        with self.kept(artifact):
            yield self.add(artifact)

    @contextmanager
    def kept(self, artifact: str) -> Iterator[bool]:
        """Does not let go of it within the body, if it is leased, which is what is given."""
        with self._mutex:
            is_leased = artifact in self._ids
            self._holds[artifact] += 1
        try:
            yield is_leased
        finally:
            with self._mutex:
                self._holds[artifact] -= 1
                if not self._holds[artifact]:
                    del self._holds[artifact]

    def let_go(self, artifacts: Collection[str]) -> frozenset[str]:
        """Forgets these leases but for those that are held, and gives them; the file has them until `write`."""
        with self._mutex:
            gone = frozenset(artifacts) & self._ids - self._holds.keys()
            self._ids -= gone
            self._is_written = self._is_written and not gone
        return gone

    def are_lost(self) -> bool:
        """True if the file does not say all that it has to, as where somebody removed it. Then `write` writes it."""
        with self._writing, self._mutex:
            try:
                is_whole = self._ids <= read_leases(self.file)
            except LeasesUnreadable:
                is_whole = False
            self._is_written = self._is_written and is_whole
        return not is_whole

    def write(self, temporary: Path) -> None:
        """Writes the file anew if something was let go of. The caller alone uses `temporary`.

        Raises:
            OSError: it could not be written; it says what it said before.
        """
        with self._writing:
            with self._mutex:
                if self._is_written:
                    return
                lines = [f"{artifact}\n" for artifact in sorted(self._ids)]
                self._is_written = True
            try:
                write_atomic(self.file, "".join(lines).encode(), temporary=temporary)
            except BaseException:  # whatever it was: what did not come to the file is still to be written
                with self._mutex:
                    self._is_written = False
                raise


def read_leases(file: Path) -> set[str]:
    """The ids in a lease file; none if there is no file.

    Raises:
        LeasesUnreadable: it cannot be told which artifacts it is about.
    """
    try:
        lines = read_file(file).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise LeasesUnreadable(f"{file} cannot be read: {error.strerror}") from error
    for line in lines:
        if not (_ID.fullmatch(line) or _CUT_OFF.fullmatch(line)):
            raise LeasesUnreadable(f"{file} has a line that is no artifact's id: {line[:80]!r}")
    return {line for line in lines if _ID.fullmatch(line)}


def everybodys_leases(folder: Path, *, but: Path | None = None) -> set[str]:
    """Artifacts that any engine of the host may be reading; `but` is the file of one that does not count.

    Raises:
        LeasesUnreadable: one of the files cannot be read or understood.
        OSError: the folder cannot be read.
    """
    files = (file for file in folder.iterdir() if file != but and not file.name.startswith("."))
    return set().union(*map(read_leases, files))


def may_be_read(artifact: str, folder: Path, *, but: Path | None = None) -> bool:
    """True unless it is certain that no engine of the host may be reading it; `but` is as above.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        return artifact in everybodys_leases(folder, but=but)
    except LeasesUnreadable:
        return True


def warn_of_strays(own: Path) -> None:
    """Says which leases of the same replica are for engines at other addresses, of which nothing is known.

    Raises:
        OSError: the folder cannot be read.
    """
    replica = own.name.partition("@")[0]
    strays = [file for file in own.parent.iterdir() if file.name.partition("@")[0] == replica and file != own]
    if strays:
        remedy = "once the engine that this replica had before has ended, remove these files"
        _log.warning("leases_of_another_engine", files=[str(file) for file in strays], remedy=remedy)
