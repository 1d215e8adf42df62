"""Where a process listens."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from registry.runtime.http import CannotListen, HttpServer, listen, listen_as_told
from registry.runtime.settings import Address
from tests.support.http_client import http_client


@pytest.mark.parametrize(
    ("host", "family"), [("::1", socket.AF_INET6), ("::", socket.AF_INET6), ("127.0.0.1", socket.AF_INET)]
)
def test_an_address_of_either_kind_can_be_listened_at(monkeypatch, host, family):
    """On machines that have it: this one may have no IPv6."""
    made: list[tuple[Any, Any]] = []
    create = socket.create_server

    def created(address: tuple[str, int], *, family: int) -> socket.socket:
        made.append((address, family))
        return create(("127.0.0.1", 0))

    monkeypatch.setattr("socket.create_server", created)
    with listen(host, 80) as listener:
        assert made == [((host, 80), family)]
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_cannot_be_listened_at_is_told_with_its_flag():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen) as told:
            listen_as_told("--http", Address(host="127.0.0.1", port=port))
    assert str(told.value) == f"--http 127.0.0.1:{port}: Address already in use"


async def _slow(_: Request) -> Response:
    await asyncio.sleep(0)
    return PlainTextResponse("here")


async def test_a_page_is_served_until_it_is_told_to_stop_and_then_its_socket_is_closed():
    """R18, R16: what has its own signals keeps them; the socket is given back."""
    listener = listen("127.0.0.1", 0)
    port, before = listener.getsockname()[1], signal.getsignal(signal.SIGINT)
    server = HttpServer(Starlette(routes=[Route("/page", _slow)]), listener, lambda _: None)
    running = asyncio.create_task(server.run())
    async with asyncio.timeout(60), http_client(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/page")).text == "here"
        assert signal.getsignal(signal.SIGINT) is before
        server.stop()
        await running
    assert listener.fileno() == -1


def test_what_else_a_port_cannot_be_had_for_is_told_without_the_address_twice(monkeypatch):
    def refuses(*_: object, **__: object) -> socket.socket:
        raise OSError(99, "Cannot assign requested address (while attempting to bind on address ('h', 1))")

    monkeypatch.setattr("socket.create_server", refuses)
    with pytest.raises(CannotListen, match=r"^--listen h:1: Cannot assign requested address$"):
        listen_as_told("--listen", Address(host="h", port=1))

    def breaks(*_: object, **__: object) -> socket.socket:
        raise KeyError("of ours")

    monkeypatch.setattr("socket.create_server", breaks)
    with pytest.raises(KeyError):
        listen_as_told("--listen", Address(host="h", port=1))
