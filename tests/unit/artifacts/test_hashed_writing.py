"""Files that are written and hashed while more of them arrives."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.artifacts import ingest
from sidecar.artifacts.ingest import Writing
from tests.unit.artifacts.conftest import MIB

USUAL_BYTES = ingest.PIECE_BYTES
CHUNKS = st.lists(st.binary(max_size=300), max_size=20)


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "PIECE_BYTES", 256)
        yield


@given(CHUNKS)
def test_what_stands_in_the_file_is_what_came_and_what_was_hashed(tmp_path_factory, chunks):
    """R4: in the order in which it came, however it was cut."""
    check_written(tmp_path_factory.mktemp("file") / "f", chunks)


def write(path: Path, chunks: Iterable[bytes]) -> tuple[str, int]:
    """Writes a file anew; gives its digest and its size, as they are told."""
    with path.open("wb", buffering=0) as file:
        one = Writing(file.fileno())
        return one.take(iter(chunks)), one.size_bytes


def check_written(path: Path, chunks: list[bytes]) -> None:
    content = b"".join(chunks)
    assert write(path, chunks) == (hashlib.sha256(content).hexdigest(), len(content))
    assert path.read_bytes() == content


def test_no_more_of_a_file_is_held_than_a_few_pieces(tmp_path):
    """R16 bounded: it is written while it comes, however large it is."""
    held: list[int] = []

    def chunks():
        for number in range(100):
            held.append(number * 100 - one.size_bytes)
            yield b"x" * 100

    with (tmp_path / "f").open("wb", buffering=0) as file:
        one = Writing(file.fileno())
        one.take(chunks())
    assert one.size_bytes == 10_000
    assert max(held) < 5 * ingest.PIECE_BYTES


def test_a_disk_or_a_source_that_fails_ends_it(tmp_path):
    def broken():
        yield b"x" * 300
        yield b"x" * 300
        raise ConnectionError("the source is gone")

    with pytest.raises(ConnectionError, match="is gone"):
        write(tmp_path / "f", broken())
    with (tmp_path / "f").open("rb") as read_only, pytest.raises(OSError, match="Bad file descriptor"):
        Writing(read_only.fileno()).take(iter([b"x" * 300] * 5))


def noted_writes(monkeypatch, most: int = 1 << 30) -> list[int]:
    """How many bytes each call of the system was given, of which it takes at most so many."""
    sizes, write = list[int](), os.write

    def noting(descriptor: int, content: memoryview) -> int:
        sizes.append(len(content))
        return write(descriptor, content[:most])

    monkeypatch.setattr(ingest.os, "write", noting)
    return sizes


@pytest.mark.parametrize(
    ("chunks", "writes"),
    [
        ([MIB // 4] * 9, [MIB, MIB, MIB // 4]),
        ([MIB, MIB], [MIB, MIB]),
        ([MIB - 1, 1, MIB - 1, 1], [MIB, MIB]),
        ([MIB - 1], [MIB - 1]),
        ([MIB + 7, 1], [MIB + 7, 1]),
        ([], []),
    ],
)
def test_small_chunks_are_written_a_mebibyte_at_a_time(tmp_path, monkeypatch, chunks, writes):
    """R19: each call of the system lets other threads go first, and one has often longer to wait than to write."""
    monkeypatch.setattr(ingest, "PIECE_BYTES", USUAL_BYTES)
    sizes = noted_writes(monkeypatch)
    write(tmp_path / "f", map(bytes, chunks))
    assert sizes == writes


def test_a_file_of_one_piece_needs_no_thread(tmp_path, monkeypatch):
    """R19: to start one takes longer than to write it; a larger one is received beside its writing."""
    started: list[object] = []
    pool = ingest.ThreadPoolExecutor
    monkeypatch.setattr(ingest, "ThreadPoolExecutor", lambda *how, **more: started.append(how) or pool(*how, **more))
    for size, threads in ((255, 0), (256, 0), (257, 1)):
        write(tmp_path / "f", [b"x" * (size - 1), b"x"])
        assert len(started) == threads, size


def test_what_the_system_does_not_take_at_once_is_written_on(tmp_path, monkeypatch):
    """R4: to the last byte, in order."""
    sizes, content = noted_writes(monkeypatch, most=7), bytes(range(250)) * 4
    check_written(tmp_path / "f", [content[:500], content[500:]])
    assert len(sizes) > 100
