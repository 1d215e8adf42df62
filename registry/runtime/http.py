"""The HTTP port of a long-running process, in our own event loop.

Whoever reaches it may connect as often as they like, and say or read nothing. So the port has a number of places, each
turn of a peer has its time, and `connection_table` says who gives way. uvicorn itself bounds only how long a connection
rests between two requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

import structlog
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from registry.etcd3.options import TlsFiles
from registry.etcd3.tls import TlsUnusable
from registry.runtime.connection_table import ConnectionTable, NoPlace
from registry.runtime.http_tls import READ_BYTES, HttpTls, TlsConnection, shown_certificate
from registry.runtime.page_guard import error_body
from registry.runtime.process import Repeats
from registry.runtime.program import most_connections

if TYPE_CHECKING:  # the simulated engine starts without pydantic
    from registry.runtime.settings import Address


class CannotListen(Exception):
    """An address or a certificate cannot be used; the message says which flag named it, and why."""


class Server(uvicorn.Server):
    """uvicorn inside an event loop that has signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens. The kernel keeps more than are accepted at once, which is all that uvicorn would have it keep."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_QUEUED)


def listen(host: str, port: int) -> socket.socket:
    """Binds the port at once, so that a wrong or taken one is a clear error at start.

    Raises:
        OSError: it cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # asyncio sees to this only for sockets made with an explicit protocol; without it a kept-alive reply waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def listen_as_told(flag: str, address: Address) -> socket.socket:
    """Binds the port that a flag names.

    Raises:
        CannotListen: it cannot be bound.
    """
    try:
        return listen(address.host, address.port)
    except OSError as error:
        # Python adds the address to the reason.
        reason = str(error.strerror).partition(" (while")[0]
        raise CannotListen(f"{flag} {address}: {reason}") from error


def tls_as_told(files: TlsFiles | None) -> HttpTls | None:
    """TLS of the HTTP port by the files that flags name; None: without.

    Raises:
        CannotListen: they cannot be used.
    """
    try:
        return HttpTls(files) if files else None
    except TlsUnusable as error:
        flags = {files and files.ca: "--http-tls-ca", files and files.certificate: "--http-tls-cert"}
        raise CannotListen(f"{flags.get(error.file, '--http-tls-key')}: {error}") from error


# A request comes within this time, its body too; and a reader takes something of an answer.
TURN_SECONDS = 10.0
# So long an answer may be on its way to who takes it bit by bit.
ANSWER_SECONDS = 60.0
# A connection rests for so long between two requests.
KEPT_SECONDS = 5
MAX_CONNECTIONS, MAX_OF_ADDRESS = 200, 20
# Of a request's head. What was read and not answered yet is kept as requests.
MAX_HEAD_BYTES = 32 * 1024
# Extension of a request's scope: the certificate that its caller showed, see `shown_certificate`.
CERTIFICATE = "loraplane.certificate"
# So many are accepted before they are judged, which is in the next turn of the loop; the others wait in the kernel.
_ACCEPTED_AT_ONCE, _QUEUED = 8, 1024

# Why a connection was closed: its peer was silent, and another came; of its address, or of the port, as many are
# answered as may be at once; no request came in time, or none of HTTP, or one without end; an answer was not taken.
# In place of a request, TLS was not agreed upon.
Closed = Literal[
    "replaced", "address_limit", "port_limit", "no_request", "bad_request", "head_too_large", "not_taken", "no_tls"
]
_log = structlog.get_logger()


class _Port(ServerState):
    """State that the connections of one port share."""

    def __init__(self, count: Callable[[Closed], None]) -> None:
        super().__init__()
        self.table = ConnectionTable[_HttpConnection](most_connections(MAX_CONNECTIONS), MAX_OF_ADDRESS)
        self._count = count
        self._repeats = Repeats()

    def note(self, reason: Closed, address: str) -> None:
        """Counts a connection that is closed; the log has one a minute for each reason."""
        self._count(reason)
        if times := self._repeats.count(reason):
            _log.warning("connections_closed", port="http", reason=reason, address=address, times=times)


class _HttpConnection(HttpToolsProtocol):
    """A connection that has a place, and a time for each turn of its peer."""

    server_state: _Port
    _end_of_turn: asyncio.TimerHandle | None = None
    _end_of_answer: asyncio.TimerHandle | None = None
    _untaken_bytes = _head_bytes = 0
    _is_in_head = _is_full = False
    # What TCP has; over TLS it is below the transport, and has the place already.
    _tcp: asyncio.Transport | None = None

    def take_place(self, transport: asyncio.Transport) -> bool:
        """Takes a place before the handshake of TLS; False: there is none."""
        self._tcp = transport
        try:
            self._enter()
        except NoPlace as full:
            self.server_state.note("address_limit" if full.of == "peer" else "port_limit", self._address)
            return False
        return True

    def lose_place(self, error: BaseException | None) -> None:
        """Gives the place back; `error`: why TLS ended, or was not agreed upon."""
        self.server_state.table.leave(self)
        has_spoken = self in self.server_state.connections
        if not has_spoken and isinstance(error, ssl.SSLError | ConnectionAbortedError):
            self.server_state.note("no_tls", self._address)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Takes a place, or refuses."""
        super().connection_made(transport)
        if self._tcp is None:
            self._tcp = transport
            transport.max_size = READ_BYTES  # type: ignore[attr-defined] # of all of asyncio's own
            try:
                self._enter()
            except NoPlace as error:
                self._refuse(error)
                return
        self._look()

    def _enter(self) -> None:
        if (replaced := self.server_state.table.enter(self, self._address)) is not None:
            replaced.give_way()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives back all that it took."""
        super().connection_lost(exc)
        self.server_state.table.leave(self)
        self._stop_clock()
        self._stop_clock_of_answer()

    def data_received(self, data: bytes) -> None:
        """Looks whether the request is whole."""
        super().data_received(data)
        self._head_bytes += len(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            message = f"the path and the headers of a request are at most {MAX_HEAD_BYTES // 1024} KiB: send fewer"
            self._close("head_too_large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)
        self._look()

    def send_400_response(self, _: str) -> None:
        """Refuses what is no request."""
        message = "this is no HTTP request: send one, such as that of curl http://HOST:PORT/livez"
        self._close("bad_request", HTTPStatus.BAD_REQUEST, message)

    def on_message_begin(self) -> None:
        """Notes that a part of a request is here."""
        super().on_message_begin()
        if (certificate := shown_certificate(self.transport)) is not None:
            self.scope["extensions"] = {CERTIFICATE: certificate}
        self._is_in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Notes that a head is whole."""
        super().on_headers_complete()
        self._is_in_head = False

    def on_response_complete(self) -> None:
        """Waits for the next request, or answers one that is here."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()  # uvicorn reads on, whatever waits
        self._stop_clock_of_answer()
        self._look()

    def pause_writing(self) -> None:
        """Waits for a reader."""
        super().pause_writing()
        self._is_full = True
        self._look()

    def resume_writing(self) -> None:
        """Goes on."""
        super().resume_writing()
        self._is_full = False
        self._look()

    def give_way(self) -> None:
        """Ends a connection whose place another has now."""
        self.server_state.note("replaced", self._address)
        if self._tcp is not None:
            self._tcp.abort()

    @property
    def _address(self) -> str:
        peer = get_remote_addr(self._tcp) if self._tcp else None
        return peer[0] if peer else ""

    def _untaken(self) -> int:
        """Bytes of answers that the peer has not taken."""
        below = self._tcp.get_write_buffer_size() if self._tcp and self._tcp is not self.transport else 0
        return self.transport.get_write_buffer_size() + below

    def _is_peers_turn(self) -> bool:
        is_awaited = self._is_answered() or self.cycle.more_body
        return self._is_full or (is_awaited and not self.flow.read_paused)

    def _look(self) -> None:
        """Sees whose turn it is and what of answers is not taken, after anything that may have changed that."""
        if not self._untaken():
            self._stop_clock_of_answer()
        elif self._end_of_answer is None and self in self.server_state.connections:
            self._end_of_answer = self.loop.call_later(ANSWER_SECONDS, self._answer_over)
        if not self._is_peers_turn():
            self.server_state.table.answer(self)
            self._stop_clock()
        elif self._end_of_turn is None and self in self.server_state.connections:
            self.server_state.table.await_peer(self)
            self._start_clock()

    def _start_clock(self) -> None:
        self._untaken_bytes = self._untaken()
        self._end_of_turn = self.loop.call_later(TURN_SECONDS, self._turn_over)

    def _stop_clock(self) -> None:
        if self._end_of_turn is not None:
            self._end_of_turn.cancel()
            self._end_of_turn = None

    def _stop_clock_of_answer(self) -> None:
        if self._end_of_answer is not None:
            self._end_of_answer.cancel()
            self._end_of_answer = None

    def _answer_over(self) -> None:
        self._end_of_answer = None
        if self._untaken():
            self._give_up()

    def _turn_over(self) -> None:
        untaken_bytes = self._untaken()
        if untaken_bytes and untaken_bytes == self._untaken_bytes:
            self._give_up()
            return
        if not untaken_bytes:
            late = f"the request did not come within {TURN_SECONDS:.0f} s: send it whole, and at once"
            has_begun = self._is_in_head or not self._is_answered()
            self._close("no_request", HTTPStatus.REQUEST_TIMEOUT, late if has_begun else "")
        self._start_clock()  # for what it has yet to take

    def _give_up(self) -> None:
        self.server_state.note("not_taken", self._address)
        self.transport.abort()

    def _refuse(self, full: NoPlace) -> None:
        if full.of == "peer":
            message = f"{MAX_OF_ADDRESS} requests of your address are being answered: ask again later"
            self._close("address_limit", HTTPStatus.TOO_MANY_REQUESTS, message)
        else:
            message = "too many requests are being answered: ask again later"
            self._close("port_limit", HTTPStatus.SERVICE_UNAVAILABLE, message)

    def _close(self, reason: Closed, status: HTTPStatus, message: str) -> None:
        """Ends a connection; says why, unless there is no message, or an answer is under way, which it would spoil."""
        self.server_state.note(reason, self._address)
        is_spoilt = not self._is_answered() and (self.cycle.response_started or not self.cycle.more_body)
        if message and not self.pipeline and not is_spoilt:
            body = json.dumps(error_body(reason, message)).encode()
            head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def _is_answered(self) -> bool:
        """True if nothing was asked that has no whole answer."""
        return self.cycle is None or self.cycle.response_complete


def _over_tls(tls: HttpTls) -> Callable[..., TlsConnection]:
    def make(**state: Any) -> TlsConnection:  # noqa: ANN401 - what uvicorn gives its protocols
        return TlsConnection(_HttpConnection(**state), tls)

    return make


class HttpServer:
    """Serves an application on a socket that is bound already; the socket is its own."""

    def __init__(
        self, app: Starlette, listener: socket.socket, count: Callable[[Closed], None], tls: HttpTls | None = None
    ) -> None:
        """`count` is told why a connection was closed, of each that the port ends by itself; `tls` None: without."""

        config = uvicorn.Config(
            app,
            http=_over_tls(tls) if tls else _HttpConnection,  # type: ignore[arg-type] # whatever makes protocols
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            backlog=_ACCEPTED_AT_ONCE,
            timeout_keep_alive=KEPT_SECONDS,
            timeout_graceful_shutdown=1,
        )
        self._server = Server(config)
        self._server.server_state = _Port(count)
        self._listener = listener

    async def run(self) -> None:
        """Serves until it is told to stop, or is cancelled."""
        with self._listener:
            await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Lets requests that run come to their end, and takes no others."""
        self._server.should_exit = True
