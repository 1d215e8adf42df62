"""What commands show to a sidecar whose port asks who is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from registry.cli.failure import CliError, Exit
from registry.cli.sidecars import _MAX_PAGE_BYTES, SidecarAccess, ask_sidecar, sidecar_address
from registry.client.address import Tls
from registry.runtime.http import CERTIFICATE
from registry.runtime.http_tls import HttpTls
from tests.support.tls import Authority
from tests.support.unanswered import nobody_listens
from tests.unit.runtime.test_http import served


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


async def shown(request: Request) -> Response:
    certificate = request.scope.get("extensions", {}).get(CERTIFICATE, {})
    return JSONResponse(
        {"subject": certificate.get("subject"), "authorization": request.headers.get("authorization", "")}
    )


async def test_a_sidecar_sees_the_certificate_and_a_token_of_its_own(authority, tmp_path):
    """X1 secret-free: of the admin service's token it is never told."""
    alice, token = authority.issue("alice"), tmp_path / "token"
    token.write_text("s3cret\n")
    tls = Tls(authority.certificate, alice.certificate, alice.key)
    async with served([Route("/status", shown)], HttpTls(authority.issue("sidecar"))) as port:
        where = sidecar_address(f"https://{port.address}")
        for access, told in (
            (SidecarAccess(tls), {"subject": [[["commonName", "alice"]]], "authorization": ""}),
            (SidecarAccess(Tls(authority.certificate), token), {"subject": None, "authorization": "Bearer s3cret"}),
        ):
            assert await asyncio.to_thread(ask_sidecar, where, "/status", 10, access) == told
        with pytest.raises(CliError, match="certificate verify failed"):
            await asyncio.to_thread(ask_sidecar, where, "/status", 10, SidecarAccess(Tls()))


@pytest.mark.parametrize(
    ("where", "tls", "told"),
    [
        ("sidecar:7602", Tls(), "the token would go unencrypted; name https://HOST:PORT"),
        ("http://sidecar:7602", Tls(), "the token would go unencrypted"),
        ("127.0.0.1:7602", Tls(), "--sidecar-token-file .*/none cannot be read"),
        ("https://127.0.0.1:7602", Tls(ca="no-such-file"), "no-such-file cannot be used for a sidecar: No such file"),
    ],
)
def test_what_cannot_be_shown_is_told_before_anybody_is_asked(tmp_path, where, tls, told):
    """X1 secret-free. Bad input: one clear error."""
    with pytest.raises(CliError, match=told):
        ask_sidecar(where, "/status", 1, SidecarAccess(tls, tmp_path / "none"))


async def dribbled() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await asyncio.sleep(0.02)


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield bytes(1 << 16)
        await asyncio.sleep(0)


REFUSED = {"error": {"message": "the token is none"}}
ODD: dict[str, tuple[Response, str]] = {
    "/refused": (JSONResponse(REFUSED, 401), "the token is none; --sidecar takes"),
    "/earlier": (JSONResponse({"error": "not now"}, 503), "not now; "),
    "/absent": (Response("<html>", 404), "status 404, and no absent: is it a sidecar, and of this release"),
    "/failed": (JSONResponse({"ready": False}, 500), "status 500, and no failed"),
    "/list": (JSONResponse([{}]), "status 200, and no list: is it a sidecar"),
    "/long": (Response(b"{}".ljust(_MAX_PAGE_BYTES + 1)), "status 200, and no long"),
    "/endless": (StreamingResponse(endless()), "status 200, and no endless"),
    "/torn": (Response("{"), "no torn of a sidecar at"),
    "/dribble": (StreamingResponse(dribbled()), "no whole answer within 0.5 s"),
}


async def test_what_is_no_answer_is_told_with_what_is_wrong(tmp_path):
    """R16 bounded: however long it is, or takes. Authorities are for those with TLS alone."""
    access = SidecarAccess(Tls(ca="no-such-file"))
    routes = [Route(path, lambda _, answer=answer: answer) for path, (answer, _) in ODD.items()]
    async with served(routes) as port:
        for path, (_, told) in ODD.items():
            seconds = 0.5 if path == "/dribble" else 60
            with pytest.raises(CliError, match=told) as raised:
                await asyncio.to_thread(ask_sidecar, port.address, path, seconds, access)
            assert raised.value.failure.exit is Exit.UNAVAILABLE


def test_why_nobody_answers_is_told_in_the_systems_words():
    with nobody_listens() as address, pytest.raises(CliError, match=rf"at {address}: .*(refused|failed)"):
        ask_sidecar(address, "/status", 60, SidecarAccess(Tls()))
