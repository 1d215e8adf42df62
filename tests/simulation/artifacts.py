"""Artifacts in memory: sources that fail or are wrong, and a store that outlives its sidecar and keeps real leases."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from registry.lora.engine_base import UNKNOWN_BASE, EngineBase
from registry.model.records import PoolSpec
from registry.sources.base import ArtifactError, SourceUnchanged, Stop
from sidecar.artifacts.leases import ArtifactLeases, read_leases
from sidecar.artifacts.maintenance import Holdings
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.simulation.pace import Pace

_log = structlog.get_logger()
ROOT = "file:///a/"
# Under this are the stores of all replicas; nothing of it is on a disk.
STORES = "/store/"
# What a source is good for stands in its name. What is picky is refused by the engine of one replica alone.
VERSION = "1"
GOOD, MISSING, REFUSED, HIGH_RANK, PICKY = "good", "missing", "refused", "high", "picky"
# As good as any, but for the name of its adapter, under which nothing is served but the base model.
NAMED_AS_BASE = "namesake"
_CHOOSY = "r0"
MAX_RANK = 16


def source_of(path: str) -> str:
    """The source that a path of a store was staged from."""
    return path.rsplit("/", 1)[-1]


def path_of(replica: str, source: str) -> str:
    """Where a replica's store keeps a source."""
    return f"{STORES}{replica}/{source}"


def is_good(source: str, replica: str) -> bool:
    """Whether that replica can serve a source."""
    return source.startswith(GOOD) or (source.startswith(PICKY) and not replica.startswith(_CHOOSY))


def is_refused(source: str, replica: str) -> bool:
    """Whether the engine of that replica, or of a clone of it, refuses a source."""
    return source.startswith(REFUSED) or (source.startswith(PICKY) and replica.startswith(_CHOOSY))


def digest_of(source: str) -> str:
    """Digest of what a source holds."""
    return "sha256:" + hashlib.sha256(source.encode()).hexdigest()


def id_of(source: str) -> str:
    """Artifact id of what a source holds."""
    return digest_of(source).removeprefix("sha256:")


@dataclass
class SimStore:
    """A host's store; implements `ArtifactStore`, and the keeper's `LeasedStore` and `StoreRounds`.

    Its budget is nothing: whatever no lease protects is removed in the next round.

    Attributes:
        out_of_reach: sources that were tried while all were out of reach.
        failing: sources that could not be had when the sidecar that runs tried it last.
        kept_until: before that nothing is removed: who reads it, and since when, is not known after a power cut.
        on_removal: is told each path as its files vanish.
        on_wrong: is told each source that is wrong for good, whenever all of it is read.
        proven: artifacts that the sidecar that runs has proven.
        pace: what sources take beside their usual time; None: nothing.
    """

    replica: str
    rng: random.Random
    lease_file: Path
    is_out: bool = False
    staged: dict[ArtifactRef, Staged] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    kept_until: float = 0.0
    out_of_reach: set[str] = field(default_factory=set)
    on_removal: Callable[[str], None] = lambda _path: None
    on_wrong: Callable[[str], None] = lambda _source: None
    proven: set[str] = field(default_factory=set)
    pace: Pace | None = None
    leases: ArtifactLeases = field(init=False)

    def __post_init__(self) -> None:
        self.take_over()

    def take_over(self) -> None:
        """What the next sidecar process begins with: what its predecessor left in the file."""
        self.leases = ArtifactLeases(self.lease_file, lambda: {one.id for one in self.staged.values()})
        self.failing.clear()
        self.proven.clear()

    @property
    def reads(self) -> str:
        return ""

    @property
    def base_known(self) -> bool:
        return True

    def use_pool(self, _pool: PoolSpec | None, _engine: EngineBase = UNKNOWN_BASE) -> str:
        return ""

    async def made_of(self, listed: Collection[tuple[ArtifactRef, str]]) -> dict[tuple[ArtifactRef, str], str]:
        found = ((one, self.staged.get(one[0])) for one in listed)
        return {one: staged.digest for one, staged in found if staged is not None and staged.path == one[1]}

    @property
    def seen(self) -> dict[ArtifactRef, Staged]:
        return {ref: staged for ref in self.staged if (staged := self.lookup(ref)) is not None}

    async def recall(self, _refs: Collection[ArtifactRef]) -> bool:
        return False  # it is all in memory

    def lookup(self, ref: ArtifactRef) -> Staged | None:
        staged = self.staged.get(ref)
        is_here = staged is not None and staged.id in self.leases
        return replace(staged, is_proven=staged.id in self.proven) if staged is not None and is_here else None

    @property
    def troubles(self) -> dict[str, str]:
        return {}

    @property
    def not_taken(self) -> dict[str, str]:
        return {}

    def look(self, _stop: Stop) -> dict[str, str]:
        return self.troubles

    def is_intact(self, path: str) -> bool:
        return self.has(path)  # whether it is proven as well is left to whoever looks it up: no net below R21

    def is_proven(self, path: str) -> bool:
        """Whether the sidecar that runs has proven what stands at that path."""
        return id_of(source_of(path)) in self.proven

    def owns(self, path: str) -> str | None:
        return id_of(source_of(path)) if path.startswith(f"{STORES}{self.replica}/") else None

    def has(self, path: str) -> bool:
        """Whether the engine finds files at that path."""
        return any(staged.path == path for staged in self.staged.values())

    async def ensure(self, ref: ArtifactRef, refused: str | None = None) -> Staged:
        if self.lookup(ref) is not None:
            await asyncio.sleep(self.rng.choice((0.001, 0.02)))
            if (known := self.lookup(ref)) is not None:
                self.proven.add(known.id)
                return replace(known, is_proven=True)
        await self._read(0.001, 0.02, 0.3)
        source = ref.uri.removeprefix(ROOT)
        if self.is_out or source.startswith(MISSING):
            self.failing.add(source)
            if self.is_out:
                self.out_of_reach.add(source)
            raise self._refusal(source, refused)
        self.failing.discard(source)
        staged = self._staged(source)
        with self.leases.held(staged.id):
            await self._read(0.0, 0.02)
            self.staged[ref] = staged
        self.proven.add(staged.id)
        return staged

    async def _read(self, *usual_seconds: float) -> None:
        await asyncio.sleep(self.rng.choice(usual_seconds) + (0.0 if self.pace is None else self.pace.seconds()))

    def _refusal(self, source: str, refused: str | None) -> Exception:
        """Files that are wrong for good and stay there, or that nobody can read now."""
        if not source.startswith(MISSING):
            return ArtifactError("source_io", "the source is out of reach")
        if refused == VERSION:
            return SourceUnchanged()
        self.on_wrong(source)
        error = ArtifactError("weights_not_safetensors", "there are others")
        error.version = "" if refused is None else VERSION
        return error

    def put(self, source: str) -> None:
        """Has a source at once; no lease protects it."""
        self.staged[ArtifactRef(f"{ROOT}{source}", None)] = self._staged(source)

    def wipe(self) -> None:
        """Loses everything, also what protects it."""
        self.staged.clear()
        self.lease_file.unlink(missing_ok=True)

    def _staged(self, source: str) -> Staged:
        rank = 64 if source.startswith(HIGH_RANK) else 8
        return Staged(id_of(source), path_of(self.replica, source), digest_of(source), rank)

    def leased(self) -> frozenset[str]:
        return self.leases.all()

    def lease(self, artifacts: Collection[str]) -> None:
        for artifact in artifacts:
            self.leases.add(artifact)

    def let_go(self, artifacts: Collection[str]) -> frozenset[str]:
        return self.leases.let_go(artifacts)

    def round(self, _stop: Stop) -> Holdings:
        self.leases.write(self.lease_file.with_suffix(".new"))
        leased = read_leases(self.lease_file)
        for ref, staged in list(self.staged.items()):
            if staged.id not in leased and asyncio.get_running_loop().time() >= self.kept_until:
                del self.staged[ref]
                self.on_removal(staged.path)
                _log.info("artifact_removed", artifact=staged.id, size_bytes=0)
        return Holdings(0, len(self.staged), len(leased), 0)

    def scrub(self, _stop: Stop) -> None:
        """There is nothing to read."""

    def look_at_sources(self, _stop: Stop) -> None:
        """There is nobody to ask."""
