"""Puts the parts of a sidecar together; one TaskGroup owns everything that runs."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from registry.daemon.http import HttpServer, listen_as_told
from registry.etcd3.client import Client
from registry.keys import Keys
from registry.lora.base_directory import BaseUnreadable, read_base
from registry.model.status import Presence
from registry.sources.allowed import RemoteOptions
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from registry.sources.errors import StoreError
from sidecar.artifacts.signatures import read_keys
from sidecar.artifacts.store import LocalStore
from sidecar.chance import Chance
from sidecar.engine_watch import watch_engine
from sidecar.engines.driver import Engine
from sidecar.engines.kinds import make_engine
from sidecar.feed import Feed
from sidecar.http import make_app
from sidecar.inputs import Inputs
from sidecar.journal import Journal
from sidecar.keeper import Keeper
from sidecar.lazy.catalogue import Catalogue
from sidecar.lazy.demand import Demand
from sidecar.lazy.desk import Desk, Means
from sidecar.lazy.service import answer_questions
from sidecar.lazy.socket_file import check_directory
from sidecar.ownership import HostLock, place_of
from sidecar.publisher import Publisher
from sidecar.reconciler import Reconciler, Report
from sidecar.reporter import Reporter
from sidecar.retention import Retention
from sidecar.settings import Settings
from sidecar.share import Sharing
from sidecar.status import Replica, rfc3339
from sidecar.steps import OnStep, ignore
from sidecar.successors import Successors

_log = structlog.get_logger()
LOCK_RETRY_SECONDS = 1.0


class StoreUnusable(Exception):
    """The store, the base model's directory or the HTTP port cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What runs, and has to be closed."""

    client: Client
    engine: Engine
    reporter: Reporter
    feed: Feed
    reconciler: Reconciler
    publisher: Publisher
    desk: Desk
    successors: Successors
    keeper: Keeper


async def run(settings: Settings, on_step: OnStep = ignore) -> None:
    """Runs one sidecar until it is cancelled; `on_step` is called at each step, also in worker threads, for tests.

    Raises:
        StoreUnusable: at start.
        CannotListen: see `registry.daemon.http`.
        SocketUnusable: see `sidecar.lazy.socket_file`.
        ReplicaTaken: see `sidecar.publisher`.
    """
    state = settings.store / "state" / settings.replica
    store, lock, listener = _open(settings, state, on_step)
    parts = _assembled(settings, store, lock.owner, state, on_step)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(HttpServer(make_app(parts.reporter), listener).run(), name="http")
            await _acquire(lock, settings.replica)
            store.take_over()
            _say_started(settings)
            parts.feed.restore()
            tasks.create_task(parts.feed.run(), name="feed")
            tasks.create_task(watch_engine(parts.engine, parts.reconciler.distrust), name="engine watch")
            tasks.create_task(parts.reconciler.run(), name="reconciler")
            tasks.create_task(parts.publisher.run(), name="publisher")
            if settings.resolver_socket is not None:
                tasks.create_task(answer_questions(settings.resolver_socket, parts.desk), name="resolver")
            tasks.create_task(parts.successors.run(), name="successors")
            tasks.create_task(parts.keeper.run(), name="keeper")
            tasks.create_task(parts.keeper.scrub(), name="scrub")
    finally:
        store.close()
        await parts.engine.aclose()
        await parts.client.aclose()
        lock.close()


def _say_started(settings: Settings) -> None:
    """What tells a log apart from those of other replicas, of other stores, and of the process before."""
    store = place_of(settings.store.stat())
    about = {"pool": settings.pool, "replica": settings.replica, "store": store}
    _log.info("started", **about, grace_seconds=settings.unload_grace)


def _assembled(settings: Settings, store: LocalStore, owner: str, state: Path, on_step: OnStep) -> _Parts:
    """The parts, of which none runs yet."""
    chance = Chance()
    client = Client(settings.client_options())
    engine = make_engine(settings, state, on_step)
    inputs, keys = Inputs(), Keys(settings.prefix)
    publisher = Publisher(client, keys, _presence(settings, owner, chance), chance, inputs.wake, on_step)
    reporter = Reporter(_replica(settings, engine), chance, publisher.offer)
    retention = Retention(settings.unload_grace, store.owns)
    keeper = Keeper(engine, store, retention, store.upkeep, monotonic=chance.monotonic)
    demand = Demand(Catalogue(settings.pool, inputs.record_of), idle_seconds=settings.lazy_idle)
    desk = Desk(Means(inputs, store, publisher), demand, chance, keeper.expect)
    successors = Successors(client, keys, settings.pool, inputs)
    sharing = Sharing(settings.pool, settings.replica, settings.labels)
    take = _telling(reporter, publisher, successors)
    reconciler = Reconciler(engine, store, inputs, publisher, chance, take, keeper.notice, sharing, demand=demand)
    feed = Feed(client, keys, settings.pool, settings.replica, inputs, Journal(state, on_step), chance)
    return _Parts(client, engine, reporter, feed, reconciler, publisher, desk, successors, keeper)


def _replica(settings: Settings, engine: Engine) -> Replica:
    answers = settings.resolver_socket is not None
    return Replica(settings.replica, settings.pool, engine.kind, engine.url, answers=answers)


def _telling(reporter: Reporter, publisher: Publisher, successors: Successors) -> Callable[[Report], None]:
    """Tells everybody what each round came to."""

    def tell(report: Report) -> None:
        plan = report.situation.plan
        if plan is not None:  # before, what the pool allows is not known either
            publisher.hold(report.capacity)
        successors.follow(plan.leaving if plan else ())
        reporter.take(report)

    return tell


def _open(settings: Settings, state: Path, on_step: OnStep) -> tuple[LocalStore, HostLock, socket.socket]:
    """What has to be there before anything runs. Raises StoreUnusable, SocketUnusable."""
    if settings.resolver_socket is not None:
        check_directory(settings.resolver_socket)
    try:
        return _store(settings, on_step), HostLock(state / "lock"), listen_as_told("--http", settings.http)
    except (OSError, StoreError, BaseUnreadable) as error:
        raise StoreUnusable(f"{error}") from error


def _store(settings: Settings, on_step: OnStep) -> LocalStore:
    return LocalStore(
        settings.store,
        settings.replica,
        settings.allow_source,
        base=read_base(settings.base_model) if settings.base_model else None,
        remote=_remote(settings),
        signature_keys=read_keys(settings.signature_keys) if settings.signature_keys else {},
        engine=settings.engine,
        budget_bytes=settings.store_budget,
        grace_seconds=settings.unload_grace,
        on_step=on_step,
    )


def _remote(settings: Settings) -> RemoteOptions:
    entries = read_credentials(settings.credentials) if settings.credentials is not None else {}
    return RemoteOptions(Credentials(entries), settings.hf_endpoint)


async def _acquire(lock: HostLock, replica: str) -> None:
    """Waits until no other process on this host runs the same replica."""
    said = False
    while not lock.try_acquire():
        if not said:
            _log.error("replica_id_taken", replica=replica, holder="another process with the same store on this host")
        said = True
        await asyncio.sleep(LOCK_RETRY_SECONDS)


def _presence(settings: Settings, owner: str, chance: Chance) -> Presence:
    return Presence(
        pool=settings.pool,
        replica=settings.replica,
        incarnation=uuid.uuid4().hex,
        owner=owner,
        labels=settings.labels,
        started_at=rfc3339(chance.wall()),
    )
