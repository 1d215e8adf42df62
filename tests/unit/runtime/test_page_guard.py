"""Whose names the pages of a port answer to, and how they refuse others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from registry.runtime import page_guard
from registry.runtime.page_guard import (
    MAX_BODY_BYTES,
    NAMELESS,
    PageGuard,
    Refusals,
    RefusedFor,
    hosts_of,
    is_literal,
    own_hosts,
)

POD = "# of a pod\nnameserver 10.0.0.10\nsearch ns.svc.lab.example svc.lab.example lab.example\noptions ndots:5\n"
HOSTS = hosts_of("gpu-1", POD, "lora.example.com", "", "Engine.Example.NET.")

KNOWN = (
    "127.0.0.1|10.1.2.3:7602|[::1]:7602|[fd00::1]|localhost|LOCALHOST.:80|a.localhost|admin-1:7601|gpu-1|"
    "gpu-1.lab.example:7602|lora.example.com|Lora.Example.Com.:80|engine.example.net|admin.loraplane.svc:7601|"
    "admin.loraplane.svc.cluster.local:7601|admin.loraplane.svc.lab.example|gpu-1.local|ip-10-0-0-1.ec2.internal"
).split("|")
UNKNOWN = (
    "|evil.example|evil.example:7602|127.0.0.1.evil.example|localhost.evil.example|evil.lab.example|gpu-2.lab.example|"
    "notlocal.xlocal.example|svc.lab.example.evil.example|gpu-1.lab.example.evil.example|127.0.0.1, evil.example|"
    "evil.example@127.0.0.1|127.0.0.1/evil.example|127.0.0.1#evil.example|::1|[::1|[]|a b|.|:80"
).split("|")


def test_a_host_is_known_that_no_page_of_others_can_have_and_no_other():
    """X2: an address, a name that is nobody's in public, or one of its own; not one that only looks like it."""
    assert [host for host in (*KNOWN, *UNKNOWN) if HOSTS.knows(host)] == KNOWN
    nobodys = [NAMELESS.knows(host) for host in ("10.0.0.1", "admin", "x.svc", "gpu-1.lab.example")]
    assert nobodys == [True, True, True, False]


def test_this_machine_is_known_with_and_without_a_list_of_domains(monkeypatch, tmp_path):
    """R20: by nothing but a literal host, which needs no name server, a replica is drained."""
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-1")
    (tmp_path / "resolv.conf").write_text(
        "search old.example\ndomain lab.example\nsearch\nnameserver 1.1.1.1\nsearch lab.example"
    )
    monkeypatch.setattr(page_guard, "Path", lambda path: tmp_path / Path(path).name)
    found = own_hosts("r-1.example")
    names = ("gpu-1.lab.example", "r-1.example", "gpu-1.old.example")
    assert [found.knows(host) for host in names] == [True, True, False]
    (tmp_path / "resolv.conf").unlink()
    assert not own_hosts().knows("gpu-1.lab.example")
    hosts = ("127.0.0.1:7602", "[::1]:7602", "localhost:1", "10.0.0.1", "sidecar", "a.localhost", "x.svc", "", "[x]")
    assert [is_literal(host) for host in hosts] == [True] * 4 + [False] * 5


class Port:
    """An application behind a guard, and what it counted."""

    def __init__(self) -> None:
        self.counted = Counter[str]()
        self.refusals = Refusals(lambda reason: self.counted.update([reason]))

        async def page(_: Request) -> Response:
            return JSONResponse({"secret": "acme/sql"}, 503)

        routes = [Route(path, page, methods=["GET", "POST"]) for path in ("/status", "/readyz", "/livez")]
        guard, handlers = Middleware(PageGuard, HOSTS, self.refusals), {HTTPException: self.refusals.no_page}
        self.app = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)

    async def ask(self, path: str, host: str = "127.0.0.1", **request: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=f"http://{host}") as client:
            return await client.post(path, **request)


async def test_a_page_tells_an_unknown_host_what_to_do_and_nothing_else():
    """X2: DNS rebinding reads nothing: neither a page that there is nor one that there is not.

    R18 readiness-follows: of a probe any name gets its code, and no more: a load balancer has whatever name it has.
    """
    port = Port()
    assert (await port.ask("/status")).json() == {"secret": "acme/sql"}
    for told in (await port.ask("/status", "evil.example"), await port.ask("/nothing", "evil.example")):
        error = told.json()["error"]
        assert (told.status_code, error["reason"], error["field"]) == (421, "host", "host")
        assert all(one in error["message"] for one in ("'evil.example'", "--http-names", "IP address"))
    for host, most in (("evil\x1b.example", 1000), ("x." * 4000, 600)):
        told = await port.ask("/status", headers={"Host": host})
        assert (told.status_code, len(told.text) < most, "'evil\\\\x1b.example'" in told.text) == (
            421,
            True,
            most > 600,
        )
    assert port.counted == {"host": 4}
    for path in ("/readyz", "/livez"):
        told = await port.ask(path, "lb.example.com")
        assert (told.status_code, list(told.json()), "acme" in told.text) == (503, ["note"], False)
        assert (await port.ask(path)).json() == {"secret": "acme/sql"}
    assert port.counted == {"host": 4}


async def test_what_no_page_answers_is_told_which_does():
    """X2: in the form of all errors, and counted as they are."""
    port = Port()
    missing = await port.ask("/x" + "y" * 4000)
    error = missing.json()["error"]
    assert (missing.status_code, error["reason"], error["field"], len(missing.text) < 400) == (
        404,
        "path",
        "path",
        True,
    )
    assert "/status, /readyz, /livez" in error["message"]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(port.app), base_url="http://127.0.0.1") as client:
        wrong = await client.delete("/status")
    assert (wrong.status_code, wrong.json()["error"]["reason"]) == (405, "method")
    assert all("POST" in told for told in (wrong.headers["allow"], wrong.json()["error"]["message"]))
    assert port.counted == {"path": 1, "method": 1}


async def endless() -> AsyncIterator[bytes]:
    yield b"x"


@pytest.mark.parametrize("sent", ["large", "of no length", "of a length that is none"])
async def test_a_body_is_refused_and_ends_the_connection(sent):
    """X2: no page takes one."""
    port = Port()
    content = {"large": b"x" * (MAX_BODY_BYTES + 1), "of no length": endless()}.get(sent)
    told = await port.ask("/status", content=content, headers={"Content-Length": b"\xb2"} if content is None else {})
    assert (told.status_code, told.json()["error"]["reason"], told.headers["connection"]) == (413, "body", "close")
    assert (await port.ask("/status", content=b"{}")).status_code == 503, "what a prober sends along does no harm"
    assert port.counted == {"body": 1}


async def test_each_cause_is_logged_once_a_minute_at_most():
    """X2: whoever is refused a thousand times writes one line, and is counted a thousand times."""
    port, scope = Port(), {"type": "http", "path": "/x\n", "client": ("10.0.0.1", 1)}

    def refuse(cause: RefusedFor, status: int = 421) -> Response:
        return port.refusals.refuse(scope, status, cause, "why")

    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            refuse(RefusedFor.HOST)
        assert refuse(RefusedFor.WAITERS, 429).headers["retry-after"]
    assert [(one["reason"], one["times"]) for one in logged] == [("host", 1), ("waiters", 1)]
    assert (logged[0]["path"], logged[0]["address"], logged[0]["error"]) == ("/x\n", "10.0.0.1", "why")
    assert port.counted == {"host": 3, "waiters": 1}
