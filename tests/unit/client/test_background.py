"""Coroutines of callers without an event loop: results, ends and interrupts."""

from __future__ import annotations

import asyncio
import itertools
import linecache
import os
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import pytest

from registry.client import background
from registry.client.background import BackgroundLoop


class Numbers:
    """Counts, and notes its end; from `stop` on nothing more comes."""

    def __init__(self, stop: int) -> None:
        self._stop = stop
        self.waits = threading.Event()
        self.ended = threading.Event()

    async def count(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._stop):
                yield number
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # an end that takes its time
            self.ended.set()


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.close()


def test_a_generator_that_is_left_is_closed(loop):
    numbers = Numbers(5)
    items = loop.each(numbers.count())
    assert next(items) == 0
    items.close()
    assert numbers.ended.is_set()


def test_closing_ends_what_other_threads_wait_for(loop):
    """Else a command that fails in one thread would wait for the streams of all others."""
    numbers = Numbers(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, loop.each(numbers.count()))
        assert numbers.waits.wait(60)
        loop.close()
        with pytest.raises(CancelledError):
            waiting.result(60)
    assert numbers.ended.is_set()


class _InterruptAt:
    """Raises KeyboardInterrupt at the given line that this thread runs in the module, as a signal does anywhere."""

    def __init__(self, line: int) -> None:
        self._left = line

    def __call__(self, frame, event, _argument):
        if frame.f_code.co_filename != background.__file__:
            return None
        # Between the body of a `with` and its end Python handles no signal.
        is_with = linecache.getline(background.__file__, frame.f_lineno).lstrip().startswith("with ")
        if event == "line" and frame.f_code.co_name in {"run", "_hand_over", "each"} and not is_with:
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@pytest.mark.filterwarnings("error")
def test_an_interrupt_at_any_line_ends_the_step_and_the_generator(loop):
    """Each would once have waited for a step that nobody cancelled, or have told of a coroutine never awaited."""
    interrupted = 0
    for line in itertools.count(1):
        numbers = Numbers(3)
        items = loop.each(numbers.count())
        before = sys.gettrace()
        sys.settrace(_InterruptAt(line))
        try:
            assert [next(items) for _ in range(3)] == [0, 1, 2]
        except KeyboardInterrupt:
            interrupted += 1
        else:
            break
        finally:
            sys.settrace(before)
            items.close()
        assert loop.run(_others) == 0
    assert interrupted > 10


async def _others() -> int:
    """Tasks that still run beside this one, after a moment for those that were cancelled."""
    for _ in range(1000):
        if len(asyncio.all_tasks()) == 1:
            return 0
        await asyncio.sleep(0.01)
    return len(asyncio.all_tasks()) - 1


def test_an_interrupt_while_it_waits_ends_the_step_before_the_generator_is_closed(loop, monkeypatch):
    numbers = Numbers(0)
    items = loop.each(numbers.count())

    def interrupted(_outcome):
        assert numbers.waits.wait(60)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(items)
    assert numbers.ended.is_set()


def test_it_is_closed_once_and_takes_nothing_more(loop):
    ends: list[str] = []

    async def last() -> None:
        ends.append("last")

    loop.close(last)
    loop.close(last)
    assert ends == ["last"]
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(last)


def test_closing_ends_a_generator_that_nobody_waits_for():
    """R16 bounded: a router that keeps one while it works on what it was told; its stream would stay open."""
    loop, numbers = BackgroundLoop(), Numbers(5)
    items = loop.each(numbers.count())
    assert next(items) == 0
    loop.close()
    assert numbers.ended.is_set()
    items.close()


async def _number() -> int:
    return 7


def test_a_fork_has_a_loop_of_its_own(loop):
    """The thread of its parent's is not there; what it does to its own must not reach its parent's."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        own = BackgroundLoop()
        os.write(writing, b"%d" % own.run(_number))
        own.close()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        assert told.read() == b"7"
    assert (os.waitpid(child, 0)[1], loop.run(_number)) == (0, 7)


def test_closing_one_leaves_the_others_their_work(loop):
    """They share a thread, and nothing else."""
    numbers, other = Numbers(1), BackgroundLoop()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, loop.each(numbers.count()))
        assert numbers.waits.wait(60)
        other.close()
        assert not numbers.ended.is_set()
        loop.close()
        with pytest.raises(CancelledError):
            waiting.result(60)
