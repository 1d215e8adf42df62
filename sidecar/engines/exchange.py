"""Sends HTTP/1.1 requests in one piece over a connection of their own, and reads the replies in their order.

A call that changes the engine must not meet a kept-alive connection that is being closed, since nobody could tell then
whether it was carried out. A swap's two requests must reach the engine together, so that as few requests as possible
find the name missing in between. And a look at the engine is one round trip, answered by one process.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

CONNECT_SECONDS = 2.0
MAX_REPLY_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP reply that was read to its end."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """No whole reply came: the request may or may not be carried out. `message` says what came instead."""

    message: str


@dataclass(frozen=True, slots=True)
class NotSent:
    """No connection could be made, so certainly nothing was carried out."""

    message: str


@dataclass(frozen=True, slots=True)
class Get:
    """A GET request."""

    path: str


@dataclass(frozen=True, slots=True)
class JsonPost:
    """A POST request with a JSON body."""

    path: str
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Delete:
    """A DELETE request."""

    path: str


Change = JsonPost | Delete
Request = Get | Change
_METHODS = {Get: "GET", JsonPost: "POST", Delete: "DELETE"}


def unheard() -> None:
    """Does nothing when requests are on their way."""


class Exchange:
    """How to reach one server. Each call makes a connection and closes it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]

    async def send(
        self,
        requests: Sequence[Request],
        headers: Mapping[str, str],
        *,
        timeout_seconds: float,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        on_sent: Callable[[], None] = unheard,
    ) -> list[Reply | Lost] | NotSent:
        """Sends all requests at once.

        Args:
            requests: in the order in which the server shall carry them out.
            headers: sent with each of them.
            timeout_seconds: for all replies together, after the connection is made.
            max_reply_bytes: a reply whose body is larger counts as lost.
            on_sent: called once all bytes are on their way, before a reply is read.

        Returns:
            One answer per request, in order.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except (OSError, TimeoutError) as error:
            return NotSent(f"no connection to {self._authority}: {str(error) or 'no answer'}")
        try:
            return await self._converse(reader, writer, requests, headers, timeout_seconds, max_reply_bytes, on_sent)
        finally:
            writer.close()

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        requests: Sequence[Request],
        headers: Mapping[str, str],
        timeout_seconds: float,
        max_reply_bytes: int,
        on_sent: Callable[[], None],
    ) -> list[Reply | Lost]:
        answers: list[Reply | Lost] = []
        try:
            async with asyncio.timeout(timeout_seconds):
                writer.write(b"".join(self._wire(h11.Connection(h11.CLIENT), one, headers) for one in requests))
                await writer.drain()
                on_sent()
                connection = h11.Connection(h11.CLIENT)
                for request in requests:
                    if answers:
                        connection.start_next_cycle()
                    self._wire(connection, request, headers)  # for the parser's own state; the bytes are sent already
                    answers.append(await _read_reply(reader, connection, max_reply_bytes))
        except TimeoutError:
            lost = Lost(f"no answer within {timeout_seconds:g} s")
        except (OSError, h11.ProtocolError) as error:
            lost = Lost(f"the connection broke: {error}")
        else:
            return answers
        return [*answers, *[lost] * (len(requests) - len(answers))]

    def _wire(self, connection: h11.Connection, request: Request, headers: Mapping[str, str]) -> bytes:
        sent, body = {"Host": self._authority, **headers}, b""
        if isinstance(request, JsonPost):
            body = json.dumps(request.body).encode()
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        events = (
            h11.Request(method=_METHODS[type(request)], target=self._base + request.path, headers=list(sent.items())),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        return b"".join(connection.send(event) or b"" for event in events)


async def _read_reply(reader: asyncio.StreamReader, connection: h11.Connection, max_bytes: int) -> Reply:
    """Reads one reply to its end.

    Raises:
        OSError, h11.ProtocolError: there is none, or it is no HTTP, or its body is larger than `max_bytes`.
    """
    status, body = 0, bytearray()
    while True:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                connection.receive_data(await reader.read(_READ_BYTES))
            case h11.Response(status_code=status):
                pass
            case h11.Data(data=data):
                body += data
                if len(body) > max_bytes:
                    raise h11.RemoteProtocolError(f"a reply of more than {max_bytes} bytes")
            case h11.EndOfMessage():
                return Reply(status, bytes(body))
            case h11.ConnectionClosed():
                raise h11.RemoteProtocolError("closed without a reply")
