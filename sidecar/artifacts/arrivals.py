"""How an artifact comes from its source into its place: fetched, vouched for, checked, prepared, reported, named."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from registry.lora.directory import Examined
from registry.sources.source import Source
from registry.sources.stop import Stop
from sidecar.artifacts.files import write_atomic
from sidecar.artifacts.incoming import Incoming, incoming
from sidecar.artifacts.inventory import Inventory
from sidecar.artifacts.layout import Layout
from sidecar.artifacts.orders import Order, mismatch
from sidecar.artifacts.preparing import prepare
from sidecar.artifacts.reports import look, make_report, staged_as
from sidecar.artifacts.room import Room
from sidecar.artifacts.signatures import Signatures
from sidecar.artifacts.steps import OnStep, Step
from sidecar.artifacts.syncing import SharedSync
from sidecar.artifacts.types import Staged


@dataclass(frozen=True, slots=True)
class Arrived:
    """What came from a source: its manifest digest, and what was read of it."""

    digest: str
    examined: Examined


class Arrivals:
    """Brings artifacts into one store. Used in worker threads."""

    def __init__(
        self,
        layout: Layout,
        inventory: Inventory,
        room: Room,
        signatures: Signatures,
        max_weights_bytes: int,
        on_step: OnStep,
    ) -> None:
        """Takes the parts of the store that it works with."""
        self._layout = layout
        self._inventory = inventory
        self._room = room
        self._signatures = signatures
        self._max_weights_bytes = max_weights_bytes
        self._on_step = on_step
        self._names = SharedSync(layout.adapters)

    def incoming(self, key: str, stop: Stop) -> AbstractContextManager[Incoming]:
        """A fresh directory for `key`, whose lock the caller holds; see `incoming.incoming`."""
        return incoming(
            self._layout,
            key,
            self._max_weights_bytes,
            self._room,
            stop,
            on_receiving=lambda: self._on_step(Step.RECEIVING),
        )

    def receive(self, source: Source, arriving: Incoming, order: Order, expected: str | None, stop: Stop) -> Arrived:
        """Fetches, and looks who vouches for it before anything of it is read.

        Raises:
            ArtifactError: it cannot be had, is another one than expected, or may not be served.
            OSError: the store failed.
        """
        source.fetch(arriving.take, stop)
        self._on_step(Step.RECEIVED)
        found = arriving.digest()
        if expected not in {None, found}:
            raise mismatch(order.ref, found, str(expected))
        self._signatures.check(order.ref, found)
        examined = arriving.verify(order.base, order.policy)
        self._on_step(Step.VERIFIED)
        return Arrived(found, examined)

    def place(self, arriving: Incoming, order: Order, arrived: Arrived, stop: Stop) -> Staged:
        """Prepares it and puts it in its place, its report first. The caller holds the artifact's lock.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed.
        """
        prepared = prepare(arriving.directory, arrived.examined, arriving.entries, stop)
        self._on_step(Step.PREPARED)
        report = make_report(order, arrived.digest, arrived.examined, prepared)
        temporary = self._layout.temporary(report.id, "report")
        write_atomic(self._layout.report(report.id), report.to_bytes(), temporary=temporary)
        self._on_step(Step.REPORTED)
        final = self._layout.adapter(report.id)
        arriving.place(final, self._inventory.adding(report.id, sum(entry.size for entry in prepared)))
        self._names.sync()  # from here on it survives a power cut
        self._on_step(Step.PLACED)
        verdict, config = arrived.examined.verdict, arrived.examined.opened.config
        if verdict.changes:
            return look(self._layout, order, arrived.digest)
        return staged_as(self._layout, order, arrived.digest, config, verdict.targets, verdict.warnings)
