"""A call into another process of the simulation: it is carried out there, and lost if that process dies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.simulation.loop import Process, State

Value = TypeVar("Value")


class CallerLeft(ConnectionResetError):
    """Whoever called hung up before the answer."""


async def ask(process: Process, work: Coroutine[Any, Any, Value]) -> Value:
    """Runs `work` in that process and waits for it.

    Raises:
        CallerLeft: the work was cancelled.
        ConnectionResetError: the process is dead, or dies before.
    """
    if process.state is State.DEAD:
        work.close()
        raise ConnectionResetError("nobody listens")
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[Value] = loop.create_future()
    task = loop.create_task(work, context=process.context())
    task.add_done_callback(lambda done: _hand_over(done, reply))
    process.on_death.append(lambda: _reset(reply))
    return await reply


def _hand_over(task: asyncio.Task[Value], reply: asyncio.Future[Value]) -> None:
    if reply.done():
        _ = task.cancelled() or task.exception()
        return
    if task.cancelled():
        reply.set_exception(CallerLeft("nobody waits for it any more"))
        return
    error = task.exception()
    if error is not None:
        reply.set_exception(error)
    else:
        reply.set_result(task.result())


def _reset(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(ConnectionResetError("the process died"))
