"""An admin service whose answers a test lays down, served over real gRPC. The real one is in the integration tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from registry.v1 import registry_pb2 as pb
from registry.v1.registry_pb2_grpc import AdapterRegistryServicer, add_AdapterRegistryServicer_to_server


@dataclass(frozen=True)
class Refusal:
    """A failed call, with the details that the admin API promises; no reason: none."""

    code: grpc.StatusCode
    reason: str = ""
    message: str = "no"
    metadata: dict[str, str] = field(default_factory=dict)
    where: str = ""

    def abort(self, context: grpc.ServicerContext) -> None:
        if self.reason:
            context.set_trailing_metadata((("grpc-status-details-bin", self._status().SerializeToString()),))
        context.abort(self.code, self.message)

    def _status(self) -> status_pb2.Status:
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain="loraplane", metadata=self.metadata)
        bad = error_details_pb2.BadRequest(
            field_violations=[error_details_pb2.BadRequest.FieldViolation(field=self.where)] if self.where else []
        )
        code = getattr(code_pb2, self.code.name)
        return status_pb2.Status(code=code, message=self.message, details=[_packed(info), _packed(bad)])


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


@dataclass(frozen=True)
class Hold:
    """In a stream: nothing more comes until the client gives up."""


Answer = Any
Script = Callable[[Any], Answer]


class FakeAdmin(AdapterRegistryServicer):  # type: ignore[misc]
    """Answers each call with the next of its list, the last one again and again; a function is asked."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer | Script]] = {
            "ListPools": [pb.ListPoolsResponse(pools=[pb.Pool(name="dev", base_models=["tiny"])])],
            "ListAdapterHistory": [pb.ListAdapterHistoryResponse()],
            "ListChanges": [pb.ListChangesResponse()],
            "ListReplicas": [pb.ListReplicasResponse()],
            "WatchResidency": [[pb.WatchResidencyResponse(snapshot=True), Hold()]],
        }
        self.requests: list[tuple[str, Any]] = []

    def asked(self, method: str) -> list[Any]:
        """The requests that came for a method."""
        return [request for name, request in self.requests if name == method]

    def next_answer(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append((method, request))
        answers = self.answers[method]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer = answer(request) if callable(answer) else answer
        if isinstance(answer, Refusal):
            answer.abort(context)
        return answer


def _unary(method: str) -> Callable[..., Any]:
    return lambda self, request, context: self.next_answer(method, request, context)


def _stream(method: str) -> Callable[..., Any]:
    def serve(self: FakeAdmin, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        for item in self.next_answer(method, request, context):
            if isinstance(item, Refusal):
                item.abort(context)
            if isinstance(item, Hold):
                _wait_for_the_end(context)
                return
            yield item

    return serve


def _wait_for_the_end(context: grpc.ServicerContext) -> None:
    ended = threading.Event()
    if context.add_callback(ended.set):
        ended.wait()


for _method in pb.DESCRIPTOR.services_by_name["AdapterRegistry"].methods:
    _make = _stream if _method.server_streaming else _unary
    setattr(FakeAdmin, _method.name, _make(_method.name))


@contextmanager
def served(admin: FakeAdmin) -> Iterator[str]:
    """Serves it on a free port of the loopback; gives its address."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        add_AdapterRegistryServicer_to_server(admin, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def applied(request: pb.ApplyAdaptersRequest, revision: int = 7) -> pb.ApplyAdaptersResponse:
    """The answer of a service that carries everything out."""
    return pb.ApplyAdaptersResponse(
        results=[_result(request.pool, change) for change in request.changes],
        revision=revision,
        request_id=request.request_id,
    )


def _result(pool: str, change: pb.AdapterChange) -> pb.AdapterResult:
    if change.WhichOneof("change") == "delete":
        deleted = pb.Adapter(name=change.delete, pool=pool, generation=3)
        return pb.AdapterResult(outcome=pb.AdapterResult.DELETED, adapter=deleted)
    created = pb.Adapter(name=change.upsert.name, pool=pool, generation=1, spec=change.upsert.spec)
    return pb.AdapterResult(outcome=pb.AdapterResult.CREATED, adapter=created)
