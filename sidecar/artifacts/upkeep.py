"""What has to be done in a store again and again, one round at a time, by each sidecar of the host."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from registry.sources.stop import Stop
from sidecar.artifacts.files import locked
from sidecar.artifacts.inventory import Inventory
from sidecar.artifacts.layout import Layout
from sidecar.artifacts.leases import Leases
from sidecar.artifacts.removal import Removal
from sidecar.artifacts.room import Room
from sidecar.artifacts.scrub import Scrub
from sidecar.artifacts.steps import OnStep, RemovalStep


@dataclass(frozen=True, slots=True)
class Holdings:
    """What is in a store: bytes and number of artifacts, how many this replica leases, how many are damaged."""

    size_bytes: int
    artifacts: int
    leased: int
    damaged: int


class Upkeep:
    """The rounds of one replica's sidecar. Used in a worker thread."""

    def __init__(
        self,
        layout: Layout,
        leases: Leases,
        inventory: Inventory,
        room: Room,
        removal: Removal,
        scrub: Scrub,
        on_step: OnStep,
    ) -> None:
        self._layout = layout
        self._leases = leases
        self._inventory = inventory
        self._room = room
        self._removal = removal
        self._scrub = scrub
        self._on_step = on_step

    def round(self, stop: Stop) -> Holdings:
        """Writes the leases, sweeps, removes what is over the budget.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed; the next round takes up where this one ended.
        """
        self.write_leases(stop)
        self._removal.tidy(stop)
        self._removal.collect(self._room.excess_bytes(), stop)
        sizes = self._inventory.sizes()
        return Holdings(sum(sizes.values()), len(sizes), len(self._leases.all()), self._scrub.count_damaged())

    def scrub(self, stop: Stop) -> None:
        """Reads something again, slowly; see `Scrub.step`.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed.
        """
        self._scrub.step(stop)

    def write_leases(self, stop: Stop) -> None:
        """Puts on disk what was let go of.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: it could not be written; nothing was lost.
        """
        # The lock is for the leftovers of those who were killed here: see `Removal.tidy`.
        with locked(self._layout.lock(self._leases.key), stop):
            self._leases.write(self._layout.temporary(self._leases.key, uuid.uuid4().hex))
        self._on_step(RemovalStep.LEASES_WRITTEN)
