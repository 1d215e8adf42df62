"""Assembles the admin service: certificates, HTTP port, gRPC port, shutdown.

The certificate is read again for each handshake, so that rotating it needs no restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import grpc
import structlog
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from starlette.applications import Starlette

from registry.admin.health import AdminMetrics, Probe
from registry.admin.pages import make_app
from registry.admin.rpc.handlers import Reads, Writes
from registry.admin.rpc.hook import check
from registry.admin.rpc.service import SERVICE, make_handlers
from registry.admin.rpc.streams import Residency, Streams
from registry.admin.settings import AdminSettings
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdUnauthenticated, TlsFailed
from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import TlsReader, TlsUnusable
from registry.model.keys import Keys
from registry.residency.hub import ResidencyHub
from registry.rollout.controller import RolloutController, Shared
from registry.rollout.members import MembersKeeper, forget
from registry.rollout.watching import AdapterStreams
from registry.runtime.clock import Clock
from registry.runtime.http import CannotListen, HttpServer, listen_as_told
from registry.runtime.page_guard import own_hosts
from registry.runtime.program import most_connections
from registry.runtime.supervisor import Supervisor
from registry.store.reader import Reader
from registry.store.txn import Retention
from registry.store.writer import WriteGate, Writer
from registry.transactions.context import TxnLimits

_log = structlog.get_logger()


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """With an authority given, clients must show a certificate of it.

    Raises:
        TlsUnusable: the files cannot be read, or do not fit each other.
    """
    reader = TlsReader(
        files, lambda error: _log.warning("certificate_unreadable", file=str(error.file), reason=str(error))
    )

    def newest() -> grpc.ServerCertificateConfiguration:
        pem = reader.newest()
        pair = (pem.key or b"", pem.certificate or b"")  # both are there: the settings see to it
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=pem.ca)

    return grpc.dynamic_ssl_server_credentials(newest(), newest, require_client_authentication=files.ca is not None)


MAX_REQUEST_BYTES = 4 * 1024 * 1024
GRACE_SECONDS = 5.0
DRAIN_SECONDS = 0.5
# Connections of the API. None of its callers is known before it has said something, so it has no more than a time for
# that, and a place. One that rests is not ended before its age: gRPC's clients write a line about that.
MAX_CONNECTIONS = 2000
HANDSHAKE_SECONDS = 10.0
# A client whose certificate is no longer taken stays no longer than this, give or take a tenth; calls on their way
# have the grace to end.
CONNECTION_AGE_SECONDS = 300.0
CONNECTION_GRACE_SECONDS = 30.0
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.max_concurrent_streams", 100),  # of one connection
    # A call that this service has not even looked at yet cannot be told apart from others, so that all wait behind it.
    # Beyond these, ever more of the new ones are cancelled at once; clients try them again.
    ("grpc.server.max_pending_requests", 256),
    ("grpc.server.max_pending_requests_hard_limit", 512),
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second server that gets half of the calls
)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Address of a running service."""

    grpc_port: int
    http_port: int


@dataclass(frozen=True, slots=True)
class _ServerParts:
    """Parts that serve, run beside it, and have to be closed. Streams end once `stopping` is set."""

    client: Client
    supervisor: Supervisor
    informers: SharedInformerFactory
    hub: ResidencyHub
    probe: Probe
    controller: RolloutController
    members: MembersKeeper
    health: health.aio.HealthServicer
    handlers: grpc.GenericRpcHandler
    app: Starlette
    metrics: AdminMetrics
    stopping: asyncio.Event


@asynccontextmanager
async def running(
    settings: AdminSettings, *, drain_seconds: float = DRAIN_SECONDS, clock: Clock | None = None
) -> AsyncIterator[RunningServer]:
    """Serves while the context is open; at its end calls that run are given a little time. `clock` None: the machine's.

    Raises:
        CannotListen: an address or a certificate cannot be used.
        registry.etcd3.errors.TlsFailed: a certificate for etcd cannot be read.
    """
    parts = _assembled(settings, clock or Clock())
    server, port = _grpc_server(settings, parts)
    listener = listen_as_told("--http", settings.http)
    http = HttpServer(parts.app, listener, parts.metrics.count_closed)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(http.run(), name="http")
            keep = parts.supervisor.keep
            ours = [
                tasks.create_task(keep("probe", parts.probe.run), name="probe"),
                tasks.create_task(keep("rollouts", parts.controller.run), name="conductor"),
                tasks.create_task(keep("members", parts.members.run), name="members"),
            ]
            ports = RunningServer(port, listener.getsockname()[1])
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
        await parts.hub.aclose()
        await parts.informers.aclose()
        await parts.client.aclose()


def _assembled(settings: AdminSettings, clock: Clock) -> _ServerParts:
    """The parts, of which none runs yet."""
    rng = clock.rng
    client = Client(settings.client_options(), rng=rng)
    keys, gate, metrics = Keys(settings.prefix), WriteGate(), AdminMetrics()
    limits = TxnLimits(max_ops=settings.max_txn_ops)
    reader = Reader(client, keys)
    retention = Retention(settings.request_retention, settings.audit_retention)
    writer = Writer(client, keys, limits, gate, rng=rng, now=clock.wall, retention=retention)
    servicer = health.aio.HealthServicer()
    probe = Probe(client, keys, gate, servicer, metrics, SERVICE)
    stopping = asyncio.Event()
    supervisor = Supervisor(metrics.count_internal_error, rng, fatal=(TlsFailed, EtcdUnauthenticated))
    informers = SharedInformerFactory(client, rng=rng, keep=supervisor.keep)
    hub = ResidencyHub(client, keys, informers, keep=supervisor.keep)
    streams = Streams(AdapterStreams(client, keys, reader, informers, rng=rng), Residency(hub, reader))
    shared = Shared(client, keys, writer, informers, metrics.count_conducted, rng, supervisor.keep)
    controller = RolloutController(shared)
    members = MembersKeeper(client, keys, informers, metrics.show_missing, rng=rng, wall=clock.wall)
    insecure, writes = settings.unprotected(), Writes(writer, reader, partial(forget, client, keys))
    handlers = make_handlers(writes, Reads(reader, insecure), streams, metrics, stopping, limits, check)
    app = make_app(
        lambda: probe.readiness,
        metrics.registry,
        streams.residency.page,
        insecure,
        lambda: sorted(supervisor.troubles),
        check,
        hosts=own_hosts(*settings.own_names()),
        count_refused=metrics.count_refused_page,
    )
    return _ServerParts(
        *(client, supervisor, informers, hub, probe, controller, members, servicer),
        *(handlers, app, metrics, stopping),
    )


async def _drain(server: grpc.aio.Server, servicer: health.aio.HealthServicer, drain_seconds: float) -> None:
    """Ends the server when those who look at health have gone elsewhere: calls on their way would be cancelled."""
    await servicer.enter_graceful_shutdown()
    await asyncio.sleep(drain_seconds)
    await server.stop(GRACE_SECONDS)


def _grpc_server(settings: AdminSettings, parts: _ServerParts) -> tuple[grpc.aio.Server, int]:
    age = (
        ("grpc.max_connection_age_ms", int(CONNECTION_AGE_SECONDS * 1000)),
        ("grpc.max_connection_age_grace_ms", int(CONNECTION_GRACE_SECONDS * 1000)),
    )
    limits = (
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),  # TLS, and HTTP/2's own
        ("grpc.max_allowed_incoming_connections", most_connections(MAX_CONNECTIONS, thirds=2)),
    )
    server = grpc.aio.server(options=(*_OPTIONS, *age, *limits))
    server.add_generic_rpc_handlers((parts.handlers,))
    health_pb2_grpc.add_HealthServicer_to_server(parts.health, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server, _bind(server, settings)


def _bind(server: grpc.aio.Server, settings: AdminSettings) -> int:
    address = str(settings.listen)
    try:
        if settings.tls_cert is None or settings.tls_key is None:
            return server.add_insecure_port(address)
        files = TlsFiles(settings.tls_ca, settings.tls_cert, settings.tls_key)
        return server.add_secure_port(address, server_credentials(files))
    except RuntimeError as error:
        listen_as_told("--listen", settings.listen).close()  # says why, which gRPC does not
        raise CannotListen(f"--listen {address}: {error}") from error
    except TlsUnusable as error:
        flags = {settings.tls_ca: "--tls-ca", settings.tls_cert: "--tls-cert"}
        raise CannotListen(f"{flags.get(error.file, '--tls-key')}: {error}") from error
