"""The service as a service: health, what it serves, how much it takes, and what goes on while a part of it fails."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import grpc
import httpx
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import StatusCode
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from registry.model.errors import RegistryError
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_with_pool, change_set, drop, put, refusal
from tests.support.http_client import http_client
from tests.support.metrics import read_metrics
from tests.support.residency_world import Replicas, among, members
from tests.support.waiting import eventually

SERVICE = "registry.v1.AdapterRegistry"
CANARY = pb.Strategy(canary_replicas="1", promote="auto", soak_seconds=0)


async def test_each_method_is_served_found_and_counted(admin):
    """An empty request is refused or answered, never unknown; reflection has the file, as grpcurl asks for it."""
    for method in pb.DESCRIPTOR.services_by_name["AdapterRegistry"].methods:
        call = getattr(admin.stub, method.name)(getattr(pb, method.input_type.name)())
        if method.name in {"ListPools", "ListTenants", "ReadBackup", "WhoAmI", "ListAudit"}:
            await call
        elif method.name == "WatchAudit":  # from now on
            assert (await call.read()).revision
            call.cancel()
        else:
            told = await refusal(call.read() if method.server_streaming else call)
            assert told.code is StatusCode.INVALID_ARGUMENT, (method.name, told)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    asked = reflection_pb2_grpc.ServerReflectionStub(admin.channel).ServerReflectionInfo(iter(requests))
    listed, found = [reply async for reply in asked]
    assert SERVICE in {one.name for one in listed.list_services_response.service}
    files = [FileDescriptorProto.FromString(one) for one in found.file_descriptor_response.file_descriptor_proto]
    assert "AdapterRegistry" in {service.name for file in files for service in file.service}
    stream = admin.stub.WatchResidency(pb.WatchResidencyRequest(pool="p"))
    await stream.read()
    counted = await read_metrics(admin.http)
    assert counted['loraplane_admin_requests_total{code="INVALID_ARGUMENT",method="GetPool"}'] == 1
    assert counted['loraplane_admin_requests_total{code="OK",method="CreatePool"}'] == 1
    assert counted['loraplane_admin_request_seconds_count{method="GetPool"}'] == 1
    assert counted['loraplane_admin_streams{method="WatchResidency"}'] == 1
    stream.cancel()

    async def is_up() -> bool:
        return (await read_metrics(admin.http))["loraplane_admin_etcd_up"] == 1

    await eventually(is_up)


async def test_as_much_is_taken_as_is_said(etcd, ledger):
    """R16: 4 MiB; sets of one transaction, as large as etcd takes them; of one too large the number that fits."""
    async with admin_with_pool(etcd.endpoints, etcd.prefix, max_txn_ops=1024) as admin:
        told = await refusal(admin.stub.ApplyAdapters(change_set(put("a", labels={"k": "x" * 5_000_000}))))
        assert told.code is StatusCode.RESOURCE_EXHAUSTED
        for uri in range(12):
            await admin.stub.ApplyAdapters(change_set(*(put(f"acme/n{i}", f"file:///a/{uri}") for i in range(3))))
        reply = await admin.stub.ApplyAdapters(change_set(*(put(f"acme/n{i}") for i in range(340))))
        assert len(reply.results) == 340
        large = [put(f"acme/n{i}", labels={f"k{j}": "x" * 250 for j in range(10)}) for i in range(340)]
        told = await refusal(admin.stub.ApplyAdapters(change_set(*large)))
        assert (told.code, told.reason, told.field) == (StatusCode.INVALID_ARGUMENT, "TOO_MANY_CHANGES", "changes")
        most = int(told.metadata["max_changes"])
        assert 40 < most < 340
        await admin.stub.ApplyAdapters(change_set(*large[:most]))
        await ledger.check()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Cyclic garbage stays young until a test has it collected."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_what_a_refused_call_had_goes_with_the_call(admin, uncollected):
    """X3 given-back: nothing of it, and no request of any size, waits until garbage is collected."""
    for _ in range(50):
        assert (await refusal(admin.stub.ApplyAdapters(change_set(drop("acme/nobody"))))).code is StatusCode.NOT_FOUND
        assert (await refusal(admin.stub.GetPool(pb.GetPoolRequest(name="?")))).code is StatusCode.INVALID_ARGUMENT
        watch = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="nobody"))
        assert (await refusal(watch.read())).code is StatusCode.NOT_FOUND
    kinds = RegistryError | grpc.aio.AbortError
    left = Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, kinds))
    assert left.total() < 10, f"of 150 refused calls there are still {left}"


@contextmanager
def broken(target: str) -> Iterator[None]:
    """Nothing that this function is asked comes to an end, as with a value that nobody foresaw."""

    def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("int too large to convert to float")

    with mock.patch(target, fail):
        yield


async def test_a_part_that_fails_costs_nobody_else_anything_and_goes_on_when_it_can(ledger, admin):
    """X2 unbreakable: residency, rollouts and what both are told of; the service says what fails."""
    replicas = Replicas(ledger.client, ledger.keys)
    await replicas.alive("r1")
    await admin.stub.ApplyAdapters(change_set(put("a", strategy=CANARY)))

    async def residency() -> httpx.Response:
        async with http_client(timeout=60) as client:
            return await client.get(f"{admin.http}/v1/residency", params={"pool": "p"})

    async def is_told(part: str) -> bool:
        async with http_client(timeout=60) as client:
            return part in (await client.get(f"{admin.http}/readyz")).json()["failing"]

    with broken("registry.etcd3.informer.SharedInformer.apply"):
        assert (await residency()).status_code == 503
    with broken("registry.residency.follower.renew_view"), broken("registry.rollout.controller.derive_rollout"):
        change = change_set(put("a", uri="file:///other", strategy=CANARY))
        revision = (await admin.stub.ApplyAdapters(change)).revision
        await replicas.says("r1", revision, **among(members("r1")))
        assert (await residency()).status_code == 503
        for part in ("residency of p", "rollouts of p"):
            await eventually(lambda part=part: is_told(part))
        assert (await admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name="a"))).generation == 2

    async def is_well() -> bool:
        found, reply = await admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name="a")), await residency()
        return not found.HasField("rollout") and reply.status_code == 200

    await eventually(is_well)
