"""The way to an engine: what is sent in one piece, what comes of what does not come back whole, and TLS."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock, Mock

import pytest

from registry.tools.devstack.processes import free_ports
from sidecar.engines.transport import (
    CONNECT_SECONDS,
    GetRequest,
    Lost,
    NotSent,
    PostRequest,
    Reply,
    Transport,
)
from tests.simulation.loop import virtual
from tests.support.tls import Authority
from tests.support.web import Site, serving


async def answer_of(transport: Transport) -> Reply | NotSent:
    """The answer; NotSent: there was no connection."""
    found = await transport.send([GetRequest("/a")], {}, timeout_seconds=60)
    if isinstance(found, NotSent):
        return found
    (one,) = found
    assert isinstance(one, Reply)
    return one


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://engine", 80), ("https://engine", 443), ("http://engine:8000/base", 8000), ("https://engine:8", 8)],
)
async def test_without_a_port_it_is_that_of_the_scheme(monkeypatch, url, port):
    """As for any other client; an identity is looked for at the same one."""
    refused = AsyncMock(side_effect=ConnectionRefusedError)
    monkeypatch.setattr(asyncio, "open_connection", refused)
    assert isinstance(await answer_of(Transport(url)), NotSent)
    assert [call.args for call in refused.await_args_list] == [("engine", port)]


@virtual
async def test_a_connection_is_waited_for_two_seconds(monkeypatch):
    """R18: an engine whose host does not answer is told as one that nobody reaches, soon enough."""
    monkeypatch.setattr("sidecar.engines.transport.CONNECT_SECONDS", CONNECT_SECONDS)
    monkeypatch.setattr(asyncio, "open_connection", lambda *_, **__: asyncio.Event().wait())
    assert await answer_of(Transport("http://engine")) == NotSent("no connection to engine: no answer")
    assert asyncio.get_running_loop().time() == pytest.approx(2.0)


async def test_authorities_are_read_again(tmp_path, monkeypatch):
    """R13 static-stable: a new one counts from the next call on; what is no authority, or gone, changes nothing."""
    old, new = (Authority(tmp_path / name, name).issue("engine") for name in ("old", "new"))
    file = tmp_path / "authorities"
    file.write_bytes(old.ca.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with serving(Site({"/a": b"a"}), old) as engine, serving(Site({"/a": b"b"}), new) as other:
        transport, replaced = Transport(engine.url), Transport(other.url)
        assert await answer_of(transport) == Reply(200, b"a")
        assert isinstance(await answer_of(replaced), NotSent)
        for content in (b"?", None, new.ca.read_bytes()):
            file.unlink() if content is None else file.write_bytes(content)
            expected = NotSent if content == new.ca.read_bytes() else Reply
            assert isinstance(await answer_of(transport), expected)
        assert await answer_of(replaced) == Reply(200, b"b")


@asynccontextmanager
async def answering(*pieces: bytes, wait: asyncio.Event | None = None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that reads until it has nothing to read, answers with the pieces, and closes; its URL, what it read."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(1 << 20))
        if wait is not None:
            await wait.wait()
        for piece in pieces:
            writer.write(piece)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NO = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
ALL = (GetRequest("/a"), PostRequest("/b", {"c": 1}), GetRequest("/d"))


async def test_requests_go_out_in_one_piece_and_their_answers_come_in_order():
    """R6: as few requests as possible find a name missing between the two of a swap."""
    heard: list[int] = []
    async with answering(OK + NO[:9], NO[9:] + OK) as (url, seen):
        host = url.removeprefix("http://")
        transport = Transport(f"http://user:secret@{host}/base/")
        answers = await transport.send(
            ALL, {"X-One": "1"}, timeout_seconds=60, on_sent=lambda: heard.append(len(heard))
        )
    assert (answers, heard) == ([Reply(200, b"ok"), Reply(404, b""), Reply(200, b"ok")], [0])
    (sent,) = seen
    assert sent.count(b"HTTP/1.1\r\n") == 3
    assert sent.count(f"{host}\r\n".encode()) == sent.lower().count(b"x-one: 1\r\n") == 3
    assert b"secret" not in sent
    places = [sent.find(line) for line in (b"GET /base/a ", b"POST /base/b ", b'{"c": 1}', b"GET /base/d ")]
    assert places == sorted(places)
    assert -1 not in places
    assert b"application/json" in sent


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ((), 0),
        ((b"hello\r\n\r\n",), 0),
        ((OK,), 1),
        ((OK[:-1],), 0),
        ((OK, NO, OK[:9]), 2),
        ((OK, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789", OK), 1),
        ((OK, b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678", OK), 3),
    ],
    ids=str,
)
async def test_what_has_no_whole_answer_is_lost_from_there_on(pieces, whole):
    """R6, R16: whether it was carried out is not known; nor is anything believed of what came after it."""
    async with answering(*pieces) as (url, _):
        answers = await Transport(url).send(ALL, {}, timeout_seconds=60, max_reply_bytes=8)
    assert not isinstance(answers, NotSent)
    assert [type(one) for one in answers] == [Reply] * whole + [Lost] * (3 - whole)


CLOSING = (
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.0 200 OK\r\n\r\nok",
)


@pytest.mark.parametrize("piece", CLOSING, ids=str)
async def test_where_connections_end_with_each_answer_requests_go_one_by_one(piece):
    """R17: all are carried out, in order, each on a connection of its own."""
    async with answering(piece) as (url, seen):
        transport = Transport(url)
        for _ in range(2):
            assert await transport.send(ALL, {}, timeout_seconds=60) == [Reply(200, b"ok")] * 3
    assert [one.count(b"HTTP/1.1\r\n") for one in seen] == [3, 1, 1, 1, 1, 1]
    assert [one.split()[0] for one in seen] == [b"GET", b"POST", b"GET"] * 2


async def test_a_server_that_keeps_connections_again_gets_all_at_once_again(monkeypatch):
    """R6: a proxy was exchanged for another."""
    connect = asyncio.open_connection
    async with answering(CLOSING[0]) as (url, _), answering(OK, OK, OK) as (other, seen):
        transport, port = Transport(url), int(other.rpartition(":")[2])
        await transport.send(ALL, {}, timeout_seconds=60)
        monkeypatch.setattr(asyncio, "open_connection", lambda host, _, ssl: connect(host, port, ssl=ssl))
        await transport.send([ALL[0]], {}, timeout_seconds=60)
        await transport.send(ALL, {}, timeout_seconds=60)
    assert [one.count(b"HTTP/1.1\r\n") for one in seen] == [1, 3]


async def test_a_connection_that_cannot_be_made_again_loses_the_rest(monkeypatch):
    """R17: what was answered is known; of the rest a look tells."""
    async with answering(CLOSING[0]) as (url, _):
        connect, count = asyncio.open_connection, iter(range(9))

        async def once(*where: object, **how: object) -> object:
            if next(count):
                raise ConnectionRefusedError("refused")
            return await connect(*where, **how)  # type: ignore[arg-type]

        monkeypatch.setattr(asyncio, "open_connection", once)
        answers = await Transport(url).send(ALL, {}, timeout_seconds=60)
    assert not isinstance(answers, NotSent)
    assert [type(one) for one in answers] == [Reply, Lost, Lost]


def encoded(name: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Encoding: {name}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("piece", "found"),
    [
        pytest.param(encoded("gzip", gzip.compress(b"ok")), "ok", id="gzip"),
        pytest.param(encoded("X-Gzip", gzip.compress(b"ok")), "ok", id="its old name"),
        pytest.param(encoded("deflate", zlib.compress(b"ok")), "ok", id="deflate"),
        pytest.param(encoded("identity", b"ok"), "ok", id="none, by name"),
        pytest.param(encoded("br", b""), "", id="another, of nothing"),
        pytest.param(encoded("br", b"??"), "encoded by 'br', which nobody asked for", id="another"),
        pytest.param(encoded("gzip, br", b"??"), "encoded by 'gzip, br', which nobody asked for", id="two"),
        pytest.param(encoded("gzip", b"ok"), "not encoded as it says, by gzip", id="plain"),
        pytest.param(encoded("gzip", gzip.compress(b"ok")[:-1]), "not encoded as it says, by gzip", id="cut"),
        pytest.param(encoded("gzip", gzip.compress(b"ok") * 2), "not encoded as it says, by gzip", id="more behind"),
        pytest.param(encoded("gzip", gzip.compress(b"0" * 1_000_000)), "more than 100 bytes", id="bomb"),
        pytest.param(encoded("gzip", gzip.compress(b"") * 9), "more than 100 bytes", id="many of nothing"),
    ],
)
async def test_encodings_that_nobody_asked_for_are_undone_or_named(piece, found):
    """R17, X2: within the bounds of a plain body, however much it says to be."""
    async with answering(piece) as (url, seen):
        answers = await Transport(url).send([GetRequest("/a")], {}, timeout_seconds=60, max_reply_bytes=100)
    assert not isinstance(answers, NotSent)
    (answer,) = answers
    assert b"accept-encoding: identity" in seen[0].lower()
    assert found in (answer.body.decode() if isinstance(answer, Reply) else answer.message)


async def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_it_may_take():
    """R16: the connection stands, and nothing comes; that all was sent is told all the same."""
    never, heard = asyncio.Event(), list[None]()
    async with answering(wait=never) as (url, _):
        answers = await Transport(url).send(ALL, {}, timeout_seconds=0.05, on_sent=lambda: heard.append(None))
        never.set()
    assert answers == [Lost("no answer within 0.05 s")] * 3
    assert heard == [None]


async def test_without_a_connection_nothing_was_sent_and_no_secret_is_told():
    """X1."""
    (port,) = free_ports(1)
    found = await Transport(f"http://user:secret@127.0.0.1:{port}").send(ALL, {}, timeout_seconds=60)
    assert isinstance(found, NotSent)
    assert f"127.0.0.1:{port}" in found.message
    assert "secret" not in found.message


class Line:
    """The writing end of a connection, which notes what is done with it in which order."""

    def __init__(self, did: list[object]) -> None:
        self.did = did

    def write(self, content: bytes) -> None:
        self.did.append(content.count(b"HTTP/1.1\r\n"))

    async def drain(self) -> None:
        self.did.append("drained")

    def close(self) -> None:
        self.did.append("closed")


def connected(monkeypatch) -> tuple[asyncio.StreamReader, list[object]]:
    """A connection in memory: what comes through it, and what was done with it."""
    reader, did = asyncio.StreamReader(), list[object]()
    monkeypatch.setattr(asyncio, "open_connection", AsyncMock(return_value=(reader, Line(did))))
    return reader, did


async def test_all_is_on_its_way_before_that_is_told_and_the_end_is_a_closed_connection(monkeypatch):
    """R6, R9: whoever hears it counts what may be carried out from then on."""
    reader, did = connected(monkeypatch)
    reader.feed_data(OK + NO)
    reader.feed_data(OK)
    answers = await Transport("http://e").send(ALL, {}, timeout_seconds=60, on_sent=lambda: did.append("told"))
    assert answers == [Reply(200, b"ok"), Reply(404, b""), Reply(200, b"ok")]
    assert did == [3, "drained", "told", "closed"]


async def test_a_connection_that_breaks_loses_what_did_not_come_and_a_fault_of_ours_is_told(monkeypatch):
    """R6, R12: nothing is concluded from a fault, not even that nothing was sent."""
    (reader, did), transport = connected(monkeypatch), Transport("http://e")
    reader.set_exception(ConnectionResetError("reset by peer"))
    lost = [Lost("the connection broke: reset by peer")] * 3
    assert await transport.send(ALL, {}, timeout_seconds=60) == lost
    fault = Mock(side_effect=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        await transport.send(ALL, {}, timeout_seconds=60, on_sent=fault)
    assert did == [3, "drained", "closed"] * 2
    monkeypatch.setattr(asyncio, "open_connection", fault)
    with pytest.raises(ZeroDivisionError):
        await transport.send(ALL, {}, timeout_seconds=60)


@pytest.mark.parametrize(("size_bytes", "is_kept"), [(256 << 10, True), ((256 << 10) + 1, False)])
async def test_an_answer_has_256_kib_at_most(monkeypatch, size_bytes, is_kept):
    """R16 bounded: unless more is asked for."""
    reader, _ = connected(monkeypatch)
    reader.feed_data(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size_bytes + b"x" * size_bytes)
    [answer] = await Transport("http://e").send([GetRequest("/a")], {}, timeout_seconds=60)
    assert isinstance(answer, Reply if is_kept else Lost)
