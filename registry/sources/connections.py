"""Connections to judged addresses, and the pool that keeps them.

A name is resolved once, its addresses are judged, and the connection is made to an address that was judged: nobody
resolves the name a second time, so a name server that answers differently then gains nothing. TLS and the Host header
still carry the name, so certificates are checked as ever. No proxy is used and no environment variable but
SSL_CERT_FILE and SSL_CERT_DIR is read.

A connection is in the hands of one staging at a time, and nobody has it while it is kept. Nothing of a staging stays
with it: credentials go with each request, and the watch is that of whoever reads. It is kept only when the answer was
read to its end and nothing came after it, for that would be taken for the answer to somebody else's request.
"""

from __future__ import annotations

import math
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from ipaddress import ip_address
from threading import BoundedSemaphore, Lock, Thread
from time import perf_counter
from typing import Any, BinaryIO

import httpcore

from registry.model.source_uri import DEFAULT_PORTS
from registry.sources.base import ArtifactError, SourceLimits, Stop
from registry.sources.urls import Reach, named_reach

MAX_ADDRESSES = 4
STOP_SECONDS = 0.5  # after which a stopped staging waits no more
_TCP = httpcore.SyncBackend()


class Watch:
    """Waiting of one staging for bytes, on whichever connection: until it is stopped, or the other end is too slow."""

    def __init__(self, limits: SourceLimits, stop: Stop) -> None:
        self.limits = limits
        self.stop = stop
        self.has_answer = False  # a byte has come since somebody last set this to False
        self._answer_until = math.inf
        self._waited_seconds = 0.0
        self._got_bytes = 0

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The whole head of an answer comes within the idle time: what only announces one, as a 103 does, is none."""
        self._answer_until = perf_counter() + self.limits.idle_seconds
        try:
            yield
        finally:
            self._answer_until = math.inf

    def read(self, read: Callable[[float], bytes], timeout_seconds: float) -> bytes:
        """Result of `read`, which waits for at most the seconds that it is given.

        Raises:
            ArtifactError: the staging was stopped.
            httpcore.ReadTimeout: too little has come in the time.
        """
        started = perf_counter()
        if started >= self._answer_until:
            raise httpcore.ReadTimeout("the source announces an answer, and gives none")
        content = self._awaited(read, min(started + timeout_seconds, self._answer_until))
        self._waited_seconds += perf_counter() - started
        self._got_bytes += len(content)
        self.has_answer = self.has_answer or bool(content)
        if self._waited_seconds >= self.limits.pace_seconds:
            self._check_pace()
        return content

    def _awaited(self, read: Callable[[float], bytes], until: float) -> bytes:
        while True:
            self.stop.check()
            left = until - perf_counter()
            try:
                return read(max(0.001, min(left, STOP_SECONDS)))
            except httpcore.ReadTimeout:
                if left <= STOP_SECONDS:
                    raise

    def _check_pace(self) -> None:
        """Counts only the time in which we waited, so that a slow disk of ours is no fault of the source."""
        if self._got_bytes < self._waited_seconds * self.limits.min_bytes_per_second:
            raise httpcore.ReadTimeout("the source is too slow")
        self._waited_seconds, self._got_bytes = 0.0, 0


class WatchedStream(httpcore.NetworkStream):
    """The bytes of a connection, under the watch of the staging that has it at the moment."""

    def __init__(self, stream: httpcore.NetworkStream, watch: Watch) -> None:
        self._stream = stream
        self.watch = watch

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        idle = self.watch.limits.idle_seconds if timeout is None else timeout
        return self.watch.read(lambda seconds: self._stream.read(max_bytes, seconds), idle)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as httpcore has it
        return self._stream.get_extra_info(info)


def connect(origin: httpcore.Origin, reach: Reach, tls: ssl.SSLContext | None, watch: Watch) -> WatchedStream:
    """A new connection to an address that was judged for it, with TLS if that is given.

    Raises:
        ArtifactError: ``address_not_allowed``, or the staging was stopped.
        httpcore.ConnectError, httpcore.ConnectTimeout: it failed.
    """
    host, timeout = origin.host.decode("ascii"), watch.limits.connect_seconds
    stream = _connect_tcp(host, origin.port, reach, watch)
    if tls is not None:
        stream = stream.start_tls(tls, host, timeout)
    return WatchedStream(stream, watch)


def _connect_tcp(host: str, port: int, reach: Reach, watch: Watch) -> httpcore.NetworkStream:
    failure: Exception | None = None
    for address in _addresses(host, port, reach):
        watch.stop.check()
        try:
            return _TCP.connect_tcp(address, port, watch.limits.connect_seconds)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            failure = error
    raise failure or httpcore.ConnectError("the name has no address")


def _addresses(host: str, port: int, reach: Reach) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError("the name cannot be resolved") from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    allowed = [address for address in addresses if reach.allows(address)]
    if addresses and not allowed:
        raise _not_allowed(host, addresses[0], reach)
    return allowed[:MAX_ADDRESSES]


def _not_allowed(host: str, address: str, reach: Reach) -> ArtifactError:
    """A name may lead elsewhere tomorrow, an address never does."""
    if reach is Reach.PUBLIC:
        why = "which is not a public address; --allow-source must name a host of one's own network itself"
    else:
        why = "which no name may lead to; a source on the machine itself takes its address, or localhost, in its URI"
    message = f"{host[:200]} leads to {address}, {why}"
    return ArtifactError("address_not_allowed", message)


def check_leads(host: str, port: int) -> None:
    """Says at once where a host leads that the operator wrote; that it cannot be resolved is said later.

    Raises:
        ArtifactError: ``address_not_allowed``.
    """
    with suppress(httpcore.ConnectError):
        _addresses(host, port, named_reach(host))


# Soon, since a name is resolved and judged anew only for a new connection.
KEPT_SECONDS = 5.0
# As many as a host has workers, at a hub and at the place that its redirects lead to.
MAX_KEPT = 32
Place = tuple[Reach, str]


class KeptConnection(httpcore.HTTP11Connection):
    """One connection, to a place that was judged when it was made."""

    def __init__(self, place: Place, origin: httpcore.Origin, stream: WatchedStream) -> None:
        super().__init__(origin, stream, keepalive_expiry=KEPT_SECONDS)
        self.place = place
        self._stream = stream

    def send(self, request: httpcore.Request, watch: Watch) -> httpcore.Response:
        """Sends a request, and reads the beginning of its answer under the watch of the staging that asks."""
        self._stream.watch = watch
        watch.has_answer = False
        with watch.answering():
            return self.handle_request(request)

    @property
    def may_be_kept(self) -> bool:
        """True if the next bytes on it can only be the answer to the next request."""
        left, _ = self._h11_state.trailing_data
        return self.is_idle() and not left


class ConnectionPool:
    """Connections that the stagings of a host keep open for each other. Close it at the end."""

    def __init__(self, tls: Callable[[], ssl.SSLContext], limits: SourceLimits) -> None:
        self.limits = limits
        self._tls = tls
        self._kept: list[KeptConnection] = []
        self._is_closed = False
        self._mutex = Lock()

    def open(self, place: Place, origin: httpcore.Origin, watch: Watch) -> KeptConnection:
        """A new one.

        Raises:
            ArtifactError: ``address_not_allowed``, ``source_untrusted``, or the staging was stopped.
            httpcore.ConnectError, httpcore.ConnectTimeout: it failed.
        """
        tls = self._tls() if origin.scheme == b"https" else None
        return KeptConnection(place, origin, connect(origin, place[0], tls, watch))

    def take(self, place: Place) -> KeptConnection | None:
        """The one that was used last, for the caller alone."""
        with self._mutex:
            ended = [one for one in self._kept if one.has_expired()]
            self._kept = [one for one in self._kept if one not in ended]
            found = next((one for one in reversed(self._kept) if one.place == place), None)
            if found is not None:
                self._kept.remove(found)
        for one in ended:
            one.close()
        return found

    def give(self, connection: KeptConnection) -> None:
        """Takes back a connection whose answer was closed; it is closed too unless it may be kept."""
        surplus: KeptConnection | None = connection
        with self._mutex:
            if connection.may_be_kept and not self._is_closed:
                self._kept.append(connection)
                surplus = self._kept.pop(0) if len(self._kept) > MAX_KEPT else None
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """Closes what is kept, and whatever is given back later."""
        with self._mutex:
            self._is_closed = True
            kept, self._kept = self._kept, []
        for one in kept:
            one.close()


class SourceRequests:
    """The requests of one staging, one after another: the next one ends the answer to the one before."""

    def __init__(self, connections: ConnectionPool, stop: Stop) -> None:
        self._connections = connections
        self._watch = Watch(connections.limits, stop)
        self._current: tuple[KeptConnection, httpcore.Response] | None = None

    def get(self, url: str, reach: Reach, headers: Iterable[tuple[str, str]]) -> httpcore.Response:
        """Sends a GET to a URL with its path; the answer's body has not been read yet.

        Raises:
            ArtifactError: ``address_not_allowed``, or the staging was stopped.
            httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError: it failed.
        """
        self.close()
        fields = [(name.encode(), value.encode()) for name, value in headers]
        timeouts, target = self._connections.limits.timeouts(), "/" + url.split("/", 3)[3]
        # The target as it is: made from the URL, it would lack what follows a semicolon.
        extensions = {"timeout": timeouts, "target": target.encode()}
        request = httpcore.Request("GET", url, headers=fields, extensions=extensions)
        origin = request.url.origin
        place = (reach, str(origin))
        answer = self._on_kept(place, request)
        if answer is None:
            answer = self._send(self._connections.open(place, origin, self._watch), request)
        return answer

    def _on_kept(self, place: Place, request: httpcore.Request) -> httpcore.Response | None:
        """None: nothing is kept, or it was closed at its other end meanwhile, which says nothing of the source."""
        connection = self._connections.take(place)
        if connection is None:
            return None
        try:
            return self._send(connection, request)
        except (httpcore.NetworkError, httpcore.RemoteProtocolError):
            if self._watch.has_answer:
                raise
            return None

    def _send(self, connection: KeptConnection, request: httpcore.Request) -> httpcore.Response:
        answer = connection.send(request, self._watch)
        self._current = connection, answer
        return answer

    def close(self) -> None:
        """Ends the answer that is being read, and gives its connection back."""
        if self._current is not None:
            connection, answer = self._current
            self._current = None
            answer.close()
            self._connections.give(connection)


MAX_HEAD_BYTES = 64 << 10
# More than a client has whose requests are those of a host's stagings; whoever else finds the port gets no more either.
MAX_FORWARDED = 64
# Whoever finds the port and says nothing has a place for no longer.
FIRST_REQUEST_SECONDS = 10.0
MAX_DIGITS = 18  # of a length
_PASSED = frozenset({b"content-length", b"content-range", b"etag", b"last-modified"})
_WHOLE_OR_PART = frozenset({200, 206})
_BODY = re.compile(rb"content-length:.*[1-9]|transfer-encoding:", re.IGNORECASE)


class Forwarder:
    """A port of the loopback that leads to one host alone, whose address is judged for each connection.

    It is the proxy of a client that would resolve the name itself, follow a redirect anywhere with what it has signed,
    and make room for whatever length an answer says. GETs of that host without a body pass, and nothing else; and of
    an answer its status, and where that is a success, what is needed of its head, and its body.
    """

    def __init__(self, host: str, port: int, limits: SourceLimits, most_bytes: int) -> None:
        """`most_bytes`: of one answer's body; a longer one does not pass."""
        shown = f"[{ip_address(host)}]" if ":" in host else host
        self._origin = f"http://{shown}{'' if port == DEFAULT_PORTS['http'] else f':{port}'}"
        self._reach = named_reach(host)
        self._most_bytes = most_bytes
        self._connections = ConnectionPool(ssl.create_default_context, limits)
        self._free = BoundedSemaphore(MAX_FORWARDED)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._run, name="forwarder", daemon=True).start()

    def close(self) -> None:
        """Takes no more connections; those that are there end when the client closes them."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits for the next
        self._listener.close()
        self._connections.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                self._free.acquire()
                Thread(target=self._forward, args=(ours,), name="forwarding", daemon=True).start()

    def _forward(self, ours: socket.socket) -> None:
        try:
            with ours, suppress(ArtifactError, httpcore.ProtocolError, httpcore.NetworkError, OSError):
                self._forward_all(ours)
        finally:
            self._free.release()

    def _forward_all(self, ours: socket.socket) -> None:
        """Passes one request after another, until the client ends the connection or one of them fails."""
        ours.settimeout(FIRST_REQUEST_SECONDS)
        requests = SourceRequests(self._connections, Stop())
        with ours.makefile("rb") as heads, closing(requests), suppress(httpcore.TimeoutException):
            while (head := _head(heads)) and head[0].startswith(f"GET {self._origin}/"):
                fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in head[1:])]
                answer = requests.get(head[0].split()[1], self._reach, fields)
                ours.settimeout(self._connections.limits.idle_seconds)
                self._pass(answer, ours)
                requests.close()
                ours.settimeout(None)  # the client ends a connection that rests

    def _pass(self, answer: httpcore.Response, ours: socket.socket) -> None:
        """Answers the client; an answer that promises no length, or too much, ends its connection."""
        if answer.status not in _WHOLE_OR_PART:
            ours.sendall(b"HTTP/1.1 %d \r\nContent-Length: 0\r\n\r\n" % answer.status)
            return
        passed = {name.lower(): value for name, value in answer.headers if name.lower() in _PASSED}
        size = passed.get(b"content-length", b"")
        left_bytes = int(size) if size.isdigit() and len(size) <= MAX_DIGITS else self._most_bytes + 1
        if left_bytes > self._most_bytes:
            raise httpcore.RemoteProtocolError("an answer does not say how long it is, or is too long")
        lines = (b"%b: %b\r\n" % field for field in passed.items())
        ours.sendall(b"HTTP/1.1 %d \r\n%b\r\n" % (answer.status, b"".join(lines)))
        for chunk in answer.iter_stream():
            left_bytes -= len(chunk)
            if left_bytes < 0:
                break
            ours.sendall(chunk)
        if left_bytes != 0:
            raise httpcore.RemoteProtocolError("an answer is not as long as it says")


def _head(requests: BinaryIO) -> list[str]:
    """The lines of a request's head; none: it has no end, is too long, or announces a body."""
    lines: list[bytes] = []
    while (line := requests.readline(MAX_HEAD_BYTES)).strip():
        lines.append(line)
        if sum(map(len, lines)) > MAX_HEAD_BYTES:
            return []
    if not line or any(map(_BODY.match, lines)):
        return []
    return [one.decode("ascii", "ignore").strip() for one in lines]
