"""An event loop on virtual time, and processes in it that can be killed or paused at any await.

With a source of chance the loop is hostile: what is ready at one moment runs in an order that is drawn. What asyncio
promises stays, since code may rightly rely on it:

- Callbacks that one process gave to `call_soon`, and those that futures called for it, run in the order in which they
  were given. These are all callbacks that are no step of a task.
- Whoever waits for one future is woken in the order in which they began to wait, its callbacks among them.
- A task's own steps follow one another; it has one at a time.
- Nothing is left out, and nothing waits for ever: a step is held back for a few rounds at most, while no time passes.

All else is nobody's promise, and is exchanged: steps of different tasks, be they woken by one event, by two, or just
made; a task's step and a callback that has nothing to do with it; timers that are due at the same moment.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable
from contextlib import closing
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, wraps
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class State(Enum):
    """Whether the code of a process runs."""

    RUNS = "runs"
    PAUSED = "paused"
    DEAD = "dead"


@dataclass(eq=False)
class Process:
    """Whatever was started in its context belongs to it. What a paused or dead one should have run is parked.

    `resumed` counts how often it went on after a pause, the last time `resumed_at`; `paused` holds each pause.
    """

    name: str
    state: State = State.RUNS
    resumed: int = 0
    resumed_at: float = -math.inf
    paused: list[tuple[float, float]] = field(default_factory=list)
    parked: list[asyncio.Handle] = field(default_factory=list)
    on_death: list[Callable[[], None]] = field(default_factory=list)
    _paused_at: float = 0.0

    def kill(self) -> None:
        """From now on nothing of it runs, not even a `finally`."""
        self._note_pause()
        self.state = State.DEAD
        for callback in self.on_death:
            callback()

    def pause(self) -> None:
        """Stops it as SIGSTOP does."""
        self._paused_at = asyncio.get_running_loop().time()
        self.state = State.PAUSED

    def resume(self) -> None:
        """Lets it go on, as SIGCONT does; does nothing to a dead one."""
        if self.state is State.PAUSED:
            self._note_pause()
            self.resumed += 1
            self.resumed_at = asyncio.get_running_loop().time()
            self._run_parked()

    def _note_pause(self) -> None:
        if self.state is State.PAUSED:
            self.paused.append((self._paused_at, asyncio.get_running_loop().time()))

    def bury(self) -> None:
        """Lets a dead one run again, so that its tasks can be cancelled at the end of a simulation."""
        self._run_parked()

    def _run_parked(self) -> None:
        self.state = State.RUNS
        parked, self.parked = self.parked, []
        loop: Any = asyncio.get_running_loop()
        loop.go_on_with(parked)

    def context(self) -> Context:
        """A new context that belongs to this process."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return context


_PROCESS: ContextVar[Process] = ContextVar("process")


def current_process() -> Process:
    """The process whose code runs."""
    return _PROCESS.get(_WORLD)


def current_process_name() -> str:
    """Its name."""
    return current_process().name


_WORLD = Process("world")


# That of the base class.
RESOLUTION_SECONDS = 1e-9
# More than this never happens at one moment.
MOST_STEPS = 100_000


class Deadlock(Exception):
    """Nothing will ever happen again."""


class Livelock(Exception):
    """Something happens without end, and time stands still."""


# A step of a task that draws more than this is held back until the next round.
HELD_BACK = 2.0
# How long a thread takes before it does its work, and after it.
THREAD_SECONDS = (0.001, 0.0)


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs one thread's tasks; when all wait, time jumps to the first timer.

    Attributes:
        thread_seconds: how long the next function in a thread takes, before its effect and after it.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        """`rng`: draws what runs next of what is ready; None: first in, first out."""
        super().__init__()
        self.thread_seconds: Callable[[], tuple[float, float]] = lambda: THREAD_SECONDS
        self._rng = rng
        self._seconds = 0.0
        self._steps = 0
        self._queue: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._numbers = count(1)
        self._tasks: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._seconds

    def create_task(self, coro: Any, **how: Any) -> asyncio.Task[Any]:
        """As the base class; remembers which came first."""
        task: asyncio.Task[Any] = super().create_task(coro, **how)
        self._tasks[task] = next(self._numbers)
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """As the base class; it runs only while the process lives that the context belongs to."""
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.Handle(callback, args, self, context)
        self._queue.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As `call_soon`."""
        return self.call_at(self._seconds + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As `call_soon`."""
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        lot = 0.0 if self._rng is None else self._rng.random()
        heappush(self._timers, (when, lot, next(self._numbers), handle))
        return handle

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Runs a thread's function in one piece; what it does and what it tells take their time."""
        future, (before, after) = self.create_future(), self.thread_seconds()
        self.call_later(before, self._run_thread, future, after, func, args)
        return future

    def _run_thread(
        self, future: asyncio.Future[Any], after: float, func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        try:
            tell = partial(_settle, future, None, func(*args))
        except OSError as error:
            tell = partial(_settle, future, error, None)
        if after:
            self.call_later(after, tell)
        else:
            tell()

    def go_on_with(self, parked: Iterable[asyncio.Handle]) -> None:
        """Takes up again what a process had to leave."""
        self._queue.extend(parked)

    def _run_once(self) -> None:
        """In place of that of the base class: lets time pass if nothing is ready, and runs what is."""
        self._pass_time()
        ready, self._queue = self._queue, deque()
        for handle in ready if self._rng is None or len(ready) < 2 else self._drawn(ready, self._rng):
            process = process_of(handle)
            if handle._cancelled:
                continue
            if process.state is State.RUNS:
                handle._run()
            else:
                process.parked.append(handle)

    def _pass_time(self) -> None:
        timers = self._timers
        while timers and timers[0][3]._cancelled:
            heappop(timers)
        if self._queue or self._stopping:  # type: ignore[attr-defined]
            self._note_step(0.0)
        elif not timers:
            raise Deadlock
        else:
            seconds = timers[0][0] - self._seconds
            self._note_step(seconds)
            # What is due within the clock's resolution runs; time must then have come to it.
            self._seconds += max(seconds, RESOLUTION_SECONDS) if seconds > 0 else 0.0
        end = self._seconds + RESOLUTION_SECONDS
        while timers and timers[0][0] < end:
            self._queue.append(heappop(timers)[3])

    def _note_step(self, seconds: float) -> None:
        self._steps = self._steps + 1 if seconds <= 0 else 0
        if self._steps > MOST_STEPS:
            self._steps = 0
            raise Livelock(f"at {self._seconds:.4f} s something goes round without any time passing")

    def _drawn(self, ready: Iterable[asyncio.Handle], rng: random.Random) -> list[asyncio.Handle]:
        """In which order they run now; what is held back stands before all that becomes ready meanwhile."""
        lots: list[tuple[float, int, asyncio.Handle]] = []
        last: dict[Hashable, float] = {}
        # In a set of tasks, such as those that a group cancels, their order is that of addresses: no seed knows it.
        numbers = sorted(enumerate(ready), key=lambda one: self._tasks.get(_task_of(one[1]), 0))
        drawn = {number: rng.random() for number, _ in numbers}
        for number, handle in enumerate(ready):
            lanes, lot = _lanes(handle), drawn[number]
            lot = max([lot, *(last[lane] for lane in lanes if lane in last)])
            last |= dict.fromkeys(lanes, lot)
            lots.append((lot, number, handle))
        lots.sort(key=lambda one: one[:2])
        self._queue.extendleft(handle for lot, _, handle in reversed(lots) if lot > HELD_BACK)
        return [handle for lot, _, handle in lots if lot <= HELD_BACK]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def _write_to_self(self) -> None:
        """There is no other thread."""


def process_of(handle: asyncio.Handle) -> Process:
    """To which a callback belongs."""
    return handle._context.get(_PROCESS, _WORLD)  # type: ignore[attr-defined, no-any-return]


def is_thread(handle: Any) -> bool:
    """Whether it stands for what a thread does, for which whoever ends waits."""
    callback = getattr(handle._callback, "func", handle._callback)
    return callback is _settle or getattr(callback, "__func__", None) is VirtualLoop._run_thread


def _task_of(handle: Any) -> object:
    """The task whose step it is; of any other callback itself."""
    owner = getattr(handle._callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else handle


def _lanes(handle: Any) -> list[Hashable]:
    """Within what a callback may not be overtaken by one that came later."""
    args, context = handle._args, handle._context
    lanes: list[Hashable] = [id(args[0])] if args and isinstance(args[0], asyncio.Future) else []
    if _task_of(handle) is handle:
        lanes.append(context.get(_PROCESS, _WORLD))
    return lanes


def _settle(future: asyncio.Future[Any], error: OSError | None, value: object) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def play(scene: Coroutine[Any, Any, T]) -> T:
    """What it gives on a virtual loop of its own; what it began and did not end is ended with it."""

    async def ended() -> T:
        try:
            return await scene
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    with closing(VirtualLoop()) as loop:
        try:
            return loop.run_until_complete(ended())
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test on virtual time."""

    @wraps(test)
    def played(*arguments: Any, **named: Any) -> None:
        play(test(*arguments, **named))

    return played
