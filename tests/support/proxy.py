"""A TCP proxy on the loopback that can misbehave on command."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.ordered import ordered

_RESET = struct.pack("ii", 1, 0)
_CHUNK = 65536


class Proxy:
    """Stands before ``127.0.0.1:target_port`` and passes everything on until told otherwise. Use as a context."""

    def __init__(self, target_port: int, source: str = "127.0.0.1") -> None:
        """`source`: the address from which it connects, of the loopback."""
        self.target_port, self._source = target_port, source
        self.accepted = 0
        # How often a fault struck: chunks that were held, chunks that came late, connections that were reset.
        self.held = self.delayed = self.reset = 0
        self._requests = asyncio.Event()
        self._replies = asyncio.Event()
        self._delay_seconds = 0.0
        self._refusing = False
        self._byte_limits: Iterator[int] | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.pass_on()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def pass_on(self) -> None:
        """Everything flows, what was held first."""
        self._refusing = False
        self._requests.set()
        self._replies.set()

    def hold(self) -> None:
        """Half-open: connections stand and are accepted, and nothing flows."""
        self._order("held")
        self._requests.clear()
        self._replies.clear()

    def hold_replies(self) -> None:
        """Requests arrive, and nothing comes back.

        Whoever sees by another way that a request was carried out waits for `held` too: its reply may be on its way.
        """
        self._order("held")
        self._replies.clear()

    def strand(self) -> None:
        """Connections that stand are dead for ever, without a word to either end; new ones work."""
        self.hold()
        self._requests, self._replies = asyncio.Event(), asyncio.Event()
        self.pass_on()

    def refuse(self) -> None:
        """Resets every connection, those that stand and those to come."""
        self._order("reset")
        self._refusing = True
        self.cut()

    def cut(self) -> None:
        """Resets the connections that stand; new ones may be made."""
        self.reset += len(self._writers)
        for writer in tuple(self._writers):
            _reset(writer)

    def delay(self, seconds: float) -> None:
        """Every chunk, both ways, comes so much later."""
        self._order("delayed")
        self._delay_seconds = seconds

    def cut_after(self, byte_limits: Iterator[int] | None) -> None:
        """Resets each new connection after so many bytes of replies, as the iterator says. None: no longer."""
        if byte_limits is not None:
            self._order("reset")
        self._byte_limits = byte_limits

    def _order(self, count: str) -> None:
        """The fault has to strike at least once more, by the count of that name."""
        before = getattr(self, count)
        ordered(f"nothing was {count} by a proxy", lambda: getattr(self, count) > before)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            self.reset += 1
            _reset(writer)
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._between(reader, writer)
        finally:
            _reset(writer)
            self._tasks.discard(task)

    async def _between(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward = await asyncio.open_connection(
                "127.0.0.1", self.target_port, local_addr=(self._source, 0)
            )
        except OSError:
            return
        limit = next(self._byte_limits, None) if self._byte_limits else None
        self._writers |= {writer, onward}
        pumps = (
            self._pump(reader, onward, self._requests, None),
            self._pump(onward_reader, writer, self._replies, limit),
        )
        tasks = [asyncio.create_task(pump) for pump in pumps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (writer, onward):
                _reset(one)
                self._writers.discard(one)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event, limit: int | None
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                self.held += not gate.is_set()
                await gate.wait()
                self.delayed += self._delay_seconds > 0
                await asyncio.sleep(self._delay_seconds)
                if limit is not None:
                    data, limit = data[:limit], limit - len(data)
                writer.write(data)
                await writer.drain()
                if limit is not None and limit <= 0:
                    self.reset += 1
                    return


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
