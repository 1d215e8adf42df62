"""What stands in the store already, looked at by somebody who leases it and holds its lock."""

from __future__ import annotations

from pathlib import Path

from registry.sources.errors import ArtifactError
from sidecar.artifacts.layout import Layout
from sidecar.artifacts.orders import Order
from sidecar.artifacts.removal import Removal
from sidecar.artifacts.reports import damaged, look
from sidecar.artifacts.scrub import Scrub
from sidecar.artifacts.signatures import Signatures
from sidecar.artifacts.types import Staged


class Shelf:
    """The directories of one store, as one replica finds them. The caller holds the lease and the lock of each."""

    def __init__(
        self, layout: Layout, signatures: Signatures, scrub: Scrub, removal: Removal, lease_file: Path
    ) -> None:
        """`lease_file` is the replica's own."""
        self._layout = layout
        self._signatures = signatures
        self._scrub = scrub
        self._removal = removal
        self._lease_file = lease_file

    def find(self, order: Order, digest: str, *, is_new: bool) -> Staged | None:
        """What is there; None: it has to be fetched.

        `is_new`: the lease of this replica is, so that its engine does not read it. Then what is damaged, and read by
        no other engine either, makes room for a new copy.

        Raises:
            ArtifactError: ``artifact_damaged``, or what a signature lacks.
            OSError: a file is missing or cannot be read.
        """
        artifact = order.artifact(digest)
        if not self._layout.adapter(artifact).is_dir():
            return None
        self._signatures.check(order.ref, digest)
        try:
            return self._look(order, digest)
        except (ArtifactError, OSError):
            if is_new and self._removal.make_way(artifact, but=self._lease_file):
                return None
            raise

    def has(self, order: Order, digest: str, *, is_new: bool) -> bool:
        """Whether it need not be fetched, if only because what is wrong with it is for `find` to say."""
        try:
            return self.find(order, digest, is_new=is_new) is not None
        except (ArtifactError, OSError):
            return True

    def _look(self, order: Order, digest: str) -> Staged:
        artifact = order.artifact(digest)
        if self._scrub.is_damaged(artifact):
            raise damaged(self._layout.adapter(artifact))
        return look(self._layout, order, digest)
