"""Coroutines of callers without an event loop: results, ends and interrupts."""

from __future__ import annotations

import asyncio
import dis
import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from unittest.mock import AsyncMock, Mock

import pytest

from registry.client import background
from registry.client.background import BackgroundLoop, LoopedChannel
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Hold, served
from tests.support.waiting import eventually


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


# After these Python handles signals, but where a call waits for something by itself.
_LOOKS = {dis.opmap[name] for name in ("RESUME", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD")}


class _InterruptAt:
    """Raises KeyboardInterrupt where this thread may handle a signal for the n-th time, in whatever module."""

    def __init__(self, place: int) -> None:
        self._left = place
        self._last: dict[int, int] = {}
        self.is_over = False

    def __call__(self, frame, event, _argument):
        frame.f_trace_opcodes = True
        if event == "return":
            self._last.pop(id(frame), None)
        if event != "opcode" or self.is_over:
            return self
        last, self._last[id(frame)] = self._last.get(id(frame)), frame.f_code.co_code[frame.f_lasti]
        self._left -= last in _LOOKS
        if self._left == 0:
            self.is_over = True
            raise KeyboardInterrupt
        return self


@pytest.mark.filterwarnings("error")
def test_an_interrupt_at_any_point_is_one_and_ends_the_step_and_the_generator(loop):
    """Each would once have waited for a step that nobody cancelled, or have told of a coroutine never awaited.

    Within the wait for an outcome it left its lock held for ever, or became another error, or was lost.
    """
    interrupted = 0
    for place in itertools.count(1):
        numbers = Numbers(3)
        items = loop.each(numbers.count())
        before, interrupt = sys.gettrace(), _InterruptAt(place)
        sys.settrace(interrupt)
        try:
            assert [next(items) for _ in range(3)] == [0, 1, 2]
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(before)
            items.close()
        assert interrupted == place or not interrupt.is_over, "Python lost it"
        if not interrupt.is_over:
            break
        assert asyncio.run_coroutine_threadsafe(_others(), background.PROCESS._get()).result(60) == 0
    assert interrupted > 100


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

    class Interrupted(Mock):
        def get(self):
            assert numbers.waits.wait(60)
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(background, "SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(items)
    assert numbers.ended.is_set()


def test_it_is_closed_once_and_takes_nothing_more(loop):
    ends: list[str] = []

    async def last() -> None:
        await asyncio.sleep(0.05)
        ends.append("last")

    loop.close(last)
    assert ends == ["last"], "it is over by then"
    loop.close(last)
    assert ends == ["last"]
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(last)


def test_an_interrupt_while_it_is_closed_leaves_nothing_open(loop, monkeypatch):
    """X3 given-back: a second Ctrl-C, as of one whose service hangs; and it may be closed once more."""
    begun, left, ended = threading.Event(), threading.Event(), threading.Event()

    async def last() -> None:
        begun.set()
        await asyncio.to_thread(left.wait, 60)
        ended.set()

    class Interrupted(Mock):
        def get(self):
            assert begun.wait(60)
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(background, "SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.close(last)
    left.set()
    loop.close(last)
    assert ended.is_set()


async def test_a_channel_of_another_loop_is_closed_on_the_process_own_once_it_was_open(monkeypatch):
    """X3 given-back: it is over once `close` returns."""
    made = Mock(close=AsyncMock(), unary_unary=Mock(return_value=AsyncMock(return_value=7)))
    monkeypatch.setattr(background, "open_channel", lambda *told: made if told == ("a:1", None) else None)
    channel = LoopedChannel("a:1", None)
    await channel.close()
    assert await channel.unary_unary("path", bytes, int)(pb.Pool(), timeout=1.0) == 7
    await channel.close(1.5)
    made.close.assert_awaited_once_with(1.5)
    await channel.close()
    assert made.close.await_count == 1


async def test_a_stream_of_another_loop_that_is_cancelled_is_ended_on_the_process_own(monkeypatch):
    """X3 given-back: the call would go on, as one of a router's stream that was begun again."""
    numbers = Numbers(1)
    call = Mock(__aiter__=lambda _self: numbers.count())
    made = Mock(unary_stream=Mock(return_value=Mock(return_value=call)))
    monkeypatch.setattr(background, "open_channel", lambda *_told: made)
    stream = LoopedChannel("a:1", None).unary_stream("path", bytes, int)(pb.Pool(), timeout=1.0)
    assert await anext(aiter(stream)) == 0
    call.cancel.assert_not_called()
    stream.cancel()
    await eventually(lambda: call.cancel.called)


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


def test_closing_ends_what_other_threads_wait_for_and_leaves_the_other_loops_their_work(loop):
    """They share a thread, and nothing else. A command that fails does not wait for all streams."""
    numbers, other, ended = Numbers(1), BackgroundLoop(), list[bool]()

    async def last() -> None:
        ended.append(numbers.ended.is_set())

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, loop.each(numbers.count()))
        assert numbers.waits.wait(60)
        other.close()
        assert not numbers.ended.is_set()
        loop.close(last)
        with pytest.raises(CancelledError):
            waiting.result(60)
    assert ended == [True], "what is last comes last"


@pytest.mark.parametrize("by", ["generator", "loop"])
def test_a_generator_that_is_left_or_that_nobody_waits_for_is_closed(by):
    """R16 bounded: a router that keeps one while it works on what it was told; its stream would stay open."""
    loop, numbers = BackgroundLoop(), Numbers(5)
    items = loop.each(numbers.count())
    assert next(items) == 0
    (loop if by == "loop" else items).close()
    assert numbers.ended.is_set()
    items.close()
    assert (loop._generators, loop._tasks) == (set(), set())
    loop.close()


def _left(loop: BackgroundLoop, numbers: Numbers) -> None:
    """Begins a generator that nobody holds, in a cycle, so that it is not collected yet."""
    cycle: list[object] = [loop.each(numbers.count())]
    assert next(cycle[0]) == 0
    cycle.append(cycle)


async def _collect() -> None:
    gc.collect()


def test_a_generator_that_nobody_holds_may_be_collected_on_the_thread_of_the_loop(loop):
    """R16 bounded: Python collects on any thread. Its end would wait there for the loop that it holds up, for ever."""
    numbers, other = Numbers(5), BackgroundLoop()
    _left(loop, numbers)
    collecting = threading.Thread(target=other.run, args=[_collect], daemon=True)
    collecting.start()
    assert numbers.ended.wait(60)
    collecting.join(60)
    other.close()


_LEFT_OPEN = """
import sys

from loraplane import Registry

states = Registry(sys.argv[1]).residency("p")
print(next(states).adapters)
"""


def test_a_program_that_leaves_a_generator_open_ends(admin):
    """Threads stand still while Python ends, so that nothing may wait for that of the loop."""
    with served(admin) as address:
        command = [sys.executable, "-c", _LEFT_OPEN, address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}\n", "")


_PROGRAM = """
import sys

from loraplane import Registry, Unavailable
from registry.client.adapters import Published

for turn in range(60):
    with Registry(sys.argv[1]) as registry:
        try:
            registry.wait(Published("acme/a", "p", 1, "s3://a/", "", 1, "mine"), timeout_seconds=0.02)
        except Unavailable:
            continue
        raise SystemExit("it was served")
"""


def test_a_program_that_connects_again_and_again_writes_nothing_that_it_did_not_write(admin):
    """Streams that are given up end before their loop does; grpc.aio told of each that was closed by then."""
    admin.answers["WatchRollout"] = [[pb.Rollout(name="acme/a", generation=1), Hold()]]
    with served(admin) as address:
        command = [sys.executable, "-c", _PROGRAM, address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_call_that_fails_as_its_caller_leaves_is_complained_of_by_nobody(caplog):
    """Each call that was cancelled at the wrong moment left a traceback in the program's log."""

    def leave() -> None:
        outcome: Future[None] = Future()

        async def fails() -> None:
            asyncio.get_running_loop().call_soon(outcome.cancel)  # before anybody is told how this ended
            raise ValueError("too late")

        background.PROCESS.hand_over(outcome, fails)

    async def collected() -> None:
        for _ in range(5):  # what the call left to be done is done first
            await asyncio.sleep(0)
        gc.collect()

    leave()
    background.PROCESS.run(collected)
    assert caplog.text == ""
