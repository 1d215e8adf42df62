"""The picker behind the real Envoy: simulated engines, swaps, a drain, and restarts of all that decides."""

from __future__ import annotations

import asyncio
import json

import grpc
import httpx
import pytest

from loraplane import AsyncRegistry
from registry.client.adapters import Published
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.adapters import write_adapter
from tests.support.envoy import ENVOY
from tests.support.fleet import BASE, POOL
from tests.support.routed_fleet import RoutedFleet, RoutedLoad, routed_fleet, simulated
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="no Envoy here: make .venv-envoy/.installed")


async def publish(registry: AsyncRegistry, folder, name: str) -> Published:
    return await registry.publish(str(folder), name, POOL, timeout_seconds=60)


async def chat(fleet: RoutedFleet, model: object, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=fleet.url, timeout=30, trust_env=False) as client:
        return await client.post("/v1/completions", json={"model": model, "prompt": "x"}, headers=headers)


async def test_no_request_goes_astray_while_everything_changes(etcd, tmp_path):
    """R5 no-silent-base, R13 static-stable, R20 drain: 0 wrong, 0 failed."""
    sources = tmp_path / "sources"
    folders = {name: sources / name for name in ("one", "two", "law")}
    for seed, folder in enumerate(folders.values()):
        write_adapter(folder, seed=seed, base=BASE)
    async with (
        simulated(tmp_path, 3) as engines,
        routed_fleet(tmp_path, etcd, engines, sources) as fleet,
        grpc.aio.insecure_channel(fleet.admin.address) as channel,
        AsyncRegistry(fleet.admin.address) as registry,
    ):
        stub = registry_pb2_grpc.AdapterRegistryStub(channel)
        await stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name=POOL, base_models=[BASE])))
        await asyncio.gather(*(publish(registry, folders[source], name) for name, source in NAMES.items()))
        right = {
            "sql": await fleet.texts("sql") | await fleet.texts("other"),
            "law": await fleet.texts("law"),
            f"{BASE}:law": await fleet.texts("law"),
            BASE: await fleet.texts(BASE),
            "nobody": frozenset(),
        }
        assert not right["sql"] & right["law"]
        assert not right[BASE] & (right["sql"] | right["law"])
        for picker in fleet.pickers:
            await eventually(picker.is_ready)
        await eventually(lambda: is_answered(fleet))
        load, stop = RoutedLoad(fleet.url, right), asyncio.Event()
        running = asyncio.create_task(load.run(20, stop))
        await publish(registry, folders["two"], "sql")
        await stub.DrainReplica(pb.DrainReplicaRequest(pool=POOL, name="s0"))
        await fleet.restart(fleet.pickers[0].program, fleet.pickers[0].is_ready)
        await fleet.restart(fleet.admin.program, fleet.is_admin_ready)
        await publish(registry, folders["one"], "sql")
        await fleet.restart(fleet.pickers[1].program, fleet.pickers[1].is_ready)
        await stub.DrainReplica(pb.DrainReplicaRequest(pool=POOL, name="s0", undrain=True))
        published = await publish(registry, folders["two"], "sql")
        stop.set()
        await running
        assert (load.wrong, load.failed, load.asked > 100) == ([], [], True)
        newest = await chat(fleet, "sql", **{"x-loraplane-min-revision": str(published.revision)})
        assert newest.status_code == 200
        later = await chat(fleet, "sql", **{"x-loraplane-min-revision": str(published.revision + 10**6)})
        assert (later.status_code, later.json()["error"]["code"]) == (503, "not_served_yet")
        missing = await chat(fleet, 7)
        assert (missing.status_code, json.loads(missing.text)["error"]["code"]) == (400, "invalid_request")


NAMES = {"sql": "one", "other": "two", "law": "law"}


async def is_answered(fleet: RoutedFleet) -> bool:
    """Envoy knows that its pickers are well, and they know the adapters."""
    answers = [await chat(fleet, "law") for _ in range(4)]
    return {one.status_code for one in answers} == {200}
