"""The admin service for tests: inside the test's own event loop, or as a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from registry.admin.server import running
from registry.admin.settings import AdminSettings
from registry.runtime.settings import Address
from registry.tools.devstack.processes import free_ports
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.http_client import http_client
from tests.support.processes import Program
from tests.support.waiting import eventually

_FREE = Address(host="127.0.0.1", port=0)


@dataclass(frozen=True)
class Admin:
    """A running admin service with a channel to it."""

    stub: Any  # generated code has no types
    channel: grpc.aio.Channel
    address: str
    http: str


@dataclass(frozen=True)
class Refused:
    """What a failed call told."""

    code: grpc.StatusCode
    reason: str
    field: str | None
    message: str
    metadata: dict[str, str]


@asynccontextmanager
async def admin_inside(etcd: Sequence[str], prefix: str, **settings: Any) -> AsyncIterator[Admin]:
    """The service in this event loop, on free ports; further settings by their names."""
    told = AdminSettings(etcd=tuple(etcd), listen=_FREE, http=_FREE, prefix=prefix, **settings)
    async with running(told, drain_seconds=0) as ports:
        address = f"127.0.0.1:{ports.grpc_port}"
        async with grpc.aio.insecure_channel(address) as channel:
            stub = registry_pb2_grpc.AdapterRegistryStub(channel)  # type: ignore[no-untyped-call]
            yield Admin(stub, channel, address, f"http://127.0.0.1:{ports.http_port}")


@asynccontextmanager
async def admin_with_pool(etcd: Sequence[str], prefix: str, **settings: Any) -> AsyncIterator[Admin]:
    """The same, once it serves and has a pool "p"."""
    async with admin_inside(etcd, prefix, **settings) as admin:
        await wait_ready(admin)
        await make_pool(admin)
        yield admin


@dataclass
class AdminProgram:
    """The service as a process."""

    program: Program
    address: str
    http: str

    async def is_ready(self) -> bool:
        """Whether /readyz says 200."""
        return await answers_ready(self.http)


async def answers_ready(http: str) -> bool:
    """Whether a program of ours says at its /readyz that it is ready."""
    try:
        async with http_client(base_url=http, timeout=60) as client:
            return (await client.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


def admin_program(folder: Path, etcd: Sequence[str], prefix: str, *flags: str) -> AdminProgram:
    """``loraplane-admin`` on free ports, not yet started; its log is in `folder`."""
    grpc_port, http_port = free_ports(2)
    address, http = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
    arguments = ["--etcd", ",".join(etcd), "--listen", address, "--http", http, "--prefix", prefix, *flags]
    return AdminProgram(Program("registry.admin.main", arguments, folder / "admin.log"), address, f"http://{http}")


def refused(error: grpc.RpcError) -> Refused:
    """The code, reason and field of a failed call."""
    assert isinstance(error, grpc.aio.AioRpcError)
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    trailing = dict(tuple(error.trailing_metadata() or ()))
    status = status_pb2.Status.FromString(trailing.get("grpc-status-details-bin", b""))
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
    field = bad.field_violations[0].field if bad.field_violations else None
    return Refused(error.code(), info.reason, field, error.details() or "", dict(info.metadata))


async def refusal(call: Any) -> Refused:
    """What an awaited call is refused with; it must be."""
    try:
        reply = await call
    except grpc.RpcError as error:
        return refused(error)
    raise AssertionError(f"not refused: {reply}")


def put(name: str, uri: str = "file:///a/v1", etag: str = "", **spec: Any) -> pb.AdapterChange:
    """An upsert on the wire."""
    return pb.AdapterChange(
        upsert=pb.Adapter(name=name, spec=pb.AdapterSpec(source=pb.Source(uri=uri), **spec)), etag=etag
    )


def drop(name: str) -> pb.AdapterChange:
    """A deletion on the wire."""
    return pb.AdapterChange(delete=name)


def change_set(*changes: pb.AdapterChange, pool: str = "p", **fields: Any) -> pb.ApplyAdaptersRequest:
    """A change set on the wire."""
    return pb.ApplyAdaptersRequest(pool=pool, changes=changes, **fields)


async def make_pool(admin: Admin, name: str = "p", *base_models: str) -> pb.Pool:
    """Creates a pool."""
    request = pb.CreatePoolRequest(pool=pb.Pool(name=name, base_models=base_models or ("base",)))
    made: pb.Pool = await admin.stub.CreatePool(request)
    return made


async def wait_ready(admin: Admin) -> None:
    """Until the service says that it serves."""
    health = health_pb2_grpc.HealthStub(admin.channel)

    async def serving() -> bool:
        reply = await health.Check(health_pb2.HealthCheckRequest(service="registry.v1.AdapterRegistry"))
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    await eventually(serving)


async def works(stub: registry_pb2_grpc.AdapterRegistryStub) -> bool:
    """Whether a call of a whole service is answered."""
    try:
        await stub.ListPools(pb.ListPoolsRequest())
    except grpc.RpcError:
        return False
    return True
