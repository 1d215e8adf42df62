"""Outputs for lines of the audit: a file that is gone on with, or standard output."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from registry.tools.audit.lines import BeginLine, LinePosition, decode_lines, encode_line, reached

# Of the end of a file, which is read to go on with it; as many times as it takes to find a whole line.
_TAIL_BYTES = 4 << 20


class OutputUnusable(Exception):
    """Lines cannot be written there; the message says why, and what to do."""


class LineSink(Protocol):
    """Takes lines for good. `position`: what they reach."""

    position: LinePosition

    def write(self, texts: Iterable[str], revision: int) -> None:
        """Writes lines, after which everything up to `revision` is written. Raises OutputUnusable."""

    def close(self) -> None: ...


class StandardOutput:
    """Standard output, from behind a revision on."""

    def __init__(self, after: int) -> None:
        self.position = LinePosition(after)
        self.write([encode_line(BeginLine(after))], after)

    def write(self, texts: Iterable[str], revision: int) -> None:
        """See `LineSink`."""
        try:
            sys.stdout.write("".join(texts))
            sys.stdout.flush()
        except OSError as error:
            raise OutputUnusable(f"standard output: {error.strerror}") from error
        self.position = LinePosition(revision)

    def close(self) -> None:
        """Nothing is to be given back."""


class LineFile:
    """A file that lines are appended to. What a killed process left of a line is cut off.

    It may be renamed away at any time: the next lines begin a new one.

    Args:
        path: of the file.
        after: behind which revision a new one begins.

    Raises (on construction):
        OutputUnusable: it cannot be written, another process writes it, or it holds something else.
    """

    def __init__(self, path: Path, after: int) -> None:
        self._path = path
        self._file = -1
        self.position = LinePosition(after)
        self._open()

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file).st_size:
                self.position = self._go_on()
            else:
                self._append(encode_line(BeginLine(self.position.revision)).encode())
        except BlockingIOError as error:
            raise OutputUnusable(f"{self._path}: another process writes it; give each its own file") from error
        except OSError as error:
            raise OutputUnusable(f"{self._path}: {error.strerror}") from error

    def _go_on(self) -> LinePosition:
        size, wanted = os.fstat(self._file).st_size, _TAIL_BYTES
        while True:
            tail = os.pread(self._file, wanted, max(0, size - wanted))
            whole = tail.rpartition(b"\n")[0]
            lines = whole.split(b"\n")[0 if wanted >= size else 1 :] if whole else []
            if lines or wanted >= size:
                break
            wanted *= 4
        os.ftruncate(self._file, size - len(tail) + (len(whole) + 1 if whole else 0))
        if not whole:
            self._append(encode_line(BeginLine(self.position.revision)).encode())
            return self.position
        found = reached(decode_lines(line.decode(errors="replace") for line in lines))
        if found is None:
            raise OutputUnusable(
                f"{self._path}: its last lines are none of loraplane-audit; move it away, and verify it"
            )
        return found

    def write(self, texts: Iterable[str], revision: int) -> None:
        """See `LineSink`."""
        try:
            if self._is_moved():
                self.close()
                self._open()
            self._append("".join(texts).encode())
        except OSError as error:
            raise OutputUnusable(f"{self._path}: {error.strerror}") from error
        self.position = LinePosition(revision)

    def _is_moved(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return True
        ours = os.fstat(self._file)
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _append(self, content: bytes) -> None:
        while content:
            content = content[os.write(self._file, content) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Gives the file back. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
