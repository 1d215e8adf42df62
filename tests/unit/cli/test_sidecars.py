"""What commands show to a sidecar whose port asks who is there."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from registry.cli.failure import CliError
from registry.cli.sidecars import SidecarAccess, ask_sidecar, sidecar_address
from registry.client.address import Tls
from registry.runtime.http import CERTIFICATE
from registry.runtime.http_tls import HttpTls
from tests.support.tls import Authority
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
