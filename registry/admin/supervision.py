"""The one supervisor of calls: who calls, how long it may take, what an error becomes, what is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Never, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from registry.admin.calls import ANONYMOUS, Call, Principal, operator
from registry.admin.metrics import Metrics
from registry.admin.statuses import DETAILS_KEY, refusal_of
from registry.admin.turns import Turns
from registry.errors import Internal, Reason, RegistryError, Unavailable
from registry.store.budget import Budget

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")
Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Request, Call], Awaitable[Reply]]
Stream = Callable[[Request, Call], AsyncGenerator[Reply, None]]

MAX_UNARY_SECONDS = 10.0
# Kept of the client's time for the way of the answer back.
_FOR_THE_ANSWER = 0.1
_log = structlog.get_logger()


def supervised_unary(
    method: str, handler: Unary[Request, Reply], metrics: Metrics, turns: Turns
) -> Callable[[Request, Context], Awaitable[Reply]]:
    """The handler as grpc.aio calls it."""
    seconds = metrics.seconds.labels(method)

    async def serve(request: Request, context: Context) -> Reply:
        started = time.monotonic()
        try:
            with _counted(method, metrics):
                async with turns.taken():
                    return await handler(request, _call(method, context))
        except RegistryError as error:
            return await _refuse(context, error)
        finally:
            seconds.observe(time.monotonic() - started)

    return serve


def supervised_stream(
    method: str, handler: Stream[Request, Reply], metrics: Metrics, stopping: asyncio.Event
) -> Callable[[Request, Context], AsyncIterator[Reply]]:
    """The handler as grpc.aio calls it; it ends as soon as `stopping` is set, since streams never end by themselves."""

    async def serve(request: Request, context: Context) -> AsyncIterator[Reply]:
        with metrics.streams.labels(method).track_inprogress():
            try:
                with _counted(method, metrics):
                    async with aclosing(_until(stopping, handler(request, _call(method, context)))) as replies:
                        async for reply in replies:
                            yield reply
            except RegistryError as error:
                await _refuse(context, error)

    return serve


async def _until(stopping: asyncio.Event, replies: AsyncGenerator[Reply, None]) -> AsyncGenerator[Reply, None]:
    """The replies, until the service stops."""
    async with aclosing(replies), _task(_event(stopping)) as stop:
        while True:
            async with _task(_next(replies)) as following:
                await asyncio.wait((stop, following), return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    raise Unavailable(
                        Reason.ADMIN_UNAVAILABLE, "the admin service stops; ask another one, or ask again"
                    )
                reply = following.result()
            if reply is None:
                return
            yield reply


async def _next(replies: AsyncGenerator[Reply, None]) -> Reply | None:
    return await anext(replies, None)


async def _event(event: asyncio.Event) -> None:
    await event.wait()


@asynccontextmanager
async def _task(work: Coroutine[None, None, Result]) -> AsyncIterator[asyncio.Task[Result]]:
    """A task that does not outlive the context."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextmanager
def _counted(method: str, metrics: Metrics) -> Iterator[None]:
    code = grpc.StatusCode.OK
    try:
        yield
    except RegistryError as error:
        code = refusal_of(error).code
        metrics.no_space.inc(error.reason is Reason.ETCD_NO_SPACE)
        raise
    except (asyncio.CancelledError, GeneratorExit):
        code = grpc.StatusCode.CANCELLED
        raise
    except Exception as error:
        # The supervisor: whatever a handler did not foresee is told once, here, and nothing of it to the caller.
        code = grpc.StatusCode.INTERNAL
        _log.exception("internal_error", method=method)
        raise Internal(Reason.INTERNAL, "the admin service failed; its log says more") from error
    finally:
        metrics.requests.labels(method, code.name).inc()


async def _refuse(context: Context, error: RegistryError) -> Never:
    refusal = refusal_of(error)
    await context.abort(refusal.code, refusal.message, ((DETAILS_KEY, refusal.details),))


def _call(method: str, context: Context) -> Call:
    remaining = context.time_remaining()
    seconds = MAX_UNARY_SECONDS if remaining is None else min(MAX_UNARY_SECONDS, remaining * (1 - _FOR_THE_ANSWER))
    return Call(method, _principal(context), Budget.of(seconds))


def _principal(context: Context) -> Principal:
    names = context.auth_context().get("x509_common_name", ())
    name = next(iter(names), b"").decode(errors="replace")
    return operator(name) if name else ANONYMOUS
