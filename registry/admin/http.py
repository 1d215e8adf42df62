"""The admin service's HTTP: is it alive, can it work, what does it count."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from registry.admin.probe import Readiness


class _Server(uvicorn.Server):
    """uvicorn inside our own event loop, which has signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_app(readiness: Callable[[], Readiness], metrics: CollectorRegistry) -> Starlette:
    """The application: ``/livez``, ``/readyz``, ``/metrics``."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        now = readiness()
        return JSONResponse({"ready": now.ready, "reason": now.reason}, status_code=200 if now.ready else 503)

    async def scrape(_: Request) -> Response:
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)

    routes = {"/livez": livez, "/readyz": readyz, "/metrics": scrape}
    return Starlette(routes=[Route(path, endpoint) for path, endpoint in routes.items()])


def listen(host: str, port: int) -> socket.socket:
    """Binds the port at once, so that a wrong or taken one is a clear error at start.

    Raises:
        OSError: it cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


class HttpServer:
    """Serves an application on a socket that is bound already; the socket is its own."""

    def __init__(self, app: Starlette, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = _Server(config)
        self._listener = listener

    async def run(self) -> None:
        """Serves until it is told to stop."""
        with self._listener:
            await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Lets requests that run come to their end, and takes no others."""
        self._server.should_exit = True
