"""The HTTP port of a long-running process, in our own event loop.

Whoever reaches it may connect as often as they like, and say or read nothing. So the port has a number of places, each
turn of a peer has its time, and `connection_table` says who gives way. uvicorn itself bounds only how long a connection
rests between two requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal

import structlog
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from registry.runtime.connection_table import ConnectionTable, NoPlace
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


# A request comes within this time, its body too; and a reader takes something of an answer.
TURN_SECONDS = 10.0
# A connection rests for so long between two requests.
KEPT_SECONDS = 5
MAX_CONNECTIONS, MAX_OF_ADDRESS = 200, 20
# So many are accepted before they are judged, which is in the next turn of the loop; the others wait in the kernel.
_ACCEPTED_AT_ONCE, _QUEUED = 8, 1024

# Why a connection was closed: its peer was silent, and another came; of its address, or of the port, as many are
# answered as may be at once; no request came in time; an answer was not taken.
Closed = Literal["replaced", "address_limit", "port_limit", "no_request", "not_taken"]
_log = structlog.get_logger()


class _Port(ServerState):
    """What the connections of one port share."""

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
    _untaken_bytes = 0
    _is_in_head = _is_full = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Takes a place, or refuses."""
        super().connection_made(transport)
        try:
            replaced = self.server_state.table.enter(self, self._address)
        except NoPlace as error:
            self._refuse(error)
            return
        if replaced is not None:
            replaced.give_way()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives back all that it took."""
        super().connection_lost(exc)
        self.server_state.table.leave(self)
        self._stop_clock()

    def data_received(self, data: bytes) -> None:
        """Looks whether the request is whole."""
        super().data_received(data)
        self._look()

    def on_message_begin(self) -> None:
        """Notes that a part of a request is here."""
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        """Notes that a head is whole."""
        super().on_headers_complete()
        self._is_in_head = False

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        super().on_response_complete()
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
        self.transport.abort()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _is_peers_turn(self) -> bool:
        cycle = self.cycle
        is_awaited = cycle is None or cycle.response_complete or cycle.more_body
        return self._is_full or (is_awaited and not self.flow.read_paused)

    def _look(self) -> None:
        """Sees whose turn it is, after anything that may have changed that."""
        if not self._is_peers_turn():
            self.server_state.table.answer(self)
            self._stop_clock()
        elif self._end_of_turn is None and self in self.server_state.connections:
            self.server_state.table.await_peer(self)
            self._start_clock()

    def _start_clock(self) -> None:
        self._untaken_bytes = self.transport.get_write_buffer_size()
        self._end_of_turn = self.loop.call_later(TURN_SECONDS, self._turn_over)

    def _stop_clock(self) -> None:
        if self._end_of_turn is not None:
            self._end_of_turn.cancel()
            self._end_of_turn = None

    def _turn_over(self) -> None:
        untaken_bytes = self.transport.get_write_buffer_size()
        if untaken_bytes and untaken_bytes == self._untaken_bytes:
            self.server_state.note("not_taken", self._address)
            self.transport.abort()
            return
        if not untaken_bytes:
            self.server_state.note("no_request", self._address)
            self._say_late()
            self.transport.close()
        self._start_clock()  # for what it has yet to take

    def _say_late(self) -> None:
        cycle = self.cycle
        is_body_awaited = cycle is not None and cycle.more_body and not cycle.response_started
        if self._is_in_head or is_body_awaited:
            self._say(HTTPStatus.REQUEST_TIMEOUT, f"the request did not come within {TURN_SECONDS:.0f} s")

    def _refuse(self, full: NoPlace) -> None:
        if full.of == "peer":
            self.server_state.note("address_limit", self._address)
            message = f"{MAX_OF_ADDRESS} requests of your address are being answered: ask again later"
            self._say(HTTPStatus.TOO_MANY_REQUESTS, message)
        else:
            self.server_state.note("port_limit", self._address)
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are being answered: ask again later")
        self.transport.close()

    def _say(self, status: HTTPStatus, message: str) -> None:
        head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: text/plain\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(message)}\r\n\r\n{message}".encode())


class HttpServer:
    """Serves an application on a socket that is bound already; the socket is its own."""

    def __init__(self, app: Starlette, listener: socket.socket, count: Callable[[Closed], None]) -> None:
        """`count` is told why a connection was closed, of each that the port ends by itself."""
        config = uvicorn.Config(
            app,
            http=_HttpConnection,
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
