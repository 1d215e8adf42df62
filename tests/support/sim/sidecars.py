"""One sidecar as a process of the simulation: the parts that `sidecar.app` puts together, over played ports."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from registry.etcd3.client import Client
from registry.etcd3.options import ClientOptions
from registry.keys import Keys
from registry.model.status import Presence
from sidecar.chance import Chance
from sidecar.engine_watch import watch_engine
from sidecar.engines.vllm import VllmEngine
from sidecar.feed import Feed
from sidecar.inputs import Inputs
from sidecar.journal import Journal
from sidecar.keeper import Keeper
from sidecar.lazy.catalogue import Catalogue
from sidecar.lazy.demand import Demand
from sidecar.publisher import Publisher
from sidecar.reconciler import Reconciler, Report
from sidecar.reporter import Reporter
from sidecar.retention import Retention
from sidecar.share import Sharing
from sidecar.status import Replica, rfc3339
from sidecar.successors import Successors
from tests.support.sim.artifacts import SimStore

# So short that much is let go of while faults last; longer than a request is on its way into an engine.
GRACE_SECONDS = 6.0
KEEP_SECONDS = 2.0
OnReport = Callable[[str, Inputs, Report], None]


@dataclass(frozen=True)
class Place:
    """What stays when a sidecar restarts."""

    pool: str
    replica: str
    engine_url: str
    endpoints: tuple[str, ...]
    state: Path
    store: SimStore
    keys: Keys
    wall: Callable[[], datetime]
    on_report: OnReport
    owner: str


async def run_sidecar(place: Place, incarnation: int, rng: random.Random, journals: list[Journal]) -> None:
    """Runs a sidecar until it is cancelled, as `sidecar.app.run` does. Raises ReplicaTaken."""
    chance = Chance(rng, place.wall)
    client = Client(ClientOptions(place.endpoints), rng=rng)
    engine = VllmEngine(place.engine_url)
    inputs = Inputs()
    presence = Presence(
        pool=place.pool,
        replica=place.replica,
        incarnation=f"{place.store.replica}-{incarnation}",
        owner=place.owner,
        started_at=rfc3339(chance.wall()),
    )
    publisher = Publisher(client, place.keys, presence, chance, on_change=inputs.wake)
    reporter = Reporter(Replica(place.replica, place.pool, "vllm", engine.url), chance, publisher.offer)

    successors = Successors(client, place.keys, place.pool, inputs)

    def report(report: Report) -> None:
        place.on_report(place.replica, inputs, report)
        successors.follow(report.situation.plan.leaving if report.situation.plan else ())
        reporter.take(report)

    demand = Demand(Catalogue(place.pool, inputs.record_of), idle_seconds=0.0)  # no engine asks here
    retention = Retention(GRACE_SECONDS, place.store.owns)
    keeper = Keeper(
        *(engine, place.store, retention, place.store), monotonic=chance.monotonic, pause_seconds=KEEP_SECONDS
    )
    sharing = Sharing(place.pool, place.replica, {})
    reconciler = Reconciler(
        engine, place.store, inputs, publisher, chance, report, keeper.notice, sharing, demand=demand
    )
    journal = Journal(place.state)
    journals.append(journal)
    feed = Feed(client, place.keys, place.pool, place.replica, inputs, journal, chance)
    try:
        async with asyncio.TaskGroup() as tasks:
            place.store.take_over()
            feed.restore()
            tasks.create_task(feed.run(), name="feed")
            tasks.create_task(watch_engine(engine, reconciler.distrust), name="engine watch")
            tasks.create_task(reconciler.run(), name="reconciler")
            tasks.create_task(publisher.run(), name="publisher")
            tasks.create_task(keeper.run(), name="keeper")
            tasks.create_task(successors.run(), name="successors")
    finally:
        await client.aclose()
