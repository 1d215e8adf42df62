"""HTTP/1.1 requests in one piece over a connection of their own.

A call that changes the engine must not meet a kept-alive connection that is being closed, since nobody could tell then
whether it was carried out. A swap's two requests must reach the engine together, so that as few requests as possible
find the name missing in between. And a look at the engine is one round trip, answered by one process. Where whatever
answers says that it ends the connection, as by HTTP/1.0, requests go out one by one, in the same order.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
import ssl
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import h11

from registry.model.stored import read_json
from registry.sources.base import TrustedAuthorities

# Ten times as many as 10,000 adapters take in a listing. The reader holds the event loop for less than half a second.
MAX_JSON_PARTS = 1_000_000


def json_of(body: bytes) -> object:
    """The JSON of a body; None where it is none, or has more than `MAX_JSON_PARTS` values."""
    if sum(map(body.count, (b"[", b"{", b","))) > MAX_JSON_PARTS:
        return None
    try:
        return read_json(body)
    except ValueError:
        return None


def fields_of(body: bytes) -> Mapping[str, object]:
    """The fields of a JSON object; none where it is no object."""
    fields = json_of(body)
    return fields if isinstance(fields, dict) else {}


CONNECT_SECONDS = 2.0
MAX_REPLY_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024


MAX_METRICS_BYTES = 1024 * 1024
_SAMPLE_VALUE = re.compile(rb"[0-9.eE+-]+")


@dataclass(frozen=True, slots=True)
class MetricLines:
    """The lines of a page of metrics that are read.

    Attributes:
        beginnings: what they begin with.
        newest: what samples begin with whose values are their times, so that the newest tell all. An engine may write
            one for each set of adapters that it ever had requests for. None: there are none.
    """

    beginnings: tuple[bytes, ...]
    newest: bytes | None = None

    def of(self, page: bytes) -> str:
        """The lines of a page. They are looked at one by one, so that a large page holds no other thread up.

        Raises:
            ValueError: they have more than `MAX_METRICS_BYTES`, which is a hundred times as much as engines write.
        """
        found: list[bytes] = []
        samples: list[bytes] = []
        newest_at = -math.inf
        for line in io.BytesIO(page):
            if line.startswith(self.beginnings):
                found.append(line)
            elif self.newest is not None and line.startswith(self.newest):
                at = _time_of(line)
                if at > newest_at:
                    samples, newest_at = [], at
                samples += [line] if at == newest_at else []
        if sum(map(len, (*found, *samples))) > MAX_METRICS_BYTES:
            raise ValueError(f"what is read of it has more than {MAX_METRICS_BYTES} bytes")
        return b"".join((*found, *samples)).decode(errors="replace")


def _time_of(sample: bytes) -> float:
    """Its value. What is no time is later than any, so that its reader meets it; what has none, earlier."""
    value = sample.removesuffix(b"\n").rpartition(b"} ")[2]
    if not _SAMPLE_VALUE.fullmatch(value):
        return -math.inf
    try:
        return float(value)
    except ValueError:
        return math.inf


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
class GetRequest:
    """A GET request."""

    path: str


@dataclass(frozen=True, slots=True)
class PostRequest:
    """A POST request with a JSON body."""

    path: str
    body: Mapping[str, object]


Request = GetRequest | PostRequest
_METHODS = {GetRequest: "GET", PostRequest: "POST"}


def unheard() -> None:
    """Does nothing when requests are on their way."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """Terms of all requests of one connection; see `Transport.send`."""

    headers: Mapping[str, str]
    seconds: float
    max_reply_bytes: int
    on_sent: Callable[[], None]


class _Broken(Exception):
    """A connection ended, or went silent, after these replies."""

    def __init__(self, message: str, answers: Sequence[Reply]) -> None:
        super().__init__(message)
        self.answers = answers


def _authorities() -> TrustedAuthorities:
    paths = ssl.get_default_verify_paths()
    return TrustedAuthorities(Path(paths.cafile or paths.openssl_cafile), ssl.create_default_context)


class Transport:
    """Transport to one server. A call has one connection, or one for each request."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = _authorities() if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._keeps_connections = True

    async def send(
        self,
        requests: Sequence[Request],
        headers: Mapping[str, str],
        *,
        timeout_seconds: float,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        on_sent: Callable[[], None] = unheard,
    ) -> list[Reply | Lost] | NotSent:
        """Sends all requests at once, or one after another where connections end with each answer.

        Args:
            requests: in the order in which the server shall carry them out.
            headers: sent with each of them.
            timeout_seconds: for all replies together, after the connection is made.
            max_reply_bytes: a reply whose body is larger counts as lost.
            on_sent: called once all bytes are on their way, before their replies are read.

        Returns:
            One answer per request, in order.
        """
        answers: list[Reply | Lost] = []
        ends_at = asyncio.get_running_loop().time() + CONNECT_SECONDS + timeout_seconds
        while rest := requests[len(answers) :]:
            connection = await self._connect()
            if isinstance(connection, NotSent):
                if not answers:
                    return connection
                return [*answers, *[Lost(connection.message)] * len(rest)]
            sent = rest if self._keeps_connections else rest[:1]
            seconds = max(0.0, min(timeout_seconds, ends_at - asyncio.get_running_loop().time()))
            terms = _Terms(headers, seconds, max_reply_bytes, on_sent if len(sent) == len(rest) else unheard)
            try:
                answers += await self._converse(*connection, sent, terms)
            except _Broken as broken:
                answers += broken.answers
                return [*answers, *[Lost(str(broken))] * (len(requests) - len(answers))]
            finally:
                connection[1].close()
        return answers

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | NotSent:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                tls = self._tls.newest() if self._tls is not None else None
                return await asyncio.open_connection(self._host, self._port, ssl=tls)
        except OSError as error:  # as is that it took too long
            return NotSent(f"no connection to {self._authority}: {str(error) or 'no answer'}")

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: Sequence[Request], terms: _Terms
    ) -> list[Reply]:
        """The replies, of which there are fewer than requests where the connection ended as it was said to.

        Raises:
            _Broken: something is not answered, and nobody said that it would not be.
        """
        answers: list[Reply] = []
        try:
            async with asyncio.timeout(terms.seconds):
                writer.write(b"".join(self._wire(h11.Connection(h11.CLIENT), one, terms.headers) for one in requests))
                await writer.drain()
                terms.on_sent()
                connection = h11.Connection(h11.CLIENT)
                for request in requests:
                    if answers:
                        connection.start_next_cycle()
                    # For the parser's own state; the bytes are sent already.
                    self._wire(connection, request, terms.headers)
                    answers.append(await _read_reply(reader, connection, terms.max_reply_bytes))
                    self._keeps_connections = connection.our_state is h11.DONE
                    if not self._keeps_connections:
                        break  # what else was sent on it nobody reads (RFC 9112, 9.6)
        except TimeoutError as error:
            raise _Broken(f"no answer within {terms.seconds:.3g} s", answers) from error
        except (OSError, h11.ProtocolError) as error:
            raise _Broken(f"the connection broke: {error}", answers) from error
        return answers

    def _wire(self, connection: h11.Connection, request: Request, headers: Mapping[str, str]) -> bytes:
        sent, body = {"Host": self._authority, "Accept-Encoding": "identity", **headers}, b""
        if isinstance(request, PostRequest):
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
    status, body = 0, _Body("", max_bytes)
    while True:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                connection.receive_data(await reader.read(_READ_BYTES))
            case h11.Response(status_code=status, headers=headers):
                said = [value for name, value in headers if name == b"content-encoding"]
                body = _Body(b",".join(said).decode("latin-1").strip().lower(), max_bytes)
            case h11.Data(data=data):
                body.take(data)
            case h11.EndOfMessage():
                return Reply(status, body.whole())
            case h11.ConnectionClosed():
                raise h11.RemoteProtocolError("closed without a reply")


# What of it can be decoded although nobody asked for it, as zlib names the form.
_DECODED = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class _Body:
    """A body as it comes in. No more than `max_bytes` of it are taken, encoded or not."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._encoding = encoding
        self._decoder = zlib.decompressobj(_DECODED[encoding]) if encoding in _DECODED else None
        self._max_bytes = max_bytes
        self._received = 0
        self._decoded = bytearray()

    def take(self, data: bytes) -> None:
        """Adds a piece.

        Raises:
            h11.RemoteProtocolError: it is too large by now, or not encoded as it is said to be.
        """
        self._received += len(data)
        try:
            room = self._max_bytes + 1 - len(self._decoded)
            self._decoded += data if self._decoder is None else self._decoder.decompress(data, room)
        except zlib.error as error:
            raise h11.RemoteProtocolError(f"a reply that is not encoded as it says, by {self._encoding}") from error
        if max(self._received, len(self._decoded)) > self._max_bytes:
            raise h11.RemoteProtocolError(f"a reply of more than {self._max_bytes} bytes")

    def whole(self) -> bytes:
        """All of it, once it has ended.

        Raises:
            h11.RemoteProtocolError: it cannot be decoded, or not to its end.
        """
        if self._encoding in {"", "identity"} or not self._received:
            return bytes(self._decoded)
        if self._decoder is None:
            asked = "which nobody asked for: have what stands before the engine keep to Accept-Encoding: identity"
            raise h11.RemoteProtocolError(f"a reply encoded by {self._encoding[:40]!r}, {asked}")
        if not self._decoder.eof or self._decoder.unused_data:
            raise h11.RemoteProtocolError(f"a reply that is not encoded as it says, by {self._encoding}")
        return bytes(self._decoded)
