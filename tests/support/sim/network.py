"""Links between clients and members, and gRPC channels over them, in place of `grpc.aio.Channel`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import grpc
from google.protobuf.message import Message

from registry.etcd3 import rpc_pb2 as rpc
from tests.support.sim.members import Member, Watch
from tests.support.sim.store import Refusal

Item = Message | grpc.aio.AioRpcError


class Way(Enum):
    """What a link does with what is sent over it."""

    OPEN = "open"
    REFUSED = "refused"
    HUNG = "hung"


def rpc_error(code: str, details: str) -> grpc.aio.AioRpcError:
    """An error as gRPC raises it."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode[code], nothing, nothing, details)


RESET = ("UNAVAILABLE", "recvmsg:Connection reset by peer")
CLOSED = ("UNAVAILABLE", "failed to connect to all addresses; last error: Connection refused")


@dataclass(eq=False)
class Link:
    """The way from one client to one member.

    Attributes:
        lose: how probably a request or its reply is lost, and the connection with it.
        slow_seconds: most that a message takes beside the usual.
    """

    name: str
    member: Member
    rng: random.Random
    context: Context = field(default_factory=copy_context)
    way: Way = Way.OPEN
    lose: float = 0.0
    slow_seconds: float = 0.0
    channels: set[SimChannel] = field(default_factory=set)
    _held: list[Callable[[], None]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def carry(self, deliver: Callable[[], None]) -> None:
        """Brings a message to its other end."""
        self.later(self.delay(), lambda: self.arrive(deliver))

    def arrive(self, deliver: Callable[[], None]) -> None:
        """The far end of a link that may hang meanwhile."""
        if self.way is Way.HUNG:
            self._held.append(deliver)
        else:
            deliver()

    def delay(self) -> float:
        return self.rng.uniform(0.0001, 0.001) + self.rng.uniform(0.0, self.slow_seconds)

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Calls back in the network's own context: what is under way outlives its sender."""
        asyncio.get_running_loop().call_later(seconds, callback, context=self.context)

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """As `later`, at a time on the loop's clock: what is sent in order arrives in order."""
        asyncio.get_running_loop().call_at(when, callback, context=self.context)

    def set_way(self, way: Way) -> None:
        """Opens, refuses or hangs. What hung is delivered, or lost, when it opens again."""
        self.way = way
        if way is Way.REFUSED:
            self.cut()
        if way is not Way.HUNG:
            self._release()
        self._changed.set()
        self._changed = asyncio.Event()

    def _release(self) -> None:
        """What was held arrives late, or not at all, and then the connections are broken."""
        held, self._held = self._held, []
        if self.rng.random() < 0.5:
            for deliver in held:
                deliver()
        elif held:
            self.cut()

    def cut(self) -> None:
        """Breaks every connection over this link."""
        for channel in sorted(self.channels, key=lambda one: one.number):
            channel.break_off(rpc_error(*RESET))

    async def connect(self) -> bool:
        """Waits until a connection stands (True) or is refused (False)."""
        await asyncio.sleep(self.delay())
        while self.way is Way.HUNG:
            await self._changed.wait()
        return self.way is Way.OPEN

    def is_unlucky(self) -> bool:
        return self.lose > 0 and self.rng.random() < self.lose


class SimChannel:
    """As much of `grpc.aio.Channel` as `registry.etcd3.channel` uses."""

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self._state = grpc.ChannelConnectivity.IDLE
        self._calls: dict[int, Callable[[grpc.aio.AioRpcError | None], None]] = {}
        self._count = 0
        self._closed = False
        link.channels.add(self)

    def get_state(self, try_to_connect: bool) -> grpc.ChannelConnectivity:
        return self._state

    async def wait_for_state_change(self, _last: grpc.ChannelConnectivity) -> None:
        """Connects."""
        is_up = await self.link.connect()
        self._state = grpc.ChannelConnectivity.READY if is_up else grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def unary_unary(self, path: str, _serialize: object, _parse: object) -> Callable[..., Coroutine[Any, Any, Message]]:
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

    def check(self) -> None:
        """Raises what gRPC raises for a call that cannot be started."""
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        if self._state is not grpc.ChannelConnectivity.READY:
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

        def serve() -> None:
            answer: Item = ask(link.member, path, request)
            if link.is_unlucky():
                answer = rpc_error(*RESET)
            link.carry(lambda: _settle(reply, answer))

        link.carry(serve)


def ask(member: Member, path: str, request: Message) -> Item:
    """What the member answers, errors as gRPC brings them."""
    try:
        return member.serve(path, request, asyncio.get_running_loop().time())
    except Refusal as refusal:
        return rpc_error(refusal.code, refusal.details)


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


class SimStream:
    """As much of `grpc.aio.StreamStreamCall` as we use, for Watch and LeaseKeepAlive."""

    def __init__(self, channel: SimChannel, path: str, timeout: float | None) -> None:
        self._channel = channel
        self._path = path
        self._link = channel.link
        self._inbox: asyncio.Queue[Item | None] = asyncio.Queue()
        self._end: Item | None = None
        self._is_done = self._is_torn = False
        self._at_server = self._at_client = 0.0
        self._number = channel.register(self._broken)
        self._watch = Watch(self._link.member, self._to_client) if path.endswith("/Watch") else None
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        try:
            channel.check()
        except grpc.aio.AioRpcError as error:
            self._broken(error)

    async def write(self, message: Message) -> None:
        """Sends; like gRPC it waits for nothing but room."""
        if self._is_done:
            raise self._end if isinstance(self._end, grpc.aio.AioRpcError) else asyncio.CancelledError
        self._at_server = self._in_order(self._at_server, lambda: self._arrived(message))

    async def read(self) -> object:
        """The next message; EOF at the end."""
        try:
            async with asyncio.timeout_at(self._deadline):
                item = await self._inbox.get()
        except TimeoutError:
            raise rpc_error("DEADLINE_EXCEEDED", "Deadline Exceeded") from None
        if item is None:
            raise asyncio.CancelledError
        if isinstance(item, grpc.aio.AioRpcError):
            raise item
        return item

    def done(self) -> bool:
        return self._is_done

    def cancel(self) -> None:
        """Ends it from the client's side."""
        self._channel.forget(self._number)
        self._broken(None)

    def _broken(self, error: grpc.aio.AioRpcError | None) -> None:
        if self._is_done:
            return
        self._is_done, self._end = True, error
        self._inbox.put_nowait(error)
        if self._watch is not None:
            self._link.later(self._link.delay(), self._watch.close)

    def _arrived(self, message: Message) -> None:
        if self._watch is None:
            self._deliver(ask(self._link.member, self._path, message))
        elif not self._is_done and isinstance(message, rpc.WatchRequest):
            self._watch.receive(message)

    def _to_client(self, response: rpc.WatchResponse) -> None:
        self._deliver(response)

    def _deliver(self, item: Item) -> None:
        if self._is_torn:
            return  # what comes after a loss on a connection never arrives
        if self._link.is_unlucky():
            self._is_torn = True
            self._link.later(self._link.delay(), lambda: self._broken(rpc_error(*RESET)))
        else:
            self._at_client = self._in_order(self._at_client, lambda: self._took(item))

    def _took(self, item: Item) -> None:
        if not self._is_done:
            self._inbox.put_nowait(item)

    def _in_order(self, last: float, deliver: Callable[[], None]) -> float:
        """Delivers after a delay, never before what was sent earlier."""
        at = max(asyncio.get_running_loop().time() + self._link.delay(), last + 1e-6)
        self._link.at(at, lambda: self._link.arrive(deliver))
        return at
