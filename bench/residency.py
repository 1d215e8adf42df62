"""A whole residency of 100,000 places, from the call to its last message, by the stream and by the page.

The floor makes as many places as messages, one by one and of the same content, and puts them into bytes; it derives
nothing and sends nothing. Ours is a call to the admin service, which derives the places from records and statuses in
etcd; all that it sends is read. Of an adapter most replicas say the same, so that ours can do better than the floor.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import httpx

from bench.admin_service import admin
from bench.etcd import Store, etcd, put_of, record
from bench.figures import Figure, check, of_times
from registry.model.keys import Keys
from registry.model.records import SourceSpec
from registry.model.status import Failed
from registry.v1 import registry_pb2 as pb
from tests.support.fleet import POOL
from tests.support.residency_world import Replicas

ADAPTERS, REPLICAS, FAILING = 5000, 20, 50
PLACES = ADAPTERS * REPLICAS
ROUNDS, AT_ONCE = 7, 500
CALL_SECONDS = 60.0
DIGEST = "sha256:" + "1" * 64
_LABELS = {"zone": "a"}


async def residency_100000(folder: Path) -> list[Figure]:
    """The floor, the stream and the page take turns; each replica has adapters of its own that failed."""
    async with etcd(folder, fsync=False) as store, admin(store) as service:
        await _fleet(store)
        floor, streamed, read = list[float](), list[float](), list[float]()
        for _ in range(ROUNDS + 1):
            floor.append(await asyncio.to_thread(_made))
            streamed.append(await _streamed(service.address))
            read.append(await _read(service.http))
    first = f"{PLACES} places; the first time {streamed[0]:.2f} s"
    return [
        of_times("residency_100000", floor[1:], streamed[1:], target="", note=first),
        of_times("residency_100000_page", floor[1:], read[1:], target="", note="the same as JSON"),
    ]


async def _fleet(store: Store) -> None:
    keys = Keys()
    names = [f"tenant-{number % 100}/adapter-{number:06}" for number in range(ADAPTERS)]
    source = SourceSpec(uri="s3://example-adapters/one/v1/", digest=DIGEST)
    puts, revision = [put_of(keys, record(name, source)) for name in names], 0
    for start in range(0, ADAPTERS, AT_ONCE):
        revision = await store.put(*puts[start : start + AT_ONCE])
    replicas = Replicas(store.client, keys, POOL)
    for number in range(REPLICAS):
        await replicas.alive(f"replica-{number:03}", labels=_LABELS)
        failing = names[number * FAILING : (number + 1) * FAILING]
        failed = [
            Failed(name=name, generation=1, reason="ENGINE_REFUSED", message="m", attempts=1, retry_at=None)
            for name in failing
        ]
        await replicas.says(f"replica-{number:03}", revision, failed=failed)


def _made() -> float:
    started = time.perf_counter()
    for number in range(ADAPTERS):
        name = f"tenant-{number % 100}/adapter-{number:06}"
        places = [
            pb.Residence(
                replica=f"replica-{replica:03}",
                engine_url=f"http://replica-{replica:03}",
                labels=_LABELS,
                model=name,
                generation=1,
                state=pb.RolloutReplica.SERVING,
                loaded=True,
            )
            for replica in range(REPLICAS)
        ]
        pb.AdapterResidency(name=name, generation=1, load="eager", replicas=places).SerializeToString()
    return time.perf_counter() - started


async def _streamed(address: str) -> float:
    started, places = time.perf_counter(), 0
    async with grpc.aio.insecure_channel(address) as channel:
        watch = channel.unary_stream(
            "/registry.v1.AdapterRegistry/WatchResidency",
            pb.WatchResidencyRequest.SerializeToString,
            pb.WatchResidencyResponse.FromString,
        )
        async for response in watch(pb.WatchResidencyRequest(pool=POOL), timeout=CALL_SECONDS):
            places += sum(len(one.replicas) for one in response.adapters)
            if not response.more:
                break
        seconds = time.perf_counter() - started
    check(places == PLACES, f"{places} of {PLACES} places were told")
    return seconds


async def _read(url: str) -> float:
    started = time.perf_counter()
    async with httpx.AsyncClient(timeout=CALL_SECONDS, trust_env=False) as client:
        told = (await client.get(f"{url}/v1/residency", params={"pool": POOL})).text
    seconds = time.perf_counter() - started
    check(told.count('"replica": ') == PLACES, "places are missing on the page")
    return seconds
