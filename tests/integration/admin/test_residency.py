"""WatchResidency and GET /v1/residency, with replicas that say what the test has them say."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from registry.admin.rpc import streams
from registry.cli.views.residency_view import residency_dict
from registry.etcd3.ops import Put, Txn
from registry.model.status import Failed, Lazy, Leaving, Pending, Resident
from registry.residency import hub
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, drop, put
from tests.support.http_client import http_client
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
            if response.snapshot and not (self.responses and self.responses[-1].more):
                self.snapshots += 1
                self.adapters.clear()
            self.responses.append(response)
            self.adapters |= {one.name.lower(): one for one in response.adapters}
            for name in response.gone:
                del self.adapters[name]
            if not response.more:
                return response

    @property
    def where(self) -> Where:
        state = pb.RolloutReplica.State.Name
        return {name: {part.replica: state(part.state) for part in one.replicas} for name, one in self.adapters.items()}

    async def until(self, wanted: Where) -> None:
        async with asyncio.timeout(120):
            while self.where != wanted:
                await self.hear()


async def page(admin, etag: str = "", **query: str) -> httpx.Response:
    async with http_client(timeout=120) as client:
        headers = {"If-None-Match": etag} if etag else {}
        return await client.get(f"{admin.http}/v1/residency", params={"pool": "p"} | query, headers=headers)


async def test_the_whole_and_then_what_changes(ledger, admin, replicas):
    """R9 status-truth for routers; who asks for one adapter hears of no other."""
    revision = (await admin.stub.ApplyAdapters(change_set(put("acme/A"), put("b")))).revision
    await replicas.alive("r1", "r2", labels={"zone": "a"})
    await replicas.says("r1", revision)
    router, one = Router(admin), Router(admin, "ACME/a")
    first = await router.hear()
    assert (first.snapshot, first.more, first.revision >= revision) == (True, False, True)
    assert router.where == {name: {"r1": "SERVING", "r2": "PENDING"} for name in ("acme/a", "b")}
    (part, _) = router.adapters["acme/a"].replicas
    assert (part.engine_url, part.model, part.generation, part.loaded) == ("http://r1", "acme/A", 1, True)
    assert dict(part.labels) == {"zone": "a"}
    await replicas.says("r2", revision, pending=[Pending(name="b", generation=1, reason="staging")])
    await router.hear()  # one status, one response
    assert router.where == {"acme/a": {"r1": "SERVING", "r2": "SERVING"}, "b": {"r1": "SERVING", "r2": "PENDING"}}
    await replicas.says("r2", revision)
    told = await router.hear()
    assert ([each.name for each in told.adapters], told.snapshot) == (["b"], False)
    await one.until({"acme/a": {"r1": "SERVING", "r2": "SERVING"}})
    await admin.stub.ApplyAdapters(change_set(drop("acme/a"), put("c")))
    told = await router.hear()
    assert (list(told.gone), [each.name for each in told.adapters]) == (["acme/a"], ["c"])
    assert router.adapters["c"].replicas[0].reason == "not_seen"
    await ledger.client.txn(Txn((), (Put(ledger.keys.adapter("p", "b"), b"?"),)))
    assert list((await router.hear()).gone) == ["b"]
    await replicas.gone("r1")
    await router.until({"c": {"r2": "PENDING"}})
    await one.until({})
    assert {each.name for response in one.responses for each in response.adapters} == {"acme/A"}
    for each in (router, one):
        each.call.cancel()


async def test_the_page_and_the_stream_agree_on_everything(ledger, admin, replicas, monkeypatch):
    """R9: eager, lazy and used, placed, leaving, selected, in a rollout; and nothing is sent while nothing changes."""
    monkeypatch.setattr(streams, "_PAGE_SECONDS", 60.0)
    canary = {"strategy": pb.Strategy(canary_replicas="1", promote="manual")}
    few, zone = pb.Placement(replicas=7), pb.Placement(selector={"zone": "a"})
    await admin.stub.ApplyAdapters(change_set(put("acme/A"), put("lazy", load="lazy"), put("rolled", **canary)))
    changes = put("few", placement=few), put("zoned", placement=zone), put("rolled", "file:///a/v2", **canary)
    revision = (await admin.stub.ApplyAdapters(change_set(*changes))).revision
    await replicas.alive("r1", labels={"zone": "a"})
    await replicas.alive("r2", "r3", capacity=8)
    live = among([*members("r1", labels={"zone": "a"}), *members("r2", "r3", capacity=8)], {frozenset(): 2})
    used = Lazy(count=1, servable=True, resident=[Resident(name="lazy", generation=1, last_used="2026-01-01T00:00Z")])
    failed = Failed(name="rolled", generation=2, reason="BAD", message="m", attempts=1, retry_at=None)
    pending = Pending(name="acme/A", generation=1, reason="staging")
    await replicas.says("r1", revision, lazy=used, failed=[failed], pending=[pending], **live)
    await replicas.says("r2", revision, leaving=[Leaving(name="zoned", generation=1)], **live)
    await replicas.says("r3", revision, stale=True)

    async def has_come() -> httpx.Response | None:
        reply = await page(admin)
        reasons = {one["reason"] for one in reply.json()["adapters"][0]["replicas"] if one["replica"] == "r3"}
        return reply if reasons == {"stale"} else None

    reply = await eventually(has_come)
    told, router = reply.json()["adapters"], Router(admin)
    await router.hear()
    router.call.cancel()
    assert [residency_dict(one) for one in router.adapters.values()] == told
    parts = [part for one in told for part in one["replicas"]]
    assert {part["state"] for part in parts} == {"serving", "pending", "failed", "unknown"}
    assert {"leaving", "lazy", "BAD", "staging"} <= {part["reason"] for part in parts}
    assert {part["generation"] for part in parts} == {1, 2}
    assert [one["note"] for one in told if one["name"] == "few"] == ["placed on 7, 3 alive"]
    assert [part["last_used"] for part in parts if part["last_used"]] == ["2026-01-01T00:00Z"]
    again = await page(admin, reply.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    wrong = await page(admin, name="nobody")
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (404, "name")


async def test_a_router_that_does_not_read(admin, replicas, ledger, monkeypatch):
    """R16 bounded: a stream that nobody reads holds nothing up and is whole again when it is read."""
    monkeypatch.setattr(hub, "_STEPS_REMEMBERED", 2)
    names = [f"{'n' * 90}{i}" for i in range(200)]
    puts = tuple(Put(ledger.keys.adapter("p", name), record(name).to_bytes()) for name in names)
    revision = (await ledger.client.txn(Txn((), puts))).revision
    await replicas.alive(*(f"r{i}" for i in range(20)))
    slow, quick = Router(admin), Router(admin)
    await quick.hear()
    for turn in range(12):
        pending = [Pending(name=name, generation=1, reason=f"turn{turn}") for name in names]
        await replicas.says("r0", revision, pending=pending)
        async with asyncio.timeout(120):
            while quick.adapters[names[0]].replicas[0].reason != f"turn{turn}":
                await quick.hear()

    async def has_caught_up() -> bool:
        await slow.hear()
        return slow.adapters == quick.adapters

    await eventually(has_caught_up)
    assert slow.snapshots > 1
    assert len(slow.responses) < len(quick.responses)
    slow.call.cancel()
    quick.call.cancel()
