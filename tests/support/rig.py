"""A reconciler in this process: real store, real driver, a simulated engine over HTTP, desired state by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import httpx

from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue
from registry.etcd3.options import ClientOptions
from registry.model.expected_answers import Expect
from registry.model.records import AdapterSpec, Load, PoolSpec, SourceSpec
from registry.model.status import Presence, ReplicaStatus
from registry.runtime.clock import Clock, rfc3339
from registry.sources.base import Stop
from sidecar.app import assemble
from sidecar.artifacts.maintenance import Holdings
from sidecar.artifacts.store import LocalStore, ReadingEngine, StoreLimits
from sidecar.artifacts.types import GRACE_SECONDS
from sidecar.desired.mailbox import Snapshot
from sidecar.engines.driver import Deadlines
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.loop.drain import DrainTracker
from sidecar.loop.lease_collector import KEEP_SECONDS
from sidecar.plan.types import RoundReport
from sidecar.ports import Ports
from sidecar.resolver.server import answer_questions
from tests.support.adapters import write_adapter
from tests.support.engines import PATIENT
from tests.support.http_client import http_client
from tests.support.records import KEYS, POOL, written
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Keeping:
    """How eagerly a rig lets go of files and removes them.

    Attributes:
        grace_seconds: see `DrainTracker`; if it is shorter than in production, all that may go does at once.
        pause_seconds: between two rounds of the keeper.
        drain_tracker: decides.
    """

    grace_seconds: float = GRACE_SECONDS
    pause_seconds: float = KEEP_SECONDS
    drain_tracker: type[DrainTracker] = DrainTracker


class Removing:
    """Rounds of maintenance that are never content with what is free."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def round(self, stop: Stop) -> Holdings:
        self._store.maintenance.write_leases(stop)
        self._store.maintenance.collector.collect(1 << 60, stop)
        return self._store.maintenance.round(stop)

    def scrub(self, stop: Stop) -> None:
        self._store.maintenance.scrub(stop)

    def look_at_sources(self, stop: Stop) -> None:
        self._store.maintenance.look_at_sources(stop)

    def look(self, stop: Stop) -> Mapping[str, str]:
        return self._store.maintenance.look(stop)


class Rig:
    """What a test turns: `desire` what should be served, `status` of what is."""

    def __init__(
        self,
        folder: Path,
        engine: SimulatedVllm,
        url: str,
        keeping: Keeping = Keeping(),
        *,
        deadlines: Deadlines = PATIENT,
    ) -> None:
        """An engine that has a resolver finds this rig at the socket that it asks."""
        self.engine = engine
        # No connection is kept: the server ends one that rests for five seconds, also under a request that just came.
        self.client = http_client(base_url=url, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
        self.socket = None if engine.options.resolver is None else Path(engine.options.resolver)
        self._etcd = Client(ClientOptions(("127.0.0.1:1",)))  # is never asked
        self.sources = folder / "sources"
        self.store = LocalStore(
            folder / "store",
            "r1",
            [f"file://{self.sources}/"],
            engine=ReadingEngine(url),
            limits=StoreLimits(grace_seconds=keeping.grace_seconds),
        )
        self.driver = VllmEngine(url, deadlines=deadlines)
        self.statuses: list[ReplicaStatus] = []
        self.records: dict[bytes, bytes] = {}
        with mock.patch("sidecar.app.DrainTracker", keeping.drain_tracker):
            self.sidecar = assemble(self._ports(folder, keeping))
        self.demand, self.reconciler = self.sidecar.demand, self.sidecar.reconciler
        self.mailbox = self.sidecar.mailbox
        self._informer = self.sidecar.cache.informer
        self.mailbox.post(Snapshot(connected=True, pool=PoolSpec(name=POOL, base_models=["tiny"]), pool_read=True))

    def _ports(self, folder: Path, keeping: Keeping) -> Ports:
        clock = Clock()
        return Ports(
            presence=Presence(
                pool=POOL, replica="r1", incarnation="rig", owner="rig", started_at=rfc3339(clock.wall())
            ),
            client=self._etcd,
            keys=KEYS,
            engine=self.driver,
            store=self.store,
            maintenance=self.store.maintenance if keeping.grace_seconds == GRACE_SECONDS else Removing(self.store),
            place="rig",
            state=folder / "state",
            clock=clock,
            answer=None if self.socket is None else partial(answer_questions, self.socket),
            on_round=self._take,
            grace_seconds=keeping.grace_seconds,
            keep_seconds=keeping.pause_seconds,
        )

    def _take(self, _: RoundReport) -> None:
        self.statuses.append(self.sidecar.reporting.status.status)

    async def serve(self) -> None:
        """Does until it is cancelled what a sidecar does but for following etcd and writing to it."""
        async with asyncio.TaskGroup() as tasks:
            self.sidecar.start_serving(tasks)

    async def aclose(self) -> None:
        """Closes what it opened."""
        await self.client.aclose()
        await self.driver.aclose()
        await self._etcd.aclose()
        self.store.close()

    def desire(
        self, revision: int, *, lazy: Collection[str] = (), expect: Expect | None = None, **sources: str
    ) -> None:
        """Makes this the desired state: each name with the adapter called so; all are to answer as expected."""
        kvs = []
        for name, source in sources.items():
            folder = self.sources / source
            if not folder.exists():
                write_adapter(folder, seed=sum(source.encode()))
            load: Load = "lazy" if name in lazy else "eager"
            spec = AdapterSpec(source=SourceSpec(uri=folder.as_uri()), load=load, expect=expect)
            record = written(name, spec, revision, f"req-{revision}")
            kvs.append(KeyValue(KEYS.adapter(POOL, name), record.to_bytes(), 1, revision, 1))
        self.records = {kv.key: kv.value for kv in kvs}
        self._informer.replace(revision, kvs)
        self.mailbox.post(replace(self.mailbox.snapshot, desired=self._informer.state))

    def set_pool(self, pool: PoolSpec | None) -> None:
        """Makes this the pool's record; None: it has none."""
        self.mailbox.post(replace(self.mailbox.snapshot, pool=pool, pool_read=True))

    async def request(self, name: str) -> int:
        """Asks the engine for a completion of a model; gives the HTTP status."""
        body = {"model": name, "prompt": "x", "max_tokens": 1}
        return (await self.client.post("/v1/completions", json=body)).status_code

    def record(self, name: str) -> bytes:
        """The record of a desired adapter."""
        return self.records[KEYS.adapter(POOL, name)]

    @property
    def status(self) -> ReplicaStatus:
        return self.statuses[-1]

    def reasons(self) -> dict[str, str]:
        """Pending and failed names with their reasons."""
        pending = {entry.name: entry.reason for entry in self.status.pending}
        return pending | {entry.name: entry.reason for entry in self.status.failed}

    def calls(self, kind: str) -> list[str]:
        """Names of the engine's load or unload requests, in order."""
        return [call.name for call in self.engine.calls if call.kind == kind]

    async def served(self, revision: int, *names: str) -> None:
        """Waits until the replica says that it serves exactly these names at this revision."""

        def is_so() -> bool:
            assert self.statuses
            assert self.status.observed_revision == revision
            assert self.reasons() == {}
            assert set(self.engine.cards) == set(names)
            return self.status.served.count == len(names)

        await eventually(is_so)


@asynccontextmanager
async def running_rig(folder: Path, engine: SimulatedVllm | None = None) -> AsyncIterator[Rig]:
    """A rig whose loop runs within the body; the engine is watched for restarts too."""
    engine = engine or SimulatedVllm()
    async with serving(engine) as url, running(Rig(folder, engine, url)) as rig:
        yield rig


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    """Runs what serves, within the body."""
    serving = asyncio.create_task(rig.serve())
    try:
        yield rig
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await rig.aclose()
