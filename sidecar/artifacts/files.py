"""File work: advisory locks, atomic writes, shared syncs, errors."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Lock

from registry.runtime.local_files import make_way, sync_directory
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.layout import StoreLayout

POLL_SECONDS = 0.005
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def locked(path: Path, stop: Stop) -> Iterator[None]:
    """Holds the lock file exclusively, among threads as among processes; waits for it. The file is never removed.

    Raises:
        ArtifactError: ``staging_stopped`` while it waited.
    """
    descriptor = _open_lock(path)
    try:
        while not _try_lock(descriptor):
            stop.check(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_at_once(path: Path) -> Iterator[bool]:
    """Like `locked`, but does not wait: False if somebody else holds it."""
    descriptor = _open_lock(path)
    try:
        yield _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def fresh_folder(layout: StoreLayout, key: str) -> Iterator[Path]:
    """A new folder in ``tmp/`` for `key`, whose lock the caller holds; gone at the end, unless it was renamed.

    Whatever an earlier holder of the lock left is removed, for the holder of a lock is known to be alone, and the
    number of a process is not known to be dead.
    """
    folder = layout.temporary(key, uuid.uuid4().hex)
    for left in folder.parent.iterdir():
        if left.name.startswith(f"{key}."):
            remove_whole(left)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        # If it was renamed, nothing is there. One that cannot be removed is left to the next holder of the lock.
        with suppress(OSError):
            remove_whole(folder)


@contextmanager
def fetching_folder(layout: StoreLayout) -> Iterator[Path]:
    """A new folder for what a command fetches; as many locks stay as were ever held at once."""
    for key in (f"fetched-{number}" for number in count()):
        with locked_at_once(layout.lock(key)) as is_locked:
            if is_locked:
                with fresh_folder(layout, key) as folder:
                    yield folder
                return


def remove_whole(path: Path) -> None:
    """Removes a folder with all that is in it, or what stands there else, and nothing that it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes, *, temporary: Path) -> None:
    """Replaces a file as a whole, to survive a kill; a power cut may undo it, or leave it empty.

    The caller alone uses `temporary`, which is on the same file system.
    """
    make_way(path)
    make_way(temporary)
    _write_whole(temporary, content, os.O_TRUNC)
    temporary.rename(path)


def append_line(path: Path, line: str) -> None:
    """Adds a line to a file, to survive a kill. Lines of several processes do not mix.

    It starts with a line break too, so that a line which a full disk cut off does not swallow the next.
    """
    _write_whole(path, f"\n{line}\n".encode(), os.O_APPEND)


def _write_whole(path: Path, content: bytes, how: int) -> None:
    """In one call, as regular files allow that have room."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """In as many calls as it takes, as a pipe takes less than it is given."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def store_failure(error: OSError, root: Path) -> ArtifactError:
    """Meaning of a failed call on the store's own files for the adapter that was being staged."""
    if error.errno in _NO_SPACE:
        return ArtifactError("disk_full", f"no space is left in the store {root}: {error.strerror}; make room there")
    return ArtifactError("store_io", f"the store {root} failed: {error}; check its disk and its permissions")


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
