"""Callers who begin calls and never send a request, frame by frame: a client of gRPC would cost more than its calls.

``python -m tests.support.hanging_callers HOST:PORT CONNECTIONS CALLS AGAIN`` is them as a process of its own, until it
is ended. A call that is refused is begun anew, after AGAIN seconds at most.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import Program

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_CALL = {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "x",
    "te": "trailers",
    "content-type": "application/grpc",
}


def head(stream: int, method: str, flags: int = 0, **more: str) -> bytes:
    """The head of a call. Each header is a literal of a new name, without indexing."""
    told = {**_CALL, ":path": f"/registry.v1.AdapterRegistry/{method}"}
    told |= {name.replace("_", "-"): value for name, value in more.items()}
    literals = (b"\x00" + b"".join(bytes([len(text)]) + text.encode() for text in one) for one in told.items())
    return frame(HEADERS, _END_HEADERS | flags, stream, b"".join(literals))


def answer_to(kind: int, flags: int, content: bytes) -> bytes:
    """What has to be said to a frame of a server that asks for it."""
    is_question = kind in {SETTINGS, PING} and not flags & _ACK
    return frame(kind, _ACK, 0, content if kind == PING else b"") if is_question else b""


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


# The settings are the usual ones.
BEGINNING = PREFACE + frame(SETTINGS, 0, 0)


class _Connection:
    """One connection with so many calls that hang."""

    def __init__(self, calls: int, again_seconds: float) -> None:
        self._missing = calls
        self._again_seconds = again_seconds
        self._next = 1

    async def hang(self, host: str, port: int, source: str) -> None:
        reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
        writer.write(BEGINNING)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(reader, writer))
            while True:
                for _ in range(self._missing):
                    writer.write(head(self._next, "GetPool"))
                    self._next += 2
                self._missing = 0
                await writer.drain()
                await asyncio.sleep(self._again_seconds)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(9)
            content = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3:5]
            writer.write(answer_to(kind, flags, content))
            self._missing += kind == HEADERS and bool(flags & END_STREAM)


async def hang(address: str, connections: int, calls: int, again_seconds: float, source: str = "127.0.0.1") -> None:
    """They hang until the task is cancelled, or a connection ends; `source`: where they come from."""
    host, _, port = address.rpartition(":")
    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(_Connection(calls, again_seconds).hang(host, int(port), source))


@contextmanager
def hanging_callers(folder: Path, address: str, connections: int, calls: int, again_seconds: float) -> Iterator[None]:
    """They hang while the context is open; their log is in `folder`."""
    arguments = [address, str(connections), str(calls), str(again_seconds)]
    program = Program("tests.support.hanging_callers", arguments, folder / "hanging.log")
    program.start()
    try:
        yield
        assert program.is_running, program.log.read_text()
    finally:
        program.kill()


if __name__ == "__main__":
    asyncio.run(hang(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
