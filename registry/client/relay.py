"""Channel of a forked process, of which each call is made by a fresh program.

gRPC keeps threads and locks for the whole process, and a fork has the locks without the threads: a channel that is
made there hangs, or ends the process with a segmentation fault. So in a fork of a process that had a channel, each call
is made by a fresh process. It is told the call on its standard input, tells what comes of it on its output, and ends
with its input, so at the latest when the fork does. As a program: makes one call.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from registry.client.channel import open_channel
from registry.etcd3.tls import Pem

T = TypeVar("T")
_Told = dict[str, Any]
_MAX_FRAME_BYTES = 96 << 20
_ANSWER, _END = b"A", b"E"


class RelayedChannel:
    """A channel to HOST:PORT whose calls other processes make; `pem` None: without TLS."""

    def __init__(self, address: str, pem: Pem | None) -> None:
        self._about: _Told = {"address": address, "pem": pem and [one and _text(one) for one in pem]}
        self._running: set[Process] = set()

    def unary_unary(
        self, path: str, serialize: Callable[[Message], bytes], parse: Callable[[bytes], T]
    ) -> Callable[..., Awaitable[T]]:
        """A call with one answer, as a channel of gRPC has it."""

        async def call(request: Message, **how: Any) -> T:  # noqa: ANN401 - as gRPC takes it
            async with aclosing(self._answers(path, serialize(request), **how)) as answers:
                async for answer in answers:
                    return parse(answer)
            raise AssertionError("a call without an answer ends with a status")

        return call

    def unary_stream(
        self, path: str, serialize: Callable[[Message], bytes], parse: Callable[[bytes], T]
    ) -> Callable[..., RelayedStream[T]]:
        """A call with a stream of answers, as a channel of gRPC has it."""

        def call(request: Message, **how: Any) -> RelayedStream[T]:  # noqa: ANN401 - as gRPC takes it
            return RelayedStream(self._answers(path, serialize(request), **how), parse)

        return call

    async def close(self, _grace_seconds: float | None = None) -> None:
        """Ends all calls."""
        for process in [*self._running]:
            await self._end(process)

    async def _answers(
        self, path: str, request: bytes, *, timeout: float | None, metadata: Iterable[tuple[str, str]] | None
    ) -> AsyncGenerator[bytes, None]:
        told = self._about | {"path": path, "timeout": timeout, "metadata": [*(metadata or ())]}
        process = await self._started()
        try:
            assert process.stdin is not None  # noqa: S101 - as it was asked for
            assert process.stdout is not None  # noqa: S101 - see above
            for frame in (json.dumps(told).encode(), request):
                process.stdin.write(len(frame).to_bytes(4, "big") + frame)
            while (frame := await _frame(process.stdout))[:1] == _ANSWER:
                yield frame[1:]
            _raise_end(json.loads(frame[1:] or "{}"))
        finally:
            await self._end(process)

    async def _started(self) -> Process:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__),
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,  # an interrupt of the terminal is the caller's
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError as error:
            told = f"cannot start {sys.executable or 'Python'}, which makes the calls of a fork: {error.strerror}"
            raise _failure(grpc.StatusCode.UNAVAILABLE, told) from error
        self._running.add(process)
        return process

    async def _end(self, process: Process) -> None:
        self._running.discard(process)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class RelayedStream(Generic[T]):
    """Answers of one call, until it ends or is given up."""

    def __init__(self, answers: AsyncGenerator[bytes, None], parse: Callable[[bytes], T]) -> None:
        self._answers = answers
        self._parse = parse

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        async with aclosing(self._answers) as answers:
            async for answer in answers:
                yield self._parse(answer)

    def cancel(self) -> None:
        """Nothing: who leaves the iteration ends the call."""


def _failure(code: grpc.StatusCode, details: str, trailing: Iterable[tuple[str, Any]] = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)


def _raise_end(end: _Told) -> None:
    """Raises AioRpcError as a call ended; where it ended well, nothing."""
    code = grpc.StatusCode[end.get("code", "UNAVAILABLE")]
    if code is not grpc.StatusCode.OK:
        details = end.get("details", "the process that makes the calls of a fork ended")
        raise _failure(code, details, [(key, base64.b64decode(value)) for key, value in end.get("trailing", ())])


async def _frame(stream: asyncio.StreamReader) -> bytes:
    """The next frame; empty: none comes."""
    try:
        size = int.from_bytes(await stream.readexactly(4), "big")
        return await stream.readexactly(min(size, _MAX_FRAME_BYTES))
    except asyncio.IncompleteReadError:
        return b""


def _text(content: bytes | str) -> str:
    return base64.b64encode(content if isinstance(content, bytes) else content.encode()).decode()


def main() -> None:
    """Makes the one call that standard input tells."""
    source = sys.stdin.buffer
    told, request = (source.read(int.from_bytes(source.read(4), "big")) for _ in range(2))
    if told:
        asyncio.run(_call(json.loads(told), request))


async def _call(told: _Told, request: bytes) -> None:
    pem: Any = told["pem"] and tuple(one and base64.b64decode(one) for one in told["pem"])
    channel = open_channel(told["address"], pem)
    metadata = [(key, value) for key, value in told["metadata"]]
    # An answer alone is a stream of one.
    called: Any = channel.unary_stream(told["path"])
    call = called(request, timeout=told["timeout"], metadata=metadata or None)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), call.cancel)  # nothing comes any more but its end
    end: _Told = {"code": grpc.StatusCode.OK.name}
    with suppress(asyncio.CancelledError, BrokenPipeError):
        try:
            async for answer in call:
                _tell(_ANSWER, answer)
        except grpc.aio.AioRpcError as error:
            trailing = [(key, _text(value)) for key, value in error.trailing_metadata()]
            end = {"code": error.code().name, "details": error.details(), "trailing": trailing}
        _tell(_END, json.dumps(end).encode())
    await channel.close()


def _tell(kind: bytes, content: bytes) -> None:
    sys.stdout.buffer.write((len(content) + 1).to_bytes(4, "big") + kind + content)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
