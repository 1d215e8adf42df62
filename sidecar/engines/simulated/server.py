"""Serves simulated engines: one as a process, or many inside one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from sidecar.engines.simulated.app import make_app
from sidecar.engines.simulated.engine import SimulatedVllm

DEATH_SECONDS = 0.3  # vLLM says 503 for at least so long before its port is closed


class _Server(uvicorn.Server):
    """uvicorn inside an event loop of somebody else's, who has signal handlers of his own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Binds the port; 0: any free one. Connections wait in its backlog until it is served.

    Raises:
        OSError: it cannot be bound.
    """
    listener = socket.create_server((host, port))
    # asyncio does this itself only for sockets that were made with an explicit protocol number; without it each reply
    # on a kept-alive connection waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def serve(engine: SimulatedVllm, listener: socket.socket) -> None:
    """Serves until it is cancelled or the engine dies."""
    async with _served(engine, listener) as serving:
        death = asyncio.create_task(engine.dead.wait())
        await asyncio.wait({serving, death}, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if engine.dead.is_set():
            await asyncio.sleep(DEATH_SECONDS)


@contextlib.asynccontextmanager
async def serving(engine: SimulatedVllm, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serves within the body, and breaks all connections at its end; gives the base URL. Port 0: any free one."""
    listener = listen(host, port)
    task = asyncio.create_task(serve(engine, listener))
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def _served(engine: SimulatedVllm, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    config = uvicorn.Config(make_app(engine), log_config=None, access_log=False, lifespan="off", ws="none")
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield task
    finally:
        # A killed process finishes nothing: running requests are cancelled, and their connections break.
        task.cancel()
        for port in getattr(server, "servers", ()):  # none, if it was cancelled before it began
            port.close()
        listener.close()
        for connection in server.server_state.connections:
            connection.transport.abort()
        for running in server.server_state.tasks:
            running.cancel()
        await asyncio.gather(task, return_exceptions=True)
