"""Admission of calls: a fair limit by caller, and turns in groups."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from registry.model.errors import Reason, Unavailable

# What is due, and runs later than this, came behind something that took the processor.
LAG_SECONDS = 0.05
FIRST_LIMIT = 8
# How long ago a use counts half, and uses that are not told apart: then who came first goes first.
_HALF_LIFE_SECONDS = 30.0
_USE_STEP_SECONDS = 0.1
_CALLERS_REMEMBERED = 10_000


class FairLimiter:
    """Lets so many calls run at once. Who held places for the shortest time lately goes first.

    One caller holds at most as many places as are left free, so that one that comes finds a place however many calls
    others make or leave hanging.

    Args:
        most: calls at once, of all callers.
        narrows: while the event loop lags the limit is halved, until one call runs after another; it grows again one by
            one. Not for what a caller can hold without an end, which would take the places that are left.
    """

    def __init__(self, most: int, *, narrows: bool = False) -> None:
        self._most = most
        self._narrows = narrows
        self._limit = FIRST_LIMIT if narrows else most
        self._running = 0
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._uses: OrderedDict[str, tuple[float, float]] = OrderedDict()  # seconds, and when they were noted
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def held(self, caller: str, *, timeout_seconds: float) -> AsyncIterator[None]:
        """The body runs within the limit; `timeout_seconds` is for the wait before it.

        Raises:
            Unavailable: no place came free in that time; the body did not run.
        """
        if self._waiting or not self._has_place(caller):
            await self._turn(caller, timeout_seconds)
        else:
            self._take(caller)
        started = self._loop.time()
        try:
            yield
        finally:
            self._note_use(caller, self._loop.time() - started)
            self._give_back(caller)

    def _has_place(self, caller: str) -> bool:
        free = self._limit - self._running
        return free > 0 and self._held[caller] < free

    def _take(self, caller: str) -> None:
        self._running += 1
        self._held[caller] += 1
        if self._narrows:
            self._loop.call_soon(self._adapt, self._loop.time())

    def _give_back(self, caller: str) -> None:
        self._running -= 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        self._admit()

    async def _turn(self, caller: str, timeout_seconds: float) -> None:
        turn = self._loop.create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._admit()
        try:
            async with asyncio.timeout(timeout_seconds):
                await turn
        except TimeoutError as error:
            self._leave(caller, turn)
            message = "calls of others took all the time; nothing was changed, repeat it"
            raise Unavailable(Reason.DEADLINE_EXCEEDED, message) from error
        except asyncio.CancelledError:
            self._leave(caller, turn)
            raise

    def _leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        if not turn.cancelled():
            self._give_back(caller)  # its turn came in the same moment
            return
        waiting = self._waiting.get(caller, deque())
        if turn in waiting:
            waiting.remove(turn)
        if not waiting:
            self._waiting.pop(caller, None)

    def _admit(self) -> None:
        """Gives free places to those who wait, as far as they may have one."""
        while self._running < self._limit and (able := [one for one in self._waiting if self._has_place(one)]):
            caller = min(able, key=self._claim)
            turn = self._waiting[caller].popleft()
            if not self._waiting[caller]:
                del self._waiting[caller]
            if not turn.done():
                self._take(caller)
                turn.set_result(None)

    def _claim(self, caller: str) -> tuple[int, int]:
        """Of two callers the one with less goes first."""
        return self._held[caller], int(self._used_seconds(caller) / _USE_STEP_SECONDS)

    def _adapt(self, due: float) -> None:
        """Adapts the limit to how late the loop comes to what is due."""
        lags = self._loop.time() - due > LAG_SECONDS
        self._limit = max(1, self._limit // 2) if lags else min(self._most, self._limit + 1)
        self._admit()

    def _used_seconds(self, caller: str) -> float:
        seconds, at = self._uses.get(caller, (0.0, 0.0))
        return seconds * math.exp2((at - self._loop.time()) / _HALF_LIFE_SECONDS)

    def _note_use(self, caller: str, seconds: float) -> None:
        self._uses[caller] = self._used_seconds(caller) + seconds, self._loop.time()
        self._uses.move_to_end(caller)
        if len(self._uses) > _CALLERS_REMEMBERED:
            self._uses.popitem(last=False)


FEW = 3
TURN_SECONDS = 0.002


class Batcher:
    """Where more than a few calls run at once, one that comes waits a moment for others, and they go on as a group.

    A change alone finds the caches cold, and costs about three times what it costs right after another; and etcd
    commits together what comes together. A few calls at once wait for nothing.
    """

    def __init__(self) -> None:
        self._running = 0
        self._next: asyncio.Event | None = None

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """The body runs in a turn; it begins at most `TURN_SECONDS` later, whatever became of the calls before."""
        self._running += 1
        try:
            if self._running > FEW:
                await self._gathered().wait()
            yield
        finally:
            self._running -= 1

    def _gathered(self) -> asyncio.Event:
        """Set when the group that gathers now goes on."""
        if self._next is None:
            self._next = asyncio.Event()
            asyncio.get_running_loop().call_later(TURN_SECONDS, self._go_on, self._next)
        return self._next

    def _go_on(self, group: asyncio.Event) -> None:
        self._next = None
        group.set()
