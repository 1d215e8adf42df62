"""The sidecar's HTTP: is it alive, is the replica ready, what does it say of itself."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sidecar.reporter import Reporter


class _Server(uvicorn.Server):
    """uvicorn inside our own event loop, which has signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_app(reporter: Reporter) -> Starlette:
    """The application: ``/livez``, ``/readyz``, ``/status``, ``/metrics``."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        status = reporter.status
        body = {
            "ready": status.ready,
            "stale": status.stale,
            "note": status.note,
            "held": status.held,
            "observed_revision": status.observed_revision,
            "served": status.served.count,
            "pending": len(status.pending),
            "failed": len(status.failed),
        }
        return JSONResponse(body, status_code=200 if status.ready else 503)

    async def status(_: Request) -> Response:
        return Response(reporter.status.to_bytes(), media_type="application/json")

    async def metrics(_: Request) -> Response:
        reporter.refresh_metrics()
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    routes = {"/livez": livez, "/readyz": readyz, "/status": status, "/metrics": metrics}
    return Starlette(routes=[Route(path, endpoint) for path, endpoint in routes.items()])


def listen(host: str, port: int) -> socket.socket:
    """Binds the port at once, so that a wrong or taken one is a clear error at start.

    Raises:
        OSError: it cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # asyncio sees to this only for sockets made with an explicit protocol; without it a kept-alive reply waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def serve(app: Starlette, listener: socket.socket) -> None:
    """Serves until it is cancelled."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    await _Server(config).serve(sockets=[listener])
