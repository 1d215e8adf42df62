"""A server of gRPC at the far end of links, in place of `grpc.aio.Server`; its calls run in its process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import grpc

from tests.simulation.links import CLOSED, rpc_error
from tests.simulation.loop import current_process

# So many messages of a stream are under way to a client that reads none; then its handler waits.
WINDOW = 2
Sent = Any  # bytes, an error as gRPC brings it, or grpc.aio.EOF
Metadata = tuple[tuple[str, str], ...] | None
_STOPPED = ("UNAVAILABLE", "Server is shutting down")


class _Asked(NamedTuple):
    """As much of `grpc.HandlerCallDetails` as a generic handler looks at."""

    method: str
    invocation_metadata: tuple[()] = ()


class ServerCall:
    """One call as its server has it, and what its handler gets in place of `grpc.aio.ServicerContext`.

    Attributes:
        task: runs its handler; None: it has not come in, or was turned away.
        is_over: its end was sent.
    """

    def __init__(
        self,
        path: str,
        peer: str,
        number: int,
        seconds: float | None,
        send: Callable[[Sent], None],
        metadata: Metadata,
    ) -> None:
        """`seconds`: that its client gives it, from when it comes in; `send` brings a message to the client."""
        self.path = path
        self.number = number
        self.task: asyncio.Task[None] | None = None
        self.is_over = False
        self._is_cancelled = False
        self.serialize: Callable[[Any], bytes] = bytes
        self._peer = peer
        self._seconds = seconds
        self._send = send
        self._metadata = metadata
        self._until: float | None = None
        self._requests: deque[bytes] = deque()
        self._room = WINDOW
        self._turn: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._on_last: Callable[[ServerCall, Sent], None] = _nothing

    # Of the wire.

    def begin(self, task: asyncio.Task[None], on_last: Callable[[ServerCall, Sent], None]) -> None:
        """It has come in, and `task` runs its handler; `on_last` is told of the last message."""
        self.task, self._on_last = task, on_last
        if self._seconds is not None:
            loop = asyncio.get_running_loop()
            self._until = loop.time() + self._seconds
            self._timer = loop.call_at(self._until, self.cut, "DEADLINE_EXCEEDED", "Deadline Exceeded")

    def receive(self, raw: bytes) -> None:
        """The request has come."""
        self._requests.append(raw)
        self._wake()

    def took(self) -> None:
        """The client has read a message."""
        self._room += 1
        self._wake()

    def close(self) -> None:
        """The client is gone."""
        self.is_over = True
        self._cancel()

    def cut(self, code: str, details: str) -> None:
        """Ends it from the server's side, whatever its handler does."""
        self.end(rpc_error(code, details))
        self._cancel()

    def end(self, item: Sent) -> None:
        """Sends the last message."""
        if not self.is_over:
            self.is_over = True
            self._on_last(self, item)
            self._send(item)

    def ended(self) -> None:
        """Its handler has come to an end: nothing of it is kept, as a cancelled task would by its frames."""
        self.task = None
        if self._timer is not None:
            self._timer.cancel()

    def _cancel(self) -> None:
        """Cancels its handler once, as grpc.aio does, whatever comes together."""
        if self.task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self.task.cancel()

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    async def _until_woken(self) -> None:
        self._turn = asyncio.get_running_loop().create_future()
        await self._turn

    # Of its handler.

    async def requests(self) -> AsyncGenerator[bytes, None]:
        """The requests: there is one."""
        yield await self.request()

    async def request(self) -> bytes:
        """The next request."""
        while not self._requests:
            await self._until_woken()
        return self._requests.popleft()

    async def write(self, message: object) -> None:
        """Sends a message of a stream, once there is room for it."""
        while not self._room:
            await self._until_woken()
        self._room -= 1
        if not self.is_over:
            self._send(self.serialize(message))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Iterable[tuple[str, Any]] = ()
    ) -> NoReturn:
        """Ends it with an error."""
        told = grpc.aio.Metadata(*trailing_metadata)
        self.end(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), told, details))
        raise grpc.aio.AbortError

    def time_remaining(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - asyncio.get_running_loop().time())

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {}

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return self._peer


class SimServer:
    """As much of `grpc.aio.Server` as `registry.admin.app` uses.

    Attributes:
        on_end: is told of each call that has ended here, with the error that its handler let out.
        on_last: is told of the last message of each call, before it is sent.
        on_turned_away: is called for each call that finds no server any more, or is cut at its end.
    """

    def __init__(self) -> None:
        self.listens = False
        self.calls: set[ServerCall] = set()
        self.on_end: Callable[[ServerCall, BaseException | None], None] = lambda _call, _error: None
        self.on_last: Callable[[ServerCall, Sent], None] = _nothing
        self.on_turned_away: Callable[[ServerCall], None] = lambda _call: None
        self._process = current_process()
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, _service: str, _handlers: object) -> None:
        """They are the same that come as generic ones."""

    async def start(self) -> None:
        self.listens = True

    async def stop(self, grace: float | None) -> None:
        """Takes no new calls, and cuts after so long what still runs."""
        self.listens = False
        if self.calls:
            await asyncio.wait([call.task for call in self.calls if call.task], timeout=grace)
        left = sorted(self.calls, key=lambda call: (call.peer(), call.number))
        for call in left:
            if not call.is_over:
                self.on_turned_away(call)
            call.cut(*_STOPPED)
        if left:
            await asyncio.wait([call.task for call in left if call.task])

    def take(self, call: ServerCall) -> None:
        """A call comes in."""
        if call.is_over:
            return
        if not self.listens:
            self.on_turned_away(call)
            call.end(rpc_error(*CLOSED))
            return
        self.calls.add(call)
        task = asyncio.get_running_loop().create_task(self._serve(call), context=self._process.context())
        call.begin(task, self.on_last)
        task.add_done_callback(lambda done: self._ended(call, done))

    def handler(self, path: str) -> grpc.RpcMethodHandler[Any, Any] | None:
        """What serves a method."""
        asked = _Asked(path)
        found = (handler.service(asked) for handler in self._handlers)  # type: ignore[arg-type]
        return next((one for one in found if one is not None), None)

    async def _serve(self, call: ServerCall) -> None:
        """As `grpc.aio` runs a handler; what its client is told of an error is gRPC's."""
        handler = self.handler(call.path)
        if handler is None:
            call.end(rpc_error("UNIMPLEMENTED", "Method not found!"))
            return
        try:
            await _answer(handler, call)
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            call.end(rpc_error("CANCELLED", "RPC cancelled"))
            raise
        except Exception as error:
            call.end(rpc_error("UNKNOWN", f"Unexpected {type(error)}: {error}"))
            raise

    def _ended(self, call: ServerCall, task: asyncio.Task[None]) -> None:
        self.calls.discard(call)
        call.ended()
        self.on_end(call, None if task.cancelled() else task.exception())


async def _answer(handler: Any, call: ServerCall) -> None:
    call.serialize = handler.response_serializer
    parse = handler.request_deserializer
    if handler.request_streaming:
        request: Any = call.requests()
    else:
        raw = await call.request()
        request = raw if parse is None else parse(raw)
    if not handler.response_streaming:
        reply = await (handler.stream_unary or handler.unary_unary)(request, call)
        call.end(None if call.is_over else handler.response_serializer(reply))
        return
    replies = (handler.stream_stream or handler.unary_stream)(request, call)
    if hasattr(replies, "__aiter__"):
        async for reply in replies:
            await call.write(reply)
    else:
        await replies
    call.end(grpc.aio.EOF)


def _nothing(_call: ServerCall, _item: Sent) -> None:
    return
