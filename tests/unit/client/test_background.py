"""Coroutines of callers without an event loop: results, ends and interrupts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

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
        assert numbers.waits.wait(10)
        loop.close()
        with pytest.raises(CancelledError):
            waiting.result(10)
    assert numbers.ended.is_set()


def test_an_interrupt_ends_the_step_before_the_generator_is_closed(loop, monkeypatch):
    numbers = Numbers(0)
    items = loop.each(numbers.count())

    class Interrupted:
        def __init__(self, running):
            self._running = running

        def result(self):
            assert numbers.waits.wait(10)
            monkeypatch.undo()
            raise KeyboardInterrupt

        def cancel(self):
            self._running.cancel()

    start = asyncio.run_coroutine_threadsafe
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *work: Interrupted(start(*work)))
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
        loop.run(last())
