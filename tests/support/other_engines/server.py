"""Serves a simulated engine of another kind within this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.applications import Starlette

from sidecar.engines.simulated.server import listen


class _Server(uvicorn.Server):
    """uvicorn inside an event loop of somebody else's, who has signal handlers of his own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: Starlette, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serves within the body, and breaks all connections at its end; gives the base URL. Port 0: any free one."""
    listener = listen(host, port)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        task.cancel()
        for open_port in getattr(server, "servers", ()):
            open_port.close()
        listener.close()
        for connection in server.server_state.connections:
            connection.transport.abort()
        await asyncio.gather(task, return_exceptions=True)
