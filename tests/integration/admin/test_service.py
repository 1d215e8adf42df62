"""The service as a service: health, reflection, deadlines, HTTP, and what it refuses at the door."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator

import grpc
import httpx
import pytest
import structlog
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from registry.admin.rpc import interceptor
from registry.cli.local_adapters import base_here, base_message
from registry.etcd3.errors import NoSpace
from registry.etcd3.ops import Put, Txn
from registry.model.errors import RegistryError
from registry.store.reader import Reader
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA
from tests.support.admin import admin_inside, change_set, drop, make_pool, put, refusal, wait_ready
from tests.support.etcd import make_cluster
from tests.support.http_client import http_client
from tests.support.metrics import read_metrics
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

SERVICE = "registry.v1.AdapterRegistry"


async def test_health_follows_etcd(etcd):
    """Health and readiness are what etcd is: not serving, and saying why, while it does not answer."""
    async with (
        Proxy(etcd.cluster.members[0].client_port) as proxy,
        admin_inside([proxy.endpoint], etcd.prefix) as admin,
        http_client(base_url=admin.http, timeout=60) as http,
    ):
        await wait_ready(admin)
        await eventually(lambda: _is(http, 200))
        proxy.refuse()
        await eventually(lambda: _is(http, 503))
        assert "etcd does not answer" in (await http.get("/readyz")).json()["reason"]
        assert (await http.get("/livez")).status_code == 200
        reply = await health_pb2_grpc.HealthStub(admin.channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        proxy.pass_on()
        await wait_ready(admin)
        await make_pool(admin)


async def _is(http: httpx.AsyncClient, code: int) -> bool:
    return (await http.get("/readyz")).status_code == code


async def test_etcd_down_at_start(tmp_path, answers_early):
    """The service waits for etcd, refuses changes meanwhile as not carried out, and comes up by itself."""
    cluster = make_cluster(tmp_path / "etcd", flags={"unsafe-no-fsync": "true"})
    try:
        async with admin_inside(cluster.endpoints, "/t") as admin:
            async with http_client(base_url=admin.http, timeout=60) as http:
                assert await _is(http, 503)
            request = pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["b"]))
            told = await refusal(admin.stub.CreatePool(request))
            assert (told.code, told.reason) == (StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")
            told = await refusal(admin.stub.ListPools(pb.ListPoolsRequest(), timeout=30))
            assert (told.code, told.reason) == (StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")
            cluster.start()
            await wait_ready(admin)
            await admin.stub.CreatePool(request)
    finally:
        cluster.stop()


async def test_reflection(admin):
    """Reflection lists the service and gives its file, as grpcurl asks for it."""
    stub = reflection_pb2_grpc.ServerReflectionStub(admin.channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    listed, found = [reply async for reply in stub.ServerReflectionInfo(iter(requests))]
    assert SERVICE in {one.name for one in listed.list_services_response.service}
    files = [FileDescriptorProto.FromString(one) for one in found.file_descriptor_response.file_descriptor_proto]
    assert "AdapterRegistry" in {service.name for file in files for service in file.service}


async def test_every_method_is_served(admin):
    """Each method of the .proto has a handler: an empty request is refused or answered, never unknown."""
    for method in pb.DESCRIPTOR.services_by_name["AdapterRegistry"].methods:
        request = getattr(pb, method.input_type.name)()
        call = getattr(admin.stub, method.name)(request)
        if method.name in {"ListPools", "ListTenants", "ReadBackup"}:
            await call
            continue
        told = await refusal(call.read() if method.server_streaming else call)
        assert told.code is StatusCode.INVALID_ARGUMENT, (method.name, told)


async def test_metrics(admin):
    """Calls are counted by method and status, and timed; streams that are open are told."""
    await refusal(admin.stub.GetPool(pb.GetPoolRequest(name="none")))
    stream = admin.stub.WatchResidency(pb.WatchResidencyRequest(pool="p"))
    await stream.read()
    told = await read_metrics(admin.http)
    assert told['loraplane_admin_requests_total{code="NOT_FOUND",method="GetPool"}'] == 1
    assert told['loraplane_admin_requests_total{code="OK",method="CreatePool"}'] == 1
    assert told['loraplane_admin_request_seconds_count{method="GetPool"}'] == 1
    assert told['loraplane_admin_streams{method="WatchResidency"}'] == 1
    stream.cancel()
    await eventually(lambda: _is_up(admin.http))


async def _is_up(http: str) -> bool:
    return (await read_metrics(http))["loraplane_admin_etcd_up"] == 1


async def test_too_large_a_message(admin):
    """A request above 4 MiB is refused before it is read."""
    told = await refusal(admin.stub.ApplyAdapters(change_set(put("a", labels={"k": "x" * 5_000_000}))))
    assert told.code is StatusCode.RESOURCE_EXHAUSTED


async def test_too_many_changes(ledger, admin):
    """A set that no transaction takes is refused with the number that fits, and that number does fit."""
    changes = [put(f"acme/n{i}", labels={"k": "v"}) for i in range(200)]
    told = await refusal(admin.stub.ApplyAdapters(change_set(*changes)))
    assert (told.code, told.reason, told.field) == (StatusCode.INVALID_ARGUMENT, "TOO_MANY_CHANGES", "changes")
    most = int(told.metadata["max_changes"])
    await admin.stub.ApplyAdapters(change_set(*changes[:most]))
    told = await refusal(admin.stub.ApplyAdapters(change_set(*changes[: 2 * most])))
    most = int(told.metadata["max_changes"])
    assert most >= 41
    await admin.stub.ApplyAdapters(change_set(*changes[:most]))
    await ledger.check()


async def test_more_operations(etcd, ledger):
    """With --max-txn-ops as etcd has it, larger sets are one revision, and what is beyond it is still refused."""
    async with admin_inside(etcd.endpoints, etcd.prefix, max_txn_ops=1024) as admin:
        await wait_ready(admin)
        await make_pool(admin)
        changes = [put(f"acme/n{i}") for i in range(340)]
        for uri in range(12):
            sets = [put(f"acme/n{i}", f"file:///a/{uri}") for i in range(3)]
            await admin.stub.ApplyAdapters(change_set(*sets))
        reply = await admin.stub.ApplyAdapters(change_set(*changes))
        assert len(reply.results) == 340
        large = [put(f"acme/n{i}", labels={f"k{j}": "x" * 250 for j in range(10)}) for i in range(340)]
        told = await refusal(admin.stub.ApplyAdapters(change_set(*large)))
        assert told.reason == "TOO_MANY_CHANGES"
        most = int(told.metadata["max_changes"])
        assert 40 < most < 340
        await admin.stub.ApplyAdapters(change_set(*large[:most]))
        await ledger.check()


WRONG = {
    "changes": change_set(),
    "changes[0]": change_set(pb.AdapterChange()),
    "changes[0].upsert.name": change_set(put("a b")),
    "changes[1].upsert.name": change_set(put("a"), put("image")),
    "changes[1]": change_set(put("a"), drop("A")),
    "changes[0].delete": change_set(drop("../x")),
    "changes[0].etag": change_set(put("a", etag="x")),
    "changes[0].upsert.spec.source.uri": change_set(put("a", uri="nowhere")),
    "changes[0].upsert.spec.source.digest": change_set(
        pb.AdapterChange(
            upsert=pb.Adapter(name="a", spec=pb.AdapterSpec(source=pb.Source(uri="file:///x", digest="md5:1")))
        )
    ),
    "changes[0].upsert.spec.load": change_set(put("a", load="soon")),
    "changes[0].upsert.spec.priority": change_set(put("a", priority=5000)),
    "changes[0].upsert.spec.labels": change_set(put("a", labels={"?": "x"})),
    "changes[0].upsert.spec.prepare.vision": change_set(put("a", prepare=pb.Prepare(vision="maybe"))),
    "changes[0].upsert.spec.placement": change_set(put("a", load="lazy", placement=pb.Placement(replicas=2))),
    "changes[0].upsert.spec.credentials": change_set(put("a", credentials="s3")),
    "pool": change_set(put("a"), pool="a/b"),
    "request_id": change_set(put("a"), request_id="a b"),
}


async def test_wrong_input(ledger, admin):
    """Each wrong field is INVALID_ARGUMENT with its path, and nothing is written."""
    before = await ledger.revision()
    for field, request in WRONG.items():
        told = await refusal(admin.stub.ApplyAdapters(request))
        assert (told.code, told.field, bool(told.reason)) == (StatusCode.INVALID_ARGUMENT, field, True)
    assert await ledger.revision() == before


async def test_a_deadline_is_kept(etcd, answers_early, monkeypatch):
    """A call is answered before the client's deadline, with what is known, although etcd is silent."""
    monkeypatch.setattr(interceptor, "MAX_UNARY_SECONDS", 600.0)
    async with (
        Proxy(etcd.cluster.members[0].client_port) as proxy,
        admin_inside([proxy.endpoint], etcd.prefix) as admin,
    ):
        await wait_ready(admin)
        await make_pool(admin)
        proxy.hold()
        for call in (
            admin.stub.ListPools(pb.ListPoolsRequest(), timeout=30),
            admin.stub.ApplyAdapters(change_set(put("a"), validate_only=True), timeout=30),
        ):
            told = await refusal(call)
            assert (told.code, told.reason) == (StatusCode.UNAVAILABLE, "ETCD_UNAVAILABLE")


async def test_what_nobody_foresaw(admin, monkeypatch):
    """X1 secret-free: an unexpected failure is INTERNAL and says nothing of itself; the log has it, once."""

    async def fails(*_) -> None:
        raise ValueError("hunter2")

    monkeypatch.setattr(Reader, "pools", fails)
    with structlog.testing.capture_logs() as logged:
        told = await refusal(admin.stub.ListPools(pb.ListPoolsRequest()))
    assert (told.code, told.reason) == (StatusCode.INTERNAL, "INTERNAL")
    assert "hunter2" not in repr(told)
    (failed,) = [one for one in logged if "method" in one]
    assert (failed["event"], failed["method"], failed["exc_info"]) == ("internal_error", "ListPools", True)
    assert "hunter2" not in repr([one for one in logged if one is not failed])


async def test_deleting_a_pool_against_those_who_fill_it(ledger, admin):
    """W2 atomic-set: a pool is never deleted under an adapter, and no adapter is left without a pool."""
    for number in range(10):
        pool = f"q{number}"
        await make_pool(admin, pool)
        await asyncio.gather(
            *(admin.stub.ApplyAdapters(change_set(put(f"a{i}"), pool=pool)) for i in range(3)),
            admin.stub.DeletePool(pb.DeletePoolRequest(name=pool)),
            return_exceptions=True,
        )
    listing = await ledger.client.list_prefix(f"{ledger.keys.prefix}/".encode())
    pools = {kv.key for kv in listing.kvs}
    homeless = [kv.key for kv in listing.kvs if b"/adapters/" in kv.key and _pool_key(ledger, kv.key) not in pools]
    assert homeless == []
    await ledger.check()


def _pool_key(ledger, adapter_key: bytes) -> bytes:
    return ledger.keys.pool(adapter_key.decode().split("/")[-2])


async def test_etcd_is_full(tmp_path):
    """etcd's quota is used up: RESOURCE_EXHAUSTED with what to do, nothing is changed, and reads go on."""
    cluster = make_cluster(tmp_path / "etcd", flags={"unsafe-no-fsync": "true", "quota-backend-bytes": "4000000"})
    cluster.start()
    try:
        await cluster.ready()
        async with admin_inside(cluster.endpoints, "/t") as admin:
            await wait_ready(admin)
            await make_pool(admin)
            await admin.stub.ApplyAdapters(change_set(put("acme/a")))
            with pytest.raises(NoSpace):
                await _fill(cluster)
            told = await refusal(admin.stub.ApplyAdapters(change_set(put("acme/b"))))
            assert (told.code, told.reason) == (StatusCode.RESOURCE_EXHAUSTED, "ETCD_NO_SPACE")
            assert (await read_metrics(admin.http))["loraplane_admin_no_space_total"] == 1
            listed = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p"))
            assert [one.name for one in listed.adapters] == ["acme/a"]
            assert (await admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name="acme/a"))).generation == 1
            assert (await admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a")).read()).waiting
            await wait_ready(admin)
    finally:
        cluster.stop()


async def _fill(cluster) -> None:
    client = cluster.patient()
    try:
        for number in range(100):
            await client.txn(Txn((), (Put(b"/x/%d" % number, b"x" * 1_000_000),)))
    finally:
        await client.aclose()


async def test_a_pools_base_is_kept_as_it_was_read(admin, tmp_path):
    """R4: what adapters are compared with is what stood in the base model's directory."""
    base = base_message(base_here(LLAMA.write_base(tmp_path / "base"), ["org/llama"]))
    limits = pb.PoolLimits(target_modules=["q_proj"])
    request = pb.CreatePoolRequest(pool=pb.Pool(name="based", base_models=["b"], base=base, limits=limits))
    await admin.stub.CreatePool(request)
    kept = await admin.stub.GetPool(pb.GetPoolRequest(name="based"))
    assert (kept.base, kept.limits) == (base, limits)
    request.pool.name, request.pool.base.modules[0].outputs = "other", 7
    told = await refusal(admin.stub.CreatePool(request))
    assert (told.reason, told.field) == ("INVALID_FIELD", "pool.base.fingerprint")
    request.pool.base.modules[0].pattern = "a.{0-999999}"
    assert (await refusal(admin.stub.CreatePool(request))).field == "pool.base"


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
