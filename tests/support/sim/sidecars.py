"""One sidecar as a process of the simulation: the parts that `sidecar.app` puts together, over played ports."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog

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
from sidecar.lazy.desk import Desk, Means
from sidecar.lazy.wire import Answer
from sidecar.publisher import Publisher
from sidecar.reconciler import Reconciler, Report
from sidecar.reporter import Reporter
from sidecar.retention import Retention
from sidecar.share import Sharing
from sidecar.status import Replica, rfc3339
from sidecar.successors import Successors
from tests.support.sim.artifacts import SimStore
from tests.support.sim.plugin import Socket

_log = structlog.get_logger()
# So short that much is let go of while faults last; longer than a request is on its way into an engine.
GRACE_SECONDS = 6.0
KEEP_SECONDS = 2.0
# What is lazy goes so soon after its last use.
IDLE_SECONDS = 8.0
OnReport = Callable[[str, Inputs, Report], None]
OnAnswer = Callable[[str, Inputs, str, Answer], None]


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
    on_answer: OnAnswer
    owner: str
    socket: Socket | None


@dataclass(frozen=True)
class _Heard:
    """A desk whose answers are looked at, each at the moment at which it is given."""

    desk: Desk
    place: Place
    inputs: Inputs

    async def ask(self, name: str) -> Answer:
        answer = await self.desk.ask(name)
        self.place.on_answer(self.place.replica, self.inputs, name, answer)
        return answer


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
    about = Replica(place.replica, place.pool, "vllm", engine.url, answers=place.socket is not None)
    reporter = Reporter(about, chance, publisher.offer)

    successors = Successors(client, place.keys, place.pool, inputs)

    def report(report: Report) -> None:
        place.on_report(place.replica, inputs, report)
        if report.situation.observed is not None:
            publisher.hold(report.capacity)
        successors.follow(report.situation.plan.leaving if report.situation.plan else ())
        reporter.take(report)

    demand = Demand(Catalogue(place.pool, inputs.record_of), idle_seconds=IDLE_SECONDS)
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
            name = {"pool": place.pool, "replica": place.replica, "store": place.store.replica}
            _log.info("started", **name, grace_seconds=GRACE_SECONDS)
            feed.restore()
            tasks.create_task(feed.run(), name="feed")
            tasks.create_task(watch_engine(engine, reconciler.distrust), name="engine watch")
            tasks.create_task(reconciler.run(), name="reconciler")
            tasks.create_task(publisher.run(), name="publisher")
            tasks.create_task(keeper.run(), name="keeper")
            tasks.create_task(successors.run(), name="successors")
            if place.socket is not None:
                desk = Desk(Means(inputs, place.store, publisher), demand, chance, keeper.expect)
                tasks.create_task(desk.run(), name="desk")
                place.socket.listen(_Heard(desk, place, inputs))
    finally:
        await client.aclose()
