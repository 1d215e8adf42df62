"""Connections that say nothing, by the thousand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from registry.runtime.program import raise_descriptor_limit

# How the command of a process begins that may open no more than this, whatever it asks for.
FEW_DESCRIPTORS = ("sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh")


@asynccontextmanager
async def silent_connections(place: str | Path, count: int) -> AsyncIterator[None]:
    """So many to HOST:PORT, or to a Unix socket, while the context is open; whether or not they are let in."""
    raise_descriptor_limit()
    with ExitStack() as connections:
        for _ in range(count):
            await _connect(connections, place)
        yield


async def _connect(connections: ExitStack, place: str | Path) -> None:
    family, address = (socket.AF_UNIX, str(place)) if isinstance(place, Path) else (socket.AF_INET, _pair(place))
    connection = connections.enter_context(socket.socket(family))
    connection.settimeout(0)
    try:
        async with asyncio.timeout(1):
            await asyncio.get_running_loop().sock_connect(connection, address)
    except OSError:  # a TimeoutError is one too; and a server that refuses is what is asked for
        return


def _pair(place: str) -> tuple[str, int]:
    host, _, port = place.removeprefix("http://").rpartition(":")
    return host, int(port)
