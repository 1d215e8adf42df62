"""Whom a sidecar's pages answer."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from registry.runtime.http import CERTIFICATE
from registry.runtime.page_guard import Refusals
from sidecar.report.page_callers import PageAccess, PageCallers

OWN, OTHER = "10.0.0.3", "10.0.0.9"


async def page(_: Request) -> Response:
    return PlainTextResponse("here")


class Pages:
    """Pages of a sidecar whose address is `OWN`."""

    def __init__(self, access: PageAccess) -> None:
        self.refused = Counter[str]()
        guard = Middleware(PageCallers, access, Refusals(lambda why: self.refused.update([why])))
        paths = ("/livez", "/readyz", "/status", "/metrics", "/drain")
        self._app = Starlette(routes=[Route(path, page) for path in paths], middleware=[guard])

    async def ask(
        self, path: str, *, peer: str = OTHER, says: str | bytes = "", scheme: str = "https", certificate: object = None
    ) -> httpx.Response:
        async def from_there(scope, receive, send):
            shown = {"extensions": {CERTIFICATE: certificate}} if certificate else {}
            await self._app({**scope, **shown, "server": (OWN, 7602)}, receive, send)

        headers = {"Authorization": says} if says else {}
        transport = httpx.ASGITransport(from_there, client=(peer, 5))
        async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://sidecar") as client:
            return await client.get(path, headers=headers)


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    return file


@pytest.mark.parametrize(
    ("path", "is_open"), [("/livez", False), ("/readyz", False), ("/drain", False), ("/status", True)]
)
async def test_probes_and_open_pages_answer_everybody_and_drain_asks_by_itself(path, is_open):
    assert (await Pages(PageAccess(is_open=is_open)).ask(path, scheme="http")).text == "here"


@pytest.mark.parametrize("path", ["/status", "/metrics", "/nowhere"])
async def test_other_pages_ask_who_is_there(path, token_file):
    """A2 deny-by-default: of a sidecar's port."""
    pages = Pages(PageAccess(token_file))
    answer = await pages.ask(path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["reason"] == "credential"
    assert "with a certificate of --http-tls-ca" in answer.json()["error"]["message"]
    assert pages.refused == {"credential": 1}


async def test_its_own_host_a_certificate_and_the_token_are_known(token_file):
    pages = Pages(PageAccess(token_file))
    for known in ({"peer": "127.0.0.1"}, {"peer": OWN}, {"certificate": {"subject": ()}}, {"says": "bearer s3cret "}):
        assert (await pages.ask("/status", **known)).text == "here"
    assert (await pages.ask("/status", says="Bearer s3cret", peer="127.0.0.1", scheme="http")).text == "here"


@pytest.mark.parametrize(
    ("token", "scheme", "told"),
    [
        ("Bearer s3cre", "https", "the token is not that of the sidecar's --http-token-file"),
        ("Bearer", "https", "this page is for callers"),
        ("Basic s3cret", "https", "this page is for callers"),
        ("Bearer s3cret", "http", "ask by https"),
        ("Bearer s3crêt", "https", "is not that of"),
    ],
)
async def test_what_is_not_the_token_is_refused(token_file, token, scheme, told):
    """X1 secret-free: a refusal shows neither token."""
    answer = await Pages(PageAccess(token_file)).ask("/status", says=token.encode(), scheme=scheme)
    assert answer.status_code == 401
    message = answer.json()["error"]["message"]
    assert told in message
    assert "s3cr" not in message


async def test_a_token_is_read_anew(token_file):
    """A6 rotates. Without a file that can be read nobody from elsewhere is known."""
    pages = Pages(PageAccess(token_file))
    token_file.write_text("newer")
    assert (await pages.ask("/status", says="Bearer newer")).status_code == 200
    assert (await pages.ask("/status", says="Bearer s3cret")).status_code == 401
    token_file.unlink()
    answer = await pages.ask("/status", says="Bearer newer")
    assert answer.status_code == 503
    assert "--http-token-file" in answer.json()["error"]["message"]
    assert (await Pages(PageAccess()).ask("/status", says="Bearer None")).status_code == 401
