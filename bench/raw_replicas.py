"""The floors of many replicas, each in a process of its own as sidecars are, and bare puts that they hear of."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import grpc

from bench.engines import Engines
from bench.etcd import Store
from bench.raw_replica import Order
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.methods import TXN

PREFIX = "/floor/"
START_SECONDS = 60
RECORD_BYTES = 600


@dataclass(frozen=True, slots=True)
class RawPut:
    """Puts an order with nothing between us and gRPC."""

    channel: grpc.aio.Channel

    async def __call__(self, order: Order) -> tuple[float, float]:
        """Puts it; returns when it was sent and when it was answered, in monotonic seconds."""
        bare = len(json.dumps(asdict(order)))
        filled = Order(order.name, order.path, order.source, "x" * (RECORD_BYTES - bare))
        put = rpc.PutRequest(key=f"{PREFIX}{order.name}".encode(), value=json.dumps(asdict(filled)).encode())
        request = rpc.TxnRequest(success=[rpc.RequestOp(request_put=put)])
        call = self.channel.unary_unary(TXN.path, TXN.request.SerializeToString, TXN.response.FromString)
        sent = time.monotonic()
        await call(request)
        return sent, time.monotonic()


@asynccontextmanager
async def raw_replicas(store: Store, engines: Engines) -> AsyncIterator[RawPut]:
    """One beside each engine."""
    processes: list[asyncio.subprocess.Process] = []
    try:
        for number, url in enumerate(engines.urls):
            folder = store.folder / f"raw-{number}"
            folder.mkdir()
            command = [sys.executable, "-m", "bench.raw_replica", store.endpoint, PREFIX, url, str(folder)]
            processes.append(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
        async with asyncio.timeout(START_SECONDS):
            for process in processes:
                assert process.stdout is not None
                await process.stdout.readline()
        async with grpc.aio.insecure_channel(store.endpoint) as channel:
            yield RawPut(channel)
    finally:
        for process in processes:
            process.kill()
            await process.wait()
