"""One sidecar over the real world: opens it, runs, and closes all of it again."""

from __future__ import annotations

import asyncio
import socket
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from registry.etcd3.client import Client
from registry.lora.base_directory import BaseUnreadable, read_base
from registry.model.keys import Keys
from registry.model.status import Presence
from registry.runtime.clock import Clock, rfc3339
from registry.runtime.http import HttpServer, listen_as_told, tls_as_told
from registry.runtime.page_guard import own_hosts
from registry.runtime.program import release_version
from registry.sources.allowed import RemoteOptions
from registry.sources.base import StoreError
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from sidecar.app import assemble
from sidecar.artifacts.signing.signatures import read_keys, read_signature_policy
from sidecar.artifacts.store import LocalStore, ReadingEngine, StoreLimits
from sidecar.engines.driver import EngineOptions, make_engine
from sidecar.metrics import CONNECTIONS_CLOSED
from sidecar.ownership import HostLock, Seat, place_of
from sidecar.plan.readiness import ReadyRule
from sidecar.ports import Ports
from sidecar.report.http import make_app
from sidecar.report.page_callers import PageAccess
from sidecar.report.replica_drain import ReplicaDrain
from sidecar.resolver.server import answer_questions, check_directory
from sidecar.settings import SidecarSettings

_log = structlog.get_logger()
CLOSE_SECONDS = 2.0


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
        SnapshotUnread: at start.
    """
    state = settings.store / "state" / settings.replica
    tls = tls_as_told(settings.http_tls())
    store, lock, listener = _open(settings, state)
    seat = Seat(*settings.etcd, settings.prefix, settings.pool, settings.replica)
    ports = _ports(settings, store, lock.owner, seat.place, state)
    sidecar = assemble(ports)
    reporting = sidecar.reporting
    try:
        async with asyncio.TaskGroup() as tasks:
            app = make_app(
                reporting.status,
                ports.insecure,
                reporting.drain,
                reporting.events,
                reporting.activity,
                hosts=own_hosts(*settings.own_names()),
                token_file=settings.control_token_file,
                access=PageAccess(settings.http_token_file, settings.is_open()),
            )
            http = HttpServer(app, listener, lambda reason: CONNECTIONS_CLOSED.labels("http", reason).inc(), tls)
            tasks.create_task(http.run(), name="http")
            tasks.create_task(_end(stop, reporting.drain, settings.drain_timeout), name="stop")
            await lock.acquire(settings.replica)
            sidecar.start(tasks)
    except* _Ended:
        _log.info("stopped")
    finally:
        listener.close()  # the port may not have begun to serve
        await _close(store)
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
        is_intact=store.is_intact,
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
        certificates=settings.certificates(),
    )


def _open(settings: SidecarSettings, state: Path) -> tuple[LocalStore, HostLock, socket.socket]:
    """Resources needed before anything runs. Raises StoreUnusable, SocketUnusable."""
    if settings.resolver_socket is not None:
        check_directory(settings.resolver_socket)
    try:
        return _store(settings), HostLock(state / "lock"), listen_as_told("--http", settings.http)
    except (OSError, StoreError, BaseUnreadable) as error:
        raise StoreUnusable(f"{error}") from error


def _store(settings: SidecarSettings) -> LocalStore:
    credentials = Credentials()
    base = read_base(settings.base_model) if settings.base_model else None
    store = LocalStore(
        settings.store,
        settings.replica,
        settings.allow_source,
        engine=ReadingEngine(settings.engine, base),
        remote=RemoteOptions(credentials, settings.hf_endpoint, fetchers=settings.fetcher),
        limits=StoreLimits(settings.store_budget, settings.unload_grace),
    )
    if settings.credentials is not None:
        store.trust.follow(settings.credentials, read_credentials, credentials.use)
    if settings.signature_keys is not None:
        store.trust.follow(settings.signature_keys, read_keys, store.trust.signatures.use)
    if settings.signature_policy is not None:
        enforce = partial(store.trust.signatures.enforce, pool=settings.pool)
        store.trust.follow(settings.signature_policy, read_signature_policy, enforce)
    return store


async def _close(store: LocalStore) -> None:
    """Waits a moment for stagings that were cancelled: one may wait for a mount that hangs."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await asyncio.to_thread(store.close)


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
