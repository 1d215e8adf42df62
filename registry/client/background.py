"""An event loop on a thread of its own, for callers that have none.

There is one for the whole process, and it is never closed: grpc.aio hands what comes late, as of a stream that was
given up, to the loop that its call was of, and complains on stderr of each that is closed by then.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class _ProcessLoop:
    """The loop of this process, and its thread, from when it is first asked for."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: list[asyncio.AbstractEventLoop | None] = []

    def get(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs."""
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="loraplane-client", daemon=True).start()
            return self._loop

    def forget(self) -> None:
        """Makes a fork begin with a loop of its own. Its parent's is kept: closed here, it would end there too."""
        self._left.append(self._loop)
        self._starting, self._loop = threading.Lock(), None


_PROCESS = _ProcessLoop()
os.register_at_fork(after_in_child=_PROCESS.forget)


class BackgroundLoop:
    """Runs coroutines for callers without an event loop, until it is closed. May be used by several threads."""

    def __init__(self) -> None:
        self._loop = _PROCESS.get()
        self._lock = threading.Lock()
        self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._generators: set[AsyncGenerator[Any, None]] = set()

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a coroutine, which is made in the loop; an interrupt of the caller cancels it.

        Raises:
            RuntimeError: the loop was closed.
        """
        # Ours before anything starts: an interrupt at any point from here on cancels it, also one that comes
        # when the loop has the work and the caller has nothing in hand yet.
        outcome: Future[T] = Future()
        try:
            self._hand_over(outcome, partial(function, *args, **kwargs))
            return outcome.result()
        except BaseException:  # an interrupt too: nobody else waits for it
            outcome.cancel()
            raise

    def _hand_over(self, outcome: Future[T], function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the connection to the admin service was closed")
            self._loop.call_soon_threadsafe(self._start, outcome, function)

    def _start(self, outcome: Future[T], function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        task = self._loop.create_task(function())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(_tell, outcome))
        outcome.add_done_callback(lambda _: task.done() or self._loop.call_soon_threadsafe(task.cancel))

    def each(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items of an asynchronous generator, which is closed at the end."""
        turn = asyncio.Lock()
        self._generators.add(items)
        try:
            while (item := self.run(_next, items, turn)) is not None:
                yield item
        finally:
            if not self._is_closed:
                self.run(_close, items, turn)
            self._generators.discard(items)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Cancels what runs, and runs `last`. Safe to call twice.

        Callers on other threads that wait for a result get CancelledError of `concurrent.futures`.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ending = asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        ending.result()

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.aclose() for one in [*self._generators]), return_exceptions=True)
        if last is not None:
            await last()


def _tell(outcome: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        outcome.cancel()
    elif outcome.set_running_or_notify_cancel():  # false: the caller left
        error = task.exception()
        if error is None:
            outcome.set_result(task.result())
        else:
            outcome.set_exception(error)


async def _next(items: AsyncGenerator[T, None], turn: asyncio.Lock) -> T | None:
    async with turn:
        return await anext(items, None)


async def _close(items: AsyncGenerator[Any, None], turn: asyncio.Lock) -> None:
    async with turn:  # a step that was cancelled with its caller ends first
        await items.aclose()
