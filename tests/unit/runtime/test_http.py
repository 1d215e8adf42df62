"""Where a process listens, and how long and how many connections may be of those who say or take nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import structlog.testing
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from registry.runtime import http
from registry.runtime.http import CannotListen, HttpServer, listen, listen_as_told
from registry.runtime.http_tls import HttpTls
from registry.runtime.settings import Address
from tests.simulation.loop import virtual
from tests.support.silent import silent_connections
from tests.support.waiting import eventually

GET = b"GET /page HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
KEPT_GET = GET.replace(b"connection: close\r\n", b"")
POST = b"POST /page HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"


@dataclass(frozen=True)
class Port:
    """Where it is, and what it closed by itself."""

    listener: socket.socket
    closed: Counter[str]
    address: str

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address.split(":"))

    async def said(self, words: bytes) -> tuple[int, dict[str, Any]]:
        """The code of the last answer, and the error in it."""
        answer = await self.say(words)
        head, _, body = answer[answer.rindex(b"HTTP/1.1") :].partition(b"\r\n\r\n")
        assert b"application/json" in head
        return int(head.split()[1]), json.loads(body)["error"]

    async def say(self, words: bytes) -> bytes:
        """All that comes until the connection ends."""
        async with asyncio.timeout(60):
            reader, writer = await self.open()
            writer.write(words)
            answer = b""
            with contextlib.suppress(ConnectionResetError):  # of what was said, not all was read
                while piece := await reader.read(4096):
                    answer += piece
            writer.close()
        return answer


async def page(_: Request) -> Response:
    return PlainTextResponse("here")


@contextlib.asynccontextmanager
async def served(routes: list[Route] | None = None, tls: HttpTls | None = None) -> AsyncIterator[Port]:
    """A port with a ``/page``, or with these, while the context is open."""
    listener, closed = listen("127.0.0.1", 0), Counter[str]()
    app = Starlette(routes=routes or [Route("/page", page)])
    server = HttpServer(app, listener, lambda reason: closed.update([reason]), tls)
    running = asyncio.create_task(server.run())
    port = Port(listener, closed, f"127.0.0.1:{listener.getsockname()[1]}")
    try:
        yield port
    finally:
        server.stop()
        await running


@pytest.mark.parametrize(
    ("host", "family"), [("::1", socket.AF_INET6), ("::", socket.AF_INET6), ("127.0.0.1", socket.AF_INET)]
)
def test_an_address_of_either_kind_can_be_listened_at(monkeypatch, host, family):
    """On machines that have it: this one may have no IPv6."""
    with listen("127.0.0.1", 0) as there:
        create = Mock(return_value=there)
        monkeypatch.setattr("socket.create_server", create)
        with listen(host, 80) as listener:
            create.assert_called_once_with((host, 80), family=family)
            assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_cannot_be_listened_at_is_told_with_its_flag(monkeypatch):
    """Not twice with the address; and a fault of ours is none of it."""
    with listen("127.0.0.1", 0) as taken:
        at = Address(host="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(CannotListen, match=rf"^--http {at}: Address already in use$"):
            listen_as_told("--http", at)
    no = OSError(99, "Cannot assign requested address (while attempting to bind on address ('h', 1))")
    monkeypatch.setattr("socket.create_server", Mock(side_effect=[no, KeyError("of ours")]))
    with pytest.raises(CannotListen, match=r"^--listen h:1: Cannot assign requested address$"):
        listen_as_told("--listen", Address(host="h", port=1))
    with pytest.raises(KeyError):
        listen_as_told("--listen", Address(host="h", port=1))


async def test_a_page_is_served_until_it_is_told_to_stop_and_then_its_socket_is_closed(monkeypatch):
    """R18, R16: what has its own signals keeps them. A connection that rests after a request ends."""
    monkeypatch.setattr(http, "KEPT_SECONDS", 0)
    before = signal.getsignal(signal.SIGINT)
    async with served() as port:
        assert (await port.say(KEPT_GET)).endswith(b"here")
        assert (signal.getsignal(signal.SIGINT), port.closed) == (before, {})
    assert port.listener.fileno() == -1


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        (b"", []),
        (b"GE", [b"408"]),
        (GET[:-2], [b"408"]),
        (KEPT_GET + b"GET /pa", [b"200", b"408"]),
        (POST, [b"200"]),
        (POST + b"123", [b"200"]),
        (POST.replace(b"page", b"takes"), [b"408"]),
    ],
    ids=["nothing", "two letters", "no end", "a second request", "no body", "half a body", "a body that is read"],
)
async def test_who_does_not_end_a_request_in_time_is_told_so_and_cut_off(monkeypatch, said, answers):
    """X3 given-back: the head and, whether or not anybody reads it, the body."""
    left = asyncio.Event()

    async def takes(request: Request) -> Response:
        with contextlib.suppress(ClientDisconnect):
            return PlainTextResponse(await request.body())
        left.set()
        return PlainTextResponse("nobody reads this")

    monkeypatch.setattr(http, "TURN_SECONDS", 0.5)
    pages = [Route("/page", page, methods=["GET", "POST"]), Route("/takes", takes, methods=["POST"])]
    async with served(pages) as port:
        told = await port.say(said)
        assert re.findall(rb"HTTP/1.1 (\d+)", told) == answers
        assert port.closed == {"no_request": 1}
        if b"takes" in said:
            await left.wait()


@pytest.mark.parametrize(
    ("said", "status", "reason", "words"),
    [
        (GET[:-2], 408, "no_request", "did not come within"),
        (b"GET /" + b"x" * http.MAX_HEAD_BYTES, 431, "head_too_large", "32 KiB"),
        (GET[:-2] + b"a: b\r\n" * (http.MAX_HEAD_BYTES // 6), 431, "head_too_large", "32 KiB"),
        (b"EHLO x\r\n\r\n", 400, "bad_request", "curl http"),
    ],
    ids=["half", "a long path", "many headers", "another protocol"],
)
async def test_what_is_no_request_is_told_why_in_the_form_of_all_errors(monkeypatch, said, status, reason, words):
    """X3 given-back: no more is kept of a head than any needs; each is counted, and logged once a minute."""
    monkeypatch.setattr(http, "TURN_SECONDS", 0.5)
    async with served() as port:
        with structlog.testing.capture_logs() as logged:
            for _ in range(2):
                code, error = await port.said(said)
                assert (code, error["reason"], error["field"]) == (status, reason, None)
                assert words in error["message"]
        assert port.closed == {reason: 2}
    assert [one["reason"] for one in logged if one["event"] == "connections_closed"] == [reason]


async def test_those_who_say_nothing_give_way_to_who_asks(monkeypatch):
    """X3 given-back: of an address 20 are connected at once, and each of its requests is answered all the same."""
    monkeypatch.setattr(http, "TURN_SECONDS", 1000.0)
    async with served() as port, asyncio.timeout(60):
        first, writer = await port.open()
        async with silent_connections(port.address, 100):
            for _ in range(20):
                assert (await port.say(GET)).endswith(b"here")
            assert port.closed == {"replaced": 82}
            with contextlib.suppress(ConnectionResetError):
                assert await first.read() == b"", "it is ended at once, not only counted"
        writer.close()


@pytest.mark.parametrize(("most", "reason", "status"), [(200, "address_limit", 429), (5, "port_limit", 503)])
async def test_where_all_are_answered_who_comes_is_refused_at_once(monkeypatch, most, reason, status):
    """X3, R16: and is served again as soon as one of them has its answer."""
    monkeypatch.setattr(http, "MAX_CONNECTIONS", most)
    gate, came = asyncio.Event(), list[Request]()

    async def waits(request: Request) -> Response:
        came.append(request)
        await gate.wait()
        return PlainTextResponse("here")

    async with served([Route("/page", waits), Route("/", page)]) as port:
        with structlog.testing.capture_logs() as logged:
            waiting = [asyncio.create_task(port.say(GET)) for _ in range(min(most, 20))]
            await eventually(lambda: len(came) == len(waiting))
            code, error = await port.said(GET)
            assert (code, error["reason"]) == (status, reason)
            assert "ask again later" in error["message"]
            gate.set()
            assert {answer[-4:] for answer in await asyncio.gather(*waiting)} == {b"here"}
        assert (await port.say(GET)).endswith(b"here")
    assert [(one["event"], one["reason"]) for one in logged if one["log_level"] == "warning"] == [
        ("connections_closed", reason)
    ]


@pytest.mark.parametrize(("bound", "reads"), [("TURN_SECONDS", False), ("ANSWER_SECONDS", True)], ids=["none", "bits"])
async def test_who_takes_no_answer_or_only_by_bits_is_cut_off(monkeypatch, bound, reads):
    """X3 given-back: what was made for them as well, once its time is over."""
    monkeypatch.setattr(http, bound, 0.5)

    async def large(_: Request) -> Response:
        return PlainTextResponse("x" * (32 << 20))

    async with served([Route("/page", large)]) as port, asyncio.timeout(60):
        reader, writer = await port.open()
        writer.write(GET)
        while not port.closed:
            assert not reads or await reader.read(4096)
            await asyncio.sleep(0.01)
        assert port.closed == {"not_taken": 1}
        writer.close()


async def test_who_asks_ahead_and_takes_nothing_is_cut_off_and_costs_little(monkeypatch):
    """X3 given-back: of 20,000 requests that came at once only a few are in memory (45 MiB they were)."""
    monkeypatch.setattr(http, "TURN_SECONDS", 2.0)

    async def small(_: Request) -> Response:
        return PlainTextResponse("x" * 4096)

    async with served([Route("/page", small)]) as port:
        tracemalloc.start()
        try:
            _, writer = await port.open()
            writer.write(KEPT_GET * 20_000)
            await eventually(lambda: port.closed == {"not_taken": 1})
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        writer.close()


async def test_who_asks_ahead_is_answered_all_of_it():
    """In its order, and whatever of it was here at a time."""
    count = 0

    async def counts(_: Request) -> Response:
        nonlocal count
        count += 1
        return PlainTextResponse(f"<{count}>")

    async with served([Route("/page", counts)]) as port:
        told = await port.say(KEPT_GET * 1000 + GET)
        assert [int(one) for one in re.findall(rb"<(\d+)>", told)] == list(range(1, 1002))
        assert not port.closed


class Taking(asyncio.Transport):
    """A connection to who takes its answers slowly."""

    left, is_aborted = 100, False

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.is_aborted = True


async def test_who_takes_an_answer_slowly_may():
    """As long as something of it is taken in each of its turns."""
    transport = Taking()
    connection = http._HttpConnection(uvicorn.Config(Starlette()), http._Port(lambda _: None), {})
    connection.connection_made(transport)
    for transport.left in (60, 20, 19):
        connection._turn_over()
        assert not transport.is_aborted
    connection._turn_over()
    assert transport.is_aborted
    connection.connection_lost(ConnectionResetError())


@virtual
async def test_each_answer_has_its_own_time_to_be_taken(monkeypatch):
    """X3 given-back: who took one whole, later than at once, has not taken the next."""
    monkeypatch.setattr(http, "TURN_SECONDS", 9 * http.ANSWER_SECONDS)
    transport, closed = Taking(), list[str]()
    connection = http._HttpConnection(uvicorn.Config(Starlette()), http._Port(closed.append), {})
    connection.connection_made(transport)
    connection.pause_writing()
    transport.left = 0
    connection.resume_writing()
    await asyncio.sleep(http.ANSWER_SECONDS - 1)
    transport.left = 100
    connection.pause_writing()
    await asyncio.sleep(http.ANSWER_SECONDS - 1)
    assert not closed
    await asyncio.sleep(2)
    assert (transport.is_aborted, closed) == (True, ["not_taken"])
    connection.connection_lost(ConnectionResetError())


async def test_as_many_may_wait_as_the_kernel_is_to_keep(monkeypatch):
    """A burst of probes and clients is not refused; uvicorn would have it keep as many as it accepts at once."""
    order = Mock()
    monkeypatch.setattr(uvicorn.Server, "startup", AsyncMock(side_effect=order.uvicorn))
    server = http.Server(uvicorn.Config(Starlette()))
    await server.startup([order])
    assert [call[0] for call in order.mock_calls] == ["uvicorn", "listen"]
    order.listen.assert_called_once_with(http._QUEUED)
    await server.startup()


async def test_what_follows_a_request_spoils_no_answer_that_is_under_way():
    """X3: an error amid it would be taken for a part of it."""
    transport, closed = Taking(), list[str]()
    connection = http._HttpConnection(uvicorn.Config(Starlette()), http._Port(closed.append), {})
    connection.connection_made(transport)
    connection.data_received(KEPT_GET)
    connection.data_received(b"\0\r\n\r\n")
    assert (closed, transport.written, transport.is_closed) == (["bad_request"], b"", True)
    connection.connection_lost(None)


async def test_a_body_that_is_late_spoils_no_answer_that_has_begun():
    """X3: whoever answers before it has all of a request."""
    transport, closed = Taking(), list[str]()
    connection = http._HttpConnection(uvicorn.Config(Starlette()), http._Port(closed.append), {})
    connection.connection_made(transport)
    connection.data_received(POST)
    connection.cycle.response_started, transport.left = True, 0
    connection._turn_over()
    assert (closed, transport.written, transport.is_closed) == (["no_request"], b"", True)
    connection.connection_lost(None)


@pytest.mark.parametrize(
    ("end", "reason"), [(b"\0\r\n\r\n", "bad_request"), (b"a: b\r\n" * 9000, "head_too_large"), (b"\r\n", None)]
)
async def test_what_is_wrong_with_a_request_is_said_once(end, reason):
    """S6: a head that breaks off and is too large too ended for one reason."""
    transport, closed = Taking(), list[str]()
    connection = http._HttpConnection(uvicorn.Config(Starlette()), http._Port(closed.append), {})
    connection.connection_made(transport)
    connection.data_received(GET[:-2] + b"a: b\r\n" * (9000 if reason else 900) + end)
    assert closed == ([reason] if reason else [])
    assert transport.written.count(b"HTTP/1.1") == len(closed)
    connection.connection_lost(None)
