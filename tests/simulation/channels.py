"""gRPC channels over links, in place of `grpc.aio.Channel`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
from google.protobuf.message import Message

from tests.simulation.links import CLOSED, RESET, Link, rpc_error
from tests.simulation.streams import Item, SimStream, ask


class SimChannel:
    """As much of `grpc.aio.Channel` as `registry.etcd3.channel` uses."""

    def __init__(self, link: Link[Any], number: int) -> None:
        self.link = link
        self.number = number
        self._state = grpc.ChannelConnectivity.IDLE
        self._calls: dict[int, Callable[[grpc.aio.AioRpcError | None], None]] = {}
        self._count = 0
        self._closed = False
        link.channels.add(self)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._state

    async def wait_for_state_change(self, _last: grpc.ChannelConnectivity) -> None:
        """Connects."""
        is_up = await self.link.connect()
        self._state = grpc.ChannelConnectivity.READY if is_up else grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def unary_unary(self, path: str, _serialize: Any, _parse: Any) -> Callable[..., Coroutine[Any, Any, Message]]:
        """A call with one reply."""

        async def call(request: Message, *, timeout: float, metadata: object) -> Message:
            self.check()
            reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            number = self.register(lambda error: _fail(reply, error))
            self._send(path, request, reply)
            try:
                async with asyncio.timeout(timeout):
                    return await reply
            except TimeoutError:
                raise rpc_error("DEADLINE_EXCEEDED", "Deadline Exceeded") from None
            finally:
                self.forget(number)

        return call

    def stream_stream(self, path: str, _serialize: object, _parse: object) -> Callable[..., SimStream]:
        """A call with a stream in both directions."""

        def call(*, timeout: float | None, metadata: object) -> SimStream:
            return SimStream(self, path, timeout)

        return call

    async def close(self) -> None:
        """Cancels what runs, as gRPC does."""
        self._closed = True
        self.link.channels.discard(self)
        self.break_off(None)

    @property
    def is_ready(self) -> bool:
        """Whether the connection stands."""
        return self._state is grpc.ChannelConnectivity.READY

    def check(self) -> None:
        """Raises what gRPC raises for a call that cannot be started."""
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        if not self.is_ready:
            raise rpc_error(*CLOSED)

    def register(self, fail: Callable[[grpc.aio.AioRpcError | None], None]) -> int:
        """Notes a call that runs; `fail` gets the error that breaks it, or None if the channel is closed."""
        self._count += 1
        self._calls[self._count] = fail
        return self._count

    def forget(self, number: int) -> None:
        self._calls.pop(number, None)

    def break_off(self, error: grpc.aio.AioRpcError | None) -> None:
        """Ends every call that runs."""
        calls, self._calls = self._calls, {}
        for fail in calls.values():
            fail(error)
        if not self._closed:
            self._state = grpc.ChannelConnectivity.IDLE

    def _send(self, path: str, request: Message, reply: asyncio.Future[Message]) -> None:
        link = self.link
        if link.is_unlucky():
            link.later(link.delay(), lambda: _fail(reply, rpc_error(*RESET)))
            return

        restarts = link.member.restarts

        def serve() -> None:
            if link.member.restarts != restarts:
                return
            answer: Item = ask(link.member, path, request)
            if link.is_unlucky():
                answer = rpc_error(*RESET)
            link.carry(lambda: _settle(reply, answer))

        link.carry(serve)


def _settle(reply: asyncio.Future[Message], answer: Item) -> None:
    if reply.done():
        return
    if isinstance(answer, grpc.aio.AioRpcError):
        reply.set_exception(answer)
    else:
        reply.set_result(answer)


def _fail(reply: asyncio.Future[Message], error: grpc.aio.AioRpcError | None) -> None:
    if reply.done():
        return
    if error is None:
        reply.cancel()
    else:
        reply.set_exception(error)
