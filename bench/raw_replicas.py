"""The floors of many replicas, each in a process of its own as sidecars are, and bare puts that they hear of."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from bench.engines import Engines
from bench.etcd import Store
from bench.figures import check
from bench.forks import CONTEXT
from bench.raw_replica import Order, run
from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.codec import TXN

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
    ready = [CONTEXT.Event() for _ in engines.urls]
    processes = [
        CONTEXT.Process(target=run, args=(store.endpoint, PREFIX.encode(), url, _folder(store, number), is_ready))
        for number, (url, is_ready) in enumerate(zip(engines.urls, ready, strict=True))
    ]
    try:
        for process in processes:
            process.start()
        stand = await asyncio.gather(*(asyncio.to_thread(is_ready.wait, START_SECONDS) for is_ready in ready))
        check(all(stand), "a bare watch does not stand")
        async with grpc.aio.insecure_channel(store.endpoint) as channel:
            yield RawPut(channel)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _folder(store: Store, number: int) -> Path:
    folder = store.folder / f"raw-{number}"
    folder.mkdir()
    return folder
