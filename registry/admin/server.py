"""Puts the admin service together, and takes it apart in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import structlog
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from starlette.applications import Starlette

from registry.admin.conductor import Conductor
from registry.admin.emergency import Emergency
from registry.admin.http import make_app
from registry.admin.metrics import Metrics
from registry.admin.pool_conductor import Shared
from registry.admin.probe import Probe
from registry.admin.reads import Reads
from registry.admin.residency import Residency
from registry.admin.service import SERVICE, make_handlers
from registry.admin.settings import Settings
from registry.admin.streams import Streams
from registry.admin.tls import server_credentials
from registry.admin.writes import Writes
from registry.daemon.http import CannotListen, HttpServer, listen_as_told
from registry.etcd3.client import Client
from registry.keys import Keys
from registry.store.break_glass import BreakGlass
from registry.store.gate import Gate
from registry.store.mirror import Mirrors
from registry.store.reader import Reader
from registry.store.residency_boards import Boards
from registry.store.watching import Watcher
from registry.store.writer import Writer, utc_now
from registry.transactions.context import Limits

MAX_REQUEST_BYTES = 4 * 1024 * 1024
GRACE_SECONDS = 5.0
DRAIN_SECONDS = 0.5
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second server that gets half of the calls
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Running:
    """Where a running service listens."""

    grpc_port: int
    http_port: int


@dataclass(frozen=True, slots=True)
class _Parts:
    """What serves, runs beside it, and has to be closed. Streams end once `stopping` is set."""

    client: Client
    boards: Boards
    probe: Probe
    conductor: Conductor
    health: health.aio.HealthServicer
    handlers: grpc.GenericRpcHandler
    app: Starlette
    stopping: asyncio.Event


@asynccontextmanager
async def running(settings: Settings, *, drain_seconds: float = DRAIN_SECONDS) -> AsyncIterator[Running]:
    """Serves while the context is open; at its end calls that run are given a little time.

    Raises:
        CannotListen: an address or a certificate cannot be used.
        registry.etcd3.errors.TlsFailed: a certificate for etcd cannot be read.
    """
    parts = _assembled(settings)
    server, port = _grpc_server(settings, parts)
    listener = listen_as_told("--http", settings.http)
    http = HttpServer(parts.app, listener)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(http.run(), name="http")
            ours = [
                tasks.create_task(parts.probe.run(), name="probe"),
                tasks.create_task(parts.conductor.run(), name="conductor"),
            ]
            ports = Running(port, listener.getsockname()[1])
            try:
                await server.start()
                _log.info("listening", grpc_port=ports.grpc_port, http_port=ports.http_port)
                yield ports
            finally:
                parts.stopping.set()
                for task in ours:
                    task.cancel()
                await _drain(server, parts.health, drain_seconds)
                http.stop()
    finally:
        await parts.boards.aclose()
        await parts.client.aclose()


def _assembled(settings: Settings) -> _Parts:
    """The parts, of which none runs yet."""
    rng = random.Random()  # noqa: S311 - jitter, not a secret
    client = Client(settings.client_options(), rng=rng)
    keys, gate, metrics = Keys(settings.prefix), Gate(), Metrics()
    reader = Reader(client, keys)
    writer = Writer(client, keys, Limits(max_ops=settings.max_txn_ops), gate, rng=rng)
    servicer = health.aio.HealthServicer()
    probe = Probe(client, keys, gate, servicer, metrics, SERVICE)
    stopping = asyncio.Event()
    writes, glass = Writes(writer), BreakGlass(client, keys, gate, now=utc_now)
    mirrors = Mirrors(client, rng=rng)
    boards = Boards(client, keys, rng=rng)
    streams = Streams(Watcher(client, keys, reader, mirrors, rng=rng), Residency(boards, reader))
    conductor = Conductor(Shared(client, keys, writer, mirrors, metrics, rng))
    handlers = make_handlers(writes, Emergency(glass, writes), Reads(reader), streams, metrics, stopping)
    app = make_app(lambda: probe.readiness, metrics.registry, streams.residency.page)
    return _Parts(client, boards, probe, conductor, servicer, handlers, app, stopping)


async def _drain(server: grpc.aio.Server, servicer: health.aio.HealthServicer, drain_seconds: float) -> None:
    """Ends the server when those who look at health have gone elsewhere: calls on their way would be cancelled."""
    await servicer.enter_graceful_shutdown()
    await asyncio.sleep(drain_seconds)
    await server.stop(GRACE_SECONDS)


def _grpc_server(settings: Settings, parts: _Parts) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((parts.handlers,))
    health_pb2_grpc.add_HealthServicer_to_server(parts.health, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server, _bind(server, settings)


def _bind(server: grpc.aio.Server, settings: Settings) -> int:
    address = str(settings.listen)
    try:
        if settings.tls_cert is None or settings.tls_key is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(settings.tls_ca, settings.tls_cert, settings.tls_key))
    except RuntimeError as error:
        listen_as_told("--listen", settings.listen).close()  # says why, which gRPC does not
        raise CannotListen(f"--listen {address}: {error}") from error
    except OSError as error:
        files = {str(settings.tls_ca): "--tls-ca", str(settings.tls_cert): "--tls-cert"}
        flag = files.get(str(error.filename), "--tls-key")
        raise CannotListen(f"{flag} {error.filename}: {error.strerror}") from error
