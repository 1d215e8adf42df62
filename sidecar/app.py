"""Assembles a sidecar: engine driver, store, parts, one TaskGroup.

`assemble` is the only place that knows how the parts are wired; the daemon, the simulation and the tests' rig differ in
the `Ports` that they hand over.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog

from registry.etcd3.client import Client
from registry.lora.base_directory import BaseUnreadable, read_base
from registry.model.keys import Keys
from registry.model.status import Presence
from registry.runtime.clock import Clock, rfc3339
from registry.runtime.http import HttpServer, listen_as_told
from registry.runtime.page_guard import own_hosts
from registry.runtime.program import release_version
from registry.runtime.supervisor import Supervisor
from registry.sources.allowed import RemoteOptions
from registry.sources.base import StoreError
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from sidecar.artifacts.proof import read_keys
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import GRACE_SECONDS, ArtifactStore
from sidecar.desired.assignment import Assigner
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.watcher import Watcher
from sidecar.engines.driver import Engine, EngineOptions, make_engine
from sidecar.loop.drain import DrainTracker
from sidecar.loop.lease_collector import KEEP_SECONDS, LeaseCollector, LeasedStore, StoreRounds
from sidecar.loop.observer import EngineObserver, EngineProbes, watch_changes
from sidecar.loop.reconciler import DesiredParts, EngineParts, Reconciler, RoundLinks
from sidecar.loop.rounds import ServedNews
from sidecar.metrics import CONNECTIONS_CLOSED, INTERNAL_ERRORS
from sidecar.ownership import HostLock, ReplicaTaken, Seat, place_of
from sidecar.plan.readiness import USUAL_RULE, ReadyRule
from sidecar.plan.types import RoundReport
from sidecar.report.activity import ReplicaActivity
from sidecar.report.cache import StatusCache
from sidecar.report.declines import DeclineTeller
from sidecar.report.events import EventRing
from sidecar.report.good_finder import GoodFinder
from sidecar.report.handoff_watch import HandoffWatch
from sidecar.report.http import make_app
from sidecar.report.replica_drain import ReplicaDrain
from sidecar.report.status import ReplicaIdentity
from sidecar.report.writer import GIVE_UP_SECONDS, ShareGuard, StatusWriter
from sidecar.resolver.demand import IDLE_SECONDS, ResidentSet
from sidecar.resolver.policy import Catalogue
from sidecar.resolver.resolver import Means, Resolver
from sidecar.resolver.server import SocketUnusable, answer_questions, check_directory
from sidecar.settings import SidecarSettings

_log = structlog.get_logger()


class ReplicaStore(ArtifactStore, LeasedStore, Protocol):
    """A host's artifacts, as one replica uses them."""

    def take_over(self) -> None:
        """Reads anew what the last process of this replica leased, once it has ended. Raises OSError."""
        ...


def _unobserved(_: RoundReport) -> None:
    """Nobody else hears of a round."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside of one sidecar: who it is, what it reaches, and how long it keeps what nobody uses.

    Attributes:
        presence: the replica, its pool, its labels, and the incarnation of this process.
        client: reaches etcd; whoever made it closes it.
        keys: of the registry in etcd.
        engine: the driver; whoever made it closes it.
        store: of the host; whoever made it closes it.
        maintenance: rounds of work on that store.
        place: names the store in the log; replicas that share a store say the same.
        state: the replica's own directory, for the snapshot.
        clock: time and chance.
        answer: has the engine's questions answered until it is cancelled; None: the engine asks nobody.
        on_round: is told of each round once all parts were.
        grace_seconds: see `DrainTracker`.
        idle_seconds: see `ResidentSet`.
        keep_seconds: see `LeaseCollector`.
        ready_rule: for a replica whose engine refuses adapters.
        give_up_seconds: see `ShareGuard`.
        base: the sidecar's own folder of the base model; None: it has none.
        insecure: what this sidecar bears unprotected on the network.
        http: HOST:PORT under which others reach its port; empty: that is not known.
    """

    presence: Presence
    client: Client
    keys: Keys
    engine: Engine
    store: ReplicaStore
    maintenance: StoreRounds
    place: str
    state: Path
    clock: Clock
    answer: Callable[[Resolver], Coroutine[Any, Any, None]] | None = None
    on_round: Callable[[RoundReport], None] = _unobserved
    grace_seconds: float = GRACE_SECONDS
    idle_seconds: float = IDLE_SECONDS
    keep_seconds: float = KEEP_SECONDS
    ready_rule: ReadyRule = USUAL_RULE
    give_up_seconds: float = GIVE_UP_SECONDS
    base: Path | None = None
    insecure: tuple[str, ...] = ()
    http: str = ""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The parts of one sidecar, of which none runs before `start`."""

    ports: Ports
    mailbox: Mailbox
    journal: Journal
    watcher: Watcher
    writer: StatusWriter
    declines: DeclineTeller
    handoffs: HandoffWatch
    finder: GoodFinder
    observer: EngineObserver
    probes: EngineProbes
    reconciler: Reconciler
    status: StatusCache
    demand: ResidentSet
    resolver: Resolver
    collector: LeaseCollector
    drain: ReplicaDrain
    events: EventRing
    activity: ReplicaActivity
    supervisor: Supervisor

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Takes up what the process before left, and starts everything."""
        ports, presence = self.ports, self.ports.presence
        ports.store.take_over()
        # What tells a log apart from those of other replicas, of other stores, and of the process before.
        about = {"pool": presence.pool, "replica": presence.replica, "store": ports.place}
        _log.info("started", **about, grace_seconds=ports.grace_seconds)
        if not self.supervisor.survives("snapshot", self.watcher.restore):
            self.watcher.forget()
        self.declines.restore()
        self.status.look_again()  # that it starts is said with the presence, which nobody goes by alone
        tasks.create_task(self.watcher.run(), name="watcher")
        self._keep(tasks, "status writer", self.writer.run)
        self._keep(tasks, "handoff watch", self.handoffs.run)
        self._keep(tasks, "last good finder", self.finder.run)
        self._keep(tasks, "drain orders", self.drain.run)
        self.start_serving(tasks)

    def start_serving(self, tasks: asyncio.TaskGroup) -> None:
        """Starts what makes the engine serve what the mailbox says, and nothing that needs etcd."""
        ports = self.ports
        self._keep(tasks, "engine watch", partial(self.probes.watch, self.reconciler.heed_probes))
        self._keep(tasks, "engine pulse", partial(self.probes.feel_pulse, self.reconciler.heed_probes))
        self._keep(tasks, "changes watch", partial(watch_changes, ports.engine, self.observer.distrust))
        paced = partial(self.supervisor.paced, "reconciler")
        self._keep(tasks, "reconciler", partial(self.reconciler.run, paced))
        if ports.answer is not None:
            self._keep(tasks, "resolver", partial(ports.answer, self.resolver))
        self._keep(tasks, "lease collector", self.collector.run)
        self._keep(tasks, "scrub", self.collector.scrub)
        self._keep(tasks, "files watch", self.collector.watch_files)

    def _keep(self, tasks: asyncio.TaskGroup, part: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        tasks.create_task(self.supervisor.keep(part, work), name=part)


def assemble(ports: Ports) -> Sidecar:
    """The parts over these ports, wired. Made inside a running event loop."""
    client, keys, engine, store, clock = ports.client, ports.keys, ports.engine, ports.store, ports.clock
    pool, replica, mailbox = ports.presence.pool, ports.presence.replica, Mailbox()
    answers = ports.answer is not None
    identity = ReplicaIdentity(replica, pool, engine.kind, engine.url, answers, ports.insecure, ports.http)
    supervisor = Supervisor(
        lambda part: INTERNAL_ERRORS.labels(part).inc(),
        clock.rng,
        fatal=(ReplicaTaken, SocketUnusable),
    )
    journal = Journal(ports.state)
    watcher = Watcher(client, keys, pool, replica, mailbox, journal, clock, supervisor.keep)
    writer = StatusWriter(client, keys, ports.presence, clock, mailbox.wake)
    status = StatusCache(identity, clock, writer.offer, supervisor.troubles)
    supervisor.heed(status.look_again)
    handoffs = HandoffWatch(client, keys, pool, mailbox)
    finder = GoodFinder(client, keys, pool, replica, mailbox, watcher, clock)
    ring = EventRing(clock, lambda key: watcher.record(key) is not None)
    drain = ReplicaDrain(client, keys, ports.presence, mailbox, writer, handoffs, status, ring, clock)
    observer = EngineObserver(engine, clock, mailbox.wake, store.owns, ports.base)
    collector = _collector(ports, status, on_news=observer.distrust)
    demand = ResidentSet(Catalogue(pool, watcher.record, watcher.with_last_good), idle_seconds=ports.idle_seconds)
    resolver = Resolver(Means(mailbox, store, writer, engine.incarnation), demand, clock, collector.expect)
    sharing = Assigner(pool, replica, ports.presence.labels)
    share, declines = ShareGuard(writer, clock, ports.give_up_seconds), DeclineTeller(writer, ports.state)
    tell = _telling(ServedNews(watcher), finder, status, share, declines, handoffs, ring, ports.on_round)
    probes = EngineProbes(engine, clock)
    reconciler = Reconciler(
        EngineParts(engine, observer, probes),
        DesiredParts(mailbox, sharing, demand),
        store,
        ownership=writer,
        clock=clock,
        links=RoundLinks(tell, collector.notice, handoffs.verdicts, lambda: declines.told),
        rule=ports.ready_rule,
    )
    return Sidecar(
        ports=ports,
        mailbox=mailbox,
        journal=journal,
        watcher=watcher,
        writer=writer,
        declines=declines,
        handoffs=handoffs,
        finder=finder,
        observer=observer,
        probes=probes,
        reconciler=reconciler,
        status=status,
        demand=demand,
        resolver=resolver,
        collector=collector,
        drain=drain,
        events=ring,
        activity=ReplicaActivity(ports.presence, engine, status, ring, drain.need, clock),
        supervisor=supervisor,
    )


def _collector(ports: Ports, status: StatusCache, *, on_news: Callable[[], None]) -> LeaseCollector:
    return LeaseCollector(
        ports.engine,
        ports.store,
        DrainTracker(ports.grace_seconds, ports.store.owns),
        ports.maintenance,
        monotonic=ports.clock.monotonic,
        pause_seconds=ports.keep_seconds,
        on_news=on_news,
        on_room=status.note_room,
    )


def _telling(
    served: ServedNews,
    finder: GoodFinder,
    status: StatusCache,
    share: ShareGuard,
    declines: DeclineTeller,
    handoffs: HandoffWatch,
    ring: EventRing,
    on_round: Callable[[RoundReport], None],
) -> Callable[[RoundReport], None]:
    """Tells everybody what each round came to."""

    def tell(report: RoundReport) -> None:
        plan = report.situation.plan
        served.take(report)
        finder.take(report)
        share.take(report)
        declines.take(report)
        handoffs.follow(plan.leaving if plan else ())
        status.take(report)
        ring.take(report)
        on_round(report)

    return tell


class StoreUnusable(Exception):
    """The store, the base model's directory or the HTTP port cannot be used; the message says why and what to do."""


async def run(settings: SidecarSettings, stop: asyncio.Event) -> None:
    """Runs one sidecar until it is cancelled, or `stop` is set and it has handed over what others are to serve.

    Raises:
        StoreUnusable: at start.
        CannotListen: see `registry.runtime.http`.
        NoDriver: see `registry.runtime.engine_drivers`.
        SocketUnusable: see `sidecar.resolver.server`.
        ReplicaTaken: see `sidecar.report.writer`.
    """
    state = settings.store / "state" / settings.replica
    store, lock, listener = _open(settings, state)
    seat = Seat(*settings.etcd, settings.prefix, settings.pool, settings.replica)
    ports = _ports(settings, store, lock.owner, seat.place, state)
    sidecar = assemble(ports)
    try:
        async with asyncio.TaskGroup() as tasks:
            app = make_app(
                sidecar.status,
                ports.insecure,
                sidecar.drain,
                sidecar.events,
                sidecar.activity,
                hosts=own_hosts(*settings.own_names()),
                token_file=settings.control_token_file,
            )
            http = HttpServer(app, listener, lambda reason: CONNECTIONS_CLOSED.labels("http", reason).inc())
            tasks.create_task(http.run(), name="http")
            tasks.create_task(_end(stop, sidecar.drain, settings.drain_timeout), name="stop")
            await lock.acquire(settings.replica)
            sidecar.start(tasks)
    except* _Ended:
        _log.info("stopped")
    finally:
        store.close()
        await ports.engine.aclose()
        await ports.client.aclose()
        lock.close()
        seat.close()


def _ports(settings: SidecarSettings, store: LocalStore, owner: str, seat: str, state: Path) -> Ports:
    """The real world, as the settings name it."""
    clock, socket_path = Clock(), settings.resolver_socket
    options = EngineOptions(
        settings.engine,
        api_key_file=settings.engine_api_key_file,
        control_token_file=settings.control_token_file,
        limits=settings.engine_limits(),
        state=state,
    )
    return Ports(
        presence=_presence(settings, owner, seat, clock),
        client=Client(settings.client_options()),
        keys=Keys(settings.prefix),
        engine=make_engine(settings.engine_kind, options),
        store=store,
        maintenance=store.maintenance,
        place=place_of(settings.store.stat()),
        state=state,
        clock=clock,
        answer=None if socket_path is None else partial(answer_questions, socket_path),
        grace_seconds=settings.unload_grace,
        idle_seconds=settings.lazy_idle,
        ready_rule=ReadyRule(settings.ready_when, settings.degraded_share),
        give_up_seconds=settings.give_up_share,
        base=settings.base_model,
        insecure=settings.unprotected(),
        http=settings.reached_at(),
    )


def _open(settings: SidecarSettings, state: Path) -> tuple[LocalStore, HostLock, socket.socket]:
    """What has to be there before anything runs. Raises StoreUnusable, SocketUnusable."""
    if settings.resolver_socket is not None:
        check_directory(settings.resolver_socket)
    try:
        return _store(settings), HostLock(state / "lock"), listen_as_told("--http", settings.http)
    except (OSError, StoreError, BaseUnreadable) as error:
        raise StoreUnusable(f"{error}") from error


def _store(settings: SidecarSettings) -> LocalStore:
    credentials = Credentials()
    store = LocalStore(
        settings.store,
        settings.replica,
        settings.allow_source,
        base=read_base(settings.base_model) if settings.base_model else None,
        remote=RemoteOptions(credentials, settings.hf_endpoint),
        engine=settings.engine,
        budget_bytes=settings.store_budget,
        grace_seconds=settings.unload_grace,
    )
    if settings.credentials is not None:
        store.follow(settings.credentials, read_credentials, credentials.use)
    if settings.signature_keys is not None:
        store.follow(settings.signature_keys, read_keys, store.use_keys)
    return store


class _Ended(Exception):
    """The sidecar was told to end, and may."""


async def _end(stop: asyncio.Event, drain: ReplicaDrain, seconds: float) -> None:
    await stop.wait()
    await drain.wait_at_end(seconds)
    raise _Ended


def _presence(settings: SidecarSettings, owner: str, seat: str, clock: Clock) -> Presence:
    return Presence(
        pool=settings.pool,
        replica=settings.replica,
        incarnation=uuid.uuid4().hex,
        owner=owner,
        labels=settings.labels,
        started_at=rfc3339(clock.wall()),
        version=release_version(),
        engine_url=settings.advertise_url or "",
        seat=seat,
        ephemeral=settings.is_ephemeral(),
    )
