"""The real admin service as a process, and calls to it; and a relay in its place that does nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial

import grpc

from bench import relay
from bench.etcd import Store
from registry.tools.devstack.processes import free_ports
from registry.v1 import registry_pb2 as pb
from tests.support.fleet import BASE, POOL
from tests.support.processes import Program
from tests.support.waiting import eventually

_PATH = "/registry.v1.AdapterRegistry/"
CALL_SECONDS = 10.0


class Admin:
    """Calls of the API, as thin as gRPC lets them be.

    `pid`, `address` and the address of its pages, `http`, are the service's.
    """

    def __init__(self, channel: grpc.aio.Channel, pid: int, address: str, http: str) -> None:
        self.pid = pid
        self.address = address
        self.http = http
        self._apply = channel.unary_unary(
            _PATH + "ApplyAdapters", pb.ApplyAdaptersRequest.SerializeToString, pb.ApplyAdaptersResponse.FromString
        )
        self._create_pool = channel.unary_unary(
            _PATH + "CreatePool", pb.CreatePoolRequest.SerializeToString, pb.Pool.FromString
        )

    async def upsert(self, name: str, uri: str, digest: str = "") -> int:
        """Applies one adapter; returns the change's revision."""
        return await self.upsert_all([(name, uri, digest)])

    async def upsert_all(self, adapters: Iterable[tuple[str, str, str]]) -> int:
        """The same of several in one change set, each a name, a URI and a digest."""
        specs = [(name, pb.AdapterSpec(source=pb.Source(uri=uri, digest=digest))) for name, uri, digest in adapters]
        changes = [pb.AdapterChange(upsert=pb.Adapter(name=name, spec=spec)) for name, spec in specs]
        reply = await self._apply(pb.ApplyAdaptersRequest(pool=POOL, changes=changes), timeout=CALL_SECONDS)
        return reply.revision

    async def create_pool(self, base: str = BASE) -> bool:
        """True once there is the pool, of that base."""
        try:
            pool = pb.Pool(name=POOL, base_models=[base])
            await self._create_pool(pb.CreatePoolRequest(pool=pool), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.ALREADY_EXISTS
        return True


@asynccontextmanager
async def admin(store: Store, base: str = BASE) -> AsyncIterator[Admin]:
    """Starts it, and makes the pool, of that base."""
    grpc_port, http_port = free_ports(2)
    address = f"127.0.0.1:{grpc_port}"
    flags = ["--listen", address, "--http", f"127.0.0.1:{http_port}", "--max-txn-ops", "1024"]
    program = Program("registry.admin.main", ["--etcd", store.endpoint, *flags], store.folder / "admin.log")
    program.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            calls = Admin(channel, program.pid, address, f"http://127.0.0.1:{http_port}")
            await eventually(partial(calls.create_pool, base))
            yield calls
    finally:
        program.stop()


class Relay:
    """Calls of the relay. `pid` is the relay's."""

    def __init__(self, channel: grpc.aio.Channel, pid: int) -> None:
        self.pid = pid
        self._txn: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/{relay.SERVICE}/{relay.METHOD}"
        )

    async def txn(self, request: bytes) -> bytes:
        """Has etcd carry out a transaction, as bytes; returns etcd's reply."""
        return await self._txn(request, timeout=CALL_SECONDS, wait_for_ready=True)


@asynccontextmanager
async def relaying(store: Store) -> AsyncIterator[Relay]:
    """Starts the relay."""
    (port,) = free_ports(1)
    program = Program("bench.relay", [store.endpoint, str(port)], store.folder / "relay.log")
    program.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Relay(channel, program.pid)
    finally:
        program.kill()
