"""A TCP proxy that remembers what passed, and can break what passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

_CHUNK_BYTES = 64 * 1024


@dataclass
class Wire:
    """What passed: for each connection its chunks in order, each with its direction.

    `reply` changes the bytes that come back; None: the connection is reset instead.
    """

    connections: list[list[tuple[Literal["to", "from"], bytes]]] = field(default_factory=list)
    reply: Callable[[bytes], bytes | None] = lambda chunk: chunk
    url: str = ""

    def sent(self) -> bytes:
        """Everything that was sent to the server."""
        return b"".join(chunk for chunks in self.connections for way, chunk in chunks if way == "to")


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    """A proxy in front of `url`, on a free port of the loopback."""
    wire, target = Wire(), urlsplit(url)
    writers: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        chunks: list[tuple[Literal["to", "from"], bytes]] = []
        wire.connections.append(chunks)
        upstream, onward = await asyncio.open_connection(target.hostname, target.port)
        writers.update((onward, writer))
        await asyncio.gather(_forward(reader, onward, chunks), _back(upstream, writer, wire, chunks))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*tasks)


async def _forward(
    reader: asyncio.StreamReader, onward: asyncio.StreamWriter, chunks: list[tuple[Literal["to", "from"], bytes]]
) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            chunks.append(("to", chunk))
            onward.write(chunk)
            await onward.drain()
        onward.write_eof()


async def _back(
    upstream: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    wire: Wire,
    chunks: list[tuple[Literal["to", "from"], bytes]],
) -> None:
    with suppress(OSError):
        while chunk := await upstream.read(_CHUNK_BYTES):
            chunks.append(("from", chunk))
            changed = wire.reply(chunk)
            if changed is None:
                writer.transport.abort()
                return
            writer.write(changed)
            await writer.drain()
        writer.close()
