"""HTTP port of a sidecar: liveness, readiness, status, events, metrics, drain."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Sequence
from math import nan
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from registry.model.status import ReplicaStatus
from registry.runtime.page_guard import MAX_SHOWN, NAMELESS, Hosts, PageGuard, Refusals, RefusedFor, is_literal
from sidecar.engines.driver import EngineUnusable
from sidecar.engines.vllm.http import read_secret
from sidecar.metrics import HTTP_REFUSED
from sidecar.plan.conditions import FILE_NOT_TAKEN
from sidecar.plan.handoff import Need
from sidecar.report.activity import ReplicaActivity
from sidecar.report.cache import StatusCache
from sidecar.report.events import EventRing
from sidecar.report.page_callers import OWN_HOST, PageAccess, PageCallers, is_from_own_host
from sidecar.report.replica_drain import DrainCause, ReplicaDrain
from sidecar.vllm_plugin.guard import CONTROL_HEADER
from sidecar.vllm_plugin.routes import LEFT

MAX_DRAIN_WAIT_SECONDS = 3600.0
# The preStop hooks of a pod are two; what one more is told costs nothing.
MAX_DRAIN_WAITERS = 8
# What the header says of its sender is told in the status. A longer text may be a token.
MAX_CALLER_CHARACTERS = 24


def make_app(
    cache: StatusCache,
    insecure: Sequence[str],
    drain: ReplicaDrain,
    ring: EventRing,
    activity: ReplicaActivity,
    *,
    hosts: Hosts = NAMELESS,
    token_file: Path | None = None,
    access: PageAccess = OWN_HOST,
) -> Starlette:
    """The application: ``/livez``, ``/readyz``, ``/status``, ``/events``, ``/activity``, ``/metrics``, ``/drain``.

    `insecure` is told in ``/readyz``. See `PageGuard` for `hosts`, `DrainPage` for `token_file`, and `PageCallers` for
    `access`.
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
    refusals = Refusals(lambda reason: HTTP_REFUSED.labels(reason).inc())
    drain_route = Route("/drain", DrainPage(drain, refusals, token_file).answer, methods=["GET", "POST"])
    pages = [*(Route(path, endpoint) for path, endpoint in routes.items()), drain_route]
    guards = [Middleware(PageGuard, hosts, refusals), Middleware(PageCallers, access, refusals)]
    return Starlette(routes=pages, middleware=guards, exception_handlers={HTTPException: refusals.no_page})


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
        "files_not_taken": [one.message for one in status.warnings if one.reason == FILE_NOT_TAKEN],
    }


class DrainPage:
    """``/drain``: begins to drain, and answers when nothing is needed here any more, or after ``?wait=`` seconds.

    A program of this host may call it that says so by a header. Neither a web page nor an engine that fetches a picture
    can send one, and a page whose name was led here sends that name as Host.
    """

    def __init__(self, drain: ReplicaDrain, refusals: Refusals, token_file: Path | None) -> None:
        """`token_file`: holds what the header has to say; None: it may say anything."""
        self._drain = drain
        self._refusals = refusals
        self._token_file = token_file
        self._waiting = 0

    async def answer(self, request: Request) -> Response:
        """The answer to GET and POST."""
        try:
            by = await self._caller(request)
            seconds = _seconds(request.query_params.get("wait", "0"))
            self._drain.begin(DrainCause.REQUEST, by)
            need = await self._need(request, seconds)
        except _Refused as error:
            return self._refusals.refuse(request.scope, error.status, error.cause, str(error), error.field)
        if need is None:
            return Response(status_code=LEFT)
        return JSONResponse({"draining": True, "done": need is Need.NOTHING, "needed": need.value})

    async def _caller(self, request: Request) -> str:
        """The caller, for the status and the log. Raises _Refused: it may not call this."""
        host, said = request.headers.get("host", ""), request.headers.get(CONTROL_HEADER, "").strip()
        if not is_from_own_host(request):
            message = "/drain is answered on the replica's own host only: call it there, or use loraplane drain"
            raise _Refused(403, RefusedFor.NOT_OWN_HOST, message)
        if not is_literal(host):
            message = f"/drain is not answered for the Host {host[:MAX_SHOWN]!r}: call it by an IP address or localhost"
            raise _Refused(421, RefusedFor.HOST, message, "host")
        peer = request.client.host if request.client else ""
        if self._token_file is None:
            if not said:
                raise _Refused(403, RefusedFor.CONTROL, _remedy("the header is missing", host, "1"), CONTROL_HEADER)
            return f"{peer}, {said!r}" if len(said) <= MAX_CALLER_CHARACTERS else peer
        if not hmac.compare_digest((await _token(self._token_file)).encode(), said.encode()):
            why = "the header's token is missing, or is not that of --control-token-file"
            call = _remedy(why, host, f"$(cat {self._token_file})")
            raise _Refused(403, RefusedFor.CONTROL, call, CONTROL_HEADER)
        return f"{peer}, with the control token"

    async def _need(self, request: Request, seconds: float) -> Need | None:
        """Need for the replica, once none is left or time is up; None: the caller left.

        Raises:
            _Refused: too many wait already.
        """
        if not seconds:
            return await self._drain.wait(0)
        if self._waiting >= MAX_DRAIN_WAITERS:
            message = (
                f"it drains, and {MAX_DRAIN_WAITERS} callers wait for the end of that already: ask again in a few "
                "seconds, or with wait=0, which does not wait"
            )
            raise _Refused(429, RefusedFor.WAITERS, message)
        waiting, gone = asyncio.ensure_future(self._drain.wait(seconds)), asyncio.ensure_future(_until_gone(request))
        self._waiting += 1
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            self._waiting -= 1
            waiting.cancel()
            gone.cancel()
            await asyncio.wait({waiting, gone})


class _Refused(Exception):
    """A call of ``/drain`` that is not obeyed; the message says what to do."""

    def __init__(self, status: int, cause: RefusedFor, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.cause = cause
        self.field = field


async def _token(file: Path) -> str:
    """The control token. Raises _Refused: there is none."""
    try:
        return await asyncio.to_thread(read_secret, "--control-token-file", file)
    except EngineUnusable as error:
        raise _Refused(503, RefusedFor.CONTROL_FILE, error.message) from error


def _remedy(why: str, host: str, value: str) -> str:
    command = f"curl -sf -H \"{CONTROL_HEADER}: {value}\" 'http://{host}/drain?wait=30'"
    return f"/drain asks for the header {CONTROL_HEADER}, which no web page can send: {why}; call it so: {command}"


def _seconds(wait: str) -> float:
    """The ``?wait=`` of a call. Raises _Refused: it is none."""
    try:
        seconds = float(wait)
    except ValueError:
        seconds = nan
    if not 0 <= seconds <= MAX_DRAIN_WAIT_SECONDS:
        message = f"wait={wait[:40]!r} is no number of seconds from 0 to {MAX_DRAIN_WAIT_SECONDS:.0f}"
        raise _Refused(400, RefusedFor.WAIT, message, "wait")
    return seconds


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # a body, of which the guard lets pass little
