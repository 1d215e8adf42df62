"""TLS of an HTTP port: whom it knows, how its files are replaced, and how long somebody may say nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs

from registry.etcd3.options import TlsFiles
from registry.runtime import http, http_tls
from registry.runtime.http import CERTIFICATE, CannotListen, tls_as_told
from registry.runtime.http_tls import HttpTls
from tests.support.tls import Authority
from tests.support.waiting import eventually
from tests.unit.runtime.test_http import GET, Port, served


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def port_files(authority):
    return authority.issue("port")


async def who(request: Request) -> Response:
    """The subject of the certificate that was shown."""
    shown = request.scope.get("extensions", {}).get(CERTIFICATE, {})
    return JSONResponse([request.url.scheme, shown.get("subject")])


async def large(_: Request) -> Response:
    return PlainTextResponse("x" * (1 << 20))


ROUTES = [Route("/page", who), Route("/large", large)]


def context(ca, own: TlsFiles | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=ca)
    if own:
        made.load_cert_chain(own.certificate, own.key)
    return made


async def ask(port: Port, trusted: ssl.SSLContext, path: str = "/page") -> httpx.Response:
    async with httpx.AsyncClient(verify=trusted, trust_env=False, timeout=60) as client:
        return await client.get(f"https://{port.address}{path}")


async def test_a_client_may_show_a_certificate_of_the_authority_and_need_not(authority, port_files, tmp_path):
    stranger = Authority(tmp_path, "theirs").issue("mallory")
    async with served(ROUTES, HttpTls(port_files)) as port:
        answer = await ask(port, context(authority.certificate, authority.issue("alice")))
        assert answer.json() == ["https", [[["commonName", "alice"]]]]
        assert (await ask(port, context(authority.certificate))).json() == ["https", None]
        assert len((await ask(port, context(authority.certificate), "/large")).content) == 1 << 20
        with pytest.raises(httpx.TransportError):
            await ask(port, context(authority.certificate, stranger))
    async with served(ROUTES, HttpTls(TlsFiles(None, port_files.certificate, port_files.key))) as port:
        answer = await ask(port, context(authority.certificate, authority.issue("alice")))
        assert answer.json() == ["https", None]  # without an authority nobody is asked


async def test_files_are_replaced_without_a_restart(authority, port_files, tmp_path):
    """A6 rotates: certificate, key and the authority of clients; what cannot be read leaves the last good one."""
    theirs = Authority(tmp_path / "other", "theirs")
    files = TlsFiles(tmp_path / "ca", tmp_path / "certificate", tmp_path / "key")

    def put(source: TlsFiles) -> None:
        for old, new in zip(
            (files.ca, files.certificate, files.key), (source.ca, source.certificate, source.key), strict=True
        ):
            shutil.copy(new, old)

    put(port_files)
    async with served(ROUTES, HttpTls(files)) as port:
        alice = authority.issue("alice")
        assert (await ask(port, context(authority.certificate, alice))).json()[1]
        files.key.write_text("no key")
        with capture_logs() as logs:
            assert (await ask(port, context(authority.certificate, alice))).json()[1]
        assert [one["event"] for one in logs] == ["certificate_unreadable"]
        put(theirs.issue("port"))
        assert (await ask(port, context(theirs.certificate, theirs.issue("bob")))).json()[1] == [
            [["commonName", "bob"]]
        ]
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(port, context(authority.certificate))
        with pytest.raises(httpx.TransportError):  # of the authority that was taken away
            await ask(port, context(theirs.certificate, alice))


def is_resumed(port: Port, trusted: ssl.SSLContext) -> bool:
    """A second connection takes up the session of the first, if it may."""
    session, address = None, port.address.split(":")
    for _ in range(2):
        with (
            socket.create_connection((address[0], int(address[1])), 10) as plain,
            trusted.wrap_socket(plain, server_hostname=address[0], session=session) as connection,
        ):
            connection.sendall(GET)
            while connection.recv(4096):
                pass
            session, is_reused = connection.session, connection.session_reused
    return bool(is_reused)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_no_session_is_taken_up_again(authority, port_files, version):
    """A6: it would show a certificate whose authority may have been taken away."""
    trusted = context(authority.certificate, authority.issue("alice"))
    trusted.minimum_version = trusted.maximum_version = version
    async with served(ROUTES, HttpTls(port_files)) as port:
        assert not await asyncio.to_thread(is_resumed, port, trusted)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", GET])
async def test_who_agrees_upon_nothing_has_the_time_of_a_handshake(port_files, monkeypatch, said):
    """R16 bounded; and who sends plain HTTP hears at once that it is none of TLS."""
    monkeypatch.setattr(http_tls, "HANDSHAKE_SECONDS", 0.1)
    async with served(ROUTES, HttpTls(port_files)) as port:
        assert b"200" not in await port.say(said)
        await eventually(lambda: port.closed == {"no_tls": 1})


async def test_where_all_are_answered_another_is_refused(authority, port_files, monkeypatch):
    monkeypatch.setattr(http, "MAX_OF_ADDRESS", 1)
    waiting = asyncio.Event()

    async def slow(_: Request) -> Response:
        waiting.set()
        await asyncio.sleep(1)
        return Response()

    async with served([Route("/page", slow)], HttpTls(port_files)) as port:
        first = asyncio.create_task(ask(port, context(authority.certificate)))
        await waiting.wait()
        with pytest.raises(httpx.TransportError):
            await ask(port, context(authority.certificate))
        assert port.closed == {"address_limit": 1}
        assert (await first).status_code == 200


def test_files_that_cannot_be_used_are_told_with_their_flag(port_files, tmp_path):
    """Bad input: one clear error at the start."""
    wrong = tmp_path / "wrong"
    wrong.write_text(json.dumps("no certificate"))
    assert tls_as_told(None) is None
    for files, told in (
        (TlsFiles(None, wrong, port_files.key), f"^--http-tls-cert: {wrong} is no certificate that fits the key"),
        (TlsFiles(None, port_files.certificate, tmp_path / "none"), "^--http-tls-key: cannot read .*/none: No such"),
        (
            TlsFiles(wrong, port_files.certificate, port_files.key),
            f"^--http-tls-ca: {wrong} is no file of certificates",
        ),
    ):
        with pytest.raises(CannotListen, match=told):
            tls_as_told(files)
