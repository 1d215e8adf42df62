"""Obtaining of artifacts: found, proven or fetched, under lease and lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache, partial

from registry.runtime.failpoints import Point, hit
from registry.sources.base import ArtifactError, Source, Stop
from sidecar.artifacts.files import locked, locked_at_once, store_failure
from sidecar.artifacts.ingest import Ingest
from sidecar.artifacts.layout import StoreLayout
from sidecar.artifacts.leases import ArtifactLeases
from sidecar.artifacts.proof import ProofOutcome, Trust
from sidecar.artifacts.reports import damaged
from sidecar.artifacts.requests import Pins, StageRequest, other_version, pin_name
from sidecar.artifacts.staging import LONG_SLOTS, QUICK_SLOTS, origin_of
from sidecar.artifacts.stored import KnownArtifacts, StoredArtifacts
from sidecar.artifacts.types import Staged

# A folder may be on a mount that hangs; the event loop waits for it no longer than this.
LOOK_SECONDS = 0.05
Opened = Callable[[], Source]


class PromptLook:
    """Asks in a thread of its own what may hang, and waits but a moment."""

    def __init__(self) -> None:
        """Asks nothing yet."""
        self._thread = ThreadPoolExecutor(1, "looking")
        self._asked: Future[object] | None = None

    def at_once(self, ask: Callable[[], object]) -> None:
        """Raises what `ask` raises, and TimeoutError: it takes longer, or the last one has not ended yet."""
        if self._asked is not None and not self._asked.done():
            raise TimeoutError
        self._asked = self._thread.submit(ask)
        self._asked.result(LOOK_SECONDS)

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown()


# A try that was given up has its worker until its source answers. With so many of one origin no other of it begins.
MOST_GIVEN_UP, AGAIN_SECONDS = LONG_SLOTS, 0.1


class GivenUpTries:
    """Tries that nobody waits for and that have not ended yet, with the origins of their sources."""

    def __init__(self) -> None:
        """There are none."""
        self._tries: list[tuple[str, Future[Staged]]] = []

    def note(self, origin: str, work: Future[Staged]) -> None:
        """Takes in that nobody waits for it from now on."""
        self._tries.append((origin, work))

    async def are_few(self, origin: str) -> None:
        """Returns once one more of that origin may begin."""
        while True:
            self._tries = [one for one in self._tries if not one[1].done()]
            if sum(of == origin for of, _ in self._tries) < MOST_GIVEN_UP:
                return
            await asyncio.sleep(AGAIN_SECONDS)


# For eager and for lazy adapters as many as one `Staging` runs at once, so that neither waits for the other.
MAX_WORKERS = 2 * (QUICK_SLOTS + LONG_SLOTS)
STAGING_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Obtainer:
    """Gets artifacts for one replica. What it gives was seen under its lock and is leased, and `known` remembers it."""

    layout: StoreLayout
    trust: Trust
    leases: ArtifactLeases
    pins: Pins
    known: KnownArtifacts
    ingest: Ingest
    stored: StoredArtifacts
    workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(MAX_WORKERS, "staging"))
    prompt: PromptLook = field(default_factory=PromptLook)
    given_up: GivenUpTries = field(default_factory=GivenUpTries)

    def close(self) -> None:
        """Waits for the worker threads, whose stagings were cancelled before."""
        self.workers.shutdown(cancel_futures=True)
        self.prompt.close()

    def recall(self, order: StageRequest) -> Staged | None:
        """Looks at files that an earlier process of this replica staged; None: nothing that may be believed."""
        try:
            digest = self.pins.digest(order.ref)
            if digest is None:
                return None
            with self.leases.kept(order.artifact(digest)) as is_leased:
                if not is_leased:
                    return None
                self.trust.check_known(order.ref)
                return self._see_at_once(order, digest, self.stored.peek)
        except (OSError, ArtifactError):
            return None  # `obtain` meets the same again and says it

    def _see_at_once(
        self, order: StageRequest, digest: str, see: Callable[[StageRequest, str], Staged | None]
    ) -> Staged | None:
        """The leased artifact, seen under its lock; None: it is not there, or somebody else holds the lock."""
        artifact = order.artifact(digest)
        with locked_at_once(self.layout.lock(artifact)) as is_locked:
            staged = see(order, digest) if is_locked and artifact not in self.known.doubted else None
            return self.known.remember(order, staged) if staged else None

    def join(self, order: StageRequest) -> Staged | None:
        """Leases and sees what another replica of the host staged, which takes less time than the way to a worker.

        None: a worker has to look, and say what there is to say.
        """
        try:
            digest = self.pins.digest(order.ref)
            # That it is there without being leased is but a guess, and is looked at again.
            if digest is None or not self.layout.adapter(order.artifact(digest)).is_dir():
                return None
            return self._join_known(order, digest)
        except (OSError, ArtifactError):
            return None

    def _join_known(self, order: StageRequest, digest: str) -> Staged | None:
        artifact, staged = order.artifact(digest), None
        is_new = self.leases.add(artifact)
        hit(Point.LEASED)
        try:
            if is_new:
                self.prompt.at_once(partial(self.trust.source, order.ref))
            else:
                self.trust.check_known(order.ref)
            staged = self._see_at_once(order, digest, self.stored.see)
        finally:
            if is_new and staged is None:  # so that it is a new one to the worker too
                self.leases.let_go({artifact})
        return staged

    async def obtain(self, order: StageRequest, refused: str | None) -> Staged:
        """Finds, proves or fetches an artifact, in a worker thread. Raises as `ArtifactStore.ensure`."""
        stop, origin = Stop(), origin_of(order.ref.uri)
        work: Future[Staged] | None = None
        try:
            async with asyncio.timeout(STAGING_TIMEOUT_SECONDS):
                await self.given_up.are_few(origin)
                run = copy_context().run  # of which change it is
                work = self.workers.submit(run, self._stage, order, stop, refused)
                return await asyncio.wrap_future(work)
        except TimeoutError as error:
            message = f"it was not staged within {STAGING_TIMEOUT_SECONDS:g} s; it is tried again"
            raise ArtifactError("staging_timeout", message) from error
        finally:
            stop.set()
            if work is not None and not work.done():
                self.given_up.note(origin, work)

    def _stage(self, order: StageRequest, stop: Stop, refused: str | None = None) -> Staged:
        source, version = cache(partial(self.trust.source, order.ref)), ""
        try:
            digest = self.pins.digest(order.ref)
            if refused is not None:
                version = other_version(source(), refused, stop)
            if digest is None:
                return self._discover(source(), order, stop)
            if order.artifact(digest) in self.leases:
                self.trust.check_known(order.ref)
            else:
                source()
            return self._obtain(source, order, digest, stop)
        except ArtifactError as error:
            error.version = version
            raise
        except OSError as error:
            raise store_failure(error, self.layout.root) from error

    def _obtain(self, source: Opened, order: StageRequest, digest: str, stop: Stop) -> Staged:
        """Stages what is known by its digest; of what is damaged and in use, a copy."""
        while (artifact := order.artifact(digest)) not in order.damaged:
            with self._claimed(artifact, stop) as is_new:
                staged = self._settled(source, order, digest, stop, is_new=is_new)
                if staged is not None:
                    return self.known.remember(order, staged)
            if is_new:  # our engine does not read what is damaged
                self.leases.let_go({artifact})
            order = replace(order, damaged=self.known.damage.ids)
        raise damaged(self.layout.adapter(artifact))

    def _settled(self, source: Opened, order: StageRequest, digest: str, stop: Stop, *, is_new: bool) -> Staged | None:
        """The artifact. None: it is damaged and may be in use, as all sidecars of the store know now."""
        artifact = order.artifact(digest)
        if self.known.damage.is_marked(artifact):
            self.known.damage.refresh()
            return None
        self._renew_bundle(source, order, digest, stop)
        found = self.stored.find(order, digest, stop, is_new=is_new)
        if found in {None, ProofOutcome.UNKNOWN, ProofOutcome.MISSING}:
            with self.ingest.incoming(artifact, stop) as arriving:
                arrived = self.ingest.receive(source(), arriving, order, digest, stop)
                if found is None:
                    found = self.ingest.place(arriving, order, arrived, stop)
                elif self.ingest.vouch(arriving, order, arrived, stop):
                    found = self.stored.find(order, digest, stop, is_new=False)
        if isinstance(found, Staged):
            self.trust.signatures.check(order.ref, digest)  # what is asked for may have changed in the meantime
            return found
        self.known.damage.mark(artifact)
        self.known.distrust({artifact})
        return None

    def _renew_bundle(self, source: Opened, order: StageRequest, digest: str, stop: Stop) -> None:
        """Sees to it that a bundle that counts is kept of what stands there; what is to arrive brings its own along."""
        artifact, signatures = order.artifact(digest), self.trust.signatures
        if not signatures.has_policy or not self.layout.adapter(artifact).is_dir():
            return
        if not signatures.renew(source, order.ref, digest, stop):  # from before there was a policy
            with self.ingest.incoming(artifact, stop) as arriving:
                self.ingest.receive(source(), arriving, order, digest, stop)

    @contextmanager
    def _claimed(self, artifact: str, stop: Stop) -> Iterator[bool]:
        """Leases an artifact and then holds its lock. Gives whether the lease is new: our engine does not read it."""
        with self.leases.held(artifact) as is_new:
            hit(Point.LEASED)
            with locked(self.layout.lock(artifact), stop):
                hit(Point.LOCKED)
                yield is_new

    def _discover(self, source: Source, order: StageRequest, stop: Stop) -> Staged:
        """Stages what has no digest yet, and pins what was found."""
        name = pin_name(order.ref)
        with locked(self.layout.lock(name), stop):
            hit(Point.PIN_LOCKED)
            digest = self.pins.digest(order.ref)
            if digest is None:
                with self.ingest.incoming(name, stop) as arriving:
                    arrived = self.ingest.receive(source, arriving, order, None, stop)
                    digest = arrived.digest
                    with self._claimed(order.artifact(digest), stop) as is_new:
                        if not self.stored.has(order, digest, stop, is_new=is_new):
                            self.ingest.place(arriving, order, arrived, stop)
                self.pins.put(order.ref, digest)
                hit(Point.PINNED)
        return self._obtain(lambda: source, order, digest, stop)
