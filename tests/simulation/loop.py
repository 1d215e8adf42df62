"""An event loop on virtual time, and processes in it that can be killed or paused at any await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class State(Enum):
    """Whether the code of a process runs."""

    RUNS = "runs"
    PAUSED = "paused"
    DEAD = "dead"


@dataclass(eq=False)
class Process:
    """Whatever was started in its context belongs to it. What a paused or dead one should have run is parked.

    `resumed` counts how often it went on after a pause.
    """

    name: str
    state: State = State.RUNS
    resumed: int = 0
    parked: list[tuple[asyncio.Handle, Context]] = field(default_factory=list)
    on_death: list[Callable[[], None]] = field(default_factory=list)

    def kill(self) -> None:
        """From now on nothing of it runs, not even a `finally`."""
        self.state = State.DEAD
        for callback in self.on_death:
            callback()

    def pause(self) -> None:
        """Stops it as SIGSTOP does."""
        self.state = State.PAUSED

    def resume(self) -> None:
        """Lets it go on, as SIGCONT does; does nothing to a dead one."""
        if self.state is State.PAUSED:
            self.resumed += 1
            self._run_parked()

    def bury(self) -> None:
        """Lets a dead one run again, so that its tasks can be cancelled at the end of a simulation."""
        self._run_parked()

    def _run_parked(self) -> None:
        self.state = State.RUNS
        parked, self.parked = self.parked, []
        for handle, context in parked:
            asyncio.get_running_loop().call_soon(_unless_cancelled, handle, context=context)

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


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs one thread's tasks; when all wait, time jumps to the first timer. Executors run at once, one step later."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0
        self._steps = 0
        self._selector = self

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._seconds

    def select(self, timeout: float | None) -> list[object]:
        """What the base class waits in."""
        if timeout is None:
            raise Deadlock
        self._note_step(timeout)
        # The base class runs timers that are due within its clock's resolution; time must then have come to them.
        self._seconds += max(timeout, RESOLUTION_SECONDS) if timeout > 0 else 0.0
        return []

    def _note_step(self, timeout: float) -> None:
        self._steps = self._steps + 1 if timeout <= 0 else 0
        if self._steps > MOST_STEPS:
            self._steps = 0
            raise Livelock(f"at {self._seconds:.4f} s something goes round without any time passing")

    def _process_events(self, event_list: list[object]) -> None:
        """There is no input and output."""

    def _write_to_self(self) -> None:
        """There is no other thread."""

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """As the base class, but only while the process lives that the context belongs to."""
        context = context if context is not None else copy_context()
        process = context.get(_PROCESS, _WORLD)
        return _gated(super().call_soon(callback, *args, context=context), process, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As `call_soon`."""
        context = context if context is not None else copy_context()
        process = context.get(_PROCESS, _WORLD)
        handle = super().call_at(when, callback, *args, context=context)
        _gated(handle, process, context)
        return handle

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Runs a thread's function in one piece, a moment later."""
        future = self.create_future()
        self.call_later(0.001, _finish, future, func, args)
        return future


def _gated(handle: asyncio.Handle, process: Process, context: Context) -> asyncio.Handle:
    """Makes a handle ask its process before it runs."""
    inner: Any = handle  # typeshed hides what a handle calls
    if process is not _WORLD:
        args = (process, handle, context, inner._callback, inner._args)
        inner._callback, inner._args = _gate, args
    return handle


def _gate(
    process: Process, handle: asyncio.Handle, context: Context, callback: Callable[..., object], args: tuple[Any, ...]
) -> None:
    if process.state is State.RUNS:
        callback(*args)
    else:
        process.parked.append((handle, context))


def _unless_cancelled(handle: Any) -> None:
    if not handle.cancelled():
        handle._callback(*handle._args)


def _finish(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        value = func(*args)
    except OSError as error:
        if not future.done():
            future.set_exception(error)
        return
    if not future.done():
        future.set_result(value)
