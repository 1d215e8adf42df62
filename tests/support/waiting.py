"""Waiting for conditions, the one place in tests that sleeps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

Value = TypeVar("Value")
# Of a part that starts, fetches and loads beside 25 others: what a quiet machine does in a second takes it a minute.
PATIENCE_SECONDS = 180.0


@overload
async def eventually(
    check: Callable[[], Awaitable[Value | None]],
    *,
    timeout_seconds: float = PATIENCE_SECONDS,
    every_seconds: float = 0.02,
) -> Value: ...
@overload
async def eventually(
    check: Callable[[], Value | None], *, timeout_seconds: float = PATIENCE_SECONDS, every_seconds: float = 0.02
) -> Value: ...
async def eventually(
    check: Callable[[], Any], *, timeout_seconds: float = PATIENCE_SECONDS, every_seconds: float = 0.02
) -> Any:
    """Polls `check` until it returns something true, and returns that.

    A check may be a plain or a coroutine function. AssertionError counts as "not yet"; the last one is raised
    when the time is up.
    """
    last: AssertionError | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                try:
                    value = check()
                    if inspect.isawaitable(value):
                        value = await value
                    if value:
                        return value
                except AssertionError as error:
                    last = error
                await asyncio.sleep(every_seconds)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_seconds:g} s: {last or inspect.getsource(check).strip()}") from last
