"""Serves a simulated engine of another kind within this process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette

from registry.runtime.http import listen
from sidecar.engines.simulated.app import served


@contextlib.asynccontextmanager
async def serving(app: Starlette, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serves within the body, and breaks all connections at its end; gives the base URL. Port 0: any free one."""
    listener = listen(host, port)
    async with served(app, listener):
        yield f"http://{host}:{listener.getsockname()[1]}"
