"""A reconciler in this process: real store, real driver, a simulated engine over HTTP, desired state by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from registry.etcd3.ops import KeyValue
from registry.model.records import AdapterRecord, AdapterSpec, PoolSpec, Source
from registry.model.status import ReplicaStatus
from registry.sources.stop import Stop
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.upkeep import Holdings
from sidecar.chance import Chance
from sidecar.desired import Informer
from sidecar.engine_watch import watch_engine
from sidecar.engines.deadlines import Deadlines
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.server import serving
from sidecar.engines.vllm import VllmEngine
from sidecar.inputs import Inputs
from sidecar.keeper import KEEP_SECONDS, Keeper
from sidecar.lazy.catalogue import Catalogue
from sidecar.lazy.demand import IDLE_SECONDS, Demand
from sidecar.lazy.desk import Desk, Means
from sidecar.lazy.service import answer_questions
from sidecar.reconciler import Reconciler, Report
from sidecar.retention import GRACE_SECONDS, Retention
from sidecar.status import Replica, derive_status
from tests.support.adapters import write_adapter
from tests.support.engines import PATIENT
from tests.support.records import KEYS, POOL
from tests.support.waiting import eventually

# For tests of what a sidecar does once time is up; all others must not depend on how long anything takes.
QUICK = Deadlines(probe_seconds=2, list_seconds=2, load_seconds=0.5, unload_seconds=0.5, turn_seconds=0.5)


class Free:
    """Nobody else has the replica id."""

    refusal = ""


@dataclass(frozen=True)
class Keeping:
    """How eagerly a rig lets go of files and removes them.

    Attributes:
        grace_seconds: see `Retention`.
        pause_seconds: between two rounds of the keeper.
        retention: decides.
    """

    grace_seconds: float = GRACE_SECONDS
    pause_seconds: float = KEEP_SECONDS
    retention: type[Retention] = Retention


class Removing:
    """Rounds of upkeep that are never content with what is free."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def round(self, stop: Stop) -> Holdings:
        self._store.upkeep.write_leases(stop)
        self._store._removal.collect(1 << 60, stop)
        return self._store.upkeep.round(stop)

    def scrub(self, stop: Stop) -> None:
        self._store.upkeep.scrub(stop)


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
        self.client = httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
        self.socket = None if engine.options.resolver is None else Path(engine.options.resolver)
        self.sources = folder / "sources"
        self.store = LocalStore(
            folder / "store", "r1", [f"file://{self.sources}/"], engine=url, grace_seconds=keeping.grace_seconds
        )
        self.inputs = Inputs()
        self.inputs.connected = True
        self.inputs.pool = PoolSpec(name=POOL, base_models=["tiny"])
        self.inputs.pool_read = True
        self.driver = VllmEngine(url, deadlines=deadlines)
        self.statuses: list[ReplicaStatus] = []
        self.records: dict[bytes, bytes] = {}
        self._chance = Chance()
        self._replica = Replica("r1", POOL, "vllm", url, answers=self.socket is not None)
        self._informer = Informer(POOL)
        self.keeper = Keeper(
            self.driver,
            self.store,
            keeping.retention(keeping.grace_seconds, self.store.owns),
            self.store.upkeep if keeping == Keeping() else Removing(self.store),
            monotonic=self._chance.monotonic,
            pause_seconds=keeping.pause_seconds,
        )
        self.inputs.record = self._informer.record
        self.demand = Demand(Catalogue(POOL, self.inputs.record_of))
        self.desk = Desk(Means(self.inputs, self.store, Free()), self.demand, self._chance, self.keeper.expect)
        self.reconciler = Reconciler(
            self.driver,
            self.store,
            self.inputs,
            Free(),
            self._chance,
            self._take,
            self.keeper.notice,
            demand=self.demand,
        )

    def _take(self, report: Report) -> None:
        self.statuses.append(derive_status(self._replica, report.situation, self._chance.moment()))

    def desire(self, revision: int, *, lazy: Collection[str] = (), **sources: str) -> None:
        """Makes this the desired state: each name with the adapter called so."""
        kvs = []
        for name, source in sources.items():
            folder = self.sources / source
            if not folder.exists():
                write_adapter(folder, seed=sum(source.encode()))
            spec = AdapterSpec(source=Source(uri=folder.as_uri()), load="lazy" if name in lazy else "eager")
            record = AdapterRecord(
                name=name,
                pool=POOL,
                tenant="default",
                generation=revision,
                spec=spec,
                updated_at="2026-01-01T00:00:00Z",
                updated_by="test",
                request_id=f"req-{revision}",
            )
            kvs.append(KeyValue(KEYS.adapter(POOL, name), record.to_bytes(), 1, revision, 1))
        self.records = {kv.key: kv.value for kv in kvs}
        self._informer.replace(revision, kvs)
        self.inputs.desired = self._informer.state
        self.inputs.wake()

    def let_idle(self, seconds: float = IDLE_SECONDS) -> None:
        """From now on lazy adapters that nobody uses for longer are unloaded."""
        self.demand._idle_seconds = seconds
        self.inputs.wake()

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
async def running_rig(
    folder: Path, engine: SimulatedVllm | None = None, deadlines: Deadlines = PATIENT
) -> AsyncIterator[Rig]:
    """A rig whose loop runs within the body; the engine is watched for restarts too."""
    engine = engine or SimulatedVllm()
    async with serving(engine) as url, running(Rig(folder, engine, url, deadlines=deadlines)) as rig:
        yield rig


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    """Runs a rig's loops within the body."""
    tasks: Sequence[asyncio.Task[None]] = (
        asyncio.create_task(rig.reconciler.run()),
        *([asyncio.create_task(answer_questions(rig.socket, rig.desk))] if rig.socket else []),
        asyncio.create_task(watch_engine(rig.driver, rig.reconciler.distrust)),
        asyncio.create_task(rig.keeper.run()),
        asyncio.create_task(rig.keeper.scrub()),
    )
    try:
        yield rig
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await rig.client.aclose()
        await rig.driver.aclose()
        rig.store.close()
