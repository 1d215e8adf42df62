"""Channel for clients on any event loop, with its calls on the process' own.

grpc.aio hands what comes late, as of a call that was given up, to the loop that its call was of. Where that is closed
by then, it writes a traceback to standard error, in whichever loop runs. So calls are only made on the one loop that is
never closed (`registry.client.background`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from registry.client.background import PROCESS, Step
from registry.client.channel import open_channel
from registry.etcd3.tls import Pem

T = TypeVar("T")


async def _there(step: Step[T]) -> T:
    """The result of a coroutine that is made on the process' loop; a cancellation goes there too."""
    outcome: Future[T] = Future()
    PROCESS.hand_over(outcome, step)
    return await asyncio.wrap_future(outcome)


class LoopedChannel:
    """A channel whose calls the process' own loop makes.

    Args:
        address: HOST:PORT of the service.
        pem: certificates; None: without TLS.
    """

    def __init__(self, address: str, pem: Pem | None) -> None:
        self._open = partial(open_channel, address, pem)
        self._channel: grpc.aio.Channel | None = None  # only the process' loop touches it

    def unary_unary(
        self, path: str, serialize: Callable[[Message], bytes], parse: Callable[[bytes], T]
    ) -> Callable[..., Awaitable[T]]:
        """A call with one answer, as a channel of gRPC has it."""

        async def made(request: Message, how: dict[str, Any]) -> T:
            return await self._opened().unary_unary(path, serialize, parse)(request, **how)

        async def call(request: Message, **how: Any) -> T:  # noqa: ANN401 - as gRPC takes it
            return await _there(partial(made, request, how))

        return call

    def unary_stream(
        self, path: str, serialize: Callable[[Message], bytes], parse: Callable[[bytes], T]
    ) -> Callable[..., LoopedStream[T]]:
        """A call with a stream of answers, as a channel of gRPC has it."""

        async def answers(request: Message, how: dict[str, Any]) -> AsyncGenerator[T, None]:
            running = self._opened().unary_stream(path, serialize, parse)(request, **how)
            try:
                async for answer in running:
                    yield answer
            finally:
                running.cancel()

        def call(request: Message, **how: Any) -> LoopedStream[T]:  # noqa: ANN401 - as gRPC takes it
            return LoopedStream(answers(request, how))

        return call

    async def close(self, grace_seconds: float | None = None) -> None:
        """Ends all calls."""
        await _there(partial(self._close, grace_seconds))

    async def _close(self, grace_seconds: float | None) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(grace_seconds)

    def _opened(self) -> grpc.aio.Channel:
        self._channel = self._channel or self._open()
        return self._channel


class LoopedStream(Generic[T]):
    """Answers of one call, each of which the process' loop brings."""

    def __init__(self, answers: AsyncGenerator[T, None]) -> None:
        self._answers = answers
        self._turn = asyncio.Lock()

    async def __aiter__(self) -> AsyncIterator[T]:
        while (answer := await _there(self._next)) is not None:
            yield answer

    async def _next(self) -> T | None:
        async with self._turn:
            return await anext(self._answers, None)

    def cancel(self) -> None:
        """Ends the call; nobody waits for that."""
        PROCESS.hand_over(Future(), self._end)

    async def _end(self) -> None:
        async with self._turn:  # a step that was cancelled with its caller ends first
            await self._answers.aclose()
