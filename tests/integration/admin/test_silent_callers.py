"""An admin service under connections that say nothing, as a process that may open few descriptors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.admin import AdminProgram, admin_program
from tests.support.hostile_callers import OWN_CONNECTION
from tests.support.http_client import http_client
from tests.support.silent import FEW_DESCRIPTORS, silent_connections
from tests.support.waiting import eventually


@pytest.fixture
async def service(etcd, tmp_path) -> AsyncIterator[AdminProgram]:
    made = admin_program(tmp_path, etcd.endpoints, etcd.prefix)
    made.program.before = FEW_DESCRIPTORS
    made.program.start()
    await eventually(lambda: answers(made))
    yield made
    made.program.kill()


async def ask(channel: grpc.aio.Channel) -> bool:
    try:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    except grpc.aio.AioRpcError:
        return False
    return reply.status == health_pb2.HealthCheckResponse.SERVING


async def answers(service: AdminProgram) -> bool:
    """Whether somebody who comes now is answered."""
    async with grpc.aio.insecure_channel(service.address, options=OWN_CONNECTION) as channel:
        return await ask(channel)


async def readyz(service: AdminProgram) -> int:
    async with http_client(base_url=service.http, timeout=60) as client:
        return (await client.get("/readyz")).status_code


async def test_silent_connections_to_the_pages_stop_no_call(service):
    """X3 given-back: neither who comes then is refused, nor is the service out of descriptors; it says so once."""
    async with silent_connections(service.http, 1150):
        for _ in range(20):
            assert await answers(service)
            assert await readyz(service) == 200
    assert service.program.log.stat().st_size < 20_000


async def test_silent_connections_to_the_api_end_by_themselves_and_stop_nothing_else(service):
    """X3: who was connected is answered all the time, and the pages are; who comes waits no longer than they last."""
    async with grpc.aio.insecure_channel(service.address, options=OWN_CONNECTION) as early:
        assert await ask(early)
        async with silent_connections(service.address, 1150):
            for _ in range(20):
                assert await ask(early)
                assert await readyz(service) == 200
            await eventually(lambda: answers(service))
    assert service.program.log.stat().st_size < 20_000
