"""A fake admin service that plays one script over all its calls and streams; the real one is in the integration tests.

A call is answered by the next answer of its method, the last one again and again. What several streams bring is a
script: one list for all of them, whose next item comes when whoever got the last one asks for more. So no order is
left to a wire: `connected` replaces it at grpc.aio's own seam, for clients of this process. `served` puts the same
service on a port, for programs. tests/contract/test_fake_admin.py holds that both say the same.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from registry.client import transport
from registry.model.errors import RETRY_AFTER
from registry.v1 import registry_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["AdapterRegistry"]
# What a service of the same release takes at most.
_MAX_RECEIVED_BYTES = 4 << 20
_ports = itertools.count(17_600)


@dataclass(frozen=True)
class Refusal:
    """A failed call, with the details that the admin API promises; no reason: none."""

    code: grpc.StatusCode
    reason: str = ""
    message: str = "no"
    metadata: dict[str, str] = field(default_factory=dict)
    where: str = ""

    def error(self) -> BaseException:
        """As grpc.aio raises it."""
        return asyncio.CancelledError() if self.code is grpc.StatusCode.CANCELLED else self.failure()

    def failure(self, trailing: Sequence[tuple[str, Any]] | None = None) -> grpc.aio.AioRpcError:
        """The same with other metadata behind it, and of any status."""
        sent = grpc.aio.Metadata(*(self.details() if trailing is None else trailing))
        return grpc.aio.AioRpcError(self.code, grpc.aio.Metadata(), sent, self.message)

    def abort(self, context: grpc.ServicerContext) -> None:
        """Ends a call on a real wire."""
        context.set_trailing_metadata(self.details())
        context.abort(self.code, self.message)

    def details(self) -> tuple[tuple[str, bytes], ...]:
        """The metadata behind the answer."""
        if not self.reason:
            return ()
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain="loraplane", metadata=self.metadata)
        bad = error_details_pb2.BadRequest(field_violations=[{"field": self.where}] if self.where else [])
        code = getattr(code_pb2, self.code.name)
        status = status_pb2.Status(code=code, message=self.message, details=[_packed(info), _packed(bad)])
        return (("grpc-status-details-bin", status.SerializeToString()),)


# One call too many, by the limits of an access file.
BUSY = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", metadata={RETRY_AFTER: "0.05"})


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


@dataclass(frozen=True)
class Hold:
    """Nothing more comes until the client gives up."""


@dataclass(frozen=True)
class Slow:
    """What takes a moment, in which a client may do something else."""

    item: Any
    seconds: float = 0.3


def applied(request: pb.ApplyAdaptersRequest, revision: int = 7) -> pb.ApplyAdaptersResponse:
    """The answer of a service that carries everything out, and had none of it."""
    return pb.ApplyAdaptersResponse(
        results=[_result(request.pool, change) for change in request.changes],
        revision=revision,
        request_id=request.request_id,
    )


def _result(pool: str, change: pb.AdapterChange) -> pb.AdapterResult:
    if change.WhichOneof("change") == "delete":
        deleted = pb.Adapter(name=change.delete, pool=pool, generation=3)
        return pb.AdapterResult(outcome=pb.AdapterResult.DELETED, adapter=deleted)
    wanted = change.update if change.HasField("update") else change.upsert
    created = pb.Adapter(name=wanted.name, pool=pool, generation=1, spec=wanted.spec)
    return pb.AdapterResult(outcome=pb.AdapterResult.CREATED, adapter=created)


def updated(request: pb.ApplyAdaptersRequest) -> pb.ApplyAdaptersResponse:
    """The answer of a service in which all of it stands already, with other specs."""
    reply = applied(request)
    for result in reply.results:
        result.outcome, result.adapter.generation = pb.AdapterResult.UPDATED, 4
        result.adapter.request_id = request.request_id
    return reply


def _changed(request: Any) -> pb.ApplyAdaptersResponse:
    adapter = pb.Adapter(name=request.name, pool=request.pool, generation=3)
    result = pb.AdapterResult(outcome=pb.AdapterResult.UPDATED, adapter=adapter)
    return pb.ApplyAdaptersResponse(results=[result], revision=9, request_id=request.request_id)


def _served(request: pb.WatchRolloutRequest) -> list[pb.Rollout]:
    return [pb.Rollout(name=request.name, generation=request.generation, done=True)]


_NO_ADAPTER = Refusal(grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND", "none")
_NO_REPLICA = Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "none")
_REFLECTED = reflection_pb2.FileDescriptorResponse(file_descriptor_proto=[pb.DESCRIPTOR.serialized_pb])
# A service with one empty pool, which carries out whatever it is asked.
_EMPTY: dict[str, Any] = {
    "AbortRollout": _changed,
    "ApplyAdapters": applied,
    "Check": health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING),
    "ConfirmRemovals": lambda request: pb.Pool(name=request.name, removals_confirmed_revision=request.revision),
    "CreatePool": lambda request: request.pool,
    "DeletePool": pb.DeletePoolResponse(revision=8),
    "DrainReplica": pb.DrainReplicaResponse(changed=True, revision=8),
    "ForgetReplica": pb.ForgetReplicaResponse(),
    "GetAdapter": _NO_ADAPTER,
    "GetPool": lambda request: pb.Pool(name=request.name, base_models=["tiny"]),
    "GetReplica": _NO_REPLICA,
    "ListAdapterHistory": pb.ListAdapterHistoryResponse(),
    "ListAdapters": pb.ListAdaptersResponse(),
    "ListChanges": pb.ListChangesResponse(),
    "ListAudit": pb.ListAuditResponse(),
    "ListPools": pb.ListPoolsResponse(pools=[pb.Pool(name="dev", base_models=["tiny"])]),
    "ListReplicas": pb.ListReplicasResponse(),
    "ListTenants": pb.ListTenantsResponse(),
    "PromoteRollout": _changed,
    "ReadBackup": pb.ReadBackupResponse(revision=12),
    "RepairTenant": lambda request: pb.RepairTenantResponse(tenant=pb.Tenant(name=request.name)),
    "RestoreHistory": pb.RestoreHistoryResponse(changed=True),
    "RollbackAdapter": _changed,
    "ServerReflectionInfo": [reflection_pb2.ServerReflectionResponse(file_descriptor_response=_REFLECTED)],
    "SetTenant": lambda request: request.tenant,
    "UpdatePool": lambda request: request.pool,
    "WhoAmI": pb.WhoAmIResponse(principal="anonymous"),
    "WatchAdapters": [Hold()],
    "WatchResidency": [pb.WatchResidencyResponse(snapshot=True), Hold()],
    "WatchRollout": _served,
}


class FakeAdmin:
    """Answers as a test lays down.

    Attributes:
        answers: by method; a function is asked, a stream's answer is what it brings one by one.
        script: what streams bring in one order over all of them, by method; a stream that is named in it has no answer.
        requests: all that came, in their order.
        channels: all connections within this process, in their order.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {method: [answer] for method, answer in _EMPTY.items()}
        self.script: list[tuple[str, Any]] = []
        self.requests: list[tuple[str, Any]] = []
        self.channels: list[FakeChannel] = []
        self._reader: object = None  # the stream that got the last item of the script, and works on it yet
        self._waiting: list[asyncio.Future[None]] = []

    def asked(self, method: str) -> list[Any]:
        """The requests that came for a method."""
        return [request for name, request in self.requests if name == method]

    def answer(self, method: str, request: Any) -> Any:
        """The next one; None of a stream that the script brings."""
        self.requests.append((method, request))
        if any(name == method for name, _ in self.script):
            return None
        answers = self.answers[method]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer(request) if callable(answer) else answer

    def open(self, _address: str, _pem: object) -> FakeChannel:
        """In place of `registry.client.transport._open`."""
        self.channels.append(FakeChannel(self))
        return self.channels[-1]

    async def turn(self, method: str, reader: object) -> Any:
        """The next item of the script, once it is that stream's turn."""
        self.over(reader)
        while self._reader is not None or (self.script and self.script[0][0] != method):
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]
        if not self.script:
            return Hold()
        self._reader = reader
        return self.script.pop(0)[1]

    def over(self, reader: object) -> None:
        """A stream is done with its last item."""
        if self._reader is not reader:
            return
        self._reader, waiting, self._waiting = None, self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


class FakeChannel:
    """As much of `grpc.aio.Channel` as clients use.

    Attributes:
        timeouts: how long each call might take, in their order.
        metadata: of each call with one request, in their order.
        graces: with which it was closed.
    """

    def __init__(self, admin: FakeAdmin) -> None:
        self._admin = admin
        self.timeouts: list[float | None] = []
        self.metadata: list[object] = []
        self.graces: list[float | None] = []

    def unary_unary(
        self,
        path: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_registered: object,
    ) -> Callable[..., Any]:
        """A call with one answer."""

        async def call(request: Message, *, timeout: float | None, metadata: object = None) -> Any:
            self.metadata.append(metadata)
            stream = self._begin(path, request_serializer(request), type(request), timeout, is_unary=True)
            return response_deserializer((await anext(stream)).SerializeToString())

        return call

    def unary_stream(
        self, path: str, request_serializer: Callable[[Any], bytes], *_read: object, **_registered: object
    ) -> Callable[..., FakeStream]:
        """A call with a stream of answers."""

        def call(request: Message, *, timeout: float | None, metadata: object = None) -> FakeStream:
            self.metadata.append(metadata)
            return self._begin(path, request_serializer(request), type(request), timeout)

        return call

    def stream_stream(
        self, path: str, request_serializer: Callable[[Any], bytes], *_read: object, **_registered: object
    ) -> Callable[..., FakeStream]:
        """A call with a stream of requests, of which the first is heard."""

        def call(requests: Iterator[Message], *, timeout: float | None) -> FakeStream:
            request = next(requests)
            return self._begin(path, request_serializer(request), type(request), timeout)

        return call

    async def close(self, grace: float | None = None) -> None:
        """Takes no more."""
        self.graces.append(grace)

    def _begin(
        self, path: str, sent: bytes, form: type[Message], timeout: float | None, *, is_unary: bool = False
    ) -> FakeStream:
        if self.graces:
            raise grpc.aio.UsageError("Channel is closed.")
        self.timeouts.append(timeout)
        method = path.rpartition("/")[2]
        if len(sent) > _MAX_RECEIVED_BYTES:
            return FakeStream(self._admin, method, [Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)], timeout)
        answer = self._admin.answer(method, form.FromString(sent))
        items = [answer] if is_unary or isinstance(answer, Refusal) else answer
        return FakeStream(self._admin, method, items, timeout)


class FakeStream:
    """What one call is answered, item by item."""

    def __init__(self, admin: FakeAdmin, method: str, items: Any, timeout_seconds: float | None) -> None:
        self._admin, self._method = admin, method
        self._items = None if items is None else iter(items)
        self._end = timeout_seconds and asyncio.get_running_loop().time() + timeout_seconds

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> Any:
        try:
            item = next(self._items) if self._items else await self._in_time(self._admin.turn(self._method, self))
        except StopIteration:
            raise StopAsyncIteration from None
        if isinstance(item, Slow):
            await self._in_time(asyncio.sleep(item.seconds))
            item = item.item
        if isinstance(item, Refusal):
            raise item.error()
        if isinstance(item, Hold):
            await self._in_time(asyncio.Event().wait())
        return item

    def cancel(self) -> None:
        """Nobody listens any more."""
        self._admin.over(self)

    async def _in_time(self, coming: Coroutine[Any, Any, Any]) -> Any:
        """What has to be waited for; all else is there at once, however slow the machine is."""
        try:
            async with asyncio.timeout_at(self._end):
                return await coming
        except TimeoutError:
            raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, message="Deadline Exceeded").error() from None


@contextmanager
def connected(admin: FakeAdmin) -> Iterator[str]:
    """Answers clients of this process that connect to the address which it gives."""
    address, others = f"127.0.0.1:{next(_ports)}", transport._open

    def opened(to: str, pem: Any) -> Any:
        return admin.open(to, pem) if to == address else others(to, pem)

    with mock.patch.object(transport, "_open", opened):
        yield address


@contextmanager
def served(admin: FakeAdmin) -> Iterator[str]:
    """Serves it on a free port of the loopback; gives its address."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        handlers = {method.name: _handler(admin, method) for method in SERVICE.methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def _handler(admin: FakeAdmin, method: Any) -> grpc.RpcMethodHandler[Any, Any]:
    make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    answer = _stream if method.server_streaming else _unary
    read = getattr(pb, method.input_type.name).FromString
    return make(partial(answer, admin, method.name), read, lambda message: message.SerializeToString())


def _unary(admin: FakeAdmin, method: str, request: Any, context: grpc.ServicerContext) -> Any:
    answer = admin.answer(method, request)
    if isinstance(answer, Refusal):
        answer.abort(context)
    if isinstance(answer, Hold):
        _wait_for_the_end(context)
    return answer


def _stream(admin: FakeAdmin, method: str, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    answer = admin.answer(method, request)
    for item in [answer] if isinstance(answer, Refusal) else answer:
        if isinstance(item, Refusal):
            item.abort(context)
        if isinstance(item, Hold):
            _wait_for_the_end(context)
            return
        yield item


def _wait_for_the_end(context: grpc.ServicerContext) -> None:
    ended = threading.Event()
    if context.add_callback(ended.set):
        ended.wait()
