"""etcd without space: all is served, etcdctl deletes, and the doctor repairs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc import StatusCode

from registry.cli.main import run
from registry.etcd3.client import Client
from registry.etcd3.errors import NoSpace
from registry.etcd3.ops import Put, Range
from registry.model.keys import Keys
from registry.v1 import registry_pb2 as pb
from tests.support.adapters import write_adapter
from tests.support.admin import Admin, admin_inside, admin_with_pool, change_set, drop, put, refusal, wait_ready
from tests.support.etcd import Cluster, commit, etcdctl, make_cluster, running_etcd
from tests.support.fleet import POOL, Sidecar, lists
from tests.support.history_check import check_history, read_history
from tests.support.waiting import eventually

PREFIX = "/space"
KEYS = Keys(PREFIX)
QUOTA_BYTES = 8_000_000


@pytest.fixture
async def small(tmp_path) -> AsyncIterator[Cluster]:
    """One member with a small quota."""
    flags = {"quota-backend-bytes": str(QUOTA_BYTES)}
    async with running_etcd(make_cluster(tmp_path / "etcd", flags=flags)) as cluster:
        yield cluster


@pytest.fixture
async def client(small) -> AsyncIterator[Client]:
    client = small.patient()
    yield client
    await client.aclose()


@pytest.fixture
async def admin(small) -> AsyncIterator[Admin]:
    async with admin_with_pool(small.endpoints, PREFIX) as admin:
        yield admin


@pytest.fixture
def sources(tmp_path: Path) -> Path:
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
    return int((await admin.stub.ListTenants(pb.ListTenantsRequest())).tenants[0].adapters)


async def delete_raw(cluster: Cluster, *names: str) -> None:
    """As docs/operations.md says: one key after another, by etcd's own tool."""
    for name in names:
        assert await etcdctl(cluster, "del", KEYS.adapter(POOL, name).decode()) == "1\n"


async def doctor(admin: Admin, *arguments: str) -> int:
    """The doctor's exit code."""
    return await asyncio.to_thread(run, ["--admin", admin.address, "doctor", "--timeout", "60", *arguments])


async def test_without_space_everything_is_served_and_an_adapter_can_still_be_deleted(
    small, client, admin, sources, tmp_path, engine
):
    """Fault 31: R3, R13; the recipe of docs/operations.md: delete by etcdctl, make space, repair."""
    sidecar = Sidecar(tmp_path, small.endpoints, PREFIX, engine.url, sources=sources)
    sidecar.program.start()
    try:
        uris = {name: (sources / version).as_uri() for name, version in (("acme/bad", "v1"), ("acme/good", "v2"))}
        await admin.stub.ApplyAdapters(change_set(*(put(name, uri) for name, uri in uris.items())))
        await lists(engine, *uris)
        await fill(client)
        await _nothing_is_written(admin)
        await delete_raw(small, "acme/bad")
        await lists(engine, "acme/good")
        assert await counter(admin) == 2
        assert await doctor(admin, "--repair") == 4
        await make_space(small, client)
        assert await doctor(admin) == 4
        assert await counter(admin) == 2
        assert await doctor(admin, "--repair") in {0, 4}, "the counter is mended, whatever else is told"
        assert await counter(admin) == 1

        async def is_well() -> bool:
            return await doctor(admin) == 0

        await eventually(is_well, every_seconds=0.5)  # the status from before is written again a while after
        await admin.stub.ApplyAdapters(change_set(put("acme/bad", uris["acme/good"])))
        await lists(engine, *uris)
        told = await admin.stub.GetAdapter(pb.GetAdapterRequest(pool=POOL, name="acme/bad"))
        assert told.generation == 2
    finally:
        sidecar.program.kill()


async def _nothing_is_written(admin: Admin) -> None:
    for change in (put("acme/more"), drop("acme/bad")):
        told = await refusal(admin.stub.ApplyAdapters(change_set(change)))
        assert (told.code, told.reason) == (StatusCode.RESOURCE_EXHAUSTED, "ETCD_NO_SPACE")
    assert len((await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool=POOL))).adapters) == 2


async def test_what_was_done_before_is_told_and_what_was_deleted_past_us_is_repaired(small, client, admin):
    """W2, W3, W5, W6, W7, W8: "nothing was changed" is not said of what was; what the replay checker says, then not."""
    request = change_set(put("acme/a"), put("acme/b"), request_id="once")
    first = await admin.stub.ApplyAdapters(request)
    await fill(client)
    async with admin_inside(small.endpoints, PREFIX) as other:
        await wait_ready(other)
        assert await other.stub.ApplyAdapters(request) == first
    await delete_raw(small, "acme/a", "acme/b")
    with pytest.raises(AssertionError, match=r"W7 .*deleted past the admin service"):
        check_history(KEYS, await read_history(client, PREFIX, 1))
    repair = pb.RepairTenantRequest(name="acme", request_id="twice")
    told = await refusal(admin.stub.RepairTenant(repair))
    assert (told.code, told.reason) == (StatusCode.RESOURCE_EXHAUSTED, "ETCD_NO_SPACE")
    await raise_quota(small)
    reply = await admin.stub.RepairTenant(repair)
    assert [(one.name, one.generation) for one in reply.retired] == [("acme/a", 1), ("acme/b", 1)]
    assert await admin.stub.RepairTenant(repair) == reply
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
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
