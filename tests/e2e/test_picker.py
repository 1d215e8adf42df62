"""The picker behind the real Envoy, before two real vLLM and ten simulated engines, for minutes: `make routers`.

SECONDS and RATE say for how long, and how many requests a second.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import grpc
import pytest

from loraplane import AsyncRegistry
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.engines import BASE_MODEL
from tests.support.envoy import ENVOY
from tests.support.fleet import POOL
from tests.support.routed_fleet import RoutedFleet, RoutedLoad, routed_fleet, simulated
from tests.support.waiting import eventually

SIMULATED, SECONDS, RATE = 10, float(os.environ.get("SECONDS", "120")), float(os.environ.get("RATE", "20"))
SERVED_SECONDS = 300

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("ROUTERS"), reason="takes minutes: make routers"),
    pytest.mark.skipif(not ENVOY.exists(), reason="no Envoy here: make .venv-envoy/.installed"),
]


async def changes(fleet: RoutedFleet, stub, registry: AsyncRegistry, versions: list[str]) -> AsyncIterator[str]:
    """One change after the other, each of another kind, and its name once it is done.

    Replicas that have what is placed by number do not drain: what moves back is unloaded, by an engine without the
    plugin at once, and a request may be on its way.
    """
    free = await idle_replicas(registry)
    for turn in itertools.count():
        await registry.publish(versions[turn % 2 - 1], "sql", POOL, timeout_seconds=SERVED_SECONDS)
        yield "swap"
        drained = free[turn % len(free)]
        await stub.DrainReplica(pb.DrainReplicaRequest(pool=POOL, name=drained))
        picker = fleet.pickers[turn % 2]
        await fleet.restart(picker.program, picker.is_ready)
        yield "picker"
        await registry.publish(versions[turn % 2], "sql", POOL, timeout_seconds=SERVED_SECONDS)
        yield "swap"
        await fleet.restart(fleet.admin.program, fleet.admin.is_ready)
        yield "admin"
        await stub.DrainReplica(pb.DrainReplicaRequest(pool=POOL, name=drained, undrain=True))
        yield "drain"


async def idle_replicas(registry: AsyncRegistry) -> list[str]:
    """The simulated replicas that have no part in what is placed by number, once that is served."""
    async with aclosing(registry.residency(POOL)) as states:
        async for state in states:
            serving = {name: {one.replica for one in adapter.serving} for name, adapter in state.adapters.items()}
            if (len(serving["law-on-two"]), len(serving["law-on-one"])) == (2, 1):
                taken = serving["law-on-two"] | serving["law-on-one"]
                return [name for name in (f"s{number}" for number in range(SIMULATED)) if name not in taken]
    raise AssertionError("residency ended")


async def place(stub, name: str, folder: str, replicas: int) -> None:
    """Gives a name weights on so many replicas."""
    spec = pb.AdapterSpec(source=pb.Source(uri=f"file://{folder}"), placement=pb.Placement(replicas=replicas))
    upsert = pb.AdapterChange(upsert=pb.Adapter(name=name, spec=spec))
    await stub.ApplyAdapters(pb.ApplyAdaptersRequest(pool=POOL, changes=[upsert]))


async def test_no_request_goes_astray_on_real_and_simulated_engines(
    real_vllm, second_vllm, plugin_flags, tiny, etcd, tmp_path
):
    """R5 no-silent-base, R13 static-stable, R20 drain: 0 wrong, 0 failed, for adapters on all, on two and on one."""
    engines = {"v0": real_vllm, "v1": second_vllm}
    await asyncio.gather(*(vllm.ensure(replace(plugin_flags, max_loras=8)) for vllm in engines.values()))
    real = {name: (vllm.url, vllm.flags_of_sidecar()) for name, vllm in engines.items()}
    versions = [tiny.adapter(one) for one in "ab"]
    async with (
        simulated(tmp_path, SIMULATED, "--served-model-name", BASE_MODEL) as played,
        routed_fleet(tmp_path, etcd, {**real, **played}, tiny.folder / "adapters") as fleet,
        grpc.aio.insecure_channel(fleet.admin.address) as channel,
        AsyncRegistry(fleet.admin.address) as registry,
    ):
        stub = registry_pb2_grpc.AdapterRegistryStub(channel)
        limits = pb.PoolLimits(prove="off")
        await stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name=POOL, base_models=[BASE_MODEL], limits=limits)))
        for name, folder in (("sql", versions[0]), ("other", versions[1]), ("law", tiny.adapter("c"))):
            await registry.publish(folder, name, POOL, timeout_seconds=SERVED_SECONDS)
        law = await fleet.texts("law")
        right = {
            "sql": await fleet.texts("sql") | await fleet.texts("other"),
            "law": law,
            "law-on-two": law,
            "law-on-one": law,
            BASE_MODEL: await fleet.texts(BASE_MODEL),
            "nobody": frozenset[str](),
        }
        await place(stub, "law-on-two", tiny.adapter("c"), 2)
        await place(stub, "law-on-one", tiny.adapter("c"), 1)
        load, stop = RoutedLoad(fleet.url, right), asyncio.Event()
        await eventually(lambda: is_right(fleet, right), timeout_seconds=SERVED_SECONDS)
        running = asyncio.create_task(load.run(RATE, stop))
        end, done = asyncio.get_running_loop().time() + SECONDS, list[str]()
        async for change in changes(fleet, stub, registry, versions):
            done.append(change)
            if asyncio.get_running_loop().time() > end:
                break
        stop.set()
        await running
    counts = ", ".join(f"{done.count(kind)} {kind}s" for kind in dict.fromkeys(done))
    print(f"picker behind Envoy: {load.asked} requests, {len(load.wrong)} wrong, {len(load.failed)} failed; {counts}")
    assert (load.wrong, load.failed) == ([], [])


async def is_right(fleet: RoutedFleet, right: dict[str, frozenset[str]]) -> bool:
    """Each name is answered as it should be."""
    load = RoutedLoad(fleet.url, right)
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(1.0, stop.set)
    await load.run(20, stop)
    return not (load.wrong or load.failed)
