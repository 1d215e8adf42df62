"""The way of clients that resolve names themselves."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest

from registry.sources import connections
from registry.sources.base import SourceLimits
from registry.sources.connections import MAX_HEAD_BYTES, Forwarder
from tests.support.web import Site, serving


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site({"/a": b"content"})) as site:
        yield site


@pytest.fixture
def asked(site, monkeypatch) -> Iterator[HTTPConnection]:
    """A connection to a forwarder to the site, which has the name store.test."""
    port, resolve, connect = int(site.url.rpartition(":")[2]), socket.getaddrinfo, socket.create_connection
    away = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", port))]
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *a, **k: away if "test" in host else resolve(host, *a, **k))

    def connected(address: tuple[str, int], *rest: object, **more: object) -> socket.socket:
        return connect(("127.0.0.1", address[1]), *rest, **more)

    monkeypatch.setattr("socket.create_connection", connected)
    forwarder = Forwarder("store.test", port, SourceLimits())
    connection = HTTPConnection(forwarder.url.removeprefix("http://"), timeout=60)
    yield connection
    connection.close()
    forwarder.close()


def test_requests_follow_each_other_as_the_host_itself_would_get_them(site, asked):
    for _ in range(2):
        asked.request("GET", "http://store.test/a", headers={"Host": "store.test"})
        assert asked.getresponse().read() == b"content"
    assert [(path, headers["Host"]) for path, headers in site.seen] == [("/a", "store.test")] * 2
    assert len(site.accepted) == 1


@pytest.mark.parametrize(
    "head",
    [
        "POST http://store.test/a HTTP/1.1",
        "CONNECT evil.test:443 HTTP/1.1",
        f"GET /a HTTP/1.1\r\nX: {'x' * MAX_HEAD_BYTES}",
    ],
    ids=["POST", "CONNECT", "long"],
)
def test_nothing_else_passes(site, asked, head):
    """X2: whoever on this host finds the port reaches nothing by it but what they could reach before."""
    asked.connect()
    asked.sock.sendall(f"{head}\r\n\r\n".encode())
    assert asked.sock.recv(1) == b""
    assert site.seen == []


def test_those_who_say_nothing_keep_no_place(site, asked, monkeypatch):
    """X3 given-back: as many as there are places for, and a request comes through."""
    monkeypatch.setattr(connections, "FIRST_REQUEST_SECONDS", 0.5)
    with ExitStack() as silent:
        for _ in range(connections.MAX_FORWARDED):
            silent.enter_context(socket.create_connection((asked.host, asked.port), timeout=60))
        asked.request("GET", "http://store.test/a", headers={"Host": "store.test"})
        assert asked.getresponse().read() == b"content"


def test_where_nobody_listens_the_client_hears_of_it(site, asked, monkeypatch):
    def refused(*_: object, **__: object) -> socket.socket:
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", refused)
    with socket.socket() as client:
        client.settimeout(60)
        client.connect((asked.host, asked.port))
        assert client.recv(1) == b""


def test_an_end_of_the_host_is_the_end_of_the_client_s_connection(site, asked):
    """Else it would wait for an answer that never comes."""
    site.answers["/a"] = lambda exchange: exchange.cut()
    asked.connect()
    asked.sock.sendall(b"GET http://store.test/a HTTP/1.1\r\nHost: store.test\r\n\r\n")
    assert asked.sock.recv(1) == b""


def test_a_client_that_stays_connected_keeps_no_process_from_its_end(asked):
    """R12 crash-only."""
    asked.request("GET", "http://store.test/a")
    asked.getresponse().read()
    ours = [one for one in threading.enumerate() if one.name in {"forwarder", "forwarding", "answering"}]
    assert {one.name for one in ours} == {"forwarder", "forwarding", "answering"}
    assert all(one.daemon for one in ours)


def test_a_way_that_is_closed_may_be_closed_again():
    """R12: and nobody gets in any more."""
    forwarder = Forwarder("store.test", 80, SourceLimits())
    for _ in range(2):
        forwarder.close()
    host, _, port = forwarder.url.removeprefix("http://").partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60)
