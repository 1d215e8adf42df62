"""Entry point of ``loraplane-picker``.

It reads its flags, serves until a signal, and says why it stops.
"""

from __future__ import annotations

from registry.runtime import first_process  # noqa: F401 - before what takes long to import

# isort: split
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import structlog

from registry.client.transport import AdminCalls
from registry.etcd3.options import KEEPALIVE
from registry.model.errors import InvalidArgument
from registry.runtime.flags import read_settings
from registry.runtime.process import EXIT_USAGE, configure_logging, on_stop_signal, supervise
from registry.runtime.program import (
    most_connections,
    needs_extra,
    open_standard_streams,
    raise_descriptor_limit,
    spare_collector,
)

with needs_extra("loraplane-picker", "server"):
    from registry.picker.app import PickerPorts, assemble
    from registry.picker.settings import PickerSettings
    from registry.runtime.grpc_port import bind_port
    from registry.runtime.http import CannotListen, HttpServer, listen_as_told, tls_as_told
    from registry.runtime.page_guard import own_hosts

_log = structlog.get_logger()
PROGRAM = "loraplane-picker"
SUMMARY = "Tells gateways which replica a request goes to: an endpoint picker for Envoy's external processing."
EXITS = {CannotListen: EXIT_USAGE, InvalidArgument: EXIT_USAGE}
_CALL_SECONDS = 10.0
_MAX_CONNECTIONS = 1000


@dataclass(frozen=True, slots=True)
class RunningPicker:
    """Ports of a running picker."""

    grpc_port: int
    http_port: int


@asynccontextmanager
async def running(settings: PickerSettings) -> AsyncIterator[RunningPicker]:
    """Serves where the settings say while the context is open.

    Raises:
        CannotListen: an address or a certificate cannot be used.
        InvalidArgument: the admin service's address is none, or its certificates cannot be used.
    """

    def connect() -> AdminCalls:
        return AdminCalls(settings.admin, settings.admin_tls(), _CALL_SECONDS, token=settings.token())

    await connect().aclose()  # what is wrong with the settings is said at once
    hosts = own_hosts(settings.listen.host, settings.http.host, *settings.http_names)
    ports = PickerPorts(
        connect=connect,
        pools=settings.pool,
        rules=settings.rules(),
        queue_metric=settings.queue_metric,
        queue_seconds=settings.queue_seconds,
        drain_seconds=settings.drain,
        hosts=hosts,
        is_asking_scrapers=settings.http_tls_ca is not None,
    )
    service = assemble(ports)
    api = grpc.aio.server(options=_options(settings))
    port = bind_port(api, "--listen", settings.listen, settings.tls())
    tls, listener = tls_as_told(settings.http_tls()), listen_as_told("--http", settings.http)
    pages = HttpServer(service.app, listener, lambda reason: service.metrics.closed.labels(reason).inc(), tls)
    async with service.serving(api, pages):
        found = RunningPicker(port, listener.getsockname()[1])
        _log.info("listening", grpc_port=found.grpc_port, http_port=found.http_port)
        yield found


def _options(settings: PickerSettings) -> tuple[tuple[str, int], ...]:
    """Options of the gRPC server, which bound what a gateway can take."""
    return (
        ("grpc.max_receive_message_length", settings.max_body_bytes + (1 << 20)),
        ("grpc.max_send_message_length", settings.max_body_bytes + (1 << 20)),
        ("grpc.so_reuseport", 0),
        *KEEPALIVE,  # the requests of a gateway that is gone would count as on their way for hours
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),  # a gateway asks as often as it likes: else all its requests would end
        ("grpc.max_allowed_incoming_connections", most_connections(_MAX_CONNECTIONS, thirds=2)),
    )


async def _serve(settings: PickerSettings) -> None:
    stop = asyncio.Event()
    on_stop_signal(stop.set)
    async with running(settings):
        await stop.wait()
        _log.info("stopping")
    _log.info("stopped")


def main() -> None:
    """Entry point of the console script."""
    open_standard_streams()
    settings = read_settings(
        PickerSettings, program=PROGRAM, summary=SUMMARY, arguments=sys.argv[1:], environment=os.environ
    )
    spare_collector()
    raise_descriptor_limit()
    configure_logging()
    supervise(PROGRAM, _serve(settings), EXITS)


if __name__ == "__main__":
    main()
