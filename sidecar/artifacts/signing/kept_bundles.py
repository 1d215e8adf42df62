"""Bundles that a host keeps beside artifacts, for the time after a restart.

A file is believed for nothing but what it proves: its entries have to hash to the digest of the artifact's source, and
its bundle is verified anew each time.
"""

from __future__ import annotations

import base64
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass

from registry.lora.digest import FileEntry, canonical_json, manifest_digest
from registry.model.stored import read_json
from registry.runtime.local_files import NotAFile, read_file
from registry.sources.base import Stop
from sidecar.artifacts.files import locked, write_atomic
from sidecar.artifacts.layout import StoreLayout

# What is forgotten is asked for at the source again.
MAX_KEPT = 8192


@dataclass(frozen=True, slots=True)
class KeptBundle:
    """A bundle as it came, and the files of the source beside it, as they were hashed."""

    content: bytes
    entries: tuple[FileEntry, ...]


class KeptBundles:
    """Bundles of one store, by the source and the digest of its files. Safe for threads and processes."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout

    def read(self, uri: str, digest: str) -> KeptBundle | None:
        """The bundle of a source with that digest; None: none is kept that could be one. Raises OSError."""
        try:
            found = read_json(read_file(self._layout.bundle(_key(uri, digest))))
            entries = tuple(FileEntry(str(path), int(size), str(sha)) for path, size, sha in found["entries"])
            kept = KeptBundle(base64.b64decode(found["bundle"], validate=True), entries)
        except FileNotFoundError:
            return None
        except (NotAFile, ValueError, TypeError, KeyError):  # half of one, after a power cut
            return None
        return kept if manifest_digest(entries) == digest else None

    def write(self, uri: str, digest: str, kept: KeptBundle) -> None:
        """Keeps it, in place of another one. Raises OSError."""
        key = _key(uri, digest)
        entries = [[one.path, one.size, one.sha256] for one in kept.entries]
        content = canonical_json(
            {"schema": 1, "uri": uri, "entries": entries, "bundle": base64.b64encode(kept.content).decode()}
        )
        with locked(self._layout.lock("bundle"), Stop()):  # what has a lock that is held is no leftover of anybody's
            write_atomic(self._layout.bundle(key), content, temporary=self._layout.temporary("bundle", "json"))
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        names = os.listdir(self._layout.bundles)  # noqa: PTH208 - names are all it takes
        if len(names) <= MAX_KEPT:
            return
        paths = [self._layout.bundles / name for name in names]
        with suppress(OSError):  # another sidecar of the store is at it too
            for path in sorted(paths, key=lambda one: one.stat().st_mtime)[: len(paths) - MAX_KEPT // 2]:
                path.unlink(missing_ok=True)


def _key(uri: str, digest: str) -> str:
    return hashlib.sha256(canonical_json([uri, digest])).hexdigest()
