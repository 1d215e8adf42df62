"""The artifact store of a host: content-addressed directories that never change, shared by its replicas.

Why this is safe to share and to kill at any point:

- A directory gets its name by one rename, after its files were checked and synced: a name that is there is whole.
- Nothing is removed that is leased, which is looked at under the artifact's lock. So a replica writes its lease
  first, and only then, under the lock, looks whether the directory is there. Looking without the lock would race
  with a removal that had looked at the leases just before.
- What was seen so stays true while the lease stands; this is what `LocalStore` remembers, and all that `lookup`
  answers from. After a restart each artifact is seen under its lock once more.
- An artifact that the engine has let go of loses its lease, and `lookup` forgets it, in one step of the event loop;
  what a worker thread is about to hand out is held meanwhile. Removal itself is `Upkeep`'s.
- Leftovers are removed by whoever holds the lock of their name, never by asking whether a process still lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from registry.lora.base import BaseModules
from registry.lora.signatures import PublicKeys
from registry.model.records import PoolSpec
from registry.sources.allowed import AllowedSources, RemoteOptions
from registry.sources.errors import ArtifactError
from registry.sources.source import Source
from registry.sources.stop import Stop
from sidecar.artifacts.arrivals import Arrivals
from sidecar.artifacts.bases import Bases
from sidecar.artifacts.files import locked, locked_at_once, store_failure
from sidecar.artifacts.incoming import DEFAULT_MAX_WEIGHTS_BYTES
from sidecar.artifacts.inventory import Inventory
from sidecar.artifacts.layout import open_layout
from sidecar.artifacts.leases import Leases, warn_of_strays
from sidecar.artifacts.orders import Order, order_of
from sidecar.artifacts.pins import Pins, pin_name
from sidecar.artifacts.remembered import Remembered
from sidecar.artifacts.removal import Removal, mark_used
from sidecar.artifacts.room import Room
from sidecar.artifacts.scrub import Scrub
from sidecar.artifacts.shelf import Shelf
from sidecar.artifacts.signatures import Signatures
from sidecar.artifacts.steps import OnStep, RemovalStep, Step, ignore
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.artifacts.upkeep import Upkeep
from sidecar.retention import GRACE_SECONDS

# For eager and for lazy adapters as many as one `Staging` runs at once, so that neither waits for the other.
MAX_WORKERS = 8
STAGING_TIMEOUT_SECONDS = 1800.0


class LocalStore:
    """An `ArtifactStore` on a local file system, as one replica uses it."""

    def __init__(
        self,
        root: Path,
        replica: str,
        allow_sources: Sequence[str],
        *,
        base: BaseModules | None = None,
        remote: RemoteOptions | None = None,
        signature_keys: PublicKeys = MappingProxyType({}),
        engine: str = "",
        budget_bytes: int | None = None,
        grace_seconds: float = GRACE_SECONDS,
        max_weights_bytes: int = DEFAULT_MAX_WEIGHTS_BYTES,
        timeout_seconds: float = STAGING_TIMEOUT_SECONDS,
        on_step: OnStep = ignore,
    ) -> None:
        """Opens the store; its folders are made if need be.

        Args:
            root: the store's directory, at the same path as the engine sees it.
            replica: whose leases are written.
            allow_sources: URI prefixes below which sources may be read; none: nothing may.
            base: the modules of this replica's base model; None: the pool's record says them.
            remote: how sources of other hosts are reached; None: with all defaults.
            signature_keys: public keys by name, with which signatures are proven.
            engine: address of the engine, whose leases these are.
            budget_bytes: for all artifacts of the store; None: as much as the disk has.
            grace_seconds: what was used so short a time ago is not removed.
            max_weights_bytes: cap on the weights of one adapter.
            timeout_seconds: how long one staging may take.
            on_step: called at each step, for tests; mostly in worker threads.

        Raises:
            StoreError: the directory cannot be used, or an argument is wrong.
        """
        self._allowed = AllowedSources(allow_sources, remote)
        self._layout = open_layout(root, replica)
        self._lease_file = self._layout.lease(replica, engine)
        self._leases = Leases(self._lease_file, self._layout.staged_ids)
        self._grace_seconds = grace_seconds
        inventory = Inventory(self._layout)
        self._removal = Removal(self._layout, inventory, grace_seconds, on_step)
        self._scrub = Scrub(self._layout, self._removal, on_damage=lambda artifact: self._seen.forget({artifact}))
        self._room = Room(
            self._layout.root, inventory, budget_bytes, lambda wanted: self._removal.collect(wanted, Stop())
        )
        self._pins = Pins(self._layout)
        self._bases = Bases(base)
        self._signatures = Signatures(signature_keys)
        self._shelf = Shelf(self._layout, self._signatures, self._scrub, self._removal, self._lease_file)
        self._arrivals = Arrivals(self._layout, inventory, self._room, self._signatures, max_weights_bytes, on_step)
        self._timeout_seconds = timeout_seconds
        self._on_step = on_step
        self._seen = Remembered()
        self._workers = ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="staging")
        self.upkeep = Upkeep(self._layout, self._leases, inventory, self._room, self._removal, self._scrub, on_step)

    def owns(self, path: str) -> str | None:
        """See `ArtifactStore.owns`."""
        return self._layout.owns(path)

    @property
    def base_known(self) -> bool:
        """See `ArtifactStore.base_known`."""
        return self._bases.current is not None

    def use_pool(self, pool: PoolSpec | None) -> str:
        """See `ArtifactStore.use_pool`."""
        self._bases.follow(pool)
        if self._signatures.follow(pool):
            self._seen.clear()
        return self._bases.problem

    def take_over(self) -> None:
        """Reads anew what the last process of this replica leased, once it has ended. Raises OSError."""
        self._leases.read()
        self._seen.clear()
        warn_of_strays(self._lease_file)

    def leased(self) -> frozenset[str]:
        """What this replica's engine may be reading."""
        return self._leases.all()

    def lease(self, artifacts: Collection[str]) -> None:
        """Leases what the engine reads though no lease says so. Raises OSError: it could not be written."""
        for artifact in artifacts:
            self._leases.add(artifact)

    def let_go(self, artifacts: Collection[str]) -> frozenset[str]:
        """Gives up leases of what the engine is proven not to read, but for what is just being staged; gives those.

        `lookup` knows them no more from now on. On disk they are leased until the next round of `upkeep`.
        """
        gone = self._leases.let_go(artifacts)
        self._seen.forget(gone)
        for artifact in gone:
            mark_used(self._layout, artifact, seconds_ago=self._grace_seconds)
        if gone:
            self._on_step(RemovalStep.LET_GO)
        return gone

    def lookup(self, ref: ArtifactRef) -> Staged | None:
        """See `ArtifactStore.lookup`. Reads a few small files at most, and only the first time."""
        base = self._bases.current
        staged = self._seen.get((ref, base.fingerprint if base else None))
        if staged is None:
            try:
                staged = self._recall(order_of(ref, base))
            except (OSError, ArtifactError):
                return None  # `ensure` meets the same again and says it
        return staged

    def _recall(self, order: Order) -> Staged | None:
        """What an earlier process of this replica staged, seen anew."""
        digest = self._pins.digest(order.ref)
        if digest is None or order.artifact(digest) not in self._leases:
            return None
        return self._see_at_once(order, digest)

    def _see_at_once(self, order: Order, digest: str) -> Staged | None:
        """What is there and leased, seen under its lock; None: it is not there, or somebody else holds the lock."""
        self._allowed.source(order.ref.uri, order.ref.credentials)
        with locked_at_once(self._layout.lock(order.artifact(digest))) as is_locked:
            staged = self._shelf.find(order, digest, is_new=False) if is_locked else None
            return self._remember(order, staged) if staged else None

    async def ensure(self, ref: ArtifactRef) -> Staged:
        """See `ArtifactStore.ensure`. When cancelled, the copying ends soon after and leaves nothing behind."""
        staged = self.lookup(ref)
        if staged is not None:
            return staged
        order = order_of(ref, self._bases.current)
        # Of what other replicas staged there may be hundreds: everybody else has his turn between two of them.
        await asyncio.sleep(0)
        return self._join(order) or await self._staged(order)

    def _join(self, order: Order) -> Staged | None:
        """Leases and sees what another replica of the host staged, which takes less time than the way to a worker.

        None: a worker has to look, and say what there is to say.
        """
        try:
            digest = self._pins.digest(order.ref)
            # That it is there without being leased is but a guess, and is looked at again.
            if digest is None or not self._layout.adapter(order.artifact(digest)).is_dir():
                return None
            return self._join_known(order, digest)
        except (OSError, ArtifactError):
            return None

    def _join_known(self, order: Order, digest: str) -> Staged | None:
        artifact, staged = order.artifact(digest), None
        is_new = self._leases.add(artifact)
        self._on_step(Step.LEASED)
        try:
            staged = self._see_at_once(order, digest)
        finally:
            if is_new and staged is None:  # so that it is a new one to the worker too
                self._leases.let_go({artifact})
        return staged

    async def _staged(self, order: Order) -> Staged:
        """What a worker thread finds or fetches."""
        stop, loop = Stop(), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await loop.run_in_executor(self._workers, self._stage, order, stop)
        except TimeoutError as error:
            message = f"it was not staged within {self._timeout_seconds:g} s; it is tried again"
            raise ArtifactError("staging_timeout", message, permanent=False) from error
        finally:
            stop.set()

    def close(self) -> None:
        """Waits for the worker threads, whose stagings were cancelled before."""
        self._workers.shutdown(cancel_futures=True)
        self._allowed.close()

    def _stage(self, order: Order, stop: Stop) -> Staged:
        source = self._allowed.source(order.ref.uri, order.ref.credentials)
        try:
            digest = self._pins.digest(order.ref)
            if digest is None:
                return self._discover(source, order, stop)
            return self._obtain(source, order, digest, stop)
        except OSError as error:
            raise store_failure(error, self._layout.root) from error

    def _obtain(self, source: Source, order: Order, digest: str, stop: Stop) -> Staged:
        """Stages what is known by its digest."""
        artifact = order.artifact(digest)
        with self._claimed(artifact, stop) as is_new:
            staged = self._shelf.find(order, digest, is_new=is_new)
            if staged is None:
                with self._arrivals.incoming(artifact, stop) as arriving:
                    arrived = self._arrivals.receive(source, arriving, order, digest, stop)
                    staged = self._arrivals.place(arriving, order, arrived, stop)
                self._signatures.check(order.ref, digest)  # what is asked for may have changed in the meantime
            return self._remember(order, staged)

    @contextmanager
    def _claimed(self, artifact: str, stop: Stop) -> Iterator[bool]:
        """Leases an artifact and then holds its lock. Gives whether the lease is new: our engine does not read it."""
        with self._leases.held(artifact) as is_new:
            self._on_step(Step.LEASED)
            with locked(self._layout.lock(artifact), stop):
                self._on_step(Step.LOCKED)
                yield is_new

    def _discover(self, source: Source, order: Order, stop: Stop) -> Staged:
        """Stages what has no digest yet, and pins what was found."""
        name = pin_name(order.ref)
        with locked(self._layout.lock(name), stop):
            self._on_step(Step.PIN_LOCKED)
            digest = self._pins.digest(order.ref)
            if digest is None:
                with self._arrivals.incoming(name, stop) as arriving:
                    arrived = self._arrivals.receive(source, arriving, order, None, stop)
                    digest = arrived.digest
                    with self._claimed(order.artifact(digest), stop) as is_new:
                        if not self._shelf.has(order, digest, is_new=is_new):
                            self._arrivals.place(arriving, order, arrived, stop)
                self._pins.put(order.ref, digest)
                self._on_step(Step.PINNED)
        return self._obtain(source, order, digest, stop)

    def _remember(self, order: Order, staged: Staged) -> Staged:
        """It was seen under its lock, and `lookup` answers from this while the lease stands."""
        mark_used(self._layout, staged.id)
        self._seen.put((order.ref, order.fingerprint), staged)
        return staged
