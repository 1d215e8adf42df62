"""What callers of an admin service take, and what of it is given back, at the size of an attack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import cycle, islice
from pathlib import Path

import grpc
import pytest

from registry.client.transport import AdminCalls
from registry.etcd3.ops import Put
from registry.model.keys import Keys
from registry.v1 import registry_pb2 as pb
from tests.support.admin import AdminProgram, admin_program, change_set, put
from tests.support.etcd import commit
from tests.support.hanging_callers import hanging_callers
from tests.support.hostile_callers import OWN_CONNECTION, refused_requests
from tests.support.http_client import http_client
from tests.support.proxy import Proxy
from tests.support.records import record

_PATH = "/registry.v1.AdapterRegistry/"
_MIB = 1 << 20


@pytest.fixture
async def service(etcd, tmp_path) -> AsyncIterator[AdminProgram]:
    """With a pool "p"."""
    made = admin_program(tmp_path, etcd.endpoints, etcd.prefix)
    made.program.start()
    async with aclosing(AdminCalls(made.address, None, timeout_seconds=60)) as calls:
        await calls.unary("CreatePool", pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["base"])), pb.Pool)
    yield made
    made.program.kill()


def _resident_bytes(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


async def _refuse(channel: grpc.aio.Channel, method: str, raw: bytes) -> None:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_PATH + method)
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await call(raw, timeout=60, compression=grpc.Compression.Gzip)
    assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(told.value.details() or "") < 1000


async def test_what_three_hundred_refused_requests_had_is_given_back(service):
    """X3 given-back, R16 bounded: 4 MiB each, all over one connection; also where many come at once."""
    async with grpc.aio.insecure_channel(service.address, options=OWN_CONNECTION) as channel:
        await _refuse(channel, "GetPool", b"\xff")
        before = _resident_bytes(service.program.pid)
        for method, raw in islice(cycle(refused_requests()), 300):
            await _refuse(channel, method, raw)
        more = _resident_bytes(service.program.pid) - before
    print(f"{more / _MIB:.0f} MiB more")
    assert more <= 50 * _MIB


@asynccontextmanager
async def _from_elsewhere(service: AdminProgram) -> AsyncIterator[AdminCalls]:
    """A client at another address of the loopback."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(int(service.address.rpartition(":")[2]), "127.0.0.2"))
        yield await stack.enter_async_context(aclosing(AdminCalls(proxy.endpoint, None, timeout_seconds=60)))


async def _listed(calls: AdminCalls) -> int:
    """How many adapters the present state of a pool has, as a stream tells it first."""
    found, request = 0, pb.WatchAdaptersRequest(pool="p")
    async with aclosing(calls.stream("WatchAdapters", request, pb.WatchAdaptersResponse, 60)) as answers:
        async for answer in answers:
            found += len(answer.events)
            if not answer.more:
                break
    return found


async def test_lists_that_nobody_reads_are_few_at_once(etcd, etcd_client, service):
    """X3 given-back, R16 bounded: 95 streams of a pool of 5,000 adapters, over one connection; others get theirs."""
    keys = Keys(etcd.prefix)
    for start in range(0, 5000, 100):
        records = [record(f"acme/a{number}") for number in range(start, start + 100)]
        await commit(etcd_client, *(Put(keys.adapter("p", one.name), one.to_bytes()) for one in records))
    request = pb.WatchAdaptersRequest(pool="p").SerializeToString()
    async with (
        grpc.aio.insecure_channel(service.address, options=OWN_CONNECTION) as channel,
        _from_elsewhere(service) as elsewhere,
    ):
        assert await _listed(elsewhere) == 5000
        before = _resident_bytes(service.program.pid)
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_PATH + "WatchAdapters")
        unread = [watch(request, timeout=600) for _ in range(95)]
        await asyncio.sleep(5)
        assert await _listed(elsewhere) == 5000
        more = _resident_bytes(service.program.pid) - before
        for call in unread:
            call.cancel()
    print(f"{more / _MIB:.0f} MiB more")
    assert more <= 50 * _MIB


async def _asked_anew(address: str) -> None:
    async with aclosing(AdminCalls(address, None, timeout_seconds=60)) as calls:
        await calls.unary("GetPool", pb.GetPoolRequest(name="p"), pb.Pool)


# With ten times as much to do as the machine can: of 10,000 calls at once each one is looked at, or cancelled.
@pytest.mark.parametrize(
    ("connections", "calls", "again_seconds", "bound_seconds"), [(140, 1, 0.25, 8.0), (100, 100, 1000.0, 20.0)]
)
async def test_calls_that_never_send_a_request_stop_nobody(
    service, tmp_path, connections, calls, again_seconds, bound_seconds
):
    """X3 given-back, X2: neither who is at another address, nor who is behind the same, nor who looks at health."""
    change = change_set(put("acme/a"), validate_only=True)
    seconds: dict[str, list[float]] = {"elsewhere": [], "beside": []}
    async with _from_elsewhere(service) as elsewhere, http_client(timeout=60) as http:
        await elsewhere.unary("ApplyAdapters", change, pb.ApplyAdaptersResponse)
        with hanging_callers(tmp_path, service.address, connections, calls, again_seconds):
            await asyncio.sleep(1)
            for _ in range(10):
                started = time.monotonic()
                await elsewhere.unary("ApplyAdapters", change, pb.ApplyAdaptersResponse)
                seconds["elsewhere"].append(time.monotonic() - started)
                started = time.monotonic()
                await _asked_anew(service.address)
                seconds["beside"].append(time.monotonic() - started)
                assert (await http.get(f"{service.http}/readyz")).status_code == 200
                await asyncio.sleep(0.1)
        metrics = (await http.get(f"{service.http}/metrics")).text
    print({name: f"{max(took):.3f} s at most" for name, took in seconds.items()})
    assert max(seconds["elsewhere"]) < bound_seconds
    assert max(seconds["beside"]) < bound_seconds
    assert 'loraplane_admin_refused_total{reason="DEADLINE_EXCEEDED"}' in metrics
    logged = [line["reason"] for line in service.program.logged() if line["event"] == "calls_refused"]
    assert len(logged) <= 2 * len(set(logged)), "once a minute each"
