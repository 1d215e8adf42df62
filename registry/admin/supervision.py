"""The one supervisor of calls: who calls, how long it may take, what an error becomes, what is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Never, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from registry.admin.calls import ANONYMOUS, Call, Principal, operator
from registry.admin.metrics import Metrics
from registry.admin.statuses import DETAILS_KEY, refusal_of
from registry.errors import Internal, Reason, RegistryError
from registry.store.budget import Budget

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Request, Call], Awaitable[Reply]]
Stream = Callable[[Request, Call], AsyncIterator[Reply]]

MAX_UNARY_SECONDS = 10.0
# Kept of the client's time for the way of the answer back.
_FOR_THE_ANSWER = 0.1
_log = structlog.get_logger()


def supervised_unary(
    method: str, handler: Unary[Request, Reply], metrics: Metrics
) -> Callable[[Request, Context], Awaitable[Reply]]:
    """The handler as grpc.aio calls it."""

    async def serve(request: Request, context: Context) -> Reply:
        started = time.monotonic()
        try:
            with _counted(method, metrics):
                return await handler(request, _call(method, context))
        except RegistryError as error:
            return await _refuse(context, error)
        finally:
            metrics.seconds.labels(method).observe(time.monotonic() - started)

    return serve


def supervised_stream(
    method: str, handler: Stream[Request, Reply], metrics: Metrics
) -> Callable[[Request, Context], AsyncIterator[Reply]]:
    """The handler as grpc.aio calls it."""

    async def serve(request: Request, context: Context) -> AsyncIterator[Reply]:
        with metrics.streams.labels(method).track_inprogress():
            try:
                with _counted(method, metrics):
                    async for reply in handler(request, _call(method, context)):
                        yield reply
            except RegistryError as error:
                await _refuse(context, error)

    return serve


@contextmanager
def _counted(method: str, metrics: Metrics) -> Iterator[None]:
    code = grpc.StatusCode.OK
    try:
        yield
    except RegistryError as error:
        code = refusal_of(error).code
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
