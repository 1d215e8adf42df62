"""Guard of a sidecar's pages against callers from other hosts.

Probes answer everybody. The other pages name adapters and tell of the engine's work: a caller from elsewhere is known
by a certificate of ``--http-tls-ca`` or the token of ``--http-token-file``, which is taken over TLS alone, since others
could read it. ``--insecure`` without either opens the pages to everybody.
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from registry.runtime.http import CERTIFICATE
from registry.runtime.page_guard import PROBES, Refusals, RefusedFor
from registry.runtime.settings import is_loopback
from sidecar.engines.driver import EngineUnusable
from sidecar.engines.vllm.http import read_secret

_BEARER = "bearer "
# Probes are for everybody; `DrainPage` is for callers of its own host alone, and says so itself.
_ASK_NOBODY = PROBES | {"/drain"}


def is_from_own_host(request: Request) -> bool:
    """True for who came by the loopback, or from the address that it came to."""
    client, server = request.client, request.scope.get("server")
    return client is not None and (is_loopback(client.host) or (server is not None and client.host == server[0]))


@dataclass(frozen=True, slots=True)
class PageAccess:
    """Rule for callers from other hosts.

    Attributes:
        token_file: holds the token that they may show; None: there is none.
        is_open: everybody may read.
    """

    token_file: Path | None = None
    is_open: bool = False


# Nobody from elsewhere.
OWN_HOST = PageAccess()


class PageCallers:
    """Middleware that hands on requests of known callers."""

    def __init__(self, app: ASGIApp, access: PageAccess, refusals: Refusals) -> None:
        self._app = app
        self._access = access
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands on what may be answered."""
        if self._access.is_open or scope["path"] in _ASK_NOBODY:
            await self._app(scope, receive, send)
            return
        status, why = await self._refused(Request(scope))
        if not why:
            await self._app(scope, receive, send)
            return
        answer = self._refusals.refuse(scope, status, RefusedFor.CREDENTIAL, why)
        if status == 401:
            answer.headers["WWW-Authenticate"] = "Bearer"
        await answer(scope, receive, send)

    async def _refused(self, request: Request) -> tuple[int, str]:
        """Status and reason of a refusal; no reason: the caller is known."""
        if is_from_own_host(request) or CERTIFICATE in request.scope.get("extensions", {}):
            return 200, ""
        said = request.headers.get("authorization", "")
        if said[: len(_BEARER)].lower() != _BEARER or self._access.token_file is None:
            return 401, (
                "this page is for callers of the sidecar's own host, with a certificate of --http-tls-ca, or with the "
                "token of --http-token-file: ask there, or show one; /livez and /readyz are for everybody"
            )
        if request.url.scheme != "https":
            return 401, "a token is taken over TLS or from this host alone, since others could read it: ask by https"
        try:
            token = await asyncio.to_thread(read_secret, "--http-token-file", self._access.token_file)
        except EngineUnusable as error:
            return 503, error.message
        if not hmac.compare_digest(token.encode(), said[len(_BEARER) :].strip().encode()):
            return 401, "the token is not that of the sidecar's --http-token-file: show that"
        return 200, ""
