"""Cancels a piece of work where it waits for the n-th time, as a caller does that hangs up just then."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def cancelled_at(wait: int, work: Awaitable[T]) -> T:
    """The outcome of `work`, whose task is cancelled at its n-th wait, counted from 1; fewer: it just ends."""
    return await _steps(wait, work)


@types.coroutine
def _steps(wait: int, work: Awaitable[T]) -> Generator[Any, Any, T]:
    steps, told = work.__await__(), None
    for count in itertools.count(1):
        try:
            waited_for = steps.send(None) if told is None else steps.throw(told)
        except StopIteration as ended:
            return cast("T", ended.value)
        finally:
            told = None  # an error refers to this frame, which must refer to nothing that holds the error
        if count == wait:
            _cancel_this()
        try:
            yield waited_for
        except BaseException as error:  # noqa: BLE001 - whatever the task is told, the work is told
            told = error
    raise AssertionError("counting ended")


def _cancel_this() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def is_cancelled_at(wait: int, work: Awaitable[Any]) -> bool:
    """True if the work was cancelled at its n-th wait; false if it had ended before."""
    task = asyncio.create_task(cancelled_at(wait, work))
    await asyncio.wait({task})
    if task.cancelled():
        return True
    task.result()
    return False
