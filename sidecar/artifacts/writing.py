"""Writes and hashes a file while the next piece of it is on its way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

# Large enough that handing it to a thread costs nothing; two of them are in memory at a time.
PIECE_BYTES = 1 << 20
Piece = list[bytes]


class Writing:
    """One open file. Hashing and writing let other threads run, so that receiving goes on beside them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        # What was written, if it was no more than one piece.
        self.whole: bytes | None = None

    def take(self, chunks: Iterable[bytes]) -> str:
        """Writes all of it. Returns its sha256 in hex digits.

        Raises:
            OSError: it could not be written.
            Exception: whatever `chunks` raises; what came before may have been written.
        """
        pieces = _pieces(chunks)
        piece = next(pieces, [])
        following = next(pieces, None)
        if following is None:  # nothing to do beside it
            self.whole = self._write(piece)
            return self._digest.hexdigest()
        with ThreadPoolExecutor(1, thread_name_prefix="writing") as thread:
            pending: Future[bytes] = thread.submit(self._write, piece)
            while following is not None:
                pending.result()
                pending = thread.submit(self._write, following)
                following = next(pieces, None)
            pending.result()
        return self._digest.hexdigest()

    def _write(self, piece: Piece) -> bytes:
        # In one go: after each call of the system this thread waits for its turn, and longer than the call takes.
        content = b"".join(piece)
        self._digest.update(content)
        _write_all(self._descriptor, content)
        self.size_bytes += len(content)
        return content


def _pieces(chunks: Iterable[bytes]) -> Iterator[Piece]:
    """The chunks as they come, so many together that they make a piece."""
    piece, held_bytes = list[bytes](), 0
    for chunk in chunks:
        piece.append(chunk)
        held_bytes += len(chunk)
        if held_bytes >= PIECE_BYTES:
            yield piece
            piece, held_bytes = [], 0
    if piece:
        yield piece


def _write_all(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
