"""Files of a process' own, in a directory where anything may stand in their place.

Nothing that stands there prevents a start (R12): what is no file is neither waited for nor followed, and what is in the
way of a file is set aside, where somebody may look at it.

Files that an operator replaces while a process runs are read again; what cannot be read changes nothing.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import structlog

from registry.sources.base import StoreError, version_of

_log = structlog.get_logger()
Content = TypeVar("Content")
# More than any of these files has.
MAX_BYTES = 64 << 20
# Far more than a password or a key has.
MAX_SECRET_BYTES = 64 << 10
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class NotAFile(OSError):
    """Something else stands under the name of a file of ours: a directory, a pipe, a link, or what is far too large."""


def is_shortage(error: OSError) -> bool:
    """True for want of descriptors or memory, which says nothing of the file that was to be looked at."""
    return error.errno in _SHORTAGES


def read_file(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a file. Raises what `open_file` raises."""
    with open_file(path, max_bytes=max_bytes) as file:
        return file.read(max_bytes)


def read_followed(path: Path, *, max_bytes: int) -> bytes:
    """The content of a file of an operator's, who may name a link or a pipe.

    Raises:
        NotAFile: it has more than `max_bytes`; no more than these are read.
        OSError: it is not there, or cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _too_large(path, max_bytes)
    return content


@contextmanager
def open_file(path: Path, *, max_bytes: int) -> Iterator[BinaryIO]:
    """A file of ours, open to be read. It may grow: whoever reads it has a bound too.

    Raises:
        NotAFile: it is none, or larger than `max_bytes`.
        OSError: it is not there, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link; a socket
            raise NotAFile(error.errno, "it is no file", str(path)) from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotAFile(errno.EINVAL, "it is no file", str(path))
        if found.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            yield file
    finally:
        os.close(descriptor)


def _too_large(path: Path, max_bytes: int) -> NotAFile:
    return NotAFile(errno.EFBIG, f"it has more than {max_bytes} bytes", str(path))


def make_way(path: Path) -> None:
    """Sets aside what stands under the name of a file and is none. Raises OSError."""
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        set_aside(path)


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory survive a power cut. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Makes a directory that survives a power cut, in whose way, and its parent's, no file stands. Raises OSError."""
    for folder in (path.parent, path):
        if os.path.lexists(folder) and not folder.is_dir():
            set_aside(folder)
    made = [folder for folder in path.parents if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in (path, *made):
        sync_directory(folder.parent)


def set_aside(path: Path) -> None:
    """Renames it to ``.damaged-NAME``; what was set aside there before is gone then.

    Raises:
        NotAFile: it is a device, as ``/dev/null`` is, which all of the host may use.
        OSError: it cannot be renamed.
    """
    if stat.S_ISCHR(mode := path.lstat().st_mode) or stat.S_ISBLK(mode):
        raise NotAFile(errno.EINVAL, "it is a device", str(path))
    aside = path.with_name(f".damaged-{path.name}")
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    elif os.path.lexists(aside):
        aside.unlink()
    path.rename(aside)
    _log.error("file_set_aside", file=str(path), kept_as=str(aside))


class FollowedFile(Generic[Content]):
    """A file of an operator's that is read again when it was replaced or written to.

    What cannot be read is not taken: it may be half written, and what was read before goes on.
    """

    def __init__(self, path: Path, read: Callable[[Path], Content], take: Callable[[Content], None]) -> None:
        """Reads it and hands over what it says. Raises what `read` raises."""
        self.path = path
        self._read = read
        self._take = take
        self._taken = version_of(path)
        self._refused: tuple[int, ...] | None = None
        self._trouble = ""
        self._failures = 0
        take(read(path))

    @property
    def taken(self) -> tuple[int, ...] | None:
        """The version of the file that was handed over last."""
        return self._taken

    @property
    def trouble(self) -> str:
        """Why the file as it was at the last look is not taken; empty: it is."""
        return self._trouble

    @property
    def failures(self) -> int:
        """States of the file that were not taken."""
        return self._failures

    def refresh(self) -> None:
        """Reads it again if it has changed. It may take a while: call it in a thread."""
        version = version_of(self.path)
        if version == self._taken:
            self._trouble = ""
            return
        try:
            content = self._read(self.path)
        except (OSError, StoreError) as error:
            if version != self._refused:  # told once for each state of the file
                _log.error("file_not_taken", file=str(self.path), reason=str(error))
                self._failures += 1
            self._refused, self._trouble = version, str(error)
            return
        self._take(content)
        self._taken, self._trouble = version, ""
        _log.info("file_taken", file=str(self.path))
