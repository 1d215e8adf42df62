"""What a program asks about a fleet: pools, replicas, tenants, and what was done; each call as it is sent."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from itertools import islice

import grpc
import pytest

from loraplane import (
    AlreadyExists,
    Canaries,
    InvalidArgument,
    NotFound,
    Publication,
    RegistryError,
    Unavailable,
    Withdrawal,
)
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import Hold, Refusal


def test_pools_are_made_changed_and_deleted(registry, admin):
    """W3 idempotent, W4 etag: what is not given stays, also what this release does not know."""
    made = registry.create_pool(
        "p", ["tiny"], max_rank=8, expected_replicas=3, engine_names="versioned", request_id="mine"
    )
    limits = pb.PoolLimits(max_rank=8, expected_replicas=3)
    pool = pb.Pool(name="p", base_models=["tiny"], engine="vllm", engine_names="versioned", limits=limits)
    assert admin.asked("CreatePool") == [pb.CreatePoolRequest(pool=pool, request_id="mine")]
    assert (made.name, made.max_rank, made.engine_names) == ("p", 8, "versioned")
    registry.update_pool("p", max_adapters=0, require_digest=True, etag="7")
    (asked,) = admin.asked("UpdatePool")
    assert asked.update_mask.paths == ["limits.max_adapters", "limits.require_digest"]
    assert (asked.pool.limits, asked.pool.etag) == (pb.PoolLimits(require_digest=True), "7")
    assert asked.request_id
    assert [one.name for one in registry.pools()] == ["dev"]
    assert registry.get_pool("p").base_models == ("tiny",)
    registry.delete_pool("p", etag="8")
    assert [(one.name, one.etag) for one in admin.asked("DeletePool")] == [("p", "8")]
    admin.answers["CreatePool"] = [Refusal(grpc.StatusCode.ALREADY_EXISTS, "POOL_EXISTS")]
    with pytest.raises(AlreadyExists):
        registry.create_pool("p", ["tiny"])
    assert admin.asked("CreatePool")[-1].pool.limits == pb.PoolLimits()
    for call in (
        lambda: registry.create_pool("p", ["t"], max_rank=-1),
        lambda: registry.create_pool("p", "tiny"),  # no base models t, i, n and y
        lambda: registry.update_pool("p", max_rank=-1),
    ):
        with pytest.raises(InvalidArgument) as refused:
            call()
        assert refused.value.field == "pool"


def test_replicas_are_listed_drained_and_forgotten(registry, admin):
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[pb.Replica(name="r")], lacking=1)]
    admin.answers["GetReplica"] = [pb.Replica(name="r", pool="p")]
    assert ([one.name for one in registry.replicas("p").replicas], registry.replicas("p").lacking) == (["r"], 1)
    assert registry.get_replica("r", "p").pool == "p"
    assert (registry.drain("r", "p", request_id="mine"), registry.undrain("r", "p")) == (True, True)
    orders = [(one.name, one.undrain, one.request_id == "mine") for one in admin.asked("DrainReplica")]
    assert orders == [("r", False, True), ("r", True, False)]
    registry.forget("r", "p")
    assert [(one.pool, one.name) for one in admin.asked("ForgetReplica")] == [("p", "r")]


def test_quotas_are_set_and_what_was_done_is_read_page_by_page(registry, admin):
    assert registry.set_quota("acme", 5, etag="3").max_adapters == 5
    assert registry.set_quota("acme", None).max_adapters is None
    assert [one.tenant.max_adapters for one in admin.asked("SetTenant")] == [5, 0]
    for none in (-1, 0):
        with pytest.raises(InvalidArgument):
            registry.set_quota("acme", none)
    assert len(admin.asked("SetTenant")) == 2
    admin.answers["ListTenants"] = [pb.ListTenantsResponse(tenants=[pb.Tenant(name="acme", adapters=2)])]
    assert [(one.name, one.adapters) for one in registry.tenants()] == [("acme", 2)]
    first = pb.ListChangesResponse(changes=[pb.RecordedChange(name="a")], next_page_token="n")  # noqa: S106
    admin.answers["ListChanges"] = [first, pb.ListChangesResponse(changes=[pb.RecordedChange(name="b")])]
    assert [one.name for one in registry.events("p", since="2026-01-01T00:00:00Z")] == ["a", "b"]
    assert [(one.since[:4], one.page_token) for one in admin.asked("ListChanges")] == [("2026", ""), ("2026", "n")]


def test_several_adapters_change_at_once(registry, admin):
    """W2 atomic-set: in one request; each that is published is waited for, and none that is withdrawn."""
    canaries = Canaries(1)
    changes = [
        Publication(name="a", source="s3://b/a", labels={"step": "1"}, etag="0"),
        Withdrawal("old", "4"),
        Publication(name="b", source="s3://b/b", canaries=canaries, replace=True),
    ]
    made = registry.apply(changes, "p", request_id="mine")
    (asked,) = admin.asked("ApplyAdapters")
    kinds = [(one.WhichOneof("change"), one.etag) for one in asked.changes]
    assert kinds == [("update", "0"), ("delete", "4"), ("upsert", "")]
    told = [(one.name, one.uri, one.request_id) for one in made]
    assert told == [("a", "s3://b/a", "mine"), ("b", "s3://b/b", "mine")]
    assert [one.name for one in admin.asked("WatchRollout")] == ["a", "b"]
    with pytest.raises(InvalidArgument) as refused:
        registry.apply([Withdrawal("\ud800")], "p")
    assert refused.value.field == "name or etag"


@pytest.mark.parametrize(("verb", "method"), [("promote", "PromoteRollout"), ("abort", "AbortRollout")])
def test_what_canaries_serve_is_given_to_all_or_taken_back(registry, admin, verb, method):
    made = getattr(registry, verb)("acme/a", "p", generation=4, request_id="mine")
    (asked,) = admin.asked(method)
    assert (asked.pool, asked.name, asked.generation, asked.request_id) == ("p", "acme/a", 4, "mine")
    assert (made.generation, [one.generation for one in admin.asked("WatchRollout")]) == (3, [3])
    getattr(registry, verb)("acme/a", "p", wait=False)
    assert len(admin.asked("WatchRollout")) == 1
    with pytest.raises(InvalidArgument):
        getattr(registry, verb)("acme/a", "p", generation=1 << 70)


def test_a_watch_brings_whole_listings_and_goes_on_where_it_breaks(registry, admin):
    first = pb.WatchAdaptersResponse(events=[pb.AdapterEvent(put=pb.Adapter(name="a"))], revision=5, snapshot=True)
    later = pb.WatchAdaptersResponse(events=[pb.AdapterEvent(deleted="a")], revision=6)
    admin.answers["WatchAdapters"] = [[first, later, Refusal(grpc.StatusCode.UNAVAILABLE)], [first, Hold()]]
    with closing(registry.watch("p")) as states:
        seen = [([one.name for one in state.adapters], state.revision) for state in islice(states, 3)]
    assert seen == [(["a"], 5), ([], 6), (["a"], 5)]
    admin.answers["WatchAdapters"] = [Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND")]
    with pytest.raises(NotFound):
        next(registry.watch("q"))


def test_an_adapter_is_switched_off_and_on_and_keeps_all_else(registry, admin):
    registry.disable("acme/a", "p", request_id="mine")
    registry.enable("acme/a", "p")
    off, on = admin.asked("ApplyAdapters")
    for asked, is_on in ((off, False), (on, True)):
        (change,) = asked.changes
        assert (change.update.name, change.update_mask.paths) == ("acme/a", ["enabled"])
        assert (change.update.spec.HasField("enabled"), change.update.spec.enabled) == (True, is_on)
    assert (off.request_id, len(admin.asked("WatchRollout"))) == ("mine", 1)
    with pytest.raises(InvalidArgument):
        registry.disable("\ud800", "p")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ttl": "7d"}, {"ttl_seconds": 604_800}),
        ({"ttl": 90}, {"ttl_seconds": 90}),
        ({"ttl": 89.2}, {"ttl_seconds": 90}),
        ({"ttl": timedelta(minutes=10)}, {"ttl_seconds": 600}),
        ({"ttl": None}, {"ttl_seconds": None, "ttl_from": None}),
        ({"ttl": None, "ttl_from": "change"}, {"ttl_seconds": None, "ttl_from": "change"}),
        ({"ttl": "7d", "ttl_from": "use"}, {"ttl_seconds": 604_800, "ttl_from": "use"}),
        ({"keep": 3}, {"keep": 3}),
        ({"keep": None}, {"keep": None}),
        ({"enabled": False}, {"enabled": False}),
    ],
)
def test_how_long_and_in_which_generations_it_is_kept_is_said_by_keywords(registry, admin, given, told):
    """None: it never ends, whatever its ttl began with, or its newest generation is kept alone; all else is kept."""
    registry.publish("s3://b/a", "a", "p", wait=False, **given)
    (change,) = admin.asked("ApplyAdapters")[-1].changes
    said = {field.name: value for field, value in change.update.spec.ListFields() if field.name != "source"}
    assert said == {name: value for name, value in told.items() if value is not None}
    assert change.update_mask.paths == sorted(["expect", "source", *told])


SERVING, PENDING = pb.RolloutReplica.SERVING, pb.RolloutReplica.PENDING
HERE = {"model": "a@1", "generation": 1, "state": SERVING}


def test_who_waited_is_told_by_which_name_and_where_it_is_served(registry, admin):
    """R24: of this generation alone; where nobody tells, the change is made all the same."""
    places = [
        pb.Residence(engine_url="http://1", model="a@1", generation=1, state=SERVING),
        pb.Residence(engine_url="http://2", model="a@1", generation=1, state=PENDING),
        pb.Residence(engine_url="http://3", model="a@0", generation=7, state=SERVING),
        pb.Residence(model="a@1", generation=1, state=SERVING),
    ]
    resident = pb.WatchResidencyResponse(adapters=[pb.AdapterResidency(name="a", replicas=places)], snapshot=True)
    admin.answers["WatchResidency"] = [[resident, Hold()]]
    made = registry.publish("s3://b/a", "a", "p")
    assert (made.model, made.engine_urls) == ("a@1", ("http://1",))
    assert [(one.pool, one.name) for one in admin.asked("WatchResidency")] == [("p", "a")]
    later = pb.AdapterResidency(name="a", replicas=[*places, pb.Residence(replica="r9", engine_url="http://9", **HERE)])
    admin.answers["WatchResidency"] = [[resident, pb.WatchResidencyResponse(adapters=[later]), Hold()]]
    replicas = [pb.RolloutReplica(replica="r9", generation=1, state=SERVING), pb.RolloutReplica(generation=1)]
    admin.answers["WatchRollout"] = [[pb.Rollout(name="a", generation=1, replicas=replicas, done=True)]]
    assert registry.publish("s3://b/a", "a", "p").engine_urls == ("http://1", "http://9")
    admin.requests.clear()
    made = registry.publish("s3://b/a", "a", "p", wait=False)
    assert (made.model, made.engine_urls, len(admin.asked("WatchResidency"))) == ("", (), 0)
    for code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED):
        admin.answers["WatchResidency"] = [Refusal(code)]
        assert registry.publish("s3://b/a", "a", "p").model == ""
    admin.answers["WatchResidency"] = [Refusal(grpc.StatusCode.INTERNAL, "INTERNAL")]
    with pytest.raises(RegistryError) as failed:
        registry.publish("s3://b/a", "a", "p")
    assert not isinstance(failed.value, Unavailable)
