"""Channels of gRPC to admin services over links, in place of those of `registry.client.transport`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from tests.simulation.channels import SimChannel
from tests.simulation.links import CLOSED, RESET, Link, rpc_error
from tests.simulation.serving import Metadata, ServerCall
from tests.simulation.streams import SimStream

Reply = TypeVar("Reply")
Serialize = Callable[[Any], bytes]
Noted = Callable[[Message], AbstractContextManager[None]]


class CallerChannel(SimChannel):
    """As much of `grpc.aio.Channel` as the SDK uses.

    Attributes:
        left: calls whose client is gone, which their server does not know yet.
        noted: is entered with each request until its caller has the answer, or none.
    """

    def __init__(self, link: Link[Any], number: int, address: str, noted: Noted) -> None:
        super().__init__(link, number)
        self.noted = noted
        self.peer = f"ipv4:{address}:{number}"
        self.left: set[ServerCall] = set()

    def unary_unary(
        self,
        path: str,
        request_serializer: Serialize,
        response_deserializer: Callable[[bytes], Reply],
        _registered_method: bool | None = None,
    ) -> Callable[..., Coroutine[Any, Any, Reply]]:
        """A call with one reply."""

        async def call(request: Message, *, timeout: float, metadata: Metadata = None) -> Reply:
            body = request_serializer(request)
            replies = SimReplies(self, path, body, response_deserializer, timeout, metadata, is_unary=True)
            with self.noted(request):
                try:
                    return await anext(replies)
                finally:
                    replies.cancel()

        return call

    def unary_stream(
        self,
        path: str,
        request_serializer: Serialize,
        response_deserializer: Callable[[bytes], Reply],
        _registered_method: bool | None = None,
    ) -> Callable[..., SimReplies[Reply]]:
        """A call with a stream of replies."""

        def call(request: Message, *, timeout: float | None, metadata: Metadata = None) -> SimReplies[Reply]:
            return SimReplies(self, path, request_serializer(request), response_deserializer, timeout, metadata)

        return call

    async def connected(self, deadline: float | None) -> None:
        """Connects, unless the connection stands, as gRPC does for a call that comes."""
        if self.is_ready:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self.wait_for_state_change(self._state)
        except TimeoutError:
            raise rpc_error("DEADLINE_EXCEEDED", "Deadline Exceeded") from None
        if not self.is_ready:
            raise rpc_error(*CLOSED)

    async def close(self, _grace: float | None = None) -> None:
        """Cancels what runs, as gRPC does."""
        await super().close()

    def break_off(self, error: grpc.aio.AioRpcError | None) -> None:
        """Ends every call that runs; a server whose connection breaks knows that nobody waits any more."""
        super().break_off(error)
        left, self.left = self.left, set()
        for call in sorted(left, key=lambda one: one.number):
            self.link.later(self.link.delay(), call.close)


class SimReplies(Generic[Reply]):
    """As much of `grpc.aio.UnaryStreamCall` as the SDK uses."""

    def __init__(
        self,
        channel: CallerChannel,
        path: str,
        request: bytes,
        parse: Callable[[bytes], Reply],
        timeout: float | None,
        metadata: Metadata = None,
        *,
        is_unary: bool = False,
    ) -> None:
        self._channel = channel
        self._path = path
        self._request = request
        self._parse = parse
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._metadata = metadata
        self._is_unary = is_unary
        self._stream: CallStream | None = None

    def __aiter__(self) -> SimReplies[Reply]:
        return self

    async def __anext__(self) -> Reply:
        if self._stream is None:
            await self._channel.connected(self._deadline)
            left = self._left_seconds()
            self._stream = CallStream(self._channel, self._path, left, self._metadata, is_unary=self._is_unary)
            await self._stream.begin(self._request)
        item = await self._stream.read()
        if item is grpc.aio.EOF:
            raise StopAsyncIteration
        assert isinstance(item, bytes)
        return self._parse(item)

    def cancel(self) -> None:
        """Hangs up."""
        if self._stream is not None:
            self._stream.cancel()

    def _left_seconds(self) -> float | None:
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()


class CallStream(SimStream):
    """One call from its caller's end."""

    _channel: CallerChannel
    _far: ServerCall

    def __init__(
        self, channel: CallerChannel, path: str, timeout: float | None, metadata: Metadata, *, is_unary: bool
    ) -> None:
        self._timeout, self._metadata = timeout, metadata
        self._is_unary = is_unary
        super().__init__(channel, path, timeout)

    def _reached(self) -> ServerCall:
        return ServerCall(self._path, self._channel.peer, self._number, self._timeout, self._deliver, self._metadata)

    async def begin(self, request: bytes) -> None:
        """Sends the call, and behind it the request."""
        if self._link.is_unlucky():
            self._link.later(self._link.delay(), lambda: self._broken(rpc_error(*RESET)))
            return
        self._tell(lambda: self._link.member.take(self._far))
        self._tell(lambda: self._far.receive(request))

    async def read(self) -> object:
        """The next message; EOF at the end. It makes room for another."""
        item = await super().read()
        if not self._is_done:
            self._tell(self._far.took)
        return item

    def cancel(self) -> None:
        """Hangs up; the server hears of it behind all that was sent."""
        if self._is_done:
            return
        self._channel.forget(self._number)
        self._is_done = True
        self._inbox.put_nowait(None)
        self._channel.left.add(self._far)
        self._tell(self._left)

    def _left(self) -> None:
        self._channel.left.discard(self._far)
        self._far.close()

    def _tell(self, what: Callable[[], None]) -> None:
        """Has something happen at the server, in order, unless it was restarted meanwhile."""
        member = self._link.member
        restarts = member.restarts
        self._at_server = self._in_order(self._at_server, lambda: what() if member.restarts == restarts else None)

    def _took(self, item: Any) -> None:
        if self._is_done:
            return
        super()._took(item)
        if self._is_unary or not isinstance(item, bytes):
            self._is_done = True
            self._channel.forget(self._number)
