"""Pages of the HTTP port: each has a caller, and passes the hook of all calls.

What a page asks for stands in the table of `registry.access.methods`. Without access control the port knows nobody by
name, so that all callers are anonymous there, and told apart by address; with it they show a token, or a certificate
where the port has TLS and an authority for that.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from registry.access.control import AccessControl, Shown
from registry.access.methods import PAGES
from registry.access.principal import Credential
from registry.access.questions import Resource
from registry.admin.health import AdminMetrics, Probe
from registry.admin.page.browsers import FRONT, BrowserGuard
from registry.admin.page.front import FrontPage, refusal_json, static_routes
from registry.admin.rpc.calls import CallContext, Hook, call_of, is_local, page_asked
from registry.admin.rpc.denials import DenialRecorder, denials_noted
from registry.model.errors import (
    RETRY_AFTER,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RegistryError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from registry.runtime.clock import rfc3339
from registry.runtime.http import CERTIFICATE
from registry.runtime.page_guard import Hosts, PageGuard, Refusals
from registry.runtime.process import Supervisor

PAGE_SECONDS = 5.0
_STATUSES: Mapping[type[RegistryError], int] = {
    InvalidArgument: 400,
    Unauthenticated: 401,
    PermissionDenied: 403,
    NotFound: 404,
    ResourceExhausted: 429,
    Unavailable: 503,
}
Page = Callable[[Request, CallContext], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class PageParts:
    """Parts that the pages stand on.

    Attributes:
        pages: those that others made, by path.
        front: the page ``/`` for a browser.
        insecure: what this service bears unprotected on the network.
        hook: is called before each page.
        hosts: see `PageGuard`.
        access: see `CallLimits`, as `denials`.
    """

    pages: Mapping[str, Page]
    front: FrontPage
    insecure: Sequence[str]
    hook: Hook
    hosts: Hosts
    access: AccessControl | None
    denials: DenialRecorder | None


_ACCESS_NOT_TAKEN = "the access file as it is now is not taken: the log and loraplane doctor say why"


def make_app(probe: Probe, supervisor: Supervisor, metrics: AdminMetrics, parts: PageParts) -> Starlette:
    """The application: pages for machines, and the one for a browser.

    ``/readyz`` tells what is insecure, and which access file counts.
    """
    access = parts.access

    async def livez(_: Request, _call: CallContext) -> Response:
        return JSONResponse({"alive": True})

    async def readyz(_: Request, _call: CallContext) -> Response:
        now, failing = probe.readiness, sorted(supervisor.troubles)
        told = {"ready": now.ready, "reason": now.reason, "insecure": parts.insecure, "failing": failing}
        if access is not None:
            loaded, failed = rfc3339(access.loaded_at), access.failed_reloads
            # It repeats what stands in the file, and this page asks nobody who they are.
            trouble = _ACCESS_NOT_TAKEN if access.trouble else ""
            told["access"] = {"digest": access.digest, "trouble": trouble, "loaded_at": loaded, "failed": failed}
        return JSONResponse(told, status_code=200 if now.ready else 503)

    async def scrape(_: Request, _call: CallContext) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    machines: Mapping[str, Page] = {"/livez": livez, "/readyz": readyz, "/metrics": scrape, **parts.pages}
    front = endpoint(FRONT, parts.front.page, parts.hook, access, parts.denials, parts.front)
    refusals = Refusals(metrics.count_refused_page)
    return Starlette(
        routes=[
            *(Route(path, endpoint(path, page, parts.hook, access, parts.denials)) for path, page in machines.items()),
            Route(FRONT, front, methods=["GET", "POST"]),
            *static_routes(),
        ],
        middleware=[Middleware(PageGuard, parts.hosts, refusals), Middleware(BrowserGuard, refusals)],
        exception_handlers={HTTPException: refusals.no_page},
    )


def endpoint(
    path: str,
    page: Page,
    hook: Hook,
    access: AccessControl | None = None,
    denials: DenialRecorder | None = None,
    front: FrontPage | None = None,
) -> Callable[[Request], Awaitable[Response]]:
    """A page as it is routed to: its caller, the hook, and how it is refused. Of health everybody may hear.

    `front`: says how a browser shows a token, and is refused; None: it is a page for machines.
    """
    asks = None if PAGES[path][1] is Resource.HEALTH else access

    async def serve(request: Request) -> Response:
        said = await front.authorization(request) if front else request.headers.get("authorization", "")
        shown = _shown(request, said)
        if front and asks and shown.credential is Credential.NONE:
            return front.stranger()
        try:
            with denials_noted(denials, path, shown) as by:
                call = by.of(await call_of(path, shown, PAGE_SECONDS, access=asks))
                with asks.within_quota(call.principal) if asks else nullcontext():
                    hook(page_asked(path, request.query_params, call.principal, call.grant))
                    return await page(request, call)
        except RegistryError as error:
            status = _STATUSES.get(type(error), 500)
            wait = error.metadata.get(RETRY_AFTER)
            refused = front.refused(request, error, status) if front else refusal_json(error, status)
            if wait:
                refused.headers["Retry-After"] = f"{math.ceil(float(wait))}"
            return refused

    return serve


def _shown(request: Request, authorization: str) -> Shown:
    peer, agent = _peer(request), request.headers.get("user-agent", "")
    is_private = request.scope.get("scheme") == "https" or is_local(peer)
    return Shown(peer, _facts(request), authorization, is_private=is_private, user_agent=agent)


# Of a certificate's names, by the names that gRPC's facts have for them.
_NAMES = {"URI": "peer_uri", "DNS": "peer_dns", "email": "peer_email"}


def _facts(request: Request) -> dict[str, list[bytes]]:
    """What gRPC would tell of the caller's certificate; empty: it showed none."""
    certificate = request.scope.get("extensions", {}).get(CERTIFICATE)
    if certificate is None:
        return {}
    facts: dict[str, list[bytes]] = {"x509_pem_cert": [certificate["pem"].encode()]}
    for kind, name in certificate.get("subjectAltName", ()):
        facts.setdefault(_NAMES.get(kind, kind), []).append(name.encode())
    pairs = (pair for parts in certificate.get("subject", ()) for pair in parts)
    facts["x509_common_name"] = [value.encode() for name, value in pairs if name == "commonName"]
    return facts


def _peer(request: Request) -> str:
    """The caller, as gRPC names a peer."""
    if request.client is None:
        return "unix:"
    host, port = request.client
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
