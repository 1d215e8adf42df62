"""Makes the files of an arrived adapter what the engine is to read, before its directory gets its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from registry.lora.directory import Examined
from registry.lora.manifest import CONFIG_FILE, WEIGHTS_FILE, FileEntry
from registry.lora.prepare import new_config, new_weights
from registry.sources.stop import Stop

_CHUNK_BYTES = 1 << 20
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(directory: Path, examined: Examined, arrived: list[FileEntry], stop: Stop) -> list[FileEntry]:
    """Writes the files anew where something in them has to change; read-only and synced.

    Returns what then stands in the directory.

    Raises:
        ArtifactError: ``staging_stopped``.
        OSError: the store failed.
    """
    entries = {entry.path: entry for entry in arrived}
    changes = examined.verdict.changes
    if changes.renamed or changes.dropped:
        path = directory / WEIGHTS_FILE
        entries[path.name] = _replace(path, _weights(path, examined), stop)
    if changes.config:
        path = directory / CONFIG_FILE
        entries[path.name] = _replace(path, iter([new_config(path.read_bytes(), changes)]), stop)
    return list(entries.values())


def _weights(path: Path, examined: Examined) -> Iterator[bytes]:
    """The new weights file: a header, and the old file's numbers as they are."""
    layout = new_weights(examined.opened.header, examined.verdict.changes)
    yield layout.start
    with path.open("rb") as file:
        for begin, end in layout.ranges:
            file.seek(examined.opened.start + begin)
            left = end - begin
            while chunk := file.read(min(_CHUNK_BYTES, left)):
                left -= len(chunk)
                yield chunk


def _replace(path: Path, chunks: Iterator[bytes], stop: Stop) -> FileEntry:
    new = path.with_name(f"{path.name}.new")
    digest, written_bytes = hashlib.sha256(), 0
    with os.fdopen(os.open(new, _NEW_FILE, 0o644), "wb") as file:
        os.fchmod(file.fileno(), 0o444)
        for chunk in chunks:
            stop.check()
            written_bytes += file.write(chunk)
            digest.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    return FileEntry(path.name, written_bytes, digest.hexdigest())
