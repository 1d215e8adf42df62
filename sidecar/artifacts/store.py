"""The artifact store of a host: content-addressed, immutable, shared.

Why this is safe to share and to kill at any point:

- A directory gets its name by one rename, after its files were checked and synced: a name that is there is whole.
- Nothing is removed that is leased, which is looked at under the artifact's lock. So a replica writes its lease
first, and only then, under the lock, looks whether the directory is there. Looking without the lock would race
with a removal that had looked at the leases just before.
- What was seen so stays true while the lease stands; this is what `KnownArtifacts` remembers, and all that `lookup` and
`seen` answer from. After a restart each artifact is seen under its lock once more, and its lease is kept meanwhile.
- An artifact that the engine has let go of loses its lease, and `lookup` forgets it, in one step of the event loop;
what a worker thread is about to hand out is held meanwhile. Removal itself is `Maintenance`'s.
- Leftovers are removed by whoever holds the lock of their name, never by asking whether a process still lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from registry.lora.base import BaseModules
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase
from registry.model.records import PoolSpec
from registry.runtime.failpoints import Point, hit
from registry.sources.allowed import RemoteOptions
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.disk import Quota, SizeIndex
from sidecar.artifacts.examiner import EXAMINER, Examiner
from sidecar.artifacts.files import SharedSync
from sidecar.artifacts.gc import GarbageCollector, mark_used
from sidecar.artifacts.ingest import Ingest
from sidecar.artifacts.layout import open_layout
from sidecar.artifacts.leases import ArtifactLeases, warn_of_strays
from sidecar.artifacts.maintenance import Maintenance, ReadFiles, RotatedSources, Scrub
from sidecar.artifacts.obtain import Obtainer
from sidecar.artifacts.preparation import Bases
from sidecar.artifacts.proof import Proofs, Trust
from sidecar.artifacts.reports import Reports
from sidecar.artifacts.requests import Pins, StageRequest, stage_request_of
from sidecar.artifacts.stored import KnownArtifacts, StoredArtifacts
from sidecar.artifacts.types import GRACE_SECONDS, ArtifactRef, Staged


@dataclass(frozen=True, slots=True)
class ReadingEngine:
    """The engine that reads a store for a replica.

    Attributes:
        address: whose leases these are; empty: any engine's of the replica.
        base: the modules of its base model; None: the pool's record says them.
    """

    address: str = ""
    base: BaseModules | None = None


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of what a store keeps.

    Attributes:
        budget_bytes: for all artifacts of the store; None: as much as the disk has.
        grace_seconds: what was used so short a time ago is not removed.
    """

    budget_bytes: int | None = None
    grace_seconds: float = GRACE_SECONDS


class LocalStore:
    """An `ArtifactStore` on a local file system, as one replica uses it.

    Args:
        root: the store's directory, at the same path as the engine sees it.
        replica: whose leases are written.
        allow_sources: URI prefixes below which sources may be read; none: nothing may.
        engine: that reads it.
        remote: how sources of other hosts are reached; None: with all defaults.
        limits: of what is kept.
        examiner: looks at what arrived.
    """

    def __init__(
        self,
        root: Path,
        replica: str,
        allow_sources: Sequence[str],
        *,
        engine: ReadingEngine = ReadingEngine(),
        remote: RemoteOptions | None = None,
        limits: StoreLimits = StoreLimits(),
        examiner: Examiner = EXAMINER,
    ) -> None:
        """Makes the folders that are missing. Raises StoreError: they cannot be used, or an argument is wrong."""
        self._layout = layout = open_layout(root, replica)
        self.trust = trust = Trust(allow_sources, remote, layout)
        self._leases = leases = ArtifactLeases(layout.lease(replica, engine.address), layout.staged_ids)
        self._pins, self._bases = Pins(layout), Bases(engine.base)
        self._reports = reports = Reports(layout)
        proofs, index = Proofs(layout, reports), SizeIndex(layout)
        self._known = known = KnownArtifacts(layout, proofs)
        self._grace_seconds = limits.grace_seconds
        collector = GarbageCollector(layout, index, limits.grace_seconds)
        quota = Quota(layout.root, index, limits.budget_bytes, lambda wanted: collector.collect(wanted, Stop()))
        ingest = Ingest(layout, index, quota, trust.signatures, reports, proofs, examiner, SharedSync(layout.adapters))
        stored = StoredArtifacts(layout, trust.signatures, reports, proofs, ingest, collector, leases.file)
        self._obtainer = Obtainer(layout, trust, leases, self._pins, known, ingest, stored)
        self._files = ReadFiles(layout, known)
        scrub = Scrub(layout, collector, known, ingest, self._bases)
        self._rotated = RotatedSources(known.seen.refs, trust.source)
        self.maintenance = Maintenance(
            layout, leases, index, quota, collector, scrub, self._files, self._rotated, trust.refresh
        )

    def owns(self, path: str) -> str | None:
        return self._layout.owns(path)

    @property
    def base_known(self) -> bool:
        return self._bases.current is not None

    @property
    def reads(self) -> str:
        return self.trust.digest

    @property
    def not_taken(self) -> Mapping[str, str]:
        return self.trust.not_taken

    def use_pool(self, pool: PoolSpec | None, engine: EngineBase = UNKNOWN_BASE) -> str:
        self._bases.follow(pool, engine)
        if self.trust.signatures.follow(pool, self._bases.current):
            self._known.seen.clear()
        return self._bases.problem

    async def made_of(self, listed: Collection[tuple[ArtifactRef, str]]) -> Mapping[tuple[ArtifactRef, str], str]:
        sources = await asyncio.to_thread(lambda: [self._source_of(*one) for one in listed])
        return {one: digest for one, digest in zip(listed, sources, strict=True) if digest}

    def _source_of(self, ref: ArtifactRef, path: str) -> str:
        """Reads a small file, and only the first time."""
        artifact = self.owns(path)
        try:
            digest = self._reports.source_of(artifact) if artifact else ""
            return digest if digest and digest == self._pins.digest(ref) else ""
        except OSError:
            return ""

    def take_over(self) -> None:
        """Reads anew what the last process of this replica leased, once it has ended. Raises OSError."""
        self._leases.read()
        self._known.seen.clear()
        warn_of_strays(self._leases.file)

    def leased(self) -> frozenset[str]:
        """Artifacts that this replica's engine may be reading."""
        return self._leases.all()

    def lease(self, artifacts: Collection[str]) -> None:
        """Leases what the engine reads though no lease says so. Raises OSError: it could not be written."""
        for artifact in artifacts:
            self._leases.add(artifact)

    def let_go(self, artifacts: Collection[str]) -> frozenset[str]:
        """Gives up leases of what the engine is proven not to read, but for what is just being staged; gives those.

        `lookup` knows them no more from now on. On disk they are leased until the next round of `maintenance`.
        """
        gone = self._leases.let_go(artifacts)
        self._known.distrust(gone)
        for artifact in gone:
            mark_used(self._layout, artifact, seconds_ago=self._grace_seconds)
        if gone:
            hit(Point.LET_GO)
        return gone

    def lookup(self, ref: ArtifactRef) -> Staged | None:
        return self._known.find(ref, self._bases.current)

    @property
    def seen(self) -> Mapping[ArtifactRef, Staged]:
        return self._rotated.marked(self._known.all_of(self._bases.current))

    async def recall(self, refs: Collection[ArtifactRef]) -> bool:
        possible = [ref for ref in refs if self._may_be_here(ref)]
        return bool(possible) and any(await asyncio.to_thread(lambda: [self._recall(ref) for ref in possible]))

    def _recall(self, ref: ArtifactRef) -> Staged | None:
        return self._obtainer.recall(self._order(ref))

    def _may_be_here(self, ref: ArtifactRef) -> bool:
        """False: it is known without a look at any file that an earlier process did not stage it."""
        try:
            order = self._order(ref)
        except ArtifactError:
            return False
        return ref.digest is None or order.artifact(ref.digest) in self._leases

    def is_intact(self, path: str) -> bool:
        artifact = self.owns(path)
        return artifact is not None and self._known.is_intact(artifact)

    @property
    def troubles(self) -> Mapping[str, str]:
        return self._files.troubles

    def _order(self, ref: ArtifactRef) -> StageRequest:
        return stage_request_of(ref, self._bases.current, self._known.damage.ids)

    async def ensure(self, ref: ArtifactRef, refused: str | None = None) -> Staged:
        """See `ArtifactStore.ensure`. When cancelled, the copying ends soon after and leaves nothing behind."""
        staged = self.lookup(ref)
        if staged is not None and staged.is_proven:
            return staged
        order = self._order(ref)
        # Of what other replicas staged there may be hundreds: everybody else has his turn between two of them.
        await asyncio.sleep(0)
        return self._obtainer.join(order) or await self._obtainer.obtain(order, refused)

    def close(self) -> None:
        """Waits for the worker threads, whose stagings were cancelled before."""
        self._obtainer.close()
        self.trust.sources.close()
