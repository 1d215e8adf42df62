"""A host for the properties of keeping: a real store on disk, replicas whose engines are played under virtual time.

What the engines may read is known here better than any sidecar can know it; `HostWorld.check` compares.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from registry.runtime.failpoints import Point, handling
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.maintenance import Holdings
from sidecar.artifacts.store import LocalStore, ReadingEngine, StoreLimits
from sidecar.artifacts.types import ArtifactRef
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import DrainEvidence, EngineFacts, Observed
from sidecar.loop.drain import DrainTracker
from sidecar.loop.lease_collector import LeaseCollector
from tests.support.adapters import WrittenAdapter, digest_of, write_adapter

GRACE = 60.0
# The longest that a request is on its way between the server, which knew its adapter, and the engine.
MAX_ON_ITS_WAY = 50.0
_incarnations = count(1)


class Died(BaseException):
    """The process is killed here."""


@dataclass
class Request:
    """A request that was bound to a path when it came in; `state` is "coming", "queued" or "running"."""

    name: str
    path: str
    came_at: float
    state: str = "coming"


@dataclass
class PlayedEngine:
    """What a replica's engine lists and still has to serve."""

    clock: Callable[[], float]
    incarnation: str = ""
    is_silent: bool = False
    cards: dict[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    listed_at: dict[str, float] = field(default_factory=dict)

    def restart(self) -> None:
        """Another process, without adapters and requests."""
        self.incarnation = f"e{next(_incarnations)}"
        self.cards, self.requests, self.listed_at = {}, [], {}

    def may_read(self) -> set[str]:
        """Every path that must be there now."""
        now = self.clock()
        listed_lately = {path for path, at in self.listed_at.items() if now - at < GRACE}
        return {*self.cards.values(), *(one.path for one in self.requests), *listed_lately}

    def note_listed(self) -> None:
        self.listed_at |= dict.fromkeys(self.cards.values(), self.clock())

    async def observe(self) -> Observed:
        """See `Engine.observe`."""
        self._speak()
        facts = EngineFacts("vllm", "0.32.0", "http://e", self.incarnation)
        return Observed(facts, ("base",), dict(self.cards))

    async def drain_evidence(self) -> DrainEvidence:
        """See `Engine.drain_evidence`: who waits is counted only, and what is on its way is not known at all."""
        self._speak()
        waiting = sum(one.state == "queued" for one in self.requests)
        running = [one.name for one in self.requests if one.state == "running"]
        return DrainEvidence(self.incarnation, waiting, len(running), frozenset(running))

    def _speak(self) -> None:
        if self.is_silent:
            raise EngineUnreachable("it does not answer")


@dataclass
class PlayedReplica:
    """An engine that stays, and a sidecar of real parts that comes and goes."""

    name: str
    engine: PlayedEngine
    store: LocalStore
    lease_collector: LeaseCollector
    desired: dict[str, ArtifactRef] = field(default_factory=dict)
    calls: list[tuple[str, str, str]] = field(default_factory=list)  # (what, name, path), still to be made

    async def plan(self) -> None:
        """Looks, stages, and makes a plan whose calls are still to be made."""
        self.calls = []
        try:
            observed = await self.engine.observe()
        except EngineUnreachable:
            return
        await self.store.recall([ref for ref in self.desired.values() if self.store.lookup(ref) is None])
        for ref in self.desired.values():
            if self.store.lookup(ref) is None:
                await self._stage(ref)
        uses = {(n, staged.path) for n, ref in self.desired.items() if (staged := self.store.lookup(ref))}
        self.lease_collector.notice(observed, uses)
        self.calls = [("unload", n, p) for n, p in observed.adapters.items() if n not in self.desired]
        self.calls += [("load", n, p) for n, p in sorted(uses) if observed.adapters.get(n) != p]

    async def _stage(self, ref: ArtifactRef) -> None:
        with contextlib.suppress(ArtifactError):  # tried again at the next plan
            await self.store.ensure(ref)

    def call(self) -> None:
        """Makes the next call of the plan."""
        if not self.calls:
            return
        what, name, path = self.calls.pop(0)
        if what == "load":
            assert digest_of(Path(path)), "what a plan loads is there"
            self.engine.cards[name] = path
        else:
            self.engine.cards.pop(name, None)


class HostWorld:
    """One store, its replicas, and the clock."""

    def __init__(self, folder: Path, replicas: int = 2) -> None:
        self.folder = folder
        self.now = 0.0
        self.dies_at: Point | None = None
        self.sources: list[WrittenAdapter] = [write_adapter(folder / "sources" / f"s{n}", seed=n) for n in range(3)]
        self.replicas: list[PlayedReplica] = []
        for number in range(replicas):
            engine = PlayedEngine(lambda: self.now)
            engine.restart()
            self.replicas.append(self._start(f"r{number}", engine))

    def _start(self, name: str, engine: PlayedEngine) -> PlayedReplica:
        store = LocalStore(
            self.folder / "store",
            name,
            [(self.folder / "sources").as_uri()],
            engine=ReadingEngine(f"http://{name}"),
            limits=StoreLimits(grace_seconds=0.0),  # leases alone have to do
        )
        drain_tracker = DrainTracker(GRACE, store.owns)
        lease_collector = LeaseCollector(engine, store, drain_tracker, store.maintenance, monotonic=lambda: self.now)  # type: ignore[arg-type]
        return PlayedReplica(name, engine, store, lease_collector)

    def _die_if_due(self, point: Point) -> None:
        if point is self.dies_at:
            self.dies_at = None
            raise Died

    def ref(self, source: int) -> ArtifactRef:
        adapter = self.sources[source]
        return ArtifactRef(adapter.uri, adapter.digest)

    def restart_sidecar(self, number: int) -> None:
        """Kills a sidecar between two steps; what it knew is lost."""
        old = self.replicas[number]
        old.store.close()
        self.replicas[number] = self._start(old.name, old.engine)
        self.replicas[number].desired = old.desired

    def run(self, number: int, work: Callable[[PlayedReplica], object]) -> None:
        """Lets a sidecar do something, and starts it anew if it was killed in it."""

        async def in_loop() -> None:
            result = work(self.replicas[number])
            if asyncio.iscoroutine(result):
                await result

        try:
            with handling(self._die_if_due):
                asyncio.run(in_loop())
        except (Died, BaseExceptionGroup):
            self.restart_sidecar(number)
        self.dies_at = None

    def remove_all_that_may_go(self, replica: PlayedReplica) -> Holdings | None:
        """A round of maintenance that is never content with what is free."""
        stop = Stop()
        replica.store.maintenance.write_leases(stop)
        replica.store.maintenance.collector.tidy(stop)
        replica.store.maintenance.collector.collect(1 << 60, stop)
        return None

    def pass_time(self, seconds: float) -> None:
        """Requests that are on their way arrive in time."""
        for engine in (replica.engine for replica in self.replicas):
            engine.note_listed()
        self.now += seconds
        for request in (request for replica in self.replicas for request in replica.engine.requests):
            if request.state == "coming" and self.now - request.came_at > MAX_ON_ITS_WAY:
                request.state = "queued"

    def check(self) -> None:
        """Everything that an engine may read is there, to the byte."""
        for replica in self.replicas:
            replica.engine.note_listed()
            for path in replica.engine.may_read():
                files = sorted(one.name for one in Path(path).iterdir()) if Path(path).is_dir() else []
                assert len(files) == 2, f"{path} vanished while {replica.name}'s engine may read it"
                assert digest_of(Path(path)) in {source.digest for source in self.sources}

    def close(self) -> None:
        for replica in self.replicas:
            replica.store.close()
