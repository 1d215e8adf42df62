"""The admin service's HTTP: is it alive, can it work, what does it count, and where adapters are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from registry.admin.probe import Readiness

Page = Callable[[Request], Awaitable[Response]]


def make_app(readiness: Callable[[], Readiness], metrics: CollectorRegistry, residency: Page) -> Starlette:
    """The application: ``/livez``, ``/readyz``, ``/metrics``, ``/v1/residency``."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        now = readiness()
        return JSONResponse({"ready": now.ready, "reason": now.reason}, status_code=200 if now.ready else 503)

    async def scrape(_: Request) -> Response:
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)

    routes = {"/livez": livez, "/readyz": readyz, "/metrics": scrape, "/v1/residency": residency}
    return Starlette(routes=[Route(path, endpoint) for path, endpoint in routes.items()])
