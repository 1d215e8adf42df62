"""The artifact store of a host: content-addressed, immutable, shared.

Why this is safe to share and to kill at any point:

- A directory gets its name by one rename, after its files were checked and synced: a name that is there is whole.
- Nothing is removed that is leased, which is looked at under the artifact's lock. So a replica writes its lease
first, and only then, under the lock, looks whether the directory is there. Looking without the lock would race
with a removal that had looked at the leases just before.
- What was seen so stays true while the lease stands; this is what `LocalStore` remembers, and all that `lookup` and
`seen` answer from. After a restart each artifact is seen under its lock once more, and its lease is kept meanwhile.
- An artifact that the engine has let go of loses its lease, and `lookup` forgets it, in one step of the event loop;
what a worker thread is about to hand out is held meanwhile. Removal itself is `Maintenance`'s.
- Leftovers are removed by whoever holds the lock of their name, never by asking whether a process still lives.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog

from registry.lora.base import BaseModules
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase
from registry.lora.signatures import PublicKeys
from registry.model.records import PoolSpec
from registry.runtime.failpoints import Point, hit
from registry.runtime.local_files import Content, FollowedFile
from registry.sources.allowed import AllowedSources, RemoteOptions
from registry.sources.base import ArtifactError, Source, Stop
from sidecar.artifacts.disk import Quota, SizeIndex
from sidecar.artifacts.examiner import EXAMINER, Examiner
from sidecar.artifacts.files import locked, locked_at_once, store_failure
from sidecar.artifacts.gc import GarbageCollector, mark_used
from sidecar.artifacts.ingest import DEFAULT_MAX_WEIGHTS_BYTES, Ingest
from sidecar.artifacts.layout import open_layout
from sidecar.artifacts.leases import ArtifactLeases, Remembered, warn_of_strays
from sidecar.artifacts.maintenance import Maintenance, ReadFiles, Scrub
from sidecar.artifacts.preparation import Bases
from sidecar.artifacts.proof import BACKGROUND_BYTES_PER_SECOND, DamagedArtifacts, ProofOutcome, Proofs, Signatures
from sidecar.artifacts.reports import Reports, damaged
from sidecar.artifacts.requests import Pins, StageRequest, other_version, pin_name, stage_request_of
from sidecar.artifacts.staging import LONG_SLOTS, QUICK_SLOTS
from sidecar.artifacts.stored import StoredArtifacts
from sidecar.artifacts.types import GRACE_SECONDS, ArtifactRef, Staged

_log = structlog.get_logger()
# For eager and for lazy adapters as many as one `Staging` runs at once, so that neither waits for the other.
MAX_WORKERS = 2 * (QUICK_SLOTS + LONG_SLOTS)
STAGING_TIMEOUT_SECONDS = 1800.0


class LocalStore:
    """An `ArtifactStore` on a local file system, as one replica uses it.

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
        examiner: looks at what arrived.
        timeout_seconds: how long one staging may take.
    """

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
        examiner: Examiner = EXAMINER,
        timeout_seconds: float = STAGING_TIMEOUT_SECONDS,
    ) -> None:
        """Makes the folders that are missing. Raises StoreError: they cannot be used, or an argument is wrong."""
        self._layout = layout = open_layout(root, replica)
        self._allowed = AllowedSources(allow_sources, remote, layout.paused_origins)
        self._lease_file = layout.lease(replica, engine)
        self._leases = ArtifactLeases(self._lease_file, layout.staged_ids)
        self._grace_seconds = grace_seconds
        index = SizeIndex(layout)
        self._followed: list[FollowedFile[Any]] = []
        self._allow_sources = tuple(allow_sources)
        self._collector = GarbageCollector(layout, index, grace_seconds)
        self._reports = reports = Reports(layout)
        self._proofs = Proofs(layout, reports)
        self._damage = DamagedArtifacts(layout)
        self._scrub = Scrub(
            layout, self._collector, self._proofs, self._damage, prove=self._prove_seen, on_damage=self._distrust
        )
        self._files = ReadFiles(layout, self._proofs, self._look_anew)
        self._quota = Quota(layout.root, index, budget_bytes, lambda wanted: self._collector.collect(wanted, Stop()))
        self._pins = Pins(layout)
        self._bases = Bases(base)
        self._signatures = Signatures(signature_keys)
        self._ingest = Ingest(
            layout, index, self._quota, self._signatures, reports, self._proofs, examiner, max_weights_bytes
        )
        self._stored = StoredArtifacts(
            layout, self._signatures, reports, self._proofs, self._ingest, self._collector, self._lease_file
        )
        self._timeout_seconds = timeout_seconds
        self._seen = Remembered()
        # What is not proven by what stands in the store, so that it has to be compared with its source.
        self._doubted: set[str] = set()
        self._workers = ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="staging")
        self.maintenance = Maintenance(
            layout, self._leases, index, self._quota, self._collector, self._scrub, self._files, before=self._refresh
        )

    def owns(self, path: str) -> str | None:
        """See `ArtifactStore.owns`."""
        return self._layout.owns(path)

    @property
    def base_known(self) -> bool:
        """See `ArtifactStore.base_known`."""
        return self._bases.current is not None

    @property
    def reads(self) -> str:
        """See `ArtifactStore.reads`. What is in files is told by their versions: credentials are in some."""
        files = tuple(file.taken for file in self._followed)
        return hashlib.sha256(f"{self._allow_sources!r} {files!r}".encode()).hexdigest()

    def follow(self, path: Path, read: Callable[[Path], Content], use: Callable[[Content], None]) -> None:
        """Hands over what a file says, now and, from a worker thread, whenever that changes; see `FollowedFile`.

        Raises what `read` raises.
        """
        self._followed.append(FollowedFile(path, read, use))

    def use_keys(self, keys: PublicKeys) -> None:
        """Proves signatures with these from now on. Safe for threads."""
        self._signatures.use(keys)

    def _refresh(self) -> None:
        for file in self._followed:
            file.refresh()

    def use_pool(self, pool: PoolSpec | None, engine: EngineBase = UNKNOWN_BASE) -> str:
        """See `ArtifactStore.use_pool`."""
        self._bases.follow(pool, engine)
        if self._signatures.follow(pool):
            self._seen.clear()
        return self._bases.problem

    async def made_of(self, listed: Collection[tuple[ArtifactRef, str]]) -> Mapping[tuple[ArtifactRef, str], str]:
        """See `ArtifactStore.made_of`."""
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
        self._seen.clear()
        warn_of_strays(self._lease_file)

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
        self._distrust(gone)
        for artifact in gone:
            mark_used(self._layout, artifact, seconds_ago=self._grace_seconds)
        if gone:
            hit(Point.LET_GO)
        return gone

    def lookup(self, ref: ArtifactRef) -> Staged | None:
        """See `ArtifactStore.lookup`."""
        base = self._bases.current
        key = (ref, base.identity if base else None)
        staged = self._seen.get(key)
        if staged is not None and not staged.is_proven and staged.id in self._proofs:
            staged = replace(staged, is_proven=True)
            self._seen.put(key, staged)
        return staged

    @property
    def seen(self) -> Mapping[ArtifactRef, Staged]:
        """See `ArtifactStore.seen`."""
        for key, staged in self._seen.unproven():
            if staged.id in self._proofs:
                self._seen.put(key, replace(staged, is_proven=True))
        base = self._bases.current
        return MappingProxyType(self._seen.of(base.identity if base else None))

    async def recall(self, refs: Collection[ArtifactRef]) -> bool:
        """See `ArtifactStore.recall`."""
        possible = [ref for ref in refs if self._may_be_here(ref)]
        return bool(possible) and any(await asyncio.to_thread(lambda: [self._recall(ref) for ref in possible]))

    def _may_be_here(self, ref: ArtifactRef) -> bool:
        """False: it is known without a look at any file that an earlier process did not stage it."""
        try:
            return ref.digest is None or self._order(ref).artifact(ref.digest) in self._leases
        except ArtifactError:
            return False

    def is_intact(self, path: str) -> bool:
        """See `ArtifactStore.is_intact`."""
        artifact = self.owns(path)
        if artifact is None:
            return False
        if self._proofs.is_intact(artifact) and not self._damage.is_marked(artifact):
            return True
        self._look_anew({artifact})
        return False

    @property
    def troubles(self) -> Mapping[str, str]:
        """See `ArtifactStore.troubles`."""
        return self._files.troubles

    def _look_anew(self, touched: Collection[str]) -> None:
        _log.warning("artifact_touched", artifacts=sorted(touched)[:20], count=len(touched))
        self._distrust(touched)

    def _distrust(self, artifacts: Collection[str]) -> None:
        """Forgets what is remembered of these, so that their bytes are hashed again."""
        self._proofs.forget(artifacts)
        self._seen.forget(artifacts)

    def _order(self, ref: ArtifactRef) -> StageRequest:
        return stage_request_of(ref, self._bases.current, self._damage.ids)

    def _prove_seen(self, stop: Stop) -> None:
        """Proves what the engine served before this process started, and nobody waits for.

        Raises:
            ArtifactError: ``staging_stopped``.
            OSError: the store failed.
        """
        for (ref, _), staged in self._seen.unproven():
            order = self._order(ref)
            if staged.id in self._proofs or order.artifact(staged.digest) != staged.id:
                continue
            try:
                outcome = self._proofs.prove(
                    staged.id, staged.digest, stop, bytes_per_second=BACKGROUND_BYTES_PER_SECOND
                )
            except OSError:
                self._distrust({staged.id})  # the others are not to wait until its report can be read
                raise
            if outcome is ProofOutcome.DAMAGED:
                self._scrub.found(staged.id)
            elif outcome is not ProofOutcome.PROVEN and not self._is_adopted(order, staged.digest, outcome, stop):
                self._doubted.add(staged.id)
                self._distrust({staged.id})

    def _is_adopted(self, order: StageRequest, digest: str, outcome: ProofOutcome, stop: Stop) -> bool:
        with locked_at_once(self._layout.lock(order.artifact(digest))) as is_locked:
            return is_locked and outcome is ProofOutcome.SOURCE and self._ingest.adopt(order, digest, stop)

    def _recall(self, ref: ArtifactRef) -> Staged | None:
        """Looks anew at what an earlier process of this replica staged."""
        try:
            order, digest = self._order(ref), self._pins.digest(ref)
            if digest is None:
                return None
            with self._leases.kept(order.artifact(digest)) as is_leased:
                return self._see_at_once(order, digest, self._stored.peek) if is_leased else None
        except (OSError, ArtifactError):
            return None  # `ensure` meets the same again and says it

    def _see_at_once(
        self, order: StageRequest, digest: str, see: Callable[[StageRequest, str], Staged | None]
    ) -> Staged | None:
        """The leased artifact, seen under its lock; None: it is not there, or somebody else holds the lock."""
        artifact = order.artifact(digest)
        self._allowed.source(order.ref.uri, order.ref.credentials)
        with locked_at_once(self._layout.lock(artifact)) as is_locked:
            staged = see(order, digest) if is_locked and artifact not in self._doubted else None
            return self._remember(order, staged) if staged else None

    async def ensure(self, ref: ArtifactRef, refused: str | None = None) -> Staged:
        """See `ArtifactStore.ensure`. When cancelled, the copying ends soon after and leaves nothing behind."""
        staged = self.lookup(ref)
        if staged is not None and staged.is_proven:
            return staged
        order = self._order(ref)
        # Of what other replicas staged there may be hundreds: everybody else has his turn between two of them.
        await asyncio.sleep(0)
        return self._join(order) or await self._staged(order, refused)

    def _join(self, order: StageRequest) -> Staged | None:
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

    def _join_known(self, order: StageRequest, digest: str) -> Staged | None:
        artifact, staged = order.artifact(digest), None
        is_new = self._leases.add(artifact)
        hit(Point.LEASED)
        try:
            staged = self._see_at_once(order, digest, self._stored.see)
        finally:
            if is_new and staged is None:  # so that it is a new one to the worker too
                self._leases.let_go({artifact})
        return staged

    async def _staged(self, order: StageRequest, refused: str | None) -> Staged:
        """Finds or fetches an artifact, in a worker thread."""
        stop, loop = Stop(), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await loop.run_in_executor(self._workers, self._stage, order, stop, refused)
        except TimeoutError as error:
            message = f"it was not staged within {self._timeout_seconds:g} s; it is tried again"
            raise ArtifactError("staging_timeout", message) from error
        finally:
            stop.set()

    def close(self) -> None:
        """Waits for the worker threads, whose stagings were cancelled before."""
        self._workers.shutdown(cancel_futures=True)
        self._allowed.close()

    def _stage(self, order: StageRequest, stop: Stop, refused: str | None = None) -> Staged:
        source = self._allowed.source(order.ref.uri, order.ref.credentials)
        version = "" if refused is None else other_version(source, refused, stop)
        try:
            digest = self._pins.digest(order.ref)
            if digest is None:
                return self._discover(source, order, stop)
            return self._obtain(source, order, digest, stop)
        except ArtifactError as error:
            error.version = version
            raise
        except OSError as error:
            raise store_failure(error, self._layout.root) from error

    def _obtain(self, source: Source, order: StageRequest, digest: str, stop: Stop) -> Staged:
        """Stages what is known by its digest; of what is damaged and in use, a copy."""
        while (artifact := order.artifact(digest)) not in order.damaged:
            with self._claimed(artifact, stop) as is_new:
                staged = self._settled(source, order, digest, stop, is_new=is_new)
                if staged is not None:
                    return self._remember(order, staged)
            if is_new:  # our engine does not read what is damaged
                self._leases.let_go({artifact})
            order = replace(order, damaged=self._damage.ids)
        raise damaged(self._layout.adapter(artifact))

    def _settled(self, source: Source, order: StageRequest, digest: str, stop: Stop, *, is_new: bool) -> Staged | None:
        """The artifact. None: it is damaged and may be in use, as all sidecars of the store know now."""
        artifact = order.artifact(digest)
        if self._damage.is_marked(artifact):
            self._damage.refresh()
            return None
        found = self._stored.find(order, digest, stop, is_new=is_new)
        if found in {None, ProofOutcome.UNKNOWN, ProofOutcome.MISSING}:
            with self._ingest.incoming(artifact, stop) as arriving:
                arrived = self._ingest.receive(source, arriving, order, digest, stop)
                if found is None:
                    found = self._ingest.place(arriving, order, arrived, stop)
                elif self._ingest.vouch(arriving, order, arrived, stop):
                    found = self._stored.find(order, digest, stop, is_new=False)
        if isinstance(found, Staged):
            self._signatures.check(order.ref, digest)  # what is asked for may have changed in the meantime
            return found
        self._damage.mark(artifact)
        self._distrust({artifact})
        return None

    @contextmanager
    def _claimed(self, artifact: str, stop: Stop) -> Iterator[bool]:
        """Leases an artifact and then holds its lock. Gives whether the lease is new: our engine does not read it."""
        with self._leases.held(artifact) as is_new:
            hit(Point.LEASED)
            with locked(self._layout.lock(artifact), stop):
                hit(Point.LOCKED)
                yield is_new

    def _discover(self, source: Source, order: StageRequest, stop: Stop) -> Staged:
        """Stages what has no digest yet, and pins what was found."""
        name = pin_name(order.ref)
        with locked(self._layout.lock(name), stop):
            hit(Point.PIN_LOCKED)
            digest = self._pins.digest(order.ref)
            if digest is None:
                with self._ingest.incoming(name, stop) as arriving:
                    arrived = self._ingest.receive(source, arriving, order, None, stop)
                    digest = arrived.digest
                    with self._claimed(order.artifact(digest), stop) as is_new:
                        if not self._stored.has(order, digest, stop, is_new=is_new):
                            self._ingest.place(arriving, order, arrived, stop)
                self._pins.put(order.ref, digest)
                hit(Point.PINNED)
        return self._obtain(source, order, digest, stop)

    def _remember(self, order: StageRequest, staged: Staged) -> Staged:
        """It was seen under its lock, and `lookup` answers from this while the lease stands."""
        mark_used(self._layout, staged.id)
        if staged.is_proven:
            self._doubted.discard(staged.id)
        self._seen.put((order.ref, order.base.identity if order.base else None), staged)
        return staged
