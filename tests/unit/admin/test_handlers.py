"""What the admin service answers, on virtual time with an etcd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Never
from unittest.mock import AsyncMock

import pytest
import structlog.testing
from grpc import StatusCode

from registry.admin.rpc import handlers
from registry.client.adapters import revision_of
from registry.model.errors import Internal, Reason
from registry.model.names import REPEATED_METADATA
from registry.model.status import RememberedReplica, RememberedReplicas
from registry.residency.follower import PoolFollower
from registry.store.reader import Reader
from registry.v1 import registry_pb2 as pb
from tests.simulation.links import Way
from tests.support.admin import change_set, drop, put
from tests.support.played_admin import Context, Served, served
from tests.support.played_etcd import now
from tests.support.records import KEYS
from tests.support.residency_world import Replicas


@served
async def test_what_was_written_is_told_with_the_revision_that_it_has(served):
    """R1: an etag that is told can be written upon, also where nothing was changed and others wrote since.

    W9: a dry run changes nothing, and no log says that it did.
    """
    etcd = served.etcd
    pool = await served.make_pool()
    before = etcd.store.revision
    with structlog.testing.capture_logs() as logged:
        checked = await served.call("ApplyAdapters", change_set(put("acme/a"), validate_only=True))
    assert [one.outcome for one in checked.results] == [pb.AdapterResult.CREATED]
    assert (etcd.store.revision, [one["event"] for one in logged if one["event"] == "change_settled"]) == (before, [])
    assert pool.etag == str(etcd.store.revision)
    tenant = await served.call("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=5)))
    assert (tenant.name, tenant.etag) == ("acme", str(etcd.store.revision))
    with structlog.testing.capture_logs() as logged:
        reply = await served.call("ApplyAdapters", change_set(put("acme/a"), request_id="req-1"))
    assert [one["revision"] for one in logged if one["event"] == "change_settled"] == [reply.revision]
    [made] = reply.results
    assert (made.outcome, made.adapter.etag, reply.request_id) == (
        pb.AdapterResult.CREATED,
        str(reply.revision),
        "req-1",
    )
    etcd.store.put(b"/of/others", b"")
    assert (await served.call("UpdatePool", pb.UpdatePoolRequest(pool=pool))).etag == pool.etag
    again = await served.call("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=5)))
    assert again.etag == (await served.call("ListTenants", pb.ListTenantsRequest())).tenants[0].etag
    assert int(again.etag) <= reply.revision
    [same] = (await served.call("ApplyAdapters", change_set(put("acme/a")))).results
    assert (same.outcome, same.adapter.etag) == (pb.AdapterResult.UNCHANGED, made.adapter.etag)
    found = await served.call("GetAdapter", pb.GetAdapterRequest(pool="p", name="acme/a"))
    assert (found.etag, found.generation) == (made.adapter.etag, 1)
    [gone] = (await served.call("ApplyAdapters", change_set(drop("acme/a")))).results
    assert (gone.outcome, gone.adapter.name, gone.adapter.pool) == (pb.AdapterResult.DELETED, "acme/a", "p")
    assert (await served.call("DeletePool", pb.DeletePoolRequest(name="p"))).revision == etcd.store.revision


@served
async def test_a_page_is_told_with_what_leads_to_the_next_and_the_last_with_what_is_told_once(served):
    for name in ("p", "q", "r"):
        await served.make_pool(name)
    replicas = Replicas(served.client, KEYS)
    await replicas.alive("r1", "r2", "r3")
    expected = RememberedReplicas(members={name: RememberedReplica() for name in ("r1", "r9")})
    served.etcd.store.put(KEYS.members("p"), expected.to_bytes())
    await Replicas(served.client, KEYS, "nowhere").alive("x1", "x2")
    first = await served.call("ListReplicas", pb.ListReplicasRequest(pool="p", page_size=2))
    await replicas.gone("r1")  # which stands on the page before
    last = await served.call(
        "ListReplicas", pb.ListReplicasRequest(pool="p", page_size=2, page_token=first.next_page_token)
    )
    assert [one.name for one in (*first.replicas, *last.replicas)] == ["r1", "r2", "r3"]
    assert (first.lacking, len(first.missing), last.next_page_token) == (0, 0, "")
    assert (last.lacking, [one.name for one in last.missing]) == (1, ["r9"])
    first = await served.call("ListPools", pb.ListPoolsRequest(page_size=2, show_unknown=True))
    assert ([one.name for one in first.pools], list(first.unknown)) == (["p", "q"], [])
    request = pb.ListPoolsRequest(page_size=2, page_token=first.next_page_token, show_unknown=True)
    last = await served.call("ListPools", request)
    assert [one.name for one in last.pools] == ["r"]
    assert [(one.name, one.replicas, list(one.names)) for one in last.unknown] == [("nowhere", 2, ["x1", "x2"])]
    assert list(last.admin_insecure) == ["--listen"]
    request.show_unknown = False
    assert not (await served.call("ListPools", request)).unknown


@pytest.mark.parametrize(
    ("method", "first", "other"),
    [
        ("ListAdapters", pb.ListAdaptersRequest(pool="p"), pb.ListAdaptersRequest(pool="p", filter="name=b")),
        ("ListChanges", pb.ListChangesRequest(pool="p"), pb.ListChangesRequest(pool="p", since="2026-01-01T00:00:00Z")),
    ],
)
@served
async def test_a_token_is_taken_with_what_was_asked_for_on_the_page_before(served, method, first, other):
    """Else a page would be of two lists."""
    await served.make_pool()
    await served.call("ApplyAdapters", change_set(put("a"), put("b")))
    first.page_size = other.page_size = 1
    other.page_token = (await served.call(method, first)).next_page_token
    assert other.page_token
    assert (await served.refusal(method, other)).info.reason == "INVALID_PAGE_TOKEN"


@served
async def test_who_is_dead_is_forgotten_unless_that_was_only_asked(served):
    await served.make_pool()
    stored = RememberedReplicas(members={"r9": RememberedReplica()}).to_bytes()
    served.etcd.store.put(KEYS.members("p"), stored)
    request = pb.ForgetReplicaRequest(pool="p", name="r9", validate_only=True)
    await served.call("ForgetReplica", request)
    assert served.etcd.store.kvs[KEYS.members("p")].value == stored
    request.validate_only = False
    await served.call("ForgetReplica", request)
    refused = await served.refusal("ForgetReplica", request)
    assert refused.told == (StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "name")
    await served.call("ForgetReplica", request, Context(metadata=(REPEATED_METADATA,)))  # W8: whose answer was lost


@served
async def test_a_replica_is_shown_with_what_it_says_of_itself(served):
    await served.make_pool()
    replicas = Replicas(served.client, KEYS)
    said = {"version": "9.9", "leaving": True, "owner": "host:boot", "engine_url": "http://r1"}
    await replicas.alive("r1", labels={"zone": "a"}, **said)
    one = await served.call("GetReplica", pb.GetReplicaRequest(pool="p", name="r1"))
    assert (one.name, one.pool, dict(one.labels), one.incarnation) == ("r1", "p", {"zone": "a"}, "i")
    assert (one.version, one.leaving, one.engine_url, one.withheld_engine_url) == ("9.9", True, "http://r1", "")
    assert (one.started_at, one.host, one.status_json) == ("2026-01-01T00:00:00.000Z", "host", "")
    await replicas.says("r1", 3)
    shown = await served.call("GetReplica", pb.GetReplicaRequest(pool="p", name="r1"))
    assert json.loads(shown.status_json)["observed_revision"] == 3
    served.etcd.store.put(KEYS.replica("p", "r2"), b"?")
    broken = await served.call("GetReplica", pb.GetReplicaRequest(pool="p", name="r2"))
    assert broken == pb.Replica(name="r2", pool="p"), "it lives, and that is all that is known"
    refused = await served.refusal("GetReplica", pb.GetReplicaRequest(pool="p", name="r3"))
    assert refused.told == (StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "name")


@served
async def test_an_adapter_that_was_lost_is_put_in_order_by_a_repair(served):
    """Of a pool that is gone, or whose index does not agree; what needs nothing is told as such."""
    await served.make_pool()
    await served.call("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=5)))
    await served.call("ApplyAdapters", change_set(put("acme/a"), put("acme/b")))
    unchanged = await served.call("RepairTenant", pb.RepairTenantRequest(name="acme"))
    assert (unchanged.changed, unchanged.tenant.name, unchanged.tenant.adapters) == (False, "acme", 2)
    served.etcd.store.delete(KEYS.adapter("p", "acme/b"))
    repaired = await served.call("RepairTenant", pb.RepairTenantRequest(name="acme"))
    assert (repaired.changed, repaired.tenant.adapters) == (True, 1)
    assert (repaired.revision, repaired.tenant.etag) == (served.etcd.store.revision, str(repaired.revision))


@served
async def test_who_watches_adapters_hears_what_became_of_each(served):
    await served.make_pool()
    revision = (await served.call("ApplyAdapters", change_set(put("acme/A")))).revision
    answers = served.watch("WatchAdapters", pb.WatchAdaptersRequest(pool="p"))
    first = await anext(answers)
    assert (first.revision, first.snapshot, first.more) == (revision, True, False)
    [event] = first.events
    assert (event.put.name, event.put.etag) == ("acme/A", str(revision))
    served.etcd.store.put(KEYS.adapter("p", "acme/A"), b"?")
    [event] = (await anext(answers)).events
    assert (event.unreadable, event.deleted) == ("acme/a", "")
    served.etcd.store.delete(KEYS.adapter("p", "acme/A"))
    told = await anext(answers)
    assert (told.events[0].deleted, told.snapshot) == ("acme/a", False)
    await answers.aclose()


@served
async def test_who_watches_one_adapter_hears_of_no_other(served):
    await served.make_pool()
    await served.call("ApplyAdapters", change_set(put("a"), put("b")))
    replicas = Replicas(served.client, KEYS)
    await replicas.alive("r1")
    whole = served.watch("WatchResidency", pb.WatchResidencyRequest(pool="p"))
    first = await anext(whole)
    assert ([one.name for one in first.adapters], first.snapshot, first.more) == (["a", "b"], True, False)
    await whole.aclose()
    answers = served.watch("WatchResidency", pb.WatchResidencyRequest(pool="p", name="a"))
    first = await anext(answers)
    assert ([one.name for one in first.adapters], first.snapshot) == (["a"], True)
    following = asyncio.ensure_future(anext(answers))
    await served.call("ApplyAdapters", change_set(put("b", "file:///a/v2")))
    await asyncio.sleep(5)
    assert not following.done()
    await replicas.says("r1", served.etcd.store.revision)
    told = await following
    assert [part.state for part in told.adapters[0].replicas] == [pb.RolloutReplica.SERVING]
    await answers.aclose()


@served
async def test_the_revision_of_what_was_so_already_is_one_that_followers_come_to(served):
    """A request may ask for what was published at it, and nothing of the pool happens at that of the reply."""
    await served.make_pool()
    await served.call("ApplyAdapters", change_set(put("a"), put("b")))
    answers = served.watch("WatchResidency", pb.WatchResidencyRequest(pool="p"))
    first = await anext(answers)
    same = await served.call("ApplyAdapters", change_set(put("a"), put("b"), request_id="again"))
    assert same.revision == served.etcd.store.revision > first.revision
    following = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(5)
    assert not following.done()
    assert revision_of(same) <= first.revision
    other = await served.call("ApplyAdapters", change_set(put("a"), put("b", "file:///b/v2")))
    assert revision_of(other) == other.revision == (await following).revision
    await answers.aclose()


@served
async def test_a_rollout_is_told_until_it_is_done(served):
    await served.make_pool()
    await served.call("ApplyAdapters", change_set(put("a")))
    replicas = Replicas(served.client, KEYS)
    await replicas.alive("r1")
    answers = served.watch("WatchRollout", pb.WatchRolloutRequest(pool="p", name="a"))
    first = await anext(answers)
    assert (first.name, first.generation, first.done, first.failure) == ("a", 1, False, "")
    [part] = first.replicas
    assert (part.replica, part.state, part.generation, part.canary) == ("r1", pb.RolloutReplica.PENDING, 1, False)
    assert (part.reason, bool(first.waiting), first.HasField("canary")) == ("no_status", True, False)
    await replicas.says("r1", served.etcd.store.revision)
    told = [one async for one in answers]
    assert told[-1].done
    assert [part.state for part in told[-1].replicas] == [pb.RolloutReplica.SERVING]


async def page(served: Served, query: str, **headers: str) -> Any:
    """What ``GET /v1/residency`` answers: its status, its ETag and what it says."""
    reply = await served.page(f"/v1/residency?{query}", **headers)
    return reply.status_code, reply.headers.get("ETag"), reply.json() if reply.content else None


@served
async def test_the_page_for_gateways_says_where_adapters_are_and_only_what_is_new(served):
    """R9; a gateway polls it, and most polls find nothing new."""
    await served.make_pool()
    await served.call("ApplyAdapters", change_set(put("acme/A"), put("b"), put("c")))
    replicas = Replicas(served.client, KEYS)
    await replicas.alive("r1")
    await replicas.says("r1", served.etcd.store.revision)
    status, tag, told = await page(served, "pool=p")
    assert (status, told["pool"]) == (200, "p")
    assert [(one["name"], one["replicas"][0]["state"]) for one in told["adapters"]] == [
        ("acme/A", "serving"),
        ("b", "serving"),
        ("c", "serving"),
    ]
    assert told["revision"] >= 3
    for same in (tag, f"W/{tag}", f'"other", {tag}'):
        assert await page(served, "pool=p", **{"If-None-Match": same}) == (304, tag, None)
    _, _, one = await page(served, "pool=p&name=acme/a")
    assert [found["name"] for found in one["adapters"]] == ["acme/A"]
    await served.call("ApplyAdapters", change_set(drop("b")))
    await asyncio.sleep(1)
    status, newer, told = await page(served, "pool=p", **{"If-None-Match": tag})
    assert (status, newer != tag, len(told["adapters"])) == (200, True, 2)
    for query, code, reason in (
        ("pool=p&name=b", 404, "ADAPTER_NOT_FOUND"),
        ("pool=p&name=b%20b", 400, "INVALID_NAME"),
        ("", 400, "INVALID_FIELD"),
        ("pool=q", 404, "POOL_NOT_FOUND"),
    ):
        status, _, told = await page(served, query)
        assert (status, told["error"]["reason"]) == (code, reason)
    await served.make_pool("q")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PoolFollower, "_step", AsyncMock(return_value=False))
        await takes_no_longer(served, "pool=q")
    served.etcd.links["m0"].set_way(Way.HUNG)
    await takes_no_longer(served, "pool=p")


async def takes_no_longer(served: Served, query: str) -> None:
    """A gateway that polls would hang, whatever is not known."""
    begun = now()
    status, _, told = await page(served, query)
    assert (status, told["error"]["reason"]) == (503, "ETCD_UNAVAILABLE")
    assert now() - begun <= 5.01


@served
async def test_a_pool_is_told_of_though_nothing_of_it_stands_first_that_can_be_read(served):
    """R14 nack: nor does it matter that there is nothing at all."""
    await served.make_pool()
    assert (await page(served, "pool=p"))[2]["adapters"] == []
    served.etcd.store.put(KEYS.adapter("p", "a"), b"?")
    await served.call("ApplyAdapters", change_set(put("b")))
    await asyncio.sleep(1)
    assert [one["name"] for one in (await page(served, "pool=p"))[2]["adapters"]] == ["b"]
    assert (await page(served, "pool=p&name=a"))[0] == 404


@served
async def test_who_watches_counts_of_replicas_is_told_all_of_them_after_each_change(served):
    """R9: each answer is whole, so that a replica that is not in it is gone."""
    await served.make_pool()
    await served.call("ApplyAdapters", change_set(put("a"), put("b")))
    await Replicas(served.client, KEYS).alive("r1")
    request = pb.WatchResidencyRequest(pool="p", detail=pb.WatchResidencyRequest.COUNTS_BY_REPLICA)
    answers = served.watch("WatchResidency", request)
    for adapters, change in ((2, put("c")), (3, drop("a")), (2, put("d"))):
        told = await anext(answers)
        counted = [(one.replica, sum(count.adapters for count in one.counts)) for one in told.replicas]
        assert (counted, told.snapshot, list(told.adapters)) == ([("r1", adapters)], True, [])
        await served.call("ApplyAdapters", change_set(change))
    await answers.aclose()


@served
async def test_a_change_is_traced_with_what_became_of_it_and_a_dry_run_is_not(served, monkeypatch):
    told = list[tuple[object, ...]]()

    @contextmanager
    def stage(name: str, request_id: str, about: dict[str, object], *, caller: str) -> Iterator[None]:
        try:
            yield
        finally:
            told.append((name, request_id, about["method"], about["pool"], about["revision"], caller))

    monkeypatch.setattr(handlers.tracing, "stage", stage)
    await served.make_pool()
    made = await served.call("ApplyAdapters", change_set(put("a"), request_id="q"))
    await served.refusal("ApplyAdapters", change_set(drop("none"), request_id="r"))
    await served.call("ApplyAdapters", change_set(drop("a"), request_id="s", validate_only=True))
    assert told[1:3] == [
        ("change", "q", "ApplyAdapters", "p", made.revision, ""),
        ("change", "r", *told[2][2:4], 0, ""),
    ]
    assert told[3][1] == ""


@pytest.mark.parametrize("fault", [Internal(Reason.INTERNAL, "of ours", field="f"), KeyError("of ours")])
@served
async def test_a_fault_of_ours_is_told_by_the_page_as_one(served, fault):
    """R12: what is no refusal is told as it is, to whoever serves the page."""

    async def breaks(*_: object) -> Never:
        raise fault

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "pool", breaks)
        if isinstance(fault, KeyError):
            with pytest.raises(KeyError):
                await page(served, "pool=p")
        else:
            status, _, told = await page(served, "pool=p")
            assert (status, told["error"]) == (500, {"reason": "INTERNAL", "message": "of ours", "field": "f"})
