"""Puts an admin service on the network: gRPC ports, HTTP port, the host's socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
import structlog

from registry.access.control import AccessControl
from registry.access.sockets import HostSocket
from registry.admin.app import DRAIN_SECONDS, AdminPorts, assemble
from registry.admin.settings import AdminSettings
from registry.etcd3.client import Client
from registry.model.keys import Keys
from registry.runtime.clock import Clock
from registry.runtime.grpc_port import bind_port
from registry.runtime.http import CannotListen, HttpServer, listen_as_told, tls_as_told
from registry.runtime.page_guard import own_hosts
from registry.runtime.program import most_connections
from registry.sources.base import StoreError
from registry.store.txn import Retention
from registry.transactions.context import TxnLimits

_log = structlog.get_logger()


MAX_REQUEST_BYTES = 4 * 1024 * 1024
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
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # clients ask every 10 s whether their connection lives
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second server that gets half of the calls
)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Ports of a running service. `token_port` 0: callers with tokens have none of their own."""

    grpc_port: int
    http_port: int
    token_port: int


@asynccontextmanager
async def running(settings: AdminSettings, *, drain_seconds: float = DRAIN_SECONDS) -> AsyncIterator[RunningServer]:
    """Serves where the settings say while the context is open; `drain_seconds` as in `AdminPorts`.

    Raises:
        CannotListen: an address or a certificate cannot be used.
        registry.etcd3.errors.TlsFailed: a certificate for etcd cannot be read.
    """
    ports = _ports(settings, drain_seconds)
    try:
        service = assemble(ports)
        api = grpc.aio.server(options=options())
        async with AsyncExitStack() as held:
            port, token_port = bind(api, settings), bind_tokens(api, settings)
            host = HostSocket(settings.socket) if settings.socket else None
            if host is not None:
                api.add_insecure_port(host.inner)
            tls, listener = tls_as_told(settings.http_tls()), listen_as_told("--http", settings.http)
            await held.enter_async_context(
                service.serving(api, HttpServer(service.app, listener, service.metrics.count_closed, tls))
            )
            if host is not None:
                await held.enter_async_context(host.listening())
            running = RunningServer(port, listener.getsockname()[1], token_port)
            _log.info("listening", grpc_port=port, http_port=running.http_port, token_port=running.token_port)
            yield running
    finally:
        await ports.client.aclose()


def _ports(settings: AdminSettings, drain_seconds: float) -> AdminPorts:
    """The real world, as the settings name it."""
    clock = Clock()
    return AdminPorts(
        client=Client(settings.client_options(), rng=clock.rng),
        keys=Keys(settings.prefix),
        clock=clock,
        limits=TxnLimits(max_ops=settings.max_txn_ops),
        retention=Retention(settings.request_retention, settings.audit_retention),
        insecure=settings.unprotected(),
        hosts=own_hosts(*settings.own_names()),
        drain_seconds=drain_seconds,
        access=_access(settings, clock),
        reflection=settings.access is None or settings.reflection,
        certificates=settings.certificates(),
    )


def _access(settings: AdminSettings, clock: Clock) -> AccessControl | None:
    """Access control by the file that the settings name. Raises CannotListen: it cannot be used."""
    if settings.access is None:
        return None
    try:
        return AccessControl(settings.access, clock.wall)
    except StoreError as error:
        raise CannotListen(f"--access: {error}") from error


def options() -> tuple[tuple[str, int], ...]:
    """Options of the gRPC server, which bound what a client can take."""
    return (
        *_OPTIONS,
        ("grpc.max_connection_age_ms", int(CONNECTION_AGE_SECONDS * 1000)),
        ("grpc.max_connection_age_grace_ms", int(CONNECTION_GRACE_SECONDS * 1000)),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),  # TLS, and HTTP/2's own
        ("grpc.max_allowed_incoming_connections", most_connections(MAX_CONNECTIONS, thirds=2)),
    )


def bind(server: grpc.aio.Server, settings: AdminSettings) -> int:
    """Binds the API's port; returns its number. Raises CannotListen."""
    return bind_port(server, "--listen", settings.listen, settings.tls())


def bind_tokens(server: grpc.aio.Server, settings: AdminSettings) -> int:
    """Binds the port of callers with tokens; returns its number, 0 for none. Raises CannotListen."""
    if settings.token_listen is None:
        return 0
    return bind_port(server, "--token-listen", settings.token_listen, settings.token_tls())
