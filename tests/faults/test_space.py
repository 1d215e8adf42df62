"""etcd runs out of space: nothing is written, all is served; the glass is broken, space comes, all is settled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc import StatusCode

from registry.cli.main import run
from registry.etcd3.client import Client
from registry.etcd3.errors import NoSpace
from registry.etcd3.ops import Put, Range
from registry.keys import Keys
from registry.v1 import registry_pb2 as pb
from tests.support.adapters import write_adapter
from tests.support.admin import Admin, admin_inside, change_set, drop, make_pool, put, refusal, wait_ready
from tests.support.etcd import Cluster, commit, etcdctl, make_cluster
from tests.support.fleet import POOL, Sidecar, SimulatedEngine
from tests.support.history_check import check_history, read_history
from tests.support.waiting import eventually

PREFIX = "/space"
KEYS = Keys(PREFIX)
QUOTA_BYTES = 8_000_000


@pytest.fixture
async def small(tmp_path) -> AsyncIterator[Cluster]:
    """One member with a small quota."""
    flags = {"unsafe-no-fsync": "true", "quota-backend-bytes": str(QUOTA_BYTES)}
    cluster = make_cluster(tmp_path / "etcd", flags=flags)
    cluster.start()
    try:
        await cluster.ready()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def client(small) -> AsyncIterator[Client]:
    client = small.patient()
    yield client
    await client.aclose()


@pytest.fixture
async def admin(small) -> AsyncIterator[Admin]:
    async with admin_inside(small.endpoints, PREFIX) as admin:
        await wait_ready(admin)
        await make_pool(admin)
        yield admin


@pytest.fixture
def sources(tmp_path) -> Path:
    for version in ("v1", "v2"):
        write_adapter(tmp_path / "sources" / version, seed=sum(version.encode()))
    return tmp_path / "sources"


async def fill(client: Client) -> None:
    """Somebody else's data, until etcd takes no more."""
    while True:
        try:
            await commit(client, Put(b"fill", b"x" * 500_000))
        except NoSpace:
            return


async def make_space(cluster: Cluster, client: Client) -> None:
    """As docs/operations.md says: compact, defragment, disarm."""
    revision = (await client.range(Range(b"fill"))).revision
    await etcdctl(cluster, "compact", str(revision))
    await etcdctl(cluster, "defrag")
    await etcdctl(cluster, "alarm", "disarm")


async def counter(admin: Admin) -> int:
    return (await admin.stub.ListTenants(pb.ListTenantsRequest())).tenants[0].adapters


async def test_break_glass_is_refused_while_etcd_takes_changes(client, admin):
    """W7 audit-complete: while the ordinary way is open, there is no other."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    before = (await client.range(Range(b"x"))).revision
    told = await refusal(admin.stub.BreakGlassDelete(pb.BreakGlassDeleteRequest(pool=POOL, name="acme/a")))
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "SPACE_LEFT")
    assert (await client.range(Range(b"x"))).revision == before


async def test_without_space_everything_is_served_and_an_adapter_can_still_be_removed(
    small, client, admin, sources, tmp_path, engine, monkeypatch
):
    """Fault 31: R3, R13; W2, W5, W6, W7 hold over the whole history once the removal is settled."""
    monkeypatch.chdir(tmp_path)
    sidecar = Sidecar(tmp_path, small.endpoints, PREFIX, engine.url, sources=sources)
    sidecar.program.start()
    try:
        uris = {name: (sources / version).as_uri() for name, version in (("acme/bad", "v1"), ("acme/good", "v2"))}
        await admin.stub.ApplyAdapters(change_set(*(put(name, uri) for name, uri in uris.items())))
        await serves(engine, *uris)
        await fill(client)
        await _nothing_is_written(admin)
        await _glass_is_broken(admin)
        await serves(engine, "acme/good")
        assert await counter(admin) == 2
        await make_space(small, client)
        [receipt] = tmp_path.glob("removal-*.json")
        for _ in range(2):
            assert await asyncio.to_thread(run, ["--admin", admin.address, "break-glass", "settle", str(receipt)]) == 0
        assert await counter(admin) == 1
        await admin.stub.ApplyAdapters(change_set(put("acme/bad", uris["acme/good"])))
        await serves(engine, *uris)
        told = await admin.stub.GetAdapter(pb.GetAdapterRequest(pool=POOL, name="acme/bad"))
        assert told.generation == 2
    finally:
        sidecar.program.kill()


async def _nothing_is_written(admin: Admin) -> None:
    for change in (put("acme/more"), drop("acme/bad")):
        told = await refusal(admin.stub.ApplyAdapters(change_set(change)))
        assert (told.code, told.reason) == (StatusCode.RESOURCE_EXHAUSTED, "ETCD_NO_SPACE")
    assert len((await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool=POOL))).adapters) == 2


async def _glass_is_broken(admin: Admin) -> None:
    loraplane = ["--admin", admin.address, "-o", "json", "break-glass", "delete", "adapter", "acme/bad", "--pool", POOL]
    assert await asyncio.to_thread(run, loraplane) == 2
    assert await asyncio.to_thread(run, [*loraplane, "--yes", "--etag", "1"]) == 5
    assert await asyncio.to_thread(run, [*loraplane, "--yes"]) == 0
    assert await asyncio.to_thread(run, [*loraplane, "--yes"]) == 3


async def serves(engine: SimulatedEngine, *names: str) -> None:
    async def is_so() -> bool:
        return set(await engine.listing()) == set(names)

    await eventually(is_so, timeout_seconds=60)


async def test_a_repeated_change_is_answered_as_before(small, client, admin):
    """W3, W8: "no space, nothing was changed" is not said of what was changed before; by whichever admin service."""
    request = change_set(put("acme/a"), request_id="once")
    first = await admin.stub.ApplyAdapters(request)
    await fill(client)
    async with admin_inside(small.endpoints, PREFIX) as other:
        await wait_ready(other)
        assert await other.stub.ApplyAdapters(request) == first
        told = await refusal(other.stub.ApplyAdapters(change_set(put("acme/b"), request_id="twice")))
    assert (told.code, told.reason) == (StatusCode.RESOURCE_EXHAUSTED, "ETCD_NO_SPACE")


async def test_a_repeated_removal_gets_the_same_receipt(client, admin):
    """W3 idempotent: a client whose reply was lost asks the same server again."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    await fill(client)
    request = pb.BreakGlassDeleteRequest(pool=POOL, name="acme/a", request_id="once")
    receipt = await admin.stub.BreakGlassDelete(request)
    assert await admin.stub.BreakGlassDelete(request) == receipt
    assert json.loads(receipt.record)["name"] == "acme/a"
    assert len(receipt.left_undone) == 3


async def test_the_history_of_a_settled_removal_holds(small, client, admin):
    """W2, W5, W6, W7: what the replay checker says of it before and after it is settled."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a"), put("acme/b")))
    await fill(client)
    receipt = await admin.stub.BreakGlassDelete(pb.BreakGlassDeleteRequest(pool=POOL, name="acme/a"))
    with pytest.raises(AssertionError, match=r"W7 .*unaccounted for"):
        check_history(KEYS, await read_history(client, PREFIX, 1))
    await raise_quota(small)
    await admin.stub.SettleRemoval(pb.SettleRemovalRequest(removal=receipt))
    check_history(KEYS, await read_history(client, PREFIX, 1))
    assert await counter(admin) == 1


async def raise_quota(cluster: Cluster) -> None:
    """The other way to space, by which no history is lost."""
    (member,) = cluster.members
    member.stop()
    member.flags = {**member.flags, "quota-backend-bytes": str(4 * QUOTA_BYTES)}
    member.start()
    await cluster.ready()
    await etcdctl(cluster, "alarm", "disarm")
