"""An admin service under callers who mean it ill, as a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from bench.figures import percentile
from registry.client.transport import AdminCalls
from registry.v1 import registry_pb2 as pb
from tests.support.admin import AdminProgram, admin_program, change_set, put
from tests.support.hostile_callers import hostile_callers

# For a machine that has ten times as much to do as it can, repetitions included.
BOUND_SECONDS = 20.0


@pytest.fixture
async def service(etcd, tmp_path) -> AsyncIterator[AdminProgram]:
    made = admin_program(tmp_path, etcd.endpoints, etcd.prefix)
    made.program.start()
    yield made
    made.program.kill()


async def test_a_good_caller_among_fifty_hostile_ones(service):
    """X2 unbreakable: requests that cost much, are large, or never come delay nobody else's."""
    async with aclosing(AdminCalls(service.address, None, timeout_seconds=60)) as calls:
        pool = pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["base"]), request_id="pool")
        await calls.unary("CreatePool", pool, pb.Pool)
        async with hostile_callers(service.address, 50):
            await asyncio.sleep(0)
            seconds = []
            for number in range(30):
                started = time.monotonic()
                change = change_set(put(f"acme/a{number % 5}", f"file:///a/{number}"), request_id=f"r{number}")
                await calls.unary("ApplyAdapters", change, pb.ApplyAdaptersResponse)
                await calls.unary("GetAdapter", pb.GetAdapterRequest(pool="p", name="acme/a0"), pb.Adapter)
                seconds.append(time.monotonic() - started)
    assert service.program.is_running
    print(f"p50 {percentile(seconds, 0.5):.3f} s, p99 {percentile(seconds, 0.99):.3f} s")
    assert max(seconds) < BOUND_SECONDS
