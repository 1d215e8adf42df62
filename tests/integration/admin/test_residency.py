"""WatchResidency and GET /v1/residency, with replicas that say what the test has them say."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from grpc import StatusCode

from registry.admin.rpc import encode_residency, streams
from registry.etcd3.ops import Put, Txn
from registry.model.records import Placement
from registry.model.status import Failed, Pending
from registry.residency import hub
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_inside, change_set, drop, put, refusal
from tests.support.http_client import http_client
from tests.support.proxy import Proxy
from tests.support.records import record
from tests.support.residency_world import Replicas, among, members
from tests.support.waiting import eventually

Where = dict[str, dict[str, str]]


@pytest.fixture
def replicas(ledger) -> Replicas:
    return Replicas(ledger.client, ledger.keys)


class Router:
    """What somebody who follows the stream knows."""

    def __init__(self, admin, name: str = "") -> None:
        self.call = admin.stub.WatchResidency(pb.WatchResidencyRequest(pool="p", name=name))
        self.adapters: dict[str, pb.AdapterResidency] = {}
        self.snapshots = 0
        self.responses: list[pb.WatchResidencyResponse] = []

    async def hear(self) -> pb.WatchResidencyResponse:
        """The next response that is whole."""
        while True:
            response = await self.call.read()
            assert isinstance(response, pb.WatchResidencyResponse)
            self._take(response)
            if not response.more:
                return response

    def _take(self, response: pb.WatchResidencyResponse) -> None:
        if response.snapshot and not (self.responses and self.responses[-1].more):
            self.snapshots += 1
            self.adapters.clear()
        self.responses.append(response)
        self.adapters |= {one.name.lower(): one for one in response.adapters}
        for name in response.gone:
            del self.adapters[name]

    @property
    def where(self) -> Where:
        state = pb.RolloutReplica.State.Name
        return {name: {part.replica: state(part.state) for part in one.replicas} for name, one in self.adapters.items()}

    async def until(self, wanted: Where) -> pb.WatchResidencyResponse:
        async with asyncio.timeout(120):
            while True:
                response = await self.hear()
                if self.where == wanted:
                    return response


async def test_the_whole_and_what_changes(ledger, admin, replicas):
    """R9 status-truth for routers: the first snapshot is the truth, then only what changed is told."""
    revision = (await admin.stub.ApplyAdapters(change_set(put("acme/A"), put("b")))).revision
    await replicas.alive("r1", "r2", labels={"zone": "a"})
    await replicas.says("r1", revision)
    router = Router(admin)
    first = await router.hear()
    assert (first.snapshot, first.more) == (True, False)
    assert first.revision >= revision
    assert router.where == {name: {"r1": "SERVING", "r2": "PENDING"} for name in ("acme/a", "b")}
    (part, _) = router.adapters["acme/a"].replicas
    assert (part.engine_url, part.model, part.generation, part.loaded) == ("http://r1", "acme/A", 1, True)
    assert dict(part.labels) == {"zone": "a"}
    await replicas.says("r2", revision, pending=[Pending(name="b", generation=1, reason="staging")])
    await router.hear()  # one status, one response
    assert router.where == {"acme/a": {"r1": "SERVING", "r2": "SERVING"}, "b": {"r1": "SERVING", "r2": "PENDING"}}
    await replicas.says("r2", revision)
    told = await router.hear()
    assert [one.name for one in told.adapters] == ["b"]
    assert not told.snapshot
    await admin.stub.ApplyAdapters(change_set(drop("acme/a"), put("c")))
    told = await router.hear()
    assert (list(told.gone), [one.name for one in told.adapters]) == (["acme/a"], ["c"])
    assert router.adapters["c"].replicas[0].reason == "not_seen"
    await ledger.client.txn(Txn((), (Put(ledger.keys.adapter("p", "b"), b"?"),)))
    assert list((await router.hear()).gone) == ["b"]
    await replicas.gone("r1")
    await router.until({"c": {"r2": "PENDING"}})
    router.call.cancel()


async def test_how_many_replicas_serve_it(ledger, admin, replicas):
    """R9 status-truth for people: of all replicas that should, also one that died; which ones is not told."""
    revision = (await admin.stub.ApplyAdapters(change_set(put("a"), put("b")))).revision
    await replicas.alive("r1", "r2", leaving=False)
    await replicas.says("r1", revision)
    await replicas.says("r2", revision, pending=[Pending(name="b", generation=1, reason="staging")])
    request = pb.WatchResidencyRequest(pool="p", detail=pb.WatchResidencyRequest.COUNTS)
    told: dict[str, pb.AdapterResidency] = {}

    async def until(**wanted: dict[str, int]) -> None:
        while {name: {count.reason: count.replicas for count in one.counts} for name, one in told.items()} != wanted:
            told.update({one.name: one for one in (await call.read()).adapters})

    async def is_remembered() -> bool:
        return bool((await ledger.client.list_prefix(ledger.keys.members("p"))).kvs)

    call = admin.stub.WatchResidency(request)
    async with asyncio.timeout(120):
        await until(a={"": 2}, b={"": 1, "staging": 1})
        assert not any(one.replicas for one in told.values())
        await eventually(is_remembered)
        await replicas.gone("r2")
        await until(a={"": 1, "not_alive": 1}, b={"": 1, "not_alive": 1})
    call.cancel()
    both = pb.WatchResidencyRequest(pool="p", detail=pb.WatchResidencyRequest.REPLICAS_AND_COUNTS)
    call = admin.stub.WatchResidency(both)
    first = await call.read()
    assert [([part.replica for part in one.replicas], len(one.counts)) for one in first.adapters] == [(["r1"], 2)] * 2
    call.cancel()


async def test_engines_that_a_pool_does_not_allow(admin, replicas, monkeypatch):
    """X2: neither the stream nor the page hands their URLs to routers; and both follow the pool's record."""
    monkeypatch.setattr(streams, "_PAGE_SECONDS", 60.0)
    revision = (await admin.stub.ApplyAdapters(change_set(put("a")))).revision
    await replicas.alive("r1")
    await replicas.says("r1", revision)
    router = Router(admin)
    await router.until({"a": {"r1": "SERVING"}})
    for hosts, state, url in ((["10.0.0.0/8"], "FAILED", ""), (["r1"], "SERVING", "http://r1")):
        pool = pb.Pool(name="p", limits=pb.PoolLimits(engine_hosts=hosts))
        await admin.stub.UpdatePool(
            pb.UpdatePoolRequest(pool=pool, update_mask=FieldMask(paths=["limits.engine_hosts"]))
        )
        await router.until({"a": {"r1": state}})
        assert router.adapters["a"].replicas[0].engine_url == url
        async with http_client(timeout=60) as client:
            page = (await client.get(f"{admin.http}/v1/residency", params={"pool": "p"})).json()
        assert page["adapters"][0]["replicas"][0]["engine_url"] == url
    router.call.cancel()


async def test_an_empty_pool_is_told(admin):
    router = Router(admin)
    first = await router.hear()
    assert (first.snapshot, first.more, len(first.adapters)) == (True, False, 0)
    router.call.cancel()


async def test_wrong_requests(admin):
    for pool, code in (("", StatusCode.INVALID_ARGUMENT), ("q", StatusCode.NOT_FOUND)):
        told = await refusal(admin.stub.WatchResidency(pb.WatchResidencyRequest(pool=pool)).read())
        assert told.code == code


async def test_snapshots_come_in_parts(admin, replicas, monkeypatch):
    """The parts say that they belong together, and none is large."""
    monkeypatch.setattr(encode_residency, "_PARTS_AT_ONCE", 4)
    revision = (await admin.stub.ApplyAdapters(change_set(*(put(f"n{i}") for i in range(5))))).revision
    await replicas.alive("r1", "r2")
    await replicas.says("r1", revision)
    router = Router(admin)
    await router.hear()
    assert [len(one.adapters) for one in router.responses] == [2, 2, 1]
    assert (router.snapshots, len(router.where)) == (1, 5)
    router.call.cancel()


async def test_one_adapter(admin, replicas):
    """Who asks for one adapter hears of no other."""
    revision = (await admin.stub.ApplyAdapters(change_set(put("a"), put("b")))).revision
    await replicas.alive("r1")
    router = Router(admin, "A")
    await router.hear()
    assert router.where == {"a": {"r1": "PENDING"}}
    failed = Failed(name="a", generation=1, reason="BAD", message="", attempts=1, retry_at=None)
    await replicas.says("r1", revision, failed=[failed])
    await router.until({"a": {"r1": "FAILED"}})
    await replicas.says("r1", revision)
    await router.until({"a": {"r1": "SERVING"}})
    await admin.stub.ApplyAdapters(change_set(drop("a")))
    await router.until({})
    assert {one.name for response in router.responses for one in response.adapters} == {"a"}
    told = await refusal(Router(admin, "nobody").call.read())
    assert (told.code, told.reason) == (StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")
    assert (await refusal(Router(admin, "a,b").call.read())).code == StatusCode.INVALID_ARGUMENT


async def test_many_who_look_are_told_the_same(admin, replicas):
    """A pool is derived once for all; who comes later finds it known."""
    revision = (await admin.stub.ApplyAdapters(change_set(put("a")))).revision
    await replicas.alive("r1")
    routers = [Router(admin) for _ in range(20)]
    for router in routers:
        await router.hear()
    await replicas.says("r1", revision)
    await asyncio.gather(*(router.until({"a": {"r1": "SERVING"}}) for router in routers))
    late = Router(admin)
    await late.hear()
    assert late.where == {"a": {"r1": "SERVING"}}
    for router in (*routers, late):
        router.call.cancel()


async def test_a_status_that_runs_ahead(ledger, admin, replicas):
    """R9: a replica that has seen a later revision than any record is understood, though no record will ever change."""
    await admin.stub.ApplyAdapters(change_set(put("a")))
    await replicas.alive("r1")
    router = Router(admin)
    await router.hear()
    for _ in range(3):
        await replicas.says("r2", 1)  # of nobody who lives: only etcd's revision moves
    await replicas.says("r1", await ledger.revision())
    await router.until({"a": {"r1": "SERVING"}})
    router.call.cancel()


async def test_a_router_that_does_not_read(admin, replicas, ledger, monkeypatch):
    """R16 bounded: a stream that nobody reads holds nothing up and is whole again when it is read."""
    monkeypatch.setattr(hub, "_STEPS_REMEMBERED", 2)
    names = [f"{'n' * 90}{i}" for i in range(200)]
    puts = tuple(Put(ledger.keys.adapter("p", name), record(name).to_bytes()) for name in names)
    revision = (await ledger.client.txn(Txn((), puts))).revision
    await replicas.alive(*(f"r{i}" for i in range(20)))
    slow, quick = Router(admin), Router(admin)
    await quick.hear()
    for turn in range(40):
        pending = [Pending(name=name, generation=1, reason=f"turn{turn}") for name in names]
        await replicas.says("r0", revision, pending=pending)

        async def has_heard(reason: str = f"turn{turn}") -> bool:
            await quick.hear()
            return quick.adapters[names[0]].replicas[0].reason == reason

        await eventually(has_heard)

    async def has_caught_up() -> bool:
        await slow.hear()
        return slow.adapters == quick.adapters

    await eventually(has_caught_up)
    assert slow.snapshots > 1
    assert len(slow.responses) < len(quick.responses)
    slow.call.cancel()
    quick.call.cancel()


async def test_placed_by_number(ledger, admin, replicas):
    """A replica that comes takes its share, and one that goes leaves only its own."""
    await admin.stub.ApplyAdapters(change_set(put("seed")))
    names = [f"n{i}" for i in range(12)]
    records = [record(name, placement=Placement(replicas=2)) for name in names]
    puts = tuple(Put(ledger.keys.adapter("p", one.name), one.to_bytes()) for one in records)
    revision = (await ledger.client.txn(Txn((), puts))).revision
    live = ["r1", "r2", "r3", "r4"]
    await replicas.alive(*live)
    for name in live:
        await replicas.says(name, revision, **among(members(*live)))
    router = Router(admin)
    await router.hear()
    before = {name: router.where[name] for name in names}
    assert all(list(where.values()) == ["SERVING"] * 2 for where in before.values())
    await replicas.gone("r4")
    for name in live[:3]:
        await replicas.says(name, revision, **among(members(*live[:3])))

    async def is_settled() -> bool:
        await router.hear()
        return all(list(router.where[name].values()) == ["SERVING"] * 2 for name in names)

    await eventually(is_settled)
    for name in names:
        assert set(before[name]) - {"r4"} <= set(router.where[name])
    router.call.cancel()


async def test_etcd_away_and_back(etcd, ledger, admin, replicas):
    """What was told stays until etcd is back; then what happened meanwhile is told, and nothing else."""
    revision = (await admin.stub.ApplyAdapters(change_set(put("a")))).revision
    await replicas.alive("r1")
    await replicas.says("r1", revision)
    async with Proxy(etcd.cluster.members[0].client_port) as proxy, admin_inside([proxy.endpoint], etcd.prefix) as one:
        router = Router(one)
        await router.hear()
        proxy.refuse()
        proxy.cut()
        later = (await admin.stub.ApplyAdapters(change_set(put("b")))).revision
        hearing = asyncio.create_task(router.until({"a": {"r1": "SERVING"}, "b": {"r1": "SERVING"}}))
        await replicas.says("r1", later)

        async def is_away() -> bool:
            async with http_client(timeout=60) as client:
                return (await client.get(f"{one.http}/v1/residency?pool=p")).status_code == 503

        await eventually(is_away)
        assert not hearing.done()
        proxy.pass_on()
        await hearing
        assert router.snapshots == 1
        router.call.cancel()
