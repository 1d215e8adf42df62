"""HTTP port of a sidecar: liveness, readiness, status, events, metrics, drain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from math import nan

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from registry.model.status import ReplicaStatus
from registry.runtime.settings import is_loopback
from sidecar.plan.handoff import Need
from sidecar.report.activity import ReplicaActivity
from sidecar.report.cache import StatusCache
from sidecar.report.events import EventRing
from sidecar.report.replica_drain import DrainCause, ReplicaDrain

MAX_DRAIN_WAIT_SECONDS = 3600.0


def make_app(
    cache: StatusCache, insecure: Sequence[str], drain: ReplicaDrain, ring: EventRing, activity: ReplicaActivity
) -> Starlette:
    """The application: ``/livez``, ``/readyz``, ``/status``, ``/events``, ``/activity``, ``/metrics``, ``/drain``.

    `insecure` is told in ``/readyz``.
    """

    async def livez(_: Request) -> Response:
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        body = {**_readiness(cache.status), "insecure": insecure, "failing": cache.failing}
        # Escaped, since what others said may hold half of a character.
        return Response(json.dumps(body), status_code=200 if body["ready"] else 503, media_type="application/json")

    async def status(_: Request) -> Response:
        return Response(cache.status.to_bytes(), media_type="application/json")

    async def events(_: Request) -> Response:
        replica, pool = cache.status.replica, cache.status.pool
        body = json.dumps({"replica": replica, "pool": pool, **ring.as_dict()})
        return Response(body, media_type="application/json")

    async def doing(_: Request) -> Response:
        return Response(json.dumps(await activity.read()), media_type="application/json")

    async def metrics(_: Request) -> Response:
        cache.refresh_metrics()
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    routes = {"/livez": livez, "/readyz": readyz, "/status": status, "/events": events, "/metrics": metrics}
    routes["/activity"] = doing
    drain_route = Route("/drain", partial(_drain, drain), methods=["GET", "POST"])
    return Starlette(routes=[*(Route(path, endpoint) for path, endpoint in routes.items()), drain_route])


def _readiness(status: ReplicaStatus) -> dict[str, object]:
    return {
        "ready": status.ready,
        "stale": status.stale,
        "note": status.note,
        "held": status.held,
        "degraded": status.degraded,
        "observed_revision": status.observed_revision,
        "served": status.answered,
        "served_not_as_desired": status.kept_count,
        "served_seen_at": status.served.seen_at,
        "pending": status.pending_count or 0,
        "failed": status.failed_count or 0,
    }


def _is_from_own_host(request: Request) -> bool:
    """True for who came by the loopback, or from the address that it came to."""
    client, server = request.client, request.scope.get("server")
    return client is not None and (is_loopback(client.host) or (server is not None and client.host == server[0]))


async def _drain(drain: ReplicaDrain, request: Request) -> Response:
    """Begins to drain, and answers when nothing is needed here any more, or after ``?wait=`` seconds."""
    if not _is_from_own_host(request):
        message = "/drain is answered on the replica's own host only: call it there, or use loraplane drain"
        return JSONResponse({"error": message}, status_code=403)
    wait = request.query_params.get("wait", "0")
    try:
        seconds = float(wait)
    except ValueError:
        seconds = nan
    if not 0 <= seconds <= MAX_DRAIN_WAIT_SECONDS:
        message = f"wait={wait[:40]!r} is no number of seconds from 0 to {MAX_DRAIN_WAIT_SECONDS:.0f}"
        return JSONResponse({"error": message}, status_code=400)
    drain.begin(DrainCause.REQUEST)
    need = await drain.wait(seconds)
    return JSONResponse({"draining": True, "done": need is Need.NOTHING, "needed": need.value})
