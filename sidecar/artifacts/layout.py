"""Paths in the store, one volume for a host.

It is mounted at the same path in every engine's container.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from registry.model.errors import InvalidArgument
from registry.model.names import check_segment
from registry.runtime.local_files import set_aside
from registry.sources.base import StoreError

_log = structlog.get_logger()
_REMEDY = "make it the sidecar's own, with the mode 0750 and a group that the engine is in"
_ADAPTER = re.compile(r"sha256-([0-9a-f]{64})")
# What engines read, perhaps as other users of the group of the store's root; the rest is for sidecars only.
_READ_BY_ENGINES = ("", "adapters")
_FOLDERS = ("tmp", "locks", "leases", "reports", "pins", "bundles", "damaged", "state")
_OPEN_TO_GROUP, _OPEN_TO_ALL, _PRIVATE = 0o2750, 0o2755, 0o2700


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Paths below an absolute root. `key` is an artifact's id, or names something else that has a lock."""

    root: Path

    @property
    def adapters(self) -> Path:
        """Folder of the artifacts, by name."""
        return self.root / "adapters"

    def adapter(self, artifact: str) -> Path:
        return self.root / f"adapters/sha256-{artifact}"

    def temporary(self, key: str, suffix: str) -> Path:
        return self.root / f"tmp/{key}.{suffix}"

    def lock(self, key: str) -> Path:
        return self.root / f"locks/{key}"

    @property
    def key(self) -> Path:
        """With what the reports are authenticated."""
        return self.root / "key"

    @property
    def paused_origins(self) -> Path:
        """Folder of shared notes on sources that are to be left alone."""
        return self.root / "locks/origins.json"

    @property
    def damaged(self) -> Path:
        """Folder in which each artifact that was found damaged while an engine read it has a file of its name."""
        return self.root / "damaged"

    @property
    def leases(self) -> Path:
        return self.root / "leases"

    def lease(self, replica: str, engine: str) -> Path:
        """The lease file of a replica for the engine at that address; empty: for any."""
        address = "@" + hashlib.sha256(engine.encode()).hexdigest()[:16] if engine else ""
        return self.leases / f"{replica}{address}"

    def staged_ids(self) -> set[str]:
        """Every artifact in the store. Raises OSError."""
        names = os.listdir(self.adapters)  # noqa: PTH208 - paths of thousands would be made for nothing
        return {match[1] for name in names if (match := _ADAPTER.fullmatch(name))}

    def report(self, artifact: str) -> Path:
        return self.root / f"reports/{artifact}.json"

    def pin(self, key: str) -> Path:
        return self.root / f"pins/{key}.json"

    @property
    def bundles(self) -> Path:
        """Folder of the bundles that vouch for artifacts."""
        return self.root / "bundles"

    def bundle(self, key: str) -> Path:
        return self.root / f"bundles/{key}.json"

    def owns(self, path: str) -> str | None:
        """The id, if `path` is exactly that of an adapter's directory here; else None."""
        parent, _, name = path.rpartition("/")
        match = _ADAPTER.fullmatch(name)
        return match[1] if match and parent == f"{self.root}/adapters" else None


def open_layout(root: Path, replica: str) -> StoreLayout:
    """Makes the folders that are missing, closes all to strangers, and proves that files can be made there.

    Engines may read ``adapters/`` as members of the root's group. Where a store has leases and was open to all, that
    stays so: an engine that reads it as another user would end at its next look.

    Raises:
        StoreError: they cannot, or `replica` cannot name a file.
    """
    try:
        check_segment(replica, field="replica")
    except InvalidArgument as error:
        raise StoreError(str(error)) from error
    # Not resolved: what counts is the path at which the engine sees the volume too.
    layout = StoreLayout(Path(os.path.abspath(root)))  # noqa: PTH100 - Path.absolute keeps "..", which `owns` would not match
    make_folders(layout)
    return layout


def is_whole(layout: StoreLayout) -> bool:
    """True if no folder of a store is missing."""
    return all((layout.root / folder).is_dir() for folder in (*_READ_BY_ENGINES, *_FOLDERS))


def make_folders(layout: StoreLayout) -> None:
    """Makes the folders that are missing, see `open_layout`. Raises StoreError."""
    try:
        layout.root.parent.mkdir(parents=True, exist_ok=True)
        for folder in (*_READ_BY_ENGINES, *_FOLDERS):
            path = layout.root / folder
            if path != layout.root and os.path.lexists(path) and not path.is_dir():
                set_aside(path)  # the root is what the operator named, and not ours
            mode = _PRIVATE if folder in _FOLDERS else _OPEN_TO_GROUP
            _make_closed(path, mode, stays=0 if folder in _FOLDERS else _readers(layout))
            with tempfile.TemporaryFile(dir=path, prefix=".probe-"):
                pass
    except OSError as error:
        raise StoreError(
            f"the store {layout.root} cannot be used ({error.strerror}: {error.filename}): "
            "give --store a directory that this user may write to"
        ) from error


def _readers(layout: StoreLayout) -> int:
    """Mode bits that stay open on folders which engines read by leases that stand."""
    return _OPEN_TO_ALL if layout.leases.is_dir() and any(layout.leases.iterdir()) else 0


def _make_closed(folder: Path, mode: int, *, stays: int) -> None:
    """Makes a folder of that mode whatever the umask is; one that is there keeps no bit outside `mode` and `stays`."""
    try:
        folder.mkdir(mode=0o700)
        missing = mode & 0o777
    except FileExistsError:
        if not folder.is_dir():
            raise
        mode, missing = mode | stays | stat.S_ISVTX, 0
    found = stat.S_IMODE(folder.stat().st_mode)
    if (wanted := (found | missing) & mode) == found:
        return
    try:
        folder.chmod(wanted)
    except PermissionError:  # it is somebody else's, such as the root of a volume; those below it are ours
        _log.warning("store_open_to_others", folder=str(folder), mode=f"{found:o}", remedy=_REMEDY)


def open_like(folder: Path, example: Path) -> None:
    """Gives a new folder the group and the mode of another, so that whoever reads that may read this."""
    wanted = example.stat()
    if folder.stat().st_gid != wanted.st_gid:
        with suppress(PermissionError):  # we are no member of that group, and whoever set it up did without us
            os.chown(folder, -1, wanted.st_gid)
    folder.chmod(stat.S_IMODE(wanted.st_mode) & _OPEN_TO_ALL)
