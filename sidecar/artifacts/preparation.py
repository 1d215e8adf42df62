"""Prepares an arrived adapter for the engine, against the replica's base."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from registry.lora.base import BaseModules, expand
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE, FileEntry
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase, difference, differs
from registry.lora.prepare import WeightsLayout
from registry.model.engine_kinds import applying_kind
from registry.model.records import BaseShapes, PoolSpec
from registry.sources.base import Stop
from sidecar.artifacts.examination import Examination


class Bases:
    """The replica's own base, or else the pool's. Only one task changes it."""

    def __init__(self, own: BaseModules | None) -> None:
        """Takes the modules that the replica was told of; None: the pool's record says them."""
        self._own = own
        self._shapes: BaseShapes | None = None
        self._kind = "vllm"
        self._engine = UNKNOWN_BASE
        self.current = own
        self.problem = ""

    def follow(self, pool: PoolSpec | None, engine: EngineBase = UNKNOWN_BASE) -> None:
        """Takes up a pool's record and a start of the engine; costs nothing where they say what they said before."""
        shapes, kind = (pool.base, applying_kind(pool.engine)) if pool else (None, "vllm")
        if (shapes, kind) == (self._shapes, self._kind) and engine is self._engine:
            return
        self._shapes, self._kind, self._engine = shapes, kind, engine
        self._own = engine.own or self._own
        own = replace(self._own, engine=kind) if self._own else None
        theirs = base_of(shapes, kind) if shapes else None
        ours = _problem(own, theirs)
        self.current = own if theirs is None or ours else _completed(theirs, own)
        awaited = engine.awaited if self.current is not None else ""
        self.problem = ours or awaited or difference(self.current, engine)


def base_of(shapes: BaseShapes, engine: str) -> BaseModules:
    """The modules that a pool's record describes, as that kind of engine serves them."""
    return BaseModules(
        expand(shapes.modules),
        tuple(shapes.names),
        architecture=shapes.architecture,
        is_tied=shapes.tied,
        head_size=shapes.head_size,
        engine=engine,
        layout=shapes.layout,
        weights=shapes.weights,
    )


def _completed(theirs: BaseModules, own: BaseModules | None) -> BaseModules:
    """A record of an earlier release does not say the architecture."""
    if own is None or theirs.architecture is not None:
        return theirs
    return replace(own, names=theirs.names)


def _problem(own: BaseModules | None, theirs: BaseModules | None) -> str:
    how = differs(theirs, own) if own is not None and theirs is not None else ""
    return (
        f"the base model of --base-model is not the one of the pool's record: {how}; start the engine and the sidecar "
        "with the pool's base model, or say that it has another now: loraplane pool update --from"
        if how
        else ""
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
