"""Where things stand in the store. One volume for a host, mounted at the same path in every engine's container."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from registry.errors import InvalidArgument
from registry.model.names import check_segment
from registry.sources.errors import StoreError

_ADAPTER = re.compile(r"sha256-([0-9a-f]{64})")
_FOLDERS = ("adapters", "tmp", "locks", "leases", "reports", "pins")


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below an absolute root. `key` is an artifact's id, or names something else that has a lock."""

    root: Path

    @property
    def adapters(self) -> Path:
        """Where artifacts have their names."""
        return self.root / "adapters"

    def adapter(self, artifact: str) -> Path:
        return self.root / f"adapters/sha256-{artifact}"

    def temporary(self, key: str, suffix: str) -> Path:
        return self.root / f"tmp/{key}.{suffix}"

    def lock(self, key: str) -> Path:
        return self.root / f"locks/{key}"

    @property
    def leases(self) -> Path:
        return self.root / "leases"

    def lease(self, replica: str, engine: str) -> Path:
        """The lease file of a replica for the engine at that address; empty: for any."""
        address = "@" + hashlib.sha256(engine.encode()).hexdigest()[:16] if engine else ""
        return self.leases / f"{replica}{address}"

    def staged(self) -> dict[str, Path]:
        """Every artifact's directory by id, in no order.

        Raises:
            OSError: the store cannot be read.
        """
        return {artifact: self.adapter(artifact) for artifact in self.staged_ids()}

    def staged_ids(self) -> set[str]:
        """Every artifact in the store. Raises OSError."""
        names = os.listdir(self.adapters)  # noqa: PTH208 - paths of thousands would be made for nothing
        return {match[1] for name in names if (match := _ADAPTER.fullmatch(name))}

    def report(self, artifact: str) -> Path:
        return self.root / f"reports/{artifact}.json"

    def pin(self, key: str) -> Path:
        return self.root / f"pins/{key}.json"

    def owns(self, path: str) -> str | None:
        """The id, if `path` is exactly that of an adapter's directory here; else None."""
        parent, _, name = path.rpartition("/")
        match = _ADAPTER.fullmatch(name)
        return match[1] if match and parent == f"{self.root}/adapters" else None


def open_layout(root: Path, replica: str) -> Layout:
    """Makes the folders that are missing, and proves that files can be made there.

    Raises:
        StoreError: they cannot, or `replica` cannot name a file.
    """
    try:
        check_segment(replica, field="replica")
    except InvalidArgument as error:
        raise StoreError(str(error)) from error
    # Not resolved: what counts is the path at which the engine sees the volume too.
    layout = Layout(Path(os.path.abspath(root)))  # noqa: PTH100 - Path.absolute keeps "..", which `owns` would not match
    try:
        for folder in _FOLDERS:
            (layout.root / folder).mkdir(parents=True, exist_ok=True)
            _prove_writable(layout.root / folder / f".probe-{replica}")
    except OSError as error:
        raise StoreError(
            f"the store {layout.root} cannot be used ({error.strerror}: {error.filename}): "
            "give --store a directory that this user may write to"
        ) from error
    return layout


def _prove_writable(probe: Path) -> None:
    probe.touch()
    probe.unlink(missing_ok=True)
