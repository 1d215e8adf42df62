"""Artifacts that stand in a store, as one replica finds and remembers them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import structlog

from registry.lora.base import BaseModules
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.gc import GarbageCollector, mark_used
from sidecar.artifacts.ingest import Ingest
from sidecar.artifacts.layout import StoreLayout
from sidecar.artifacts.proof import DamagedArtifacts, ProofOutcome, Proofs, size_of
from sidecar.artifacts.reports import ArtifactReport, Reports, is_quick_to_look, look, staged_by
from sidecar.artifacts.requests import StageRequest
from sidecar.artifacts.signing.signatures import Signatures
from sidecar.artifacts.types import ArtifactRef, Staged

_log = structlog.get_logger()
# More than an engine holds; what is forgotten is looked up on the disk again.
MAX_REMEMBERED = 65_536
# A reference, and the identity of the base that it was prepared for.
BaseIdentity = tuple[object, ...] | None
Key = tuple[ArtifactRef, BaseIdentity]


class Remembered:
    """A bounded memory, the oldest goes first. Each call is one step among threads."""

    def __init__(self) -> None:
        # By base, so that all of one is copied without that a single reference is hashed.
        self._seen: defaultdict[BaseIdentity, dict[ArtifactRef, Staged]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, list(self._seen.values())))

    def of(self, base: BaseIdentity) -> dict[ArtifactRef, Staged]:
        """A copy of all that was seen as it is prepared for a base."""
        return self._seen[base].copy()

    def refs(self) -> set[ArtifactRef]:
        """References of all that was seen, for whatever base."""
        return {ref for (ref, _), _ in self._all()}

    def get(self, key: Key) -> Staged | None:
        """The last look, if it is remembered."""
        return self._seen[key[1]].get(key[0])

    def put(self, key: Key, staged: Staged) -> None:
        """Remembers it."""
        self._seen[key[1]][key[0]] = staged
        if len(self) > MAX_REMEMBERED:
            oldest = next(seen for seen in list(self._seen.values()) if seen)
            oldest.pop(next(iter(oldest)), None)

    def unproven(self) -> list[tuple[Key, Staged]]:
        """Artifacts seen and not hashed yet, as far as is known here."""
        return [(key, staged) for key, staged in self._all() if not staged.is_proven]

    def forget(self, artifacts: Collection[str]) -> None:
        """Forgets these artifacts, whatever they were asked for by."""
        for (ref, base), staged in self._all():
            if staged.id in artifacts:
                self._seen[base].pop(ref, None)

    def _all(self) -> Iterator[tuple[Key, Staged]]:
        for base, seen in list(self._seen.items()):
            for ref, staged in list(seen.items()):
                yield (ref, base), staged

    def clear(self) -> None:
        """Forgets everything."""
        self._seen.clear()


class KnownArtifacts:
    """Artifacts of one store, as this process saw them while they were leased. Safe for threads.

    Attributes:
        seen: answers, while the lease of an artifact stands.
        proofs: artifacts whose bytes this process has proven.
        damage: artifacts that any sidecar of the store found damaged.
        doubted: what stands in the store does not prove them, so that they have to be compared with their sources.
    """

    def __init__(self, layout: StoreLayout, proofs: Proofs) -> None:
        """Knows what others found damaged. Raises OSError."""
        self._layout = layout
        self.proofs = proofs
        self.damage = DamagedArtifacts(layout)
        self.seen = Remembered()
        self.doubted: set[str] = set()

    def find(self, ref: ArtifactRef, base: BaseModules | None) -> Staged | None:
        """The artifact as it is prepared for a base; None: it was not seen, or is known no more."""
        key = (ref, base.identity if base else None)
        staged = self.seen.get(key)
        if staged is not None and not staged.is_proven and staged.id in self.proofs:
            staged = replace(staged, is_proven=True)
            self.seen.put(key, staged)
        return staged

    def all_of(self, base: BaseModules | None) -> Mapping[ArtifactRef, Staged]:
        """All answers of `find` for a base, as it is now."""
        for key, staged in self.seen.unproven():
            if staged.id in self.proofs:
                self.seen.put(key, replace(staged, is_proven=True))
        return MappingProxyType(self.seen.of(base.identity if base else None))

    def remember(self, order: StageRequest, staged: Staged) -> Staged:
        """It was seen under its lock, and `find` answers from this while the lease stands."""
        mark_used(self._layout, staged.id)
        if staged.is_proven:
            self.doubted.discard(staged.id)
        self.seen.put((order.ref, order.base.identity if order.base else None), staged)
        return staged

    def is_intact(self, artifact: str) -> bool:
        """True if it is proven, was not touched since, and nobody found it damaged. Else it is known no more."""
        if self.proofs.is_intact(artifact) and not self.damage.is_marked(artifact):
            return True
        self.look_anew({artifact})
        return False

    def look_anew(self, touched: Collection[str]) -> None:
        """Distrusts what somebody touched."""
        _log.warning("artifact_touched", artifacts=sorted(touched)[:20], count=len(touched))
        self.distrust(touched)

    def distrust(self, artifacts: Collection[str]) -> None:
        """Forgets what is remembered of these, so that their bytes are hashed again."""
        self.proofs.forget(artifacts)
        self.seen.forget(artifacts)

    def doubt(self, artifact: str) -> None:
        """Distrusts it until its bytes were compared with its source."""
        self.doubted.add(artifact)
        self.distrust({artifact})


# What is not larger is hashed in less time than it takes to hand it to a worker thread.
MAX_AT_ONCE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class StoredArtifacts:
    """The directories of one store, as one replica finds them, whose `lease_file` it is.

    The caller holds the lease and the lock of each.
    """

    layout: StoreLayout
    signatures: Signatures
    reports: Reports
    proofs: Proofs
    ingest: Ingest
    collector: GarbageCollector
    lease_file: Path

    def peek(self, order: StageRequest, digest: str) -> Staged | None:
        """The artifact, its bytes unproven unless they were before; None: nothing, or nothing that may be believed.

        Raises:
            ArtifactError: ``artifact_damaged``, or what a signature lacks.
            OSError: a file is missing or cannot be read.
        """
        staged = self._peek(order, digest)[0]
        # A signature is over a digest, and says nothing of bytes that nobody hashed.
        must_wait = self.signatures.are_required and staged is not None and not staged.is_proven
        return None if must_wait else staged

    def see(self, order: StageRequest, digest: str) -> Staged | None:
        """The same, proven, of what is proven in less time than it takes to hand it to a worker. Raises as `peek`."""
        artifact = order.artifact(digest)
        staged, report, size_bytes = self._peek(order, digest)
        if staged is None or staged.is_proven:
            return staged
        if size_bytes > MAX_AT_ONCE_BYTES or report is None:
            return None
        is_proven = self.proofs.prove_by(report, artifact, digest, Stop()) is ProofOutcome.PROVEN
        return replace(staged, is_proven=True) if is_proven else None

    def _peek(self, order: StageRequest, digest: str) -> tuple[Staged | None, ArtifactReport | None, int]:
        """With its report, if that can be believed, and its size in bytes."""
        artifact = order.artifact(digest)
        identity, is_proven = self.proofs.identity(artifact), artifact in self.proofs
        if identity is None:
            return None, None, 0
        self.signatures.check(order.ref, digest)
        report = self.reports.read(artifact)
        if report is None and not is_quick_to_look(self.layout, artifact):
            return None, None, 0
        staged = staged_by(self.layout, order, report) if report else look(self.layout, order, digest)
        return replace(staged, is_proven=is_proven), report, size_of(identity)

    def find(self, order: StageRequest, digest: str, stop: Stop, *, is_new: bool) -> Staged | ProofOutcome | None:
        """The artifact, proven; None: it has to be fetched.

        `is_new`: the lease of this replica is, so that its engine does not read it. Then what is not what it has to be,
        and read by no other engine either, makes room for a new copy. Else the outcome is given.

        Raises:
            ArtifactError: ``staging_stopped``, or what a signature lacks.
            OSError: a file is missing or cannot be read.
        """
        artifact = order.artifact(digest)
        if not os.path.lexists(self.layout.adapter(artifact)):
            return None
        self.signatures.check(order.ref, digest)
        outcome = self._prove(order, digest, stop)
        if outcome is ProofOutcome.PROVEN:
            report = self.reports.read(artifact)
            return staged_by(self.layout, order, report) if report else look(self.layout, order, digest)
        if is_new and self.collector.make_way(artifact, but=self.lease_file):
            return None
        return outcome

    def has(self, order: StageRequest, digest: str, stop: Stop, *, is_new: bool) -> bool:
        """True if it need not be fetched, if only because what is wrong with it is for `find` to say."""
        try:
            return self.find(order, digest, stop, is_new=is_new) is not None
        except (ArtifactError, OSError):
            return True

    def _prove(self, order: StageRequest, digest: str, stop: Stop) -> ProofOutcome:
        artifact = order.artifact(digest)
        if self.proofs.is_intact(artifact):
            return ProofOutcome.PROVEN
        outcome = self.proofs.prove(artifact, digest, stop)
        if outcome is ProofOutcome.SOURCE:
            return ProofOutcome.PROVEN if self.ingest.adopt(order, digest, stop) else ProofOutcome.UNKNOWN
        return outcome
