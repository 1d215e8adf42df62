"""An admin service without servers, on virtual time with an etcd: its calls as gRPC makes them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Never

import httpx
import pytest
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from registry.access.control import AccessControl
from registry.admin.app import AdminPorts, assemble
from registry.admin.rpc.calls import Asked, Hook, permit
from registry.admin.rpc.interceptor import DETAILS_KEY
from registry.admin.rpc.service import DESCRIPTOR, SERVICE
from registry.runtime.clock import Clock
from registry.v1 import registry_pb2 as pb
from tests.support.played_etcd import PlayedEtcd, Scene, as_test, play
from tests.support.records import KEYS


class Aborted(Exception):
    """How a call was refused."""

    def __init__(self, code: StatusCode, message: str, details: bytes) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message
        self.info, self.bad, self.retry = ErrorInfo(), BadRequest(), RetryInfo()
        status = Status.FromString(details)
        assert (status.code, status.message) == (code.value[0], message)
        for detail in status.details:
            detail.Unpack(self.info)
            detail.Unpack(self.bad)
            detail.Unpack(self.retry)

    @property
    def told(self) -> tuple[StatusCode, str, str]:
        """The code, the reason, and the field at fault."""
        fields = [one.field for one in self.bad.field_violations]
        assert self.info.domain == "loraplane"
        return self.code, self.info.reason, ",".join(fields)


@dataclass
class Context:
    """One call, as gRPC knows it."""

    remaining: float | None = 60.0
    names: Mapping[str, list[bytes]] = field(default_factory=dict)
    metadata: tuple[tuple[str, str], ...] = ()

    def time_remaining(self) -> float | None:
        return self.remaining

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self.names

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.metadata

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"

    async def abort(self, code: StatusCode, message: str, metadata: tuple[tuple[str, bytes], ...]) -> Never:
        [(key, details)] = metadata
        assert key == DETAILS_KEY
        raise Aborted(code, message, details)


async def one(request: Message) -> AsyncIterator[bytes]:
    """The one request of a call."""
    yield request.SerializeToString()


class Served:
    """An admin service without servers.

    Attributes:
        service: its parts.
        client: its own.
        hook: is called before each handler and each page.
        asked: all that it was called with.
    """

    def __init__(self, etcd: PlayedEtcd, access: AccessControl | None = None) -> None:
        self.etcd, self.client = etcd, etcd.client()
        self.hook: Hook = permit
        self.asked: list[Asked] = []
        clock = Clock(random.Random(0))
        self.service = assemble(AdminPorts(self.client, KEYS, clock, self._hook, insecure=("--listen",), access=access))
        self.service.gate.open()
        self.metrics, self.probe = self.service.metrics, self.service.probe

    def _hook(self, asked: Asked) -> None:
        self.asked.append(asked)
        self.hook(asked)

    def handler(self, method: str) -> Any:
        """A method as gRPC finds it."""
        found = self.service.handlers.service(SimpleNamespace(method=f"/{SERVICE}/{method}", invocation_metadata=()))
        assert found is not None
        return found

    async def call(self, method: str, request: Message, context: Context | None = None) -> Any:
        """The answer, as it comes out of its bytes again."""
        handler = self.handler(method)
        answer = await handler.stream_unary(one(request), context or Context())
        return type(answer).FromString(handler.response_serializer(answer))

    def watch(self, method: str, request: Message, context: Context | None = None) -> Any:
        """The answers of a stream."""
        return self.handler(method).stream_stream(one(request), context or Context())

    async def page(self, path: str, host: str = "admin", **headers: str) -> httpx.Response:
        """What a page answers."""
        transport = httpx.ASGITransport(self.service.app, client=("fe80::1", 7))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.get(path, headers=headers)

    async def refusal(self, method: str, request: Message, context: Context | None = None) -> Aborted:
        """How a call is refused, which it must be."""
        is_stream = DESCRIPTOR.methods_by_name[method].server_streaming
        with pytest.raises(Aborted) as refused:
            await (anext(self.watch(method, request, context)) if is_stream else self.call(method, request, context))
        return refused.value

    def counted(self, method: str) -> dict[str, float]:
        """How many calls ended, by status."""
        [family] = list(self.metrics.requests.collect())
        return {
            sample.labels["code"]: sample.value
            for sample in family.samples
            if sample.labels["method"] == method and sample.name.endswith("_total")
        }

    async def make_pool(self, name: str = "p", context: Context | None = None) -> pb.Pool:
        """Makes a pool of one base model."""
        request = pb.CreatePoolRequest(pool=pb.Pool(name=name, base_models=["base"]))
        made = await self.call("CreatePool", request, context)
        assert isinstance(made, pb.Pool)
        return made


def serve(scene: Scene) -> None:
    """Plays a scene with a service that nobody has asked anything yet."""

    async def work(etcd: PlayedEtcd) -> None:
        await scene(Served(etcd))

    play(work)


def served(scene: Scene) -> Callable[..., None]:
    """Makes a test of a scene with a service."""
    return as_test(serve, scene, 1)
