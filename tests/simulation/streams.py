"""Streams over a link, in place of `grpc.aio.StreamStreamCall`, and what a member answers to one message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from registry.etcd3 import rpc_pb2 as rpc
from tests.simulation.links import RESET, Link, rpc_error
from tests.simulation.members import Member
from tests.simulation.store import Refusal
from tests.simulation.watches import Watch

Item = Message | grpc.aio.AioRpcError


class Channel(Protocol):
    """What a stream needs of its channel."""

    link: Link[Any]

    def check(self) -> None:
        """Raises what gRPC raises for a call that cannot be started."""

    def register(self, fail: Callable[[grpc.aio.AioRpcError | None], None]) -> int:
        """Notes a call that runs."""

    def forget(self, number: int) -> None:
        """It runs no more."""


def ask(member: Member, path: str, request: Message) -> Item:
    """What the member answers, errors as gRPC brings them."""
    try:
        return member.serve(path, request, asyncio.get_running_loop().time())
    except Refusal as refusal:
        return rpc_error(refusal.code, refusal.details)


class FarEnd(Protocol):
    """The far end of a stream, once it is reached."""

    def close(self) -> None:
        """Whoever opened it is gone."""


class SimStream:
    """As much of `grpc.aio.StreamStreamCall` as we use, for Watch and LeaseKeepAlive."""

    def __init__(self, channel: Channel, path: str, timeout: float | None) -> None:
        self._channel = channel
        self._path = path
        self._link = channel.link
        self._inbox: asyncio.Queue[Item | None] = asyncio.Queue()
        self._end: Item | None = None
        self._is_done = self._is_torn = False
        self._at_server = self._at_client = 0.0
        self._number = channel.register(self._broken)
        self._far = self._reached()
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        try:
            channel.check()
        except grpc.aio.AioRpcError as error:
            self._broken(error)

    async def write(self, message: Message) -> None:
        """Sends; like gRPC it waits for nothing but room."""
        if self._is_done:
            raise self._end if isinstance(self._end, grpc.aio.AioRpcError) else asyncio.CancelledError
        restarts = self._link.member.restarts
        self._at_server = self._in_order(self._at_server, lambda: self._arrived(message, restarts))

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
        if self._far is not None:
            self._link.later(self._link.delay(), self._far.close)

    def _reached(self) -> FarEnd | None:
        """What stands at the far end; None: nothing that stays."""
        if not self._path.endswith("/Watch"):
            return None
        client = self._link.name.partition("|")[0]
        return Watch(self._link.member, client, self._to_client, lambda: self._broken(rpc_error(*RESET)))

    def _arrived(self, message: Message, restarts: int) -> None:
        if self._link.member.restarts != restarts:
            return
        if not isinstance(self._far, Watch):
            self._deliver(ask(self._link.member, self._path, message))
        elif not self._is_done and isinstance(message, rpc.WatchRequest):
            self._far.receive(message)

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
