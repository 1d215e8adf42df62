"""Admission of calls: limits of places and bytes by caller, and turns in groups."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from registry.admin.rpc.decode import SMALL_BYTES
from registry.model.errors import Reason, ResourceExhausted, Unavailable

# What is due, and runs later than this, came behind something that took the processor.
LAG_SECONDS = 0.05
FIRST_LIMIT = 8
# How long ago a use counts half, and uses that are not told apart: then who came first goes first.
_HALF_LIFE_SECONDS = 30.0
_USE_STEP_SECONDS = 0.1
_CALLERS_REMEMBERED = 10_000


# At one limit, whoever they are of.
MAX_WAITING = 512
# A caller, or one of its connections: (caller,) or (caller, connection).
_Holder = tuple[str, ...]


class FairLimiter:
    """Lets so many calls run at once. Who held places for the shortest time lately goes first.

    One caller holds at most as many places as are left free, so that one that comes finds a place however many calls
    others make or leave hanging. Behind one address there may be many, so the same holds for its connections: one of
    them holds at most as many places as are left to the caller.

    Of more than `MAX_WAITING` that wait the newest of the longest queue is refused: of the caller with most of them,
    that of the connection with most, or with the most use where many have as few.

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
        self._held: Counter[_Holder] = Counter()
        self._waiting: dict[str, dict[str, deque[asyncio.Future[bool]]]] = {}  # by caller and connection
        self._queued = 0
        self._uses: OrderedDict[_Holder, tuple[float, float]] = OrderedDict()  # seconds, and when they were noted
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def held(self, caller: str, connection: str = "", *, timeout_seconds: float) -> AsyncIterator[None]:
        """The body runs within the limit; `timeout_seconds` is for the wait before it.

        Raises:
            Unavailable: no place came free in that time; the body did not run.
            ResourceExhausted: too many wait.
        """
        if self._waiting or not self._has_place(caller, connection):
            await self._turn(caller, connection, timeout_seconds)
        else:
            self._take(caller, connection)
        started = self._loop.time()
        try:
            yield
        finally:
            self._note_use(caller, connection, self._loop.time() - started)
            self._give_back(caller, connection)

    def _has_place(self, caller: str, connection: str) -> bool:
        free = self._limit - self._running
        left = free - self._held[caller,]
        return left > 0 and (not connection or self._held[caller, connection] < left)

    def _take(self, caller: str, connection: str) -> None:
        self._running += 1
        for holder in _holders(caller, connection):
            self._held[holder] += 1
        if self._narrows:
            self._loop.call_soon(self._adapt, self._loop.time())

    def _give_back(self, caller: str, connection: str) -> None:
        self._running -= 1
        for holder in _holders(caller, connection):
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]
        self._admit()

    async def _turn(self, caller: str, connection: str, timeout_seconds: float) -> None:
        turn = self._loop.create_future()
        self._waiting.setdefault(caller, {}).setdefault(connection, deque()).append(turn)
        self._queued += 1
        self._admit()
        if self._queued > MAX_WAITING:
            self._refuse_one()
        try:
            async with asyncio.timeout(timeout_seconds):
                is_taken = await turn
        except TimeoutError as error:
            self._leave(caller, connection, turn)
            message = "no turn came in time among other calls; nothing was changed, repeat it"
            raise Unavailable(Reason.DEADLINE_EXCEEDED, message) from error
        except asyncio.CancelledError:
            self._leave(caller, connection, turn)
            raise
        if not is_taken:
            message = f"{MAX_WAITING} calls wait already; make fewer at once, or repeat it in a few seconds"
            raise ResourceExhausted(Reason.TOO_MANY_CALLS, message)

    def _leave(self, caller: str, connection: str, turn: asyncio.Future[bool]) -> None:
        if turn.cancelled():
            self._forget(caller, connection, turn)
        elif turn.result():
            self._give_back(caller, connection)  # its turn came in the same moment

    def _forget(self, caller: str, connection: str, turn: asyncio.Future[bool]) -> None:
        connections = self._waiting.get(caller, {})
        waiting = connections.get(connection, deque())
        if turn in waiting:
            waiting.remove(turn)
            self._queued -= 1
            if not waiting:
                del connections[connection]
            if not connections:
                del self._waiting[caller]

    def _admit(self) -> None:
        """Gives free places to those who wait, as far as they may have one."""
        while self._running < self._limit and (found := self._next()):
            caller, connection = found
            turn = self._waiting[caller][connection][0]
            self._forget(caller, connection, turn)
            if not turn.done():
                self._take(caller, connection)
                turn.set_result(True)

    def _next(self) -> tuple[str, str] | None:
        """The next of those who wait; None: nobody may go."""
        for caller in sorted(self._waiting, key=lambda one: self._claim((one,))):
            able = [one for one in self._waiting[caller] if self._has_place(caller, one)]
            if able:
                return caller, min(able, key=lambda one: self._claim((caller, one)))
        return None

    def _claim(self, holder: _Holder) -> tuple[int, int]:
        """Of two the one with less goes first."""
        return self._held[holder], int(self._used_seconds(holder) / _USE_STEP_SECONDS)

    def _refuse_one(self) -> None:
        """Refuses one of those who wait. Where many have as much, it is the last who came."""
        queued = {caller: sum(map(len, connections.values())) for caller, connections in self._waiting.items()}
        caller = max(reversed(queued), key=lambda one: (queued[one], self._used_seconds((one,))))
        connections = self._waiting[caller]
        connection = max(
            reversed(connections), key=lambda one: (len(connections[one]), self._used_seconds((caller, one)))
        )
        turn = connections[connection][-1]
        self._forget(caller, connection, turn)
        if not turn.done():
            turn.set_result(False)

    def _adapt(self, due: float) -> None:
        """Adapts the limit to how late the loop comes to what is due."""
        lags = self._loop.time() - due > LAG_SECONDS
        self._limit = max(1, self._limit // 2) if lags else min(self._most, self._limit + 1)
        self._admit()

    def _used_seconds(self, holder: _Holder) -> float:
        seconds, at = self._uses.get(holder, (0.0, 0.0))
        return seconds * math.exp2((at - self._loop.time()) / _HALF_LIFE_SECONDS)

    def _note_use(self, caller: str, connection: str, seconds: float) -> None:
        for holder in _holders(caller, connection):
            self._uses[holder] = self._used_seconds(holder) + seconds, self._loop.time()
            self._uses.move_to_end(holder)
        while len(self._uses) > _CALLERS_REMEMBERED:
            self._uses.popitem(last=False)


def _holders(caller: str, connection: str) -> tuple[_Holder, ...]:
    """Holder of a place that a call takes."""
    return ((caller,), (caller, connection)) if connection else ((caller,),)


# A message has 4 MiB at most. What is small is not counted, so that nobody waits for others with what costs little.
MAX_CALLER_BYTES = 16 * 1024 * 1024
MAX_BYTES = 128 * 1024 * 1024


class ByteLimiter:
    """Bounds the bytes that requests have together: those of one caller, and all."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @contextmanager
    def held(self, caller: str, size_bytes: int) -> Iterator[None]:
        """The body has a request of that size.

        Raises:
            ResourceExhausted: the caller, or all, would have too many bytes.
        """
        counted = size_bytes if size_bytes > SMALL_BYTES else 0
        if self._held[caller] + counted > MAX_CALLER_BYTES or self._held.total() + counted > MAX_BYTES:
            message = f"requests that are under way may have {MAX_CALLER_BYTES >> 20} MiB of one caller, and "
            message += f"{MAX_BYTES >> 20} MiB in all; send fewer large ones at once, and repeat this one"
            raise ResourceExhausted(Reason.TOO_MANY_CALLS, message)
        self._held[caller] += counted
        try:
            yield
        finally:
            self._held[caller] -= counted
            if not self._held[caller]:
                del self._held[caller]


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
