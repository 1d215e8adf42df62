"""Guard of a port's pages: the Hosts that they answer to, and what they refuse.

The pages have no users. A browser keeps them from a web page of another origin, unless the name of that page was led to
this address meanwhile (DNS rebinding): then the browser takes both for one origin, and shows by the Host alone which
name it was. So pages answer a Host only if nobody else can give that name away: an address, a name that public name
servers do not have, or one that is this process' own. Probes go on under any name, as those of load balancers may; an
unknown one is told the code and nothing else.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.runtime.process import Repeats

_log = structlog.get_logger()
# Domains that no public name server has: of this host, of its network, of Kubernetes' services.
_NOT_PUBLIC = frozenset({"internal", "local", "localhost", "svc"})
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/?#@\\\[\]]+))(?::[0-9]*)?")
PROBES = frozenset({"/livez", "/readyz"})
# No page takes a body; what a prober may send along is not read.
MAX_BODY_BYTES = 4096
# Characters of a Host, a path or an address that are told.
MAX_SHOWN = 100
_NOT_ALLOWED = 405


class RefusedFor(StrEnum):
    """Why a request was refused. The values are a metric's labels."""

    PATH = "path"
    METHOD = "method"
    HOST = "host"
    ORIGIN = "origin"
    BODY = "body"
    NOT_OWN_HOST = "not_own_host"
    CREDENTIAL = "credential"
    CONTROL = "control"
    CONTROL_FILE = "control_file"
    WAIT = "wait"
    WAITERS = "waiters"


def _name_of(host: str) -> str:
    """The name or address in a Host, in lower case and without its port; empty: it is none."""
    found = _HOST.fullmatch(host.lower())
    return (found[1] or found[2]).rstrip(".") if found else ""


def is_literal(host: str) -> bool:
    """True for a Host that needs no name server: an address or ``localhost``."""
    name = _name_of(host)
    try:
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Hosts:
    """The Hosts that pages answer to.

    Attributes:
        names: what the process is called beside its addresses, in lower case.
        zones: domains of which every name is inside.
    """

    names: frozenset[str] = frozenset()
    zones: frozenset[str] = _NOT_PUBLIC

    def knows(self, host: str) -> bool:
        """True if no web page can have this Host for its own."""
        name = _name_of(host)
        return is_literal(host) or (bool(name) and ("." not in name or name in self.names or self._is_inside(name)))

    def _is_inside(self, name: str) -> bool:
        return any(name.endswith(f".{zone}") for zone in self.zones)


# Those that need no name of one's own.
NAMELESS = Hosts()


def hosts_of(machine: str, resolver: str, *names: str) -> Hosts:
    """The Hosts of a process with `names` on a machine of a name, whose resolv.conf reads so.

    The machine's full name is its name with one of the domains that are searched. In a pod these tell how the services
    of its cluster are called in full.
    """
    searched = [domain.lower().strip(".") for domain in _searched(resolver)]
    full = [f"{machine}.{domain}" for domain in searched]
    services = [domain for domain in searched if domain.startswith("svc.")]
    known = frozenset(name.lower().rstrip(".") for name in (machine, *full, *names))
    return Hosts(known, _NOT_PUBLIC | frozenset(services))


def _searched(resolver: str) -> list[str]:
    """The domains that names are looked up in; the last line of its kind counts."""
    lines = [line.split() for line in resolver.splitlines()]
    found = [words[1:] for words in lines if words and words[0] in {"search", "domain"}]
    return found[-1] if found else []


def own_hosts(*names: str) -> Hosts:
    """See `hosts_of`, for this machine."""
    try:
        resolver = Path("/etc/resolv.conf").read_text(errors="replace")
    except OSError:
        resolver = ""
    return hosts_of(socket.gethostname(), resolver, *names)


def error_body(reason: str, message: str, field: str | None = None) -> dict[str, dict[str, str | None]]:
    """An error as our HTTP ports tell it, as JSON; `field`: what of the request it is about; None: nothing alone."""
    return {"error": {"reason": reason, "message": message, "field": field}}


class Refusals:
    """Answers what is refused with one sentence, counts it, and logs each cause once a minute at most."""

    def __init__(self, count: Callable[[str], None]) -> None:
        """`count`: is told the cause of each."""
        self._count = count
        self._repeats = Repeats()

    def refuse(self, scope: Scope, status: int, cause: RefusedFor, message: str, field: str | None = None) -> Response:
        """The answer, see `error_body`; 413 ends the connection, 429 says when to ask again."""
        self._count(cause.value)
        self._log(scope, status, cause, message)
        headers = {413: {"Connection": "close"}, 429: {"Retry-After": "5"}}.get(status)
        return JSONResponse(error_body(cause.value, message, field), status, headers)

    async def no_page(self, request: Request, error: Exception) -> Response:
        """The answer to what no page answers: handler of an application's `HTTPException`."""
        if isinstance(error, HTTPException) and error.status_code == _NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"the page is not asked by {request.method[:MAX_SHOWN]}: use one of {allowed}"
            refused = self.refuse(request.scope, _NOT_ALLOWED, RefusedFor.METHOD, message, "method")
            refused.headers["Allow"] = allowed
            return refused
        pages = ", ".join(one.path for one in request.app.routes if isinstance(one, Route))
        message = f"there is no page {request.url.path[:MAX_SHOWN]!r} here: there are {pages}"
        return self.refuse(request.scope, 404, RefusedFor.PATH, message, "path")

    def _log(self, scope: Scope, status: int, cause: RefusedFor, message: str) -> None:
        if times := self._repeats.count(cause):
            peer, _ = scope.get("client") or ("", 0)  # as a proxy of this host may say, in any length
            told = {"status": status, "reason": cause.value, "address": peer[:MAX_SHOWN]}
            _log.warning("http_refused", **told, path=scope["path"][:MAX_SHOWN], error=message, times=times)


class PageGuard:
    """Middleware of an application whose pages have no users."""

    def __init__(self, app: ASGIApp, hosts: Hosts, refusals: Refusals) -> None:
        self._app = app
        self._hosts = hosts
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands on what may be answered."""
        headers = Headers(scope=scope)
        host = ", ".join(headers.getlist("host"))
        if _is_large(headers):
            message = f"no page of this port takes a body: send none, and no more than {MAX_BODY_BYTES} bytes"
            await self._refusals.refuse(scope, 413, RefusedFor.BODY, message, "body")(scope, receive, send)
        elif self._hosts.knows(host):
            await self._app(scope, receive, send)
        elif scope["path"] in PROBES:
            await self._app(scope, receive, _code_alone(scope, receive, send, host))
        else:
            await self._refusals.refuse(scope, 421, RefusedFor.HOST, _unknown(host), "host")(scope, receive, send)


def _is_large(headers: Headers) -> bool:
    length = headers.get("content-length", "0")
    is_short = length.isascii() and length.isdecimal() and int(length[:20]) <= MAX_BODY_BYTES
    return not is_short or "transfer-encoding" in headers


def _code_alone(scope: Scope, receive: Receive, send: Send, host: str) -> Send:
    """Sends the code of an answer, and in place of the rest why it is all."""

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            await JSONResponse({"note": _unknown(host)}, message["status"])(scope, receive, send)

    return told


def _unknown(host: str) -> str:
    who = f"the Host {host[:MAX_SHOWN]!r} is" if host else "a request without a Host is"
    return (
        f"{who} not answered here, so that no web page reads this by a name of its own: use an IP address, the "
        "machine's name or a name without a dot, or start the process with --http-names NAME"
    )
