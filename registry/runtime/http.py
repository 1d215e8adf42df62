"""The HTTP port of a long-running process, in our own event loop."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

if TYPE_CHECKING:  # the simulated engine starts without pydantic
    from registry.runtime.settings import Address


class CannotListen(Exception):
    """An address or a certificate cannot be used; the message says which flag named it, and why."""


class Server(uvicorn.Server):
    """uvicorn inside an event loop that has signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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


class HttpServer:
    """Serves an application on a socket that is bound already; the socket is its own."""

    def __init__(self, app: Starlette, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = Server(config)
        self._listener = listener

    async def run(self) -> None:
        """Serves until it is told to stop, or is cancelled."""
        with self._listener:
            await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Lets requests that run come to their end, and takes no others."""
        self._server.should_exit = True
