"""Serves simulated engines: one as a process, or many inside one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette

from registry.daemon.http import Server, listen
from sidecar.engines.simulated.app import make_app
from sidecar.engines.simulated.engine import SimulatedVllm

DEATH_SECONDS = 0.3  # vLLM says 503 for at least so long before its port is closed


async def serve(engine: SimulatedVllm, listener: socket.socket) -> None:
    """Serves until it is cancelled or the engine dies."""
    async with served(make_app(engine), listener) as serving:
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
async def served(app: Starlette, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """An application that serves within the body, and at its end dies as a killed process does."""
    server = Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield task
    finally:
        # Running requests are cancelled, and their connections break.
        task.cancel()
        for port in getattr(server, "servers", ()):  # none, if it was cancelled before it began
            port.close()
        listener.close()
        for connection in server.server_state.connections:
            connection.transport.abort()
        for running in server.server_state.tasks:
            running.cancel()
        await asyncio.gather(task, return_exceptions=True)
