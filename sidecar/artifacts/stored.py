"""Artifacts that stand in a store already, as one replica finds and proves them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.gc import GarbageCollector
from sidecar.artifacts.ingest import Ingest
from sidecar.artifacts.layout import StoreLayout
from sidecar.artifacts.proof import ProofOutcome, Proofs, Signatures, size_of
from sidecar.artifacts.reports import ArtifactReport, Reports, is_quick_to_look, look, staged_by
from sidecar.artifacts.requests import StageRequest
from sidecar.artifacts.types import Staged

# What is not larger is hashed in less time than it takes to hand it to a worker thread.
MAX_AT_ONCE_BYTES = 256 << 10


class StoredArtifacts:
    """The directories of one store, as one replica finds them. The caller holds the lease and the lock of each."""

    def __init__(
        self,
        layout: StoreLayout,
        signatures: Signatures,
        reports: Reports,
        proofs: Proofs,
        ingest: Ingest,
        collector: GarbageCollector,
        lease_file: Path,
    ) -> None:
        """`lease_file` is the replica's own."""
        self._ingest = ingest
        self._layout = layout
        self._signatures = signatures
        self._reports = reports
        self._proofs = proofs
        self._collector = collector
        self._lease_file = lease_file

    def peek(self, order: StageRequest, digest: str) -> Staged | None:
        """The artifact, its bytes unproven unless they were before; None: nothing, or nothing that may be believed.

        Raises:
            ArtifactError: ``artifact_damaged``, or what a signature lacks.
            OSError: a file is missing or cannot be read.
        """
        staged = self._peek(order, digest)[0]
        # A signature is over a digest, and says nothing of bytes that nobody hashed.
        must_wait = self._signatures.are_required and staged is not None and not staged.is_proven
        return None if must_wait else staged

    def see(self, order: StageRequest, digest: str) -> Staged | None:
        """The same, proven, of what is proven in less time than it takes to hand it to a worker. Raises as `peek`."""
        artifact = order.artifact(digest)
        staged, report, size_bytes = self._peek(order, digest)
        if staged is None or staged.is_proven:
            return staged
        if size_bytes > MAX_AT_ONCE_BYTES or report is None:
            return None
        is_proven = self._proofs.prove_by(report, artifact, digest, Stop()) is ProofOutcome.PROVEN
        return replace(staged, is_proven=True) if is_proven else None

    def _peek(self, order: StageRequest, digest: str) -> tuple[Staged | None, ArtifactReport | None, int]:
        """With its report, if that can be believed, and its size in bytes."""
        artifact = order.artifact(digest)
        identity, is_proven = self._proofs.identity(artifact), artifact in self._proofs
        if identity is None:
            return None, None, 0
        self._signatures.check(order.ref, digest)
        report = self._reports.read(artifact)
        if report is None and not is_quick_to_look(self._layout, artifact):
            return None, None, 0
        staged = staged_by(self._layout, order, report) if report else look(self._layout, order, digest)
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
        if not os.path.lexists(self._layout.adapter(artifact)):
            return None
        self._signatures.check(order.ref, digest)
        outcome = self._prove(order, digest, stop)
        if outcome is ProofOutcome.PROVEN:
            report = self._reports.read(artifact)
            return staged_by(self._layout, order, report) if report else look(self._layout, order, digest)
        if is_new and self._collector.make_way(artifact, but=self._lease_file):
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
        if self._proofs.is_intact(artifact):
            return ProofOutcome.PROVEN
        outcome = self._proofs.prove(artifact, digest, stop)
        if outcome is ProofOutcome.SOURCE:
            return ProofOutcome.PROVEN if self._ingest.adopt(order, digest, stop) else ProofOutcome.UNKNOWN
        return outcome
