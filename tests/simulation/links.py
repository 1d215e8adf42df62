"""Links between clients and members: open, refused or hung, slow or lossy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar

import grpc

from tests.simulation.pace import Pace


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


class FarSide(Protocol):
    """What listens at the far end of a link; `restarts` counts those that a message on its way does not survive."""

    restarts: int

    @property
    def listens(self) -> bool: ...


Side = TypeVar("Side", bound=FarSide)


class Breakable(Protocol):
    """A connection as a link sees it."""

    number: int

    def break_off(self, error: grpc.aio.AioRpcError | None) -> None:
        """Ends every call that runs on it."""


@dataclass(eq=False)
class Link(Generic[Side]):
    """The way from one client to one member, or to one admin service.

    Attributes:
        lose: how probably a request or its reply is lost, and the connection with it.
        slow_seconds: most that a message takes beside the usual.
        pace: what single messages take beside that; None: nothing.
    """

    name: str
    member: Side
    rng: random.Random
    context: Context = field(default_factory=copy_context)
    way: Way = Way.OPEN
    lose: float = 0.0
    slow_seconds: float = 0.0
    pace: Pace | None = None
    channels: set[Breakable] = field(default_factory=set)
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
        usual = self.rng.uniform(0.0001, 0.001) + self.rng.uniform(0.0, self.slow_seconds)
        return usual if self.pace is None else usual + self.pace.seconds()

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
        return self.way is Way.OPEN and self.member.listens

    def is_unlucky(self) -> bool:
        return self.lose > 0 and self.rng.random() < self.lose
