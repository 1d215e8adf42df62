"""The sidecar's HTTP: is it alive, is the replica ready, what does it say of itself."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sidecar.reporter import Reporter


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
