"""Listings, filters, history, replicas, tenants, pools."""

from __future__ import annotations

import json
from importlib.metadata import version

from google.protobuf.field_mask_pb2 import FieldMask
from grpc import StatusCode

from registry.admin.settings import AdminSettings
from registry.etcd3.ops import Delete, Put, Txn
from registry.lora.base import fingerprint
from registry.model.status import EngineStatus, Presence, ReplicaStatus, Served
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_inside, change_set, drop, make_pool, put, refusal
from tests.support.etcd import compact


async def test_pages_show_one_revision(ledger, admin):
    """All pages of a listing show the state that the first one showed, whatever happens meanwhile."""
    await admin.stub.ApplyAdapters(change_set(*(put(f"a{i}") for i in range(5))))
    first = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", page_size=2))
    await admin.stub.ApplyAdapters(change_set(drop("a2"), put("a3", "file:///other"), put("a9")))
    names, token = [one.name for one in first.adapters], first.next_page_token
    while token:
        page = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", page_size=2, page_token=token))
        assert page.revision == first.revision
        names += [one.name for one in page.adapters]
        token = page.next_page_token
    assert names == ["a0", "a1", "a2", "a3", "a4"]


async def test_filters(admin):
    """Terms are joined by AND; a page holds what fits, and the token goes on after it."""
    await admin.stub.ApplyAdapters(
        change_set(
            put("acme/sql-1", labels={"team": "bi"}),
            put("acme/sql-2", load="lazy", labels={"team": "bi"}),
            put("acme/chat", labels={"team": "x y"}),
            put("sql"),
        )
    )

    async def names(text: str) -> list[str]:
        found, token = [], ""
        while True:
            page = await admin.stub.ListAdapters(
                pb.ListAdaptersRequest(pool="p", filter=text, page_size=1, page_token=token)
            )
            found += [one.name for one in page.adapters]
            token = page.next_page_token
            if not token:
                return found

    assert await names("tenant=acme AND name=acme/SQL*") == ["acme/sql-1", "acme/sql-2"]
    assert await names("label.team=bi AND load=eager") == ["acme/sql-1"]
    assert await names("label.team=x y") == ["acme/chat"]
    assert await names("name=sql") == ["sql"]
    assert await names("tenant=default") == ["sql"]
    assert await names("name=nothing") == []
    told = await refusal(admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", filter="color=red")))
    assert (told.code, told.reason, told.field) == (StatusCode.INVALID_ARGUMENT, "INVALID_FILTER", "filter")


async def test_a_compacted_page(etcd, ledger, admin):
    """A token whose revision is compacted is FAILED_PRECONDITION and says to start again."""
    await admin.stub.ApplyAdapters(change_set(put("a1"), put("a2")))
    first = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", page_size=1))
    latest = await admin.stub.ApplyAdapters(change_set(put("a3")))
    await compact(ledger.client, latest.revision)
    told = await refusal(
        admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", page_size=1, page_token=first.next_page_token))
    )
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "REVISION_COMPACTED")


async def test_a_wrong_page_token(admin):
    """What is no token of ours is INVALID_ARGUMENT, and one of ours fits only the request that it came from."""
    for token in ("?", "e30=", "W10=", "WzEsIDIsIDNd", "x" * 4000):
        told = await refusal(admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", page_token=token)))
        assert (told.code, told.reason, told.field) == (StatusCode.INVALID_ARGUMENT, "INVALID_PAGE_TOKEN", "page_token")
    await admin.stub.ApplyAdapters(change_set(put("a1"), put("a2")))
    first = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", page_size=1))
    others = [
        admin.stub.ListPools(pb.ListPoolsRequest(page_token=first.next_page_token)),
        admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", filter="name=a*", page_token=first.next_page_token)),
    ]
    for other in others:
        assert (await refusal(other)).reason == "INVALID_PAGE_TOKEN"


async def test_changes(ledger, admin):
    """W7: who did what to a pool, the oldest first, from a time on, in pages; also of a pool that is gone."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a", priority=1)))
    await admin.stub.ApplyAdapters(change_set(put("acme/a", priority=2), put("b")))

    async def told(since: str = "", size: int = 0) -> list[tuple[str, str, int, list[str]]]:
        request, found = pb.ListChangesRequest(pool="p", since=since, page_size=size), []
        while True:
            page = await admin.stub.ListChanges(request)
            found += [(one.action, one.name, one.generation, list(one.fields)) for one in page.changes]
            at.extend(one.at for one in page.changes)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    at: list[str] = []
    both = [("updated", "acme/a", 2, ["priority"]), ("created", "b", 1, [])]
    whole = [("created", "p", 0, []), ("created", "acme/a", 1, []), *both]
    assert await told() == whole == await told(size=1)
    assert (await told(at[2]))[-2:] == both
    assert await told("2999-01-01T00:00:00Z") == []
    wrong = await refusal(admin.stub.ListChanges(pb.ListChangesRequest(pool="p", since="soon")))
    assert (wrong.code, wrong.field) == (StatusCode.INVALID_ARGUMENT, "since")
    await admin.stub.ApplyAdapters(change_set(drop("acme/a"), drop("b")))
    await admin.stub.DeletePool(pb.DeletePoolRequest(name="p"))
    assert (await told())[-1] == ("deleted", "p", 0, [])


NOT_FOUND = {
    "adapter": ("GetAdapter", pb.GetAdapterRequest(pool="p", name="none"), "ADAPTER_NOT_FOUND"),
    "adapter's pool": ("GetAdapter", pb.GetAdapterRequest(pool="q", name="none"), "POOL_NOT_FOUND"),
    "list": ("ListAdapters", pb.ListAdaptersRequest(pool="q"), "POOL_NOT_FOUND"),
    "history": ("ListAdapterHistory", pb.ListAdapterHistoryRequest(pool="p", name="none"), "ADAPTER_NOT_FOUND"),
    "history's pool": ("ListAdapterHistory", pb.ListAdapterHistoryRequest(pool="q", name="none"), "POOL_NOT_FOUND"),
    "pool": ("GetPool", pb.GetPoolRequest(name="q"), "POOL_NOT_FOUND"),
    "replica": ("GetReplica", pb.GetReplicaRequest(pool="p", name="r"), "REPLICA_NOT_FOUND"),
    "replica's pool": ("GetReplica", pb.GetReplicaRequest(pool="q", name="r"), "POOL_NOT_FOUND"),
    "replicas": ("ListReplicas", pb.ListReplicasRequest(pool="q"), "POOL_NOT_FOUND"),
    "changes": ("ListChanges", pb.ListChangesRequest(pool="q"), "POOL_NOT_FOUND"),
    "delete": ("ApplyAdapters", change_set(drop("none")), "ADAPTER_NOT_FOUND"),
    "update pool": ("UpdatePool", pb.UpdatePoolRequest(pool=pb.Pool(name="q", base_models=["b"])), "POOL_NOT_FOUND"),
    "delete pool": ("DeletePool", pb.DeletePoolRequest(name="q"), "POOL_NOT_FOUND"),
}


async def test_not_found(admin):
    """What does not exist is NOT_FOUND, and it is said what: the pool or the thing in it."""
    for name, (method, request, reason) in NOT_FOUND.items():
        told = await refusal(getattr(admin.stub, method)(request))
        assert (told.code, told.reason, bool(told.field)) == (StatusCode.NOT_FOUND, reason, True), name


def presence(replica: str) -> Presence:
    return Presence(
        pool="p",
        replica=replica,
        incarnation="i1",
        owner="o",
        labels={"zone": "a"},
        started_at="2026-01-01T00:00:00Z",
        version="9.9",
    )


def status(replica: str) -> ReplicaStatus:
    return ReplicaStatus(
        replica=replica,
        pool="p",
        engine=EngineStatus(kind="sim", version="1", url="http://e", base_models=["base"], incarnation="e1"),
        observed_revision=1,
        ready=True,
        stale=False,
        served=Served(count=0, hash=""),
        pending=[],
        failed=[],
        updated_at="2026-01-01T00:00:00Z",
    )


async def test_replicas(ledger, admin):
    """A replica lives as long as its presence; a status that is not under the lease of one does not count."""
    keys = ledger.keys
    assert not (await admin.stub.ListReplicas(pb.ListReplicasRequest(pool="p"))).replicas
    lease, other = await ledger.client.lease_grant(600), await ledger.client.lease_grant(600)
    puts = [Put(keys.replica("p", one), presence(one).to_bytes(), lease) for one in ("r1", "r2")]
    puts += [Put(keys.status("p", one), status(one).to_bytes(), lease) for one in ("r1", "dead")]
    puts.append(Put(keys.status("p", "r2"), status("r2").to_bytes(), other))
    await ledger.client.txn(Txn((), (*puts, Put(keys.replica("p", "r3"), b"?"))))
    listed = await admin.stub.ListReplicas(pb.ListReplicasRequest(pool="p"))
    shown = {one.name: (one.labels.get("zone"), one.status_json) for one in listed.replicas}
    assert shown == {"r1": ("a", status("r1").to_bytes().decode()), "r2": ("a", ""), "r3": (None, "")}
    one = await admin.stub.GetReplica(pb.GetReplicaRequest(pool="p", name="r1"))
    assert [one.version for one in listed.replicas] == ["9.9", "9.9", ""], "one cannot be read"
    assert (await admin.stub.ListPools(pb.ListPoolsRequest())).admin_version == version("loraplane")
    assert (one.incarnation, one.started_at, one.status_json) == ("i1", "2026-01-01T00:00:00Z", shown["r1"][1])
    await ledger.client.txn(Txn((), (Delete(keys.replica("p", "r1")),)))
    told = await refusal(admin.stub.GetReplica(pb.GetReplicaRequest(pool="p", name="r1")))
    assert told.reason == "REPLICA_NOT_FOUND"
    first = await admin.stub.ListReplicas(pb.ListReplicasRequest(pool="p", page_size=1))
    rest = await admin.stub.ListReplicas(
        pb.ListReplicasRequest(pool="p", page_size=1, page_token=first.next_page_token)
    )
    assert [one.name for one in (*first.replicas, *rest.replicas)] == ["r2", "r3"]
    assert not rest.next_page_token


async def test_replicas_whose_engines_the_pool_does_not_allow(ledger, admin):
    """X2: their URLs are told apart from the status, where no router takes them for an engine's."""
    keys, lease = ledger.keys, await ledger.client.lease_grant(600)
    puts = (
        Put(keys.replica("p", "r1"), presence("r1").to_bytes(), lease),
        Put(keys.status("p", "r1"), status("r1").to_bytes(), lease),
    )
    await ledger.client.txn(Txn((), puts))
    pool = pb.Pool(name="p", limits=pb.PoolLimits(engine_hosts=["10.0.0.0/8"]))
    await admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=pool, update_mask=FieldMask(paths=["limits.engine_hosts"])))
    one = await admin.stub.GetReplica(pb.GetReplicaRequest(pool="p", name="r1"))
    assert list((await admin.stub.ListReplicas(pb.ListReplicasRequest(pool="p"))).replicas) == [one]
    assert (one.withheld_engine_url, json.loads(one.status_json)["engine"]["url"]) == ("http://e", "")


async def test_what_the_service_bears_unprotected_is_told(ledger, admin, etcd, monkeypatch):
    """X1: to whoever asks it, as doctor does."""
    assert not (await admin.stub.ListPools(pb.ListPoolsRequest())).admin_insecure
    monkeypatch.setattr(AdminSettings, "unprotected", lambda _: ("--listen: open",))
    async with admin_inside(etcd.endpoints, etcd.prefix, insecure=True) as open_one:
        assert (await open_one.stub.ListPools(pb.ListPoolsRequest())).admin_insecure == ["--listen: open"]


async def test_an_old_client_keeps_what_it_does_not_know(ledger, admin):
    """R5: what is not given is kept, and a mask says what is cleared."""
    module = pb.BaseModule(pattern="model.layers.0.self_attn.q_proj", outputs=16, inputs=16)
    shapes = fingerprint({module.pattern: (module.outputs, module.inputs)})
    pool = pb.Pool(name="q", base_models=["base-q"], base=pb.BaseShapes(modules=[module], fingerprint=shapes))
    await admin.stub.CreatePool(pb.CreatePoolRequest(pool=pool))
    old = pb.Pool(name="q", base_models=["base-q"], limits=pb.PoolLimits(max_rank=16))
    changed = await admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=old))
    assert (changed.base, changed.limits.max_rank) == (pool.base, 16)
    cleared = await admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=old, update_mask=FieldMask(paths=["base"])))
    assert not cleared.HasField("base")
    wrong = pb.UpdatePoolRequest(pool=old, update_mask=FieldMask(paths=["name"]))
    assert (await refusal(admin.stub.UpdatePool(wrong))).field == "update_mask"


async def test_pools(ledger, admin):
    """W4 etag, W7 audit-complete: pools are created, changed, listed in pages, and deleted once they are empty."""
    made = await make_pool(admin, "q", "base-q", "alias")
    assert made == await admin.stub.GetPool(pb.GetPoolRequest(name="q"))
    wanted = pb.Pool(name="q", base_models=["base-q"], limits=pb.PoolLimits(max_rank=16), etag=made.etag)
    changed = await admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=wanted))
    assert (list(changed.base_models), changed.limits.max_rank) == (["base-q"], 16)
    told = await refusal(admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=wanted)))
    assert (told.code, told.reason, told.field) == (StatusCode.ABORTED, "ETAG_MISMATCH", "pool.etag")
    wanted.etag = ""
    assert await admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=wanted)) == changed
    first = await admin.stub.ListPools(pb.ListPoolsRequest(page_size=1))
    rest = await admin.stub.ListPools(pb.ListPoolsRequest(page_size=1, page_token=first.next_page_token))
    assert [one.name for one in (*first.pools, *rest.pools)] == ["p", "q"]
    await admin.stub.ApplyAdapters(change_set(put("a"), pool="q"))
    told = await refusal(admin.stub.DeletePool(pb.DeletePoolRequest(name="q")))
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "POOL_NOT_EMPTY")
    await admin.stub.ApplyAdapters(change_set(drop("a"), pool="q"))
    deleted = await admin.stub.DeletePool(pb.DeletePoolRequest(name="q", request_id="d"))
    assert deleted == await admin.stub.DeletePool(pb.DeletePoolRequest(name="q", request_id="d"))
    told = await refusal(admin.stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["b"]))))
    assert (told.code, told.reason, told.field) == (StatusCode.ALREADY_EXISTS, "POOL_EXISTS", "pool.name")
    fold = await ledger.check()
    assert deleted.revision in fold.changing


async def test_base_names(admin):
    """R5 no-silent-base: no adapter is named like a base model, whichever comes first, without regard to case."""
    told = await refusal(admin.stub.ApplyAdapters(change_set(put("BASE"))))
    assert (told.code, told.reason) == (StatusCode.INVALID_ARGUMENT, "NAME_IS_BASE_MODEL")
    assert told.field == "changes[0].upsert.name"
    await admin.stub.ApplyAdapters(change_set(put("acme/x")))
    told = await refusal(
        admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=pb.Pool(name="p", base_models=["base", "ACME/X"])))
    )
    assert (told.reason, told.field) == ("NAME_IS_BASE_MODEL", "pool.base_models[1]")


async def test_case(admin):
    """Names that differ in nothing but case are one adapter, and an upsert keeps the first spelling."""
    await admin.stub.ApplyAdapters(change_set(put("Acme/X")))
    assert (await admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name="acme/x"))).name == "Acme/X"
    told = await refusal(admin.stub.ApplyAdapters(change_set(put("acme/x", "file:///a/v2"))))
    assert (told.code, told.reason, told.metadata) == (StatusCode.ALREADY_EXISTS, "ADAPTER_EXISTS", {"name": "Acme/X"})
    deleted = await admin.stub.ApplyAdapters(change_set(drop("acme/x")))
    assert deleted.results[0].adapter.name == "Acme/X"
