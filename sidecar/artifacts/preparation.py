"""Prepares an arrived adapter for the engine, against the replica's base."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from registry.lora.base import BaseModules, expand
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE, FileEntry
from registry.lora.prepare import WeightsLayout
from registry.model.records import BaseShapes, PoolSpec
from registry.sources.base import Stop
from sidecar.artifacts.examination import Examination


class Bases:
    """The replica's own base, or else the pool's. Only one task changes it."""

    def __init__(self, own: BaseModules | None) -> None:
        """Takes the modules that the replica was told of; None: the pool's record says them."""
        self._own = own
        self._shapes: BaseShapes | None = None
        self._engine = "vllm"
        self.current = own
        self.problem = ""

    def follow(self, pool: PoolSpec | None) -> None:
        """Takes up a pool's record; costs nothing where it says what it said before."""
        shapes, engine = (pool.base, pool.engine) if pool else (None, "vllm")
        if (shapes, engine) == (self._shapes, self._engine):
            return
        self._shapes, self._engine = shapes, engine
        own = replace(self._own, engine=engine) if self._own else None
        theirs = base_of(shapes, engine) if shapes else None
        self.problem = _problem(own, theirs)
        self.current = own if theirs is None or self.problem else _completed(theirs, own)


def base_of(shapes: BaseShapes, engine: str) -> BaseModules:
    """The modules that a pool's record describes, as that kind of engine serves them."""
    names, modules = tuple(shapes.names), expand(shapes.modules)
    return BaseModules(modules, names, shapes.architecture, shapes.tied, shapes.head_size, engine)


def _completed(theirs: BaseModules, own: BaseModules | None) -> BaseModules:
    """A record of an earlier release does not say the architecture."""
    if own is None or theirs.architecture is not None:
        return theirs
    return replace(own, names=theirs.names)


def _problem(own: BaseModules | None, theirs: BaseModules | None) -> str:
    if own is None or theirs is None or own.fingerprint == theirs.fingerprint:
        return ""
    return (
        f"the base model of --base-model has the fingerprint {own.fingerprint}, the pool's record says "
        f"{theirs.fingerprint}: start the sidecar with the pool's base model, or update the pool"
    )


_CHUNK_BYTES = 1 << 20
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(directory: Path, examination: Examination, arrived: list[FileEntry], stop: Stop) -> list[FileEntry]:
    """Writes the files anew where something in them has to change; read-only and synced.

    Returns what then stands in the directory.

    Raises:
        ArtifactError: ``staging_stopped``.
        OSError: the store failed.
    """
    entries = {entry.path: entry for entry in arrived}
    if examination.new_weights is not None:
        path = directory / WEIGHTS_FILE
        entries[path.name] = _replace(path, _weights(path, examination.new_weights, examination.start), stop)
    if examination.new_config is not None:
        path = directory / CONFIG_FILE
        entries[path.name] = _replace(path, iter([examination.new_config]), stop)
    return list(entries.values())


def _weights(path: Path, layout: WeightsLayout, start: int) -> Iterator[bytes]:
    """The new weights file: a header, and the old file's numbers, which began at `start`, as they are."""
    yield layout.start
    with path.open("rb") as file:
        for begin, end in (part for one in layout.ranges for part in one.parts()):
            file.seek(start + begin)
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
