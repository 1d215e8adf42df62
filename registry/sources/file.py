"""Adapters in a directory of this host, under allowed roots only.

Symlinks on the way to the directory are followed first and then judged by where they lead; after that nothing is
followed any more, so exchanging a part of the path for a symlink in between leads nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from registry.lora.digest import CONFIG_FILE, FILES, OTHER_FILES, instead_of_weights
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.model.source_uri import without_secrets
from registry.sources.base import ArtifactError, Receive, Source, Stop, beginning, other_format

CHUNK_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK the opening of a FIFO would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def path_of(uri: str) -> Path:
    """The absolute path that a file:// URI names.

    Raises:
        ValueError: it names none.
    """
    parts = urlsplit(uri)
    path = unquote_to_bytes(parts.path)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"{parts.netloc[:100]!r} is another host")
    if parts.query or parts.fragment:
        raise ValueError("it has a query or a fragment; write ? as %3F and # as %23")
    if not path.startswith(b"/") or b"\0" in path:
        raise ValueError("it has no absolute path")
    return Path(os.fsdecode(path))


@dataclass(frozen=True, slots=True)
class FileSource(Source):
    """A directory: an allowed root with all symlinks resolved, and the names that lead from there.

    `uri` is as it was written, which is all that is told of it but in the log of this host.
    """

    uri: str
    root: Path
    below: tuple[str, ...]

    @classmethod
    def at(cls, uri: str, roots: Iterable[Path]) -> FileSource:
        """The source at a file:// URI.

        Raises:
            ArtifactError: ``source_not_allowed``.
        """
        told = without_secrets(uri)
        try:
            path = _resolved(path_of(uri))
            resolved = [_resolved(root) for root in roots]
        except ValueError as error:
            raise _not_allowed(f"{told!r} cannot be followed: {error}") from error
        except OSError as error:
            raise _not_allowed(f"{told!r} cannot be followed: {error.strerror}", detail=str(error)) from error
        for root in resolved:
            if path == root or path.startswith(f"{root.rstrip('/')}/"):
                return cls(told, Path(root), tuple(filter(None, path[len(root) :].split("/"))))
        detail = f"it leads to {path}; allowed: {', '.join(resolved) or 'nothing'}"
        message = f"{told} is not under a directory that this host allows; see --allow-source, and its log"
        raise _not_allowed(message, detail=detail)

    @property
    def _detail(self) -> str:
        return f"it leads to {self.root.joinpath(*self.below)}"

    def fetch(self, receive: Receive, stop: Stop) -> None:
        """See `Source.fetch`."""
        stop.check()
        with ExitStack() as stack:
            directory = self._open_directory(stack)
            files = {name: self._open_file(directory, name, stack) for name in FILES}
            before = {name: state for name, (_, state) in files.items()}
            for name, (file, state) in files.items():
                receive(name, state.size_bytes, self._chunks(file, state.size_bytes))
            if before != self._states(directory):
                raise self._changed()

    def signature(self, stop: Stop) -> bytes | None:
        """See `Source.signature`."""
        stop.check()
        with ExitStack() as stack:
            directory = self._open_directory(stack)
            if not _exists(directory, SIGNATURE_FILE):
                return None
            file, state = self._open_file(directory, SIGNATURE_FILE, stack)
            return beginning(self._chunks(file, state.size_bytes))

    def version(self, stop: Stop) -> str:
        """See `Source.version`."""
        stop.check()
        directory = self.root.joinpath(*self.below)
        return f"{directory} {[_looks(directory / name) for name in ('', *FILES)]}"

    def is_gone(self, stop: Stop) -> bool:
        """See `Source.is_gone`. A mount that may not be read says nothing."""
        stop.check()
        directory = self.root.joinpath(*self.below)
        try:
            for name in FILES:
                (directory / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):
            return False
        return False

    def _open_directory(self, stack: ExitStack) -> int:
        try:
            directory = _opened(self.root, _DIRECTORY, None, stack)
            for name in self.below:
                directory = _opened(name, _DIRECTORY, directory, stack)
        except FileNotFoundError as error:
            message = f"there is no directory at {self.uri}; it is tried again"
            raise ArtifactError("source_missing", message, detail=self._detail) from error
        except NotADirectoryError as error:
            message = f"{self.uri} is not a directory; name the one that holds {CONFIG_FILE}"
            raise ArtifactError("not_an_adapter", message, detail=self._detail) from error
        except OSError as error:
            raise self._unreadable(error) from error
        return directory

    def _open_file(self, directory: int, name: str, stack: ExitStack) -> tuple[int, _State]:
        try:
            file = _opened(name, _FILE, directory, stack)
            found = os.fstat(file)
        except FileNotFoundError as error:
            raise self._absent(directory, name) from error
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a symlink, a socket
                raise self._not_regular(name) from error
            raise self._unreadable(error) from error
        if not stat.S_ISREG(found.st_mode):
            raise self._not_regular(name)
        return file, _state(found)

    def _chunks(self, file: int, size_bytes: int) -> Iterator[bytes]:
        """The content, refused where it is not as long as it was said to be."""
        left_bytes = size_bytes
        # One byte more is asked for than was promised, so that the end is seen with what comes last.
        while left_bytes > 0 and (chunk := self._read(file, min(CHUNK_BYTES, left_bytes + 1))):
            left_bytes -= len(chunk)
            yield chunk
        if left_bytes:
            raise self._changed()

    def _read(self, file: int, most_bytes: int) -> bytes:
        try:
            return os.read(file, most_bytes)
        except OSError as error:
            raise self._unreadable(error) from error

    def _states(self, directory: int) -> dict[str, _State]:
        """Present states of the files, by name."""
        try:
            return {name: _state(os.stat(name, dir_fd=directory, follow_symlinks=False)) for name in FILES}
        except OSError as error:
            raise self._changed() from error

    def _absent(self, directory: int, name: str) -> ArtifactError:
        present = {name for name in (*FILES, *OTHER_FILES) if _exists(directory, name)}
        if (other := instead_of_weights(present)) is not None:
            return other_format(self.uri, other)
        message = f"{self.uri} has no {name}; it is tried again, in case it is still being written"
        return ArtifactError("source_incomplete", message, detail=self._detail)

    def _not_regular(self, name: str) -> ArtifactError:
        message = f"{name} at {self.uri} is not a regular file; put a copy there (cp -L follows symlinks)"
        return ArtifactError("not_a_regular_file", message, detail=self._detail)

    def _changed(self) -> ArtifactError:
        message = f"the files at {self.uri} changed while they were read; it is tried again"
        return ArtifactError("source_changed", message)

    def _unreadable(self, error: OSError) -> ArtifactError:
        message = f"{self.uri} cannot be read: {error.strerror}; check its disk and that this user may read it"
        return ArtifactError("source_io", message, detail=self._detail)


def _resolved(path: Path) -> str:
    """Target of an absolute path; whether there is anything is another question. Raises OSError: in circles."""
    resolved = os.path.realpath(path)  # Path.resolve takes three times as long
    try:
        Path(resolved).stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return resolved


class _State(NamedTuple):
    """Mark that changes when a file is replaced or written to."""

    inode: int
    size_bytes: int
    changed_ns: int


def _state(found: os.stat_result) -> _State:
    return _State(found.st_ino, found.st_size, found.st_mtime_ns)


def _looks(path: Path) -> tuple[int, ...]:
    """Mark that changes when something else stands there, or in it; empty: nothing does."""
    try:
        found = path.lstat()
    except OSError:
        return ()
    return found.st_mode, *_state(found), found.st_ctime_ns


def _opened(path: Path | str, flags: int, directory: int | None, stack: ExitStack) -> int:
    descriptor = os.open(path, flags, dir_fd=directory)
    stack.callback(os.close, descriptor)
    return descriptor


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return True


def _not_allowed(message: str, *, detail: str = "") -> ArtifactError:
    return ArtifactError("source_not_allowed", message, detail=detail)
