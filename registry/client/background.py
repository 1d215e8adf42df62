"""An event loop on a thread of its own, and clients for callers that have none.

There is one for the whole process, and it is never closed: grpc.aio hands what comes late, as of a stream that was
given up, to the loop that its call was of, and complains on stderr of each that is closed by then. So calls are made on
this loop alone, also for clients that run on another.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial, wraps
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar
from weakref import ref

import grpc
from google.protobuf.message import Message

from registry.client.channel import check_process, open_channel
from registry.etcd3.tls import Pem

T = TypeVar("T")
P = ParamSpec("P")
Step = Callable[[], Coroutine[Any, Any, T]]


class LoopElsewhere(Protocol):
    """An event loop that the caller's thread does not run."""

    def run(self, step: Step[T]) -> T:
        """The result of a coroutine, which is made in the loop; an interrupt of the caller cancels it."""

    def finish(self, step: Step[None]) -> None:
        """Runs a coroutine that ends something, and waits for it where that thread can wait."""


class _ProcessLoop:
    """The loop of this process, and its thread, from when it is first asked for."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._left: list[asyncio.AbstractEventLoop | None] = []

    def run(self, step: Step[T]) -> T:
        """See `LoopElsewhere.run`."""
        # Ours before anything starts: an interrupt at any point from here on cancels it, also one that comes
        # when the loop has the work and the caller has nothing in hand yet. It waits in the queue, not in the
        # outcome, whose lock an interrupt would leave as it was at that moment: held, or let go twice.
        outcome: Future[T] = Future()
        told: SimpleQueue[Future[T]] = SimpleQueue()
        outcome.add_done_callback(told.put)
        try:
            self.hand_over(outcome, step)
            return told.get().result()
        except BaseException:  # an interrupt too: nobody else waits for it
            outcome.cancel()
            raise

    def finish(self, step: Step[None]) -> None:
        """See `LoopElsewhere.finish`: the loop's own thread cannot wait, nor can the end of the program."""
        if self.runs_here() or sys.is_finalizing():
            self.hand_over(Future(), step)
        else:
            self.run(step)

    def hand_over(self, outcome: Future[T], step: Step[T]) -> None:
        """Runs a coroutine, which is made in the loop; what comes of it is the outcome. To cancel that cancels it."""
        loop = self._get()
        loop.call_soon_threadsafe(self._start, loop, outcome, step)

    def _start(self, loop: asyncio.AbstractEventLoop, outcome: Future[T], step: Step[T]) -> None:
        task = loop.create_task(step())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(_tell, outcome))
        outcome.add_done_callback(partial(_cancel, ref(task)))

    def _get(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="loraplane-client", daemon=True)
                self._thread.start()
                self._loop = loop  # only now: an interrupt before leaves none that nobody runs
            return self._loop

    def runs_here(self) -> bool:
        """True on the loop's own thread."""
        return threading.current_thread() is self._thread

    def forget(self) -> None:
        """Makes a fork begin with a loop of its own. Its parent's is kept: closed here, it would end there too."""
        self._left.append(self._loop)
        self._starting, self._loop, self._thread = threading.Lock(), None, None


PROCESS = _ProcessLoop()
os.register_at_fork(after_in_child=PROCESS.forget)


class BackgroundLoop:
    """Runs coroutines for callers without an event loop, until it is closed. May be used by several threads."""

    def __init__(self, loop: LoopElsewhere = PROCESS) -> None:
        self._loop = loop
        self._process = os.getpid()
        # Only the loop's thread touches these.
        self._ending: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._generators: set[AsyncGenerator[Any, None]] = set()

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a coroutine, which is made in the loop; an interrupt of the caller cancels it.

        Raises:
            UsedAfterFork: it was made in another process.
            RuntimeError: it was closed.
        """
        check_process(self._process)
        return self._loop.run(partial(self._run, partial(function, *args, **kwargs)))

    async def _run(self, step: Step[T]) -> T:
        task = asyncio.current_task()
        if self._ending is not None or task is None:
            raise RuntimeError("the connection to the admin service was closed")
        self._tasks.add(task)
        try:
            return await step()
        finally:
            self._tasks.discard(task)

    def each(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items of an asynchronous generator, which is closed at the end, also where Python collects this."""
        turn = asyncio.Lock()
        try:
            while (item := self.run(self._next, items, turn)) is not None:
                yield item
        finally:
            if self._process == os.getpid():  # else its end is the other process's
                self._loop.finish(partial(self._leave, items, turn))

    async def _next(self, items: AsyncGenerator[T, None], turn: asyncio.Lock) -> T | None:
        self._generators.add(items)
        async with turn:
            return await anext(items, None)

    async def _leave(self, items: AsyncGenerator[Any, None], turn: asyncio.Lock) -> None:
        async with turn:  # a step that was cancelled with its caller ends first
            await items.aclose()
        self._generators.discard(items)

    def close(self, last: Step[None] | None = None) -> None:
        """Cancels what runs, and runs `last`. Safe to call twice.

        Callers on other threads that wait for a result get CancelledError of `concurrent.futures`. In a fork there is
        nothing to end: it is the other process's.
        """
        if self._process == os.getpid():
            self._loop.run(partial(self._close, last))

    async def _close(self, last: Step[None] | None) -> None:
        self._ending = self._ending or asyncio.create_task(self._end(last))
        await asyncio.shield(self._ending)  # an interrupt of the caller leaves nothing open

    async def _end(self, last: Step[None] | None) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.aclose() for one in [*self._generators]), return_exceptions=True)
        if last is not None:
            await last()


def _cancel(known: ref[asyncio.Task[Any]], _outcome: Future[Any]) -> None:
    """Cancels a task, to which its outcome refers weakly: else it would end with that, on the caller's thread.

    What runs there then is Python's own, in which an interrupt is lost.
    """
    task = known()
    if task is not None and not task.done():
        task.get_loop().call_soon_threadsafe(task.cancel)


def _tell(outcome: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        outcome.cancel()
        return
    error = task.exception()  # asyncio complains of one that nobody asked for, also where the caller left
    if outcome.set_running_or_notify_cancel():  # false: it did
        if error is None:
            outcome.set_result(task.result())
        else:
            outcome.set_exception(error)


class _Closable(Protocol):
    async def aclose(self) -> None: ...


C_co = TypeVar("C_co", bound=_Closable, covariant=True)


class BlockingClient(Generic[C_co]):
    """A client, made in an event loop of its own, for use in ``with``. May be used by several threads."""

    def __init__(self, make: Callable[[], C_co], loop: BackgroundLoop) -> None:
        self._loop = loop
        try:
            self._client = loop.run(_made, make)
        except BaseException:  # an interrupt too: nobody else could end what it began
            loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and every stream on it. Safe to call twice."""
        self._loop.close(self._client.aclose)


async def _made(make: Callable[[], C_co]) -> C_co:
    return make()


def blocking(
    method: Callable[Concatenate[C_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient[C_co], P], T]:
    """The method that returns once this one of the asynchronous client has its result."""

    @wraps(method)
    def call(self: BlockingClient[C_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method, self._client, *args, **kwargs)

    return call


def generating(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[BlockingClient[Any], P], Generator[T, None, None]]:
    """The method that yields what this one of the asynchronous client does."""

    @wraps(method)
    def call(self: BlockingClient[Any], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self._loop.each(method(self._client, *args, **kwargs))

    return call


async def _there(step: Step[T]) -> T:
    """The result of a coroutine that is made on the process' loop; a cancellation goes there too."""
    outcome: Future[T] = Future()
    PROCESS.hand_over(outcome, step)
    return await asyncio.wrap_future(outcome)


class LoopedChannel:
    """A channel to HOST:PORT whose calls the process' own loop makes; `pem` None: without TLS."""

    def __init__(self, address: str, pem: Pem | None) -> None:
        self._open = partial(open_channel, address, pem)
        self._channel: grpc.aio.Channel | None = None  # only the process' loop touches it

    def unary_unary(
        self, path: str, serialize: Callable[[Message], bytes], parse: Callable[[bytes], T]
    ) -> Callable[..., Awaitable[T]]:
        """A call with one answer, as a channel of gRPC has it."""

        async def made(request: Message, how: dict[str, Any]) -> T:
            return await self._opened().unary_unary(path, serialize, parse)(request, **how)

        async def call(request: Message, **how: Any) -> T:  # noqa: ANN401 - as gRPC takes it
            return await _there(partial(made, request, how))

        return call

    def unary_stream(
        self, path: str, serialize: Callable[[Message], bytes], parse: Callable[[bytes], T]
    ) -> Callable[..., LoopedStream[T]]:
        """A call with a stream of answers, as a channel of gRPC has it."""

        async def answers(request: Message, how: dict[str, Any]) -> AsyncGenerator[T, None]:
            running = self._opened().unary_stream(path, serialize, parse)(request, **how)
            try:
                async for answer in running:
                    yield answer
            finally:
                running.cancel()

        def call(request: Message, **how: Any) -> LoopedStream[T]:  # noqa: ANN401 - as gRPC takes it
            return LoopedStream(answers(request, how))

        return call

    async def close(self, grace_seconds: float | None = None) -> None:
        """Ends all calls."""
        await _there(partial(self._close, grace_seconds))

    async def _close(self, grace_seconds: float | None) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(grace_seconds)

    def _opened(self) -> grpc.aio.Channel:
        self._channel = self._channel or self._open()
        return self._channel


class LoopedStream(Generic[T]):
    """Answers of one call, each of which the process' loop brings."""

    def __init__(self, answers: AsyncGenerator[T, None]) -> None:
        self._answers = answers
        self._turn = asyncio.Lock()

    async def __aiter__(self) -> AsyncIterator[T]:
        while (answer := await _there(self._next)) is not None:
            yield answer

    async def _next(self) -> T | None:
        async with self._turn:
            return await anext(self._answers, None)

    def cancel(self) -> None:
        """Ends the call; nobody waits for that."""
        PROCESS.hand_over(Future(), self._end)

    async def _end(self) -> None:
        async with self._turn:  # a step that was cancelled with its caller ends first
            await self._answers.aclose()
