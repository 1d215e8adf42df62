"""Supervises every call: principal, deadline, errors, metrics.

One table translates our errors to gRPC's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import grpc
import structlog
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from registry.access.control import AccessControl, Shown
from registry.access.methods import METHODS
from registry.access.questions import READING
from registry.admin.health import AdminMetrics
from registry.admin.rpc.calls import CallContext, call_of, is_local, until_revoked
from registry.admin.rpc.denials import DenialRecorder, denials_noted
from registry.admin.rpc.limiter import Batcher, ByteLimiter, FairLimiter
from registry.model.errors import (
    RETRY_AFTER,
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    RegistryError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from registry.model.names import REPEATED_METADATA
from registry.runtime import tracing
from registry.runtime.clock import Deadline
from registry.runtime.process import Repeats
from registry.store.failures import outcome_unknown

DOMAIN = "loraplane"
DETAILS_KEY = "grpc-status-details-bin"

CODES: Mapping[type[RegistryError], StatusCode] = {
    InvalidArgument: StatusCode.INVALID_ARGUMENT,
    NotFound: StatusCode.NOT_FOUND,
    AlreadyExists: StatusCode.ALREADY_EXISTS,
    Conflict: StatusCode.ABORTED,
    FailedPrecondition: StatusCode.FAILED_PRECONDITION,
    ResourceExhausted: StatusCode.RESOURCE_EXHAUSTED,
    PermissionDenied: StatusCode.PERMISSION_DENIED,
    Unauthenticated: StatusCode.UNAUTHENTICATED,
    Unavailable: StatusCode.UNAVAILABLE,
    Internal: StatusCode.INTERNAL,
}


@dataclass(frozen=True, slots=True)
class CallLimits:
    """State that all calls share.

    Attributes:
        calls: limit of those that are taken, whose requests are here or on their way.
        working: limit of those whose request is here.
        request_bytes: limit of their requests.
        turns: of those that work.
        refusals: of which causes calls were refused lately: many of one are a line a minute.
        stopping: set when the service stops, at which streams end.
        access: who calls, and what they may do; None: anybody, everything.
        denials: takes refusals for the audit; None: nobody is refused.
    """

    calls: FairLimiter
    working: FairLimiter
    request_bytes: ByteLimiter
    turns: Batcher
    refusals: Repeats
    stopping: asyncio.Event
    access: AccessControl | None = None
    denials: DenialRecorder | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A failed call as gRPC sends it; `details` is a serialized google.rpc.Status."""

    code: StatusCode
    message: str
    details: bytes


# What somebody who asks for too much is refused with. Who has mistyped something knows it, and nobody else has to.
_LOGGED = frozenset({Reason.TOO_MANY_CALLS, Reason.TOO_LARGE, Reason.DEADLINE_EXCEEDED})


def refusal_of(error: RegistryError) -> Refusal:
    """The status of an error, with its reason, its facts and the field at fault."""
    code = CODES[type(error)]
    details: list[Message] = [ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=error.metadata)]
    if error.field:
        violation = BadRequest.FieldViolation(field=error.field, description=error.message, reason=error.reason.value)
        details.append(BadRequest(field_violations=[violation]))
    if RETRY_AFTER in error.metadata:
        details.append(RetryInfo(retry_delay=_duration(float(error.metadata[RETRY_AFTER]))))
    number: int = code.value[0]
    status = Status(code=number, message=error.message, details=[_packed(detail) for detail in details])
    return Refusal(code, error.message, status.SerializeToString())


def _duration(seconds: float) -> Duration:
    made = Duration()
    made.FromMicroseconds(int(seconds * 1e6))
    return made


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")
Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Request, CallContext], Awaitable[Reply]]
Stream = Callable[[Request, CallContext], AsyncGenerator[Reply, None]]
Accept = Callable[[bytes, CallContext], Request]
Prepare = Callable[[Request, CallContext], Awaitable[None]]


class RawRequests(Protocol):
    """The requests of a call as grpc.aio hands them out."""

    def __aiter__(self) -> AsyncGenerator[bytes, None]: ...  # noqa: PYI058 - they are closed once they are read


MAX_UNARY_SECONDS = 10.0
# A call whose request has not come by then, since it has its place, gives that to another.
ARRIVAL_SECONDS = 1.0
_LATE = Reason.DEADLINE_EXCEEDED, "the request did not arrive in time; nothing was done, repeat the call with it"
_STOPS = Reason.ADMIN_UNAVAILABLE, "the admin service is shutting down; ask again, or another one"
# Kept of the client's time for the way of the answer back.
_FOR_THE_ANSWER = 0.1
_log = structlog.get_logger()


def supervised_unary(
    method: str,
    handler: Unary[Request, Reply],
    accept: Accept[Request],
    metrics: AdminMetrics,
    limits: CallLimits,
    prepare: Prepare[Request] | None = None,
) -> Callable[[RawRequests, Context], Awaitable[Reply | None]]:
    """The handler as grpc.aio calls it for a stream of requests; so it is asked before the one request is read.

    `accept` parses the request and calls the hook. `prepare` does what takes long beside the event loop, and holds up
    no other call.
    """
    seconds = metrics.seconds.labels(method)

    async def serve(requests: RawRequests, context: Context) -> Reply | None:
        started, shown = time.monotonic(), _shown(context)
        counted = _counted(method, context, metrics, limits.refusals)
        try:
            with counted, denials_noted(limits.denials, method, shown) as by:
                call = by.of(await _call(method, context, shown, limits.access))
                async with (
                    _within_quota(limits.access, call),
                    _admitted(requests, call, accept, limits, prepare) as request,
                    limits.turns.taken(),
                ):
                    return await handler(request, call)
        except RegistryError as error:
            await _refuse(context, error)
            return None
        finally:
            seconds.observe(time.monotonic() - started)

    return serve


def supervised_stream(
    method: str,
    handler: Stream[Request, Reply],
    accept: Accept[Request],
    metrics: AdminMetrics,
    limits: CallLimits,
    is_last: Callable[[Reply], bool] | None = None,
) -> Callable[[RawRequests, Context], AsyncIterator[Reply]]:
    """The handler as grpc.aio calls it; it ends as soon as the service stops, since streams never end by themselves.

    Within the limit of calls it is only until its first reply; or until one was taken that `is_last` of what it keeps,
    which may be never: not for limits that narrow.
    """

    async def serve(requests: RawRequests, context: Context) -> AsyncIterator[Reply]:
        with metrics.streams.labels(method).track_inprogress():
            try:
                shown = _shown(context)
                counted = _counted(method, context, metrics, limits.refusals)
                with counted, denials_noted(limits.denials, method, shown) as by:
                    call = by.of(await _call(method, context, shown, limits.access))
                    async with _within_quota(limits.access, call), AsyncExitStack() as beginning:
                        request = await beginning.enter_async_context(_admitted(requests, call, accept, limits))
                        async with aclosing(_until(limits, call, handler(request, call))) as replies:
                            async for reply in replies:
                                if is_last is None:
                                    await beginning.aclose()
                                yield reply
                                if is_last is not None and is_last(reply):
                                    await beginning.aclose()
            except RegistryError as error:
                await _refuse(context, error)

    return serve


@asynccontextmanager
async def _within_quota(access: AccessControl | None, call: CallContext) -> AsyncIterator[None]:
    """The body is one call of its caller. Raises ResourceExhausted: it would be more than they may have."""
    with ExitStack() as held:
        if access is not None:
            with _unfenced(call):
                held.enter_context(access.within_quota(call.principal))
        yield


@asynccontextmanager
async def _admitted(
    requests: RawRequests,
    call: CallContext,
    accept: Accept[Request],
    limits: CallLimits,
    prepare: Prepare[Request] | None = None,
) -> AsyncIterator[Request]:
    """The request of a call, while the limits have room for it.

    Raises:
        Unavailable: they had none in time, or the request did not come. Of a repetition nobody knows what comes of it.
        ResourceExhausted: too many calls wait, or the request is one of too many bytes.
        RegistryError: as `accept` raises it.
    """
    caller, connection = call.origin, call.connection
    async with AsyncExitStack() as held:
        with _unfenced(call):
            await held.enter_async_context(limits.calls.held(caller, connection, timeout_seconds=call.deadline.spend()))
            raw = await _received(requests, call.deadline)
            held.enter_context(limits.request_bytes.held(caller, len(raw)))
            if prepare is not None:
                await prepare(accept(raw, call), call)
            await held.enter_async_context(
                limits.working.held(caller, connection, timeout_seconds=call.deadline.spend())
            )
            request = accept(raw, call)
        yield request


@contextmanager
def _unfenced(call: CallContext) -> Iterator[None]:
    """Around what refuses without a fence, for want of time or room: what it repeats may have been carried out."""
    try:
        yield
    except (Unavailable, ResourceExhausted) as error:
        if call.repeats:
            raise outcome_unknown(error) from error
        raise


async def _received(requests: RawRequests, deadline: Deadline) -> bytes:
    """The one request of a call. Raises InvalidArgument: there is none; Unavailable: it does not come."""
    seconds = min(ARRIVAL_SECONDS, deadline.spend())
    # Left open it would end in the event loop one day, and keep what a refused call had until a full collection.
    async with aclosing(aiter(requests)) as messages:
        raw = await _outcome(_next(messages), _LATE, timeout_seconds=seconds)
    if raw is None:
        raise InvalidArgument(Reason.INVALID_FIELD, "the call holds no request")
    return raw


async def _outcome(
    work: Coroutine[None, None, Result],
    late: tuple[Reason, str],
    *,
    until: Collection[asyncio.Task[Any]] = (),
    timeout_seconds: float | None = None,
) -> Result:
    """Outcome of some work; one that is there counts, however late this loop looks.

    Raises:
        Unavailable: as `late` says: the time was up, or a task of `until` came to its end first.
    """
    async with _task(work) as task:
        try:
            await asyncio.wait((task, *until), timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Unavailable(*late)
            return task.result()
        finally:
            del task  # an error of it leads to this frame: together they would be a cycle


async def _until(
    limits: CallLimits, call: CallContext, replies: AsyncGenerator[Reply, None]
) -> AsyncGenerator[Reply, None]:
    """The replies, until the service stops, or its caller may have no more of them."""
    async with (
        aclosing(replies),
        _task(limits.stopping.wait()) as stop,
        _task(until_revoked(limits.access, call)) as end,
    ):
        try:
            while (reply := await _outcome(_next(replies), _STOPS, until=(stop, end))) is not None:
                yield reply
        except Unavailable:
            if end.done():
                end.result()
            raise


async def _next(items: AsyncGenerator[Result, None]) -> Result | None:
    return await anext(items, None)


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
def _counted(method: str, context: Context, metrics: AdminMetrics, refusals: Repeats) -> Iterator[None]:
    code = grpc.StatusCode.OK
    try:
        yield
    except RegistryError as error:
        code = CODES[type(error)]
        metrics.no_space.inc(error.reason is Reason.ETCD_NO_SPACE)
        metrics.refused.labels(error.reason).inc()
        if error.reason in _LOGGED and (calls := refusals.count(error.reason)):
            told = {"method": method, "peer": context.peer(), "message": error.message}
            _log.warning("calls_refused", reason=error.reason, calls=calls, **told)
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


async def _refuse(context: Context, error: RegistryError) -> None:
    """Refuses the call; whatever is answered after it, gRPC drops."""
    refusal = refusal_of(error)
    try:
        await context.abort(refusal.code, refusal.message, ((DETAILS_KEY, refusal.details),))
    except grpc.aio.AbortError as aborted:
        # The call keeps this error, and raises it again by itself. With its frames, which have the call, it would be a
        # cycle, and keep all that the call had: the request above all.
        aborted.__traceback__ = aborted.__context__ = None


async def _call(method: str, context: Context, shown: Shown, access: AccessControl | None) -> CallContext:
    remaining = context.time_remaining()
    seconds = MAX_UNARY_SECONDS if remaining is None else min(MAX_UNARY_SECONDS, remaining * (1 - _FOR_THE_ANSWER))
    metadata = context.invocation_metadata() or ()
    repeats = REPEATED_METADATA in metadata and METHODS[method][0] not in READING
    call = await call_of(method, shown, seconds, repeats=repeats, access=access)
    if not tracing.is_on():
        return call
    return replace(call, traceparent=next((str(value) for name, value in metadata if name == "traceparent"), ""))


def _shown(context: Context) -> Shown:
    metadata = context.invocation_metadata() or ()
    facts = context.auth_context()
    return Shown(
        context.peer(),
        facts,
        next((str(value) for name, value in metadata if name == "authorization"), ""),
        is_private=b"ssl" in facts.get("transport_security_type", ()) or is_local(context.peer()),
        user_agent=next((str(value) for name, value in metadata if name == "user-agent"), ""),
    )
