"""Connections that say nothing, by the thousand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import cycle, islice
from pathlib import Path

from registry.runtime.program import raise_descriptor_limit

# How the command of a process begins that may open no more than this, whatever it asks for.
FEW_DESCRIPTORS = ("sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh")


@asynccontextmanager
async def silent_connections(
    place: str | Path, count: int, sources: Sequence[str] = ("127.0.0.1",)
) -> AsyncIterator[None]:
    """So many to HOST:PORT, or to a Unix socket, while the context is open; whether or not they are let in.

    `sources`: the addresses of the loopback that they come from in turn.
    """
    raise_descriptor_limit()
    with ExitStack() as connections:
        for source in islice(cycle(sources), count):
            await _connect(connections, place, source)
        yield


async def _connect(connections: ExitStack, place: str | Path, source: str) -> None:
    family, address = (socket.AF_UNIX, str(place)) if isinstance(place, Path) else (socket.AF_INET, _pair(place))
    connection = connections.enter_context(socket.socket(family))
    connection.settimeout(0)
    if family == socket.AF_INET:
        connection.bind((source, 0))
    try:
        async with asyncio.timeout(1):
            await asyncio.get_running_loop().sock_connect(connection, address)
    except OSError:  # a TimeoutError is one too; and a server that refuses is what is asked for
        return


def _pair(place: str) -> tuple[str, int]:
    host, _, port = place.removeprefix("http://").rpartition(":")
    return host, int(port)
