"""The way of clients that resolve names themselves."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, IncompleteRead, RemoteDisconnected

import pytest

from registry.sources import connections
from registry.sources.base import SourceLimits
from registry.sources.connections import MAX_HEAD_BYTES, Forwarder
from tests.support.web import Exchange, Site, serving

MOST_BYTES = 1000


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
    forwarder = Forwarder("store.test", port, SourceLimits(), MOST_BYTES)
    connection = HTTPConnection(forwarder.url.removeprefix("http://"), timeout=60)
    yield connection
    connection.close()
    forwarder.close()


def url(site: Site, path: str = "/a") -> str:
    return site.url.replace("127.0.0.1", "store.test") + path


def test_requests_follow_each_other_as_the_host_itself_would_get_them(site, asked):
    site.answers["/a%2Fb;c?d=%2B"] = site.serve
    site.files["/a%2Fb;c"] = b"content"
    for path in ("/a", "/a%2Fb;c?d=%2B"):
        asked.request("GET", url(site, path), headers={"Host": "store.test", "X-Signed": "a  b"})
        answer = asked.getresponse()
        assert (answer.status, answer.read(), answer.headers["ETag"][:1]) == (200, b"content", '"')
    assert [(path, headers["Host"], headers["X-Signed"]) for path, headers in site.seen] == [
        ("/a", "store.test", "a  b"),
        ("/a%2Fb;c?d=%2B", "store.test", "a  b"),
    ]
    assert len(site.accepted) == 1


@pytest.mark.parametrize(
    "head",
    [
        "POST {url} HTTP/1.1",
        "CONNECT evil.test:443 HTTP/1.1",
        "GET http://evil.test/a HTTP/1.1",
        "GET {url}\x7f HTTP/1.1",
        "GET {url} HTTP/1.1\r\nContent-Length: 9",
        "GET {url} HTTP/1.1\r\nTransfer-Encoding: chunked",
        "GET {url} HTTP/1.1\r\nX: " + "x" * MAX_HEAD_BYTES,
        "GET {url} HTTP/1.1\r\nHost: store.test\r\n",
    ],
    ids=["POST", "CONNECT", "elsewhere", "control character", "body", "chunks", "long", "broken off"],
)
def test_nothing_else_passes(site, asked, head):
    """X2: whoever on this host finds the port reaches nothing by it but what they could reach before."""
    asked.connect()
    whole = head if head.endswith("\n") else f"{head}\r\nHost: store.test\r\n\r\n"
    asked.sock.sendall(whole.replace("{url}", url(site)).encode())
    asked.sock.shutdown(socket.SHUT_WR)
    assert asked.sock.recv(1) == b""
    assert site.seen == []


@pytest.mark.parametrize("status", [302, 404, 503])
def test_of_what_is_no_success_only_the_status_passes(site, asked, status):
    """X1, X2: the client would follow a redirect with what it has signed, and make room for an error of any length."""
    site.answers["/a"] = lambda exchange: exchange.send(status, b"x" * 5000, Location="http://evil.test/", ETag='"x"')
    for _ in range(2):
        asked.request("GET", url(site))
        answer = asked.getresponse()
        assert (answer.status, answer.read(), answer.headers.items()) == (status, b"", [("Content-Length", "0")])
    assert len(site.seen) == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Length": MOST_BYTES + 1},
        {"Content_Length": 1 << 62},
        {"Content_Length": "9" * 20},
        {"Connection": "close"},
        {"Transfer_Encoding": "chunked"},
        {"Transfer_Encoding": "chunked", "Content_Length": 3},
        {"Transfer_Encoding": "chunked", "Content_Length": 9},
    ],
)
def test_an_answer_of_another_length_than_it_says_or_of_too_much_breaks_off(site, asked, headers):
    """R16 bounded."""

    def lying(exchange: Exchange) -> None:
        exchange.start(206, **headers)
        exchange.wfile.write(b"5\r\nabcde\r\n0\r\n\r\n")
        exchange.cut()

    site.answers["/a"] = lying
    asked.request("GET", url(site))
    with pytest.raises((RemoteDisconnected, IncompleteRead)):
        asked.getresponse().read()


def test_those_who_say_nothing_keep_no_place(site, asked, monkeypatch):
    """X3 given-back: as many as there are places for, and a request comes through."""
    monkeypatch.setattr(connections, "FIRST_REQUEST_SECONDS", 0.5)
    with ExitStack() as silent:
        for _ in range(connections.MAX_FORWARDED):
            silent.enter_context(socket.create_connection((asked.host, asked.port), timeout=60))
        asked.request("GET", url(site), headers={"Host": "store.test"})
        assert asked.getresponse().read() == b"content"


def test_where_nobody_listens_the_client_hears_of_it(site, asked, monkeypatch):
    def refused(*_: object, **__: object) -> socket.socket:
        raise ConnectionRefusedError

    asked.connect()
    monkeypatch.setattr("socket.create_connection", refused)
    asked.request("GET", url(site))
    assert asked.sock.recv(1) == b""


def test_a_client_that_stays_connected_keeps_no_process_from_its_end(site, asked):
    """R12 crash-only."""
    asked.request("GET", url(site))
    asked.getresponse().read()
    ours = [one for one in threading.enumerate() if one.name in {"forwarder", "forwarding"}]
    assert {one.name for one in ours} == {"forwarder", "forwarding"}
    assert all(one.daemon for one in ours)


def test_a_way_that_is_closed_may_be_closed_again():
    """R12: and nobody gets in any more."""
    forwarder = Forwarder("store.test", 80, SourceLimits(), MOST_BYTES)
    for _ in range(2):
        forwarder.close()
    host, _, port = forwarder.url.removeprefix("http://").partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60)


def test_a_fault_of_ours_gives_the_place_back(monkeypatch):
    """X3 given-back: else so many of them would be the end of all requests."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    forwarder = Forwarder("store.test", 80, SourceLimits(), MOST_BYTES)
    monkeypatch.setattr(forwarder, "_forward_all", broken)
    places = sum(forwarder._free.acquire(blocking=False) for _ in range(2 * connections.MAX_FORWARDED))
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(ZeroDivisionError):
        forwarder._forward(ours)
    assert (places, forwarder._free.acquire(blocking=False)) == (connections.MAX_FORWARDED, True)
    forwarder.close()
