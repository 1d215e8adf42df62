"""Artifacts in memory: sources that fail or are wrong, and a store that outlives its sidecar."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass, field

from registry.model.records import PoolSpec
from registry.sources.errors import ArtifactError
from sidecar.artifacts.types import ArtifactRef, Staged

ROOT = "file:///a/"
# What a source is good for stands in its name.
MISSING, REFUSED, HIGH_RANK = "missing", "refused", "high"
MAX_RANK = 16


def source_of(path: str) -> str:
    """The source that a path of a store was staged from."""
    return path.rsplit("/", 1)[-1]


def path_of(replica: str, source: str) -> str:
    """Where a replica's store keeps a source."""
    return f"/store/{replica}/{source}"


def digest_of(source: str) -> str:
    """Digest of what a source holds."""
    return "sha256:" + hashlib.sha256(source.encode()).hexdigest()


@dataclass
class SimStore:
    """An `ArtifactStore` of one host; implements `sidecar.artifacts.types.ArtifactStore`."""

    replica: str
    rng: random.Random
    is_out: bool = False
    staged: dict[ArtifactRef, Staged] = field(default_factory=dict)

    @property
    def base_known(self) -> bool:
        return True

    def use_pool(self, _pool: PoolSpec | None) -> str:
        return ""

    def lookup(self, ref: ArtifactRef) -> Staged | None:
        return self.staged.get(ref)

    def owns(self, path: str) -> str | None:
        return source_of(path) if path.startswith(f"/store/{self.replica}/") else None

    def has(self, path: str) -> bool:
        """Whether the engine finds files at that path."""
        return any(staged.path == path for staged in self.staged.values())

    async def ensure(self, ref: ArtifactRef) -> Staged:
        await asyncio.sleep(self.rng.choice((0.001, 0.02, 0.3)))
        source = ref.uri.removeprefix(ROOT)
        if source.startswith(MISSING):
            raise ArtifactError("source_missing", "there is nothing", permanent=True)
        if self.is_out:
            raise ArtifactError("source_io", "the source is out of reach", permanent=False)
        rank = 64 if source.startswith(HIGH_RANK) else 8
        staged = Staged(source, path_of(self.replica, source), digest_of(source), rank)
        self.staged[ref] = staged
        return staged
