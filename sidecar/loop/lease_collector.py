"""Releases leases of drained artifacts and keeps the store in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol, TypeVar

import structlog

from registry.model.status import ReportedStore
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.maintenance import Holdings
from sidecar.engines.driver import Engine, EngineError
from sidecar.engines.observed import DrainEvidence, Observed, Use
from sidecar.loop.drain import DrainTracker
from sidecar.metrics import STORE_ARTIFACTS, STORE_BYTES, STORE_DAMAGED, STORE_LEASED, STORE_TOUCHED

_log = structlog.get_logger()
Result = TypeVar("Result")
# At least `drain_tracker.EVIDENCE_GAP_SECONDS`; also how often a replica looks after the store.
KEEP_SECONDS = 10.0
# So soon it is seen that somebody removed or changed files that the engine may be reading.
LOOK_SECONDS = 2.0


class LeasedStore(Protocol):
    """The leases of one replica, as the event loop sees them."""

    def leased(self) -> frozenset[str]:
        """Artifacts that the engine may be reading."""
        ...

    def lease(self, artifacts: Collection[str]) -> None:
        """Leases what the engine reads though no lease says so. Raises OSError."""
        ...

    def let_go(self, artifacts: Collection[str]) -> frozenset[str]:
        """Gives up leases; gives those that were given up."""
        ...


class StoreRounds(Protocol):
    """Work on the store that is done again and again, in worker threads. See `sidecar.artifacts.maintenance`."""

    def round(self, stop: Stop) -> Holdings:
        """Keeps leases and budget. Raises OSError, ArtifactError."""
        ...

    def scrub(self, stop: Stop) -> None:
        """Reads something again. Raises OSError, ArtifactError."""
        ...

    def look_at_sources(self, stop: Stop) -> None:
        """Looks for sources that are gone. Raises ArtifactError."""
        ...

    def look(self, stop: Stop) -> Mapping[str, str]:
        """Gives what was done to files that the engine may be reading. Raises OSError, ArtifactError."""
        ...


class LeaseCollector:
    """One replica's keeper. It alone gives up leases, in the event loop in which plans are made."""

    def __init__(
        self,
        engine: Engine,
        store: LeasedStore,
        drain_tracker: DrainTracker,
        maintenance: StoreRounds,
        *,
        monotonic: Callable[[], float],
        pause_seconds: float = KEEP_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        on_news: Callable[[], None] = lambda: None,
        on_room: Callable[[ReportedStore | None], None] = lambda _room: None,
    ) -> None:
        """Does nothing yet.

        Args:
            engine: whose leases these are.
            store: where they are kept.
            drain_tracker: decides.
            maintenance: looks after the store.
            monotonic: seconds of the clock of `DrainTracker`.
            pause_seconds: between two rounds.
            look_seconds: between two looks at files.
            on_news: is called when the engine has other adapters than in the last look that a plan was made from. The
                engine tells of changes since its last look only, and that was ours. Also when somebody touched files
                that the engine may be reading, or they are well again.
            on_room: is told how much more the store takes, after each round; None: that is not known.
        """
        self._engine = engine
        self._store = store
        self._drain_tracker = drain_tracker
        self._maintenance = maintenance
        self._monotonic = monotonic
        self._pause_seconds = pause_seconds
        self._look_seconds = look_seconds
        self._on_news = on_news
        self._on_room = on_room
        self._noticed: Observed | None = None
        self._uses: AbstractSet[Use] | None = None
        self._problems: dict[str, str] = {}

    def notice(self, observed: Observed, uses: AbstractSet[Use]) -> None:
        """Takes in what the next plan is made from, and what it may load.

        What is listed now counts as used until the plan after it: a swap that fails puts it back.
        """
        self._noticed = observed
        self._uses = uses | observed.adapters.items()
        self._look(observed)

    def expect(self, use: Use) -> None:
        """Takes in what the engine is about to be told, before it is: until the next plan, whose uses have it too."""
        if self._uses is not None:  # before the first plan nothing is let go of
            self._uses = self._uses | {use}

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._review()
            await self._keep_store()
            await asyncio.sleep(self._pause_seconds)

    async def scrub(self) -> None:
        """Has the store read again, slowly, until it is cancelled."""
        while True:
            await self._in_thread("scrub", self._maintenance.scrub)
            await asyncio.sleep(self._pause_seconds)

    async def watch_sources(self) -> None:
        """Has sources looked at that files of the store came from, until it is cancelled."""
        while True:
            await self._in_thread("sources", self._maintenance.look_at_sources)
            await asyncio.sleep(self._pause_seconds)

    async def watch_files(self) -> None:
        """Looks at the files that the engine may be reading, again and again, until it is cancelled."""
        known: Mapping[str, str] = {}
        while True:
            found = await self._in_thread("files", self._maintenance.look)
            if found is not None and found != known:
                known = found
                STORE_TOUCHED.set(len(found))
                self._on_news()
            await asyncio.sleep(self._look_seconds)

    async def _review(self) -> None:
        """Asks the engine about what is idle for long, and lets go of what is proven."""
        asked_at = self._monotonic()
        # Before the first plan nobody knows what is wanted.
        if self._uses is None or not self._drain_tracker.is_due(asked_at):
            return
        try:
            evidence = await self._engine.drain_evidence()
            observed = await self._engine.observe()
        except EngineError as error:
            self._drain_tracker.doubt()
            self._say("drain", f"the engine cannot be asked what it still reads: {error}")
            return
        self._say("drain", "")
        self._decide(evidence, observed, asked_at)

    def _decide(self, evidence: DrainEvidence, observed: Observed, asked_at: float) -> None:
        """In one step of the event loop, so that no plan is made between the look and the decision."""
        if self._noticed is not None and self._noticed.adapters != observed.adapters:
            self._on_news()
        self._drain_tracker.testify(evidence, asked_at=asked_at, now=self._monotonic())
        self._look(observed)
        gone = self._store.let_go(self._drain_tracker.proven())
        if gone:
            self._look(observed)  # so that nobody asks for more evidence of what is settled
            _log.info("leases_dropped", count=len(gone), artifacts=sorted(gone)[:20])

    def _look(self, observed: Observed) -> None:
        leased = self._store.leased()
        missing = self._drain_tracker.look(observed, self._uses or set(), leased, now=self._monotonic())
        if not missing:
            return
        _log.warning("lease_was_missing", artifacts=sorted(missing)[:20])
        try:
            self._store.lease(missing)
        except OSError as error:
            self._say("lease", f"what the engine reads cannot be leased: {error}")
        else:
            self._say("lease", "")

    async def _keep_store(self) -> None:
        holdings = await self._in_thread("store", self._maintenance.round)
        if holdings is None:
            self._on_room(None)
            return
        room = holdings.room
        self._on_room(room.model_copy(update={"damaged": holdings.damaged}) if room is not None else None)
        STORE_BYTES.set(holdings.size_bytes)
        STORE_ARTIFACTS.set(holdings.artifacts)
        STORE_LEASED.set(holdings.leased)
        STORE_DAMAGED.set(holdings.damaged)

    async def _in_thread(self, what: str, work: Callable[[Stop], Result]) -> Result | None:
        """Result of a round in a worker thread; None: it failed, which was logged."""
        stop = Stop()
        try:
            result = await asyncio.to_thread(work, stop)
        except (OSError, ArtifactError) as error:
            self._say(what, f"the store cannot be looked after: {error}")
            return None
        finally:
            stop.set()
        self._say(what, "")
        return result

    def _say(self, what: str, problem: str) -> None:
        """Logs a problem once, until it is another; empty: there is none."""
        if problem and problem != self._problems.get(what):
            _log.warning("store_not_kept", what=what, problem=problem)
        self._problems[what] = problem
