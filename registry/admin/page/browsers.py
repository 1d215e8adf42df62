"""Guard of the page against other web pages, by Origin and by headers.

The page has no cookie: nothing that a browser adds by itself lets anybody in, but where the service knows nobody, or by
a certificate. So a web page of another origin may ask nothing here, whatever it could do with the answer. It is known
by what every browser says of it: the Origin, and since when browsers say it, the site that fetches.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.runtime.page_guard import MAX_SHOWN, Refusals, RefusedFor

FRONT = "/"
BELOW = "/page/"
# Scripts and styles of our own alone, no text that becomes markup, no frame around it, and no form that leads away.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_OWN_SITES = frozenset({"", "same-origin", "none"})


def foreign_origin(headers: Headers) -> str:
    """The origin or site of a web page elsewhere that asks; empty: there is none. Any page may have a link to here."""
    origin, site = headers.get("origin", ""), headers.get("sec-fetch-site", "")
    if origin:
        return "" if _host(origin) == headers.get("host", "").lower() else origin
    is_link = headers.get("sec-fetch-mode", "") == "navigate"
    return "" if is_link or site in _OWN_SITES else f"of the site {site}"


def _host(origin: str) -> str:
    """The host and port of an origin; a proxy before us may speak TLS, so that the scheme tells nothing."""
    try:
        return urlsplit(origin).netloc.lower() or "-"
    except ValueError:
        return "-"


class BrowserGuard:
    """Middleware of the page's paths."""

    def __init__(self, app: ASGIApp, refusals: Refusals) -> None:
        self._app = app
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands on what no other web page asks for."""
        path = scope["path"]
        if path != FRONT and not path.startswith(BELOW):
            await self._app(scope, receive, send)
        elif foreign := foreign_origin(Headers(scope=scope)):
            message = f"a web page {foreign[:MAX_SHOWN]!r} may not read this one: open it by its own address"
            refused = self._refusals.refuse(scope, 403, RefusedFor.ORIGIN, message, "origin")
            await refused(scope, receive, send)
        else:
            await self._app(scope, receive, _with_headers(send))


def _with_headers(send: Send) -> Send:
    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return told
