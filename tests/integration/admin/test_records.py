"""Records that somebody wrote by hand, or another release."""

from __future__ import annotations

import asyncio
import json

import pytest
from grpc import StatusCode

from registry.etcd3.ops import Put, Range, Txn
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_inside, change_set, drop, put, refusal

GARBAGE = [
    b"not json",
    b"",
    b"\xff\xfe",
    b"[]",
    b'{"schema":1}',
    b'{"schema":1,"name":"acme/other","pool":"p","tenant":"acme","generation":1}',
    b'{"generation":"x"}',
    b"[" * 5000,
]


async def write(ledger, key: bytes, value: bytes) -> int:
    return (await ledger.client.txn(Txn((), (Put(key, value),)))).revision


async def stored(ledger, key: bytes) -> dict:
    (kv,) = (await ledger.client.range(Range(key))).kvs
    return json.loads(kv.value)


@pytest.mark.parametrize("value", GARBAGE)
async def test_an_unreadable_record_can_be_replaced(ledger, admin, value):
    """A hand-written value fails no listing, is named, and is replaced by an upsert or a delete."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a"), put("acme/b")))
    await write(ledger, ledger.keys.adapter("p", "acme/a"), value)
    listed = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p"))
    assert ([one.name for one in listed.adapters], list(listed.unreadable)) == (["acme/b"], ["acme/a"])
    told = await refusal(admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name="acme/a")))
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "UNREADABLE_RECORD")
    assert told.metadata == {"key": ledger.keys.adapter("p", "acme/a").decode()}
    reply = await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    assert (reply.results[0].outcome, reply.results[0].adapter.generation) == (pb.AdapterResult.UPDATED, 2)
    await write(ledger, ledger.keys.adapter("p", "acme/a"), value)
    reply = await admin.stub.ApplyAdapters(change_set(drop("acme/a")))
    assert reply.results[0].outcome == pb.AdapterResult.DELETED
    assert reply.results[0].adapter == pb.Adapter(name="acme/a", pool="p")
    tenants = (await admin.stub.ListTenants(pb.ListTenantsRequest())).tenants
    assert [(one.name, one.adapters) for one in tenants] == [("acme", 1)]


async def test_the_generation_that_can_still_be_read_counts(ledger, admin):
    """W6 one-digest: where the value tells its generation, the next one follows it."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    await write(ledger, ledger.keys.adapter("p", "acme/a"), b'{"schema":1,"generation":41,"spec":7}')
    reply = await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    assert reply.results[0].adapter.generation == 42
    history = await admin.stub.ListAdapterHistory(pb.ListAdapterHistoryRequest(pool="p", name="acme/a"))
    assert ([one.generation for one in history.generations], list(history.unreadable)) == ([42], [41])


async def test_history_tells_what_to_go_back_to(ledger, admin):
    """A present record that cannot be read does not hide the generations before it, to one of which one can go back."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")))
    await write(ledger, ledger.keys.adapter("p", "acme/a"), b"?")
    history = await admin.stub.ListAdapterHistory(pb.ListAdapterHistoryRequest(pool="p", name="acme/a"))
    assert ([one.generation for one in history.generations], list(history.unreadable)) == ([1], [2])
    back = pb.RollbackAdapterRequest(pool="p", name="acme/a", to_generation=1)
    (result,) = (await admin.stub.RollbackAdapter(back)).results
    assert (result.adapter.generation, result.adapter.spec.source.uri) == (3, "file:///a/v1")


async def test_the_error_says_what_to_do(ledger, admin):
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")))
    back = admin.stub.RollbackAdapter
    cases = [
        (ledger.keys.history("p", "acme/a", 1), back, pb.RollbackAdapterRequest(pool="p", name="acme/a"), "history"),
        (ledger.keys.tenant("acme"), admin.stub.ApplyAdapters, change_set(put("acme/b")), '"name":"acme"'),
        (ledger.keys.request("q"), admin.stub.ApplyAdapters, change_set(put("b"), request_id="q"), "a new request_id"),
        (ledger.keys.pool("p"), admin.stub.GetPool, pb.GetPoolRequest(name="p"), "--base-model"),
    ]
    for key, call, request, remedy in cases:
        await write(ledger, key, b"?")
        told = await refusal(call(request))
        assert (told.reason, told.metadata) == ("UNREADABLE_RECORD", {"key": key.decode()})
        assert remedy in told.message


@pytest.mark.parametrize("change", [put("acme/a", "file:///a/v2"), drop("acme/a")])
async def test_a_future_schema_is_never_overwritten(ledger, admin, change):
    """A record of a later release is refused by name and left as it is."""
    value = b'{"schema":2,"name":"acme/a","pool":"p","more":"than we know"}'
    revision = await write(ledger, ledger.keys.adapter("p", "acme/a"), value)
    told = await refusal(admin.stub.ApplyAdapters(change_set(change)))
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "FUTURE_SCHEMA")
    assert await ledger.revision() == revision


async def test_unknown_fields_survive(ledger, admin):
    """What a later release added to a record is still there after our change, at every depth."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    key = ledger.keys.adapter("p", "acme/a")
    record = await stored(ledger, key)
    record["note"] = "new"
    record["spec"]["color"] = "red"
    record["spec"]["source"]["mirror"] = "file:///m"
    await write(ledger, key, json.dumps(record).encode())
    same = await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    assert same.results[0].outcome == pb.AdapterResult.UNCHANGED
    await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")))
    now = await stored(ledger, key)
    assert (now["note"], now["spec"]["color"], now["spec"]["source"]["mirror"]) == ("new", "red", "file:///m")
    assert (now["generation"], now["spec"]["source"]["uri"]) == (2, "file:///a/v2")


async def test_an_unreadable_quota_is_closed(ledger, admin):
    """W5 quota-never: with a tenant record that cannot be read nothing is added; what needs no counting works."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    await write(ledger, ledger.keys.tenant("acme"), b"?")
    for change in (put("acme/b"), drop("acme/a")):
        told = await refusal(admin.stub.ApplyAdapters(change_set(change)))
        assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "UNREADABLE_RECORD")
        assert told.metadata == {"key": ledger.keys.tenant("acme").decode()}
    await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")))
    assert list((await admin.stub.ListTenants(pb.ListTenantsRequest())).unreadable) == ["acme"]


async def test_an_unreadable_pool(ledger, admin):
    """A pool's record that cannot be read is named; an update replaces it."""
    await write(ledger, ledger.keys.pool("p"), b"?")
    assert list((await admin.stub.ListPools(pb.ListPoolsRequest())).unreadable) == ["p"]
    told = await refusal(admin.stub.ApplyAdapters(change_set(put("acme/a"))))
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "UNREADABLE_RECORD")
    await admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=pb.Pool(name="p", base_models=["base"])))
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))


async def test_a_future_store_is_not_written(etcd, ledger):
    """A store whose own record is of a later release is not written to, and the service says so."""
    await write(ledger, ledger.keys.meta(), b'{"schema":2,"epoch":"e","created_at":"t"}')
    async with admin_inside(etcd.endpoints, etcd.prefix) as admin:
        from tests.support.waiting import eventually

        async def told() -> bool:
            one = await refusal(admin.stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["b"]))))
            return (one.code, one.reason) == (StatusCode.FAILED_PRECONDITION, "FUTURE_SCHEMA")

        await eventually(told)
        assert not (await admin.stub.ListPools(pb.ListPoolsRequest())).pools


async def test_many_large_values_hide_nothing(ledger, admin):
    """R14 nack: more than a message takes at once, written by hand."""
    await admin.stub.ApplyAdapters(change_set(put("a"), put("z")))
    keys = [ledger.keys.adapter("p", f"m{number:02}") for number in range(48)]
    await asyncio.gather(*(write(ledger, key, b"?" * 1_450_000) for key in keys))
    listed = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", page_size=1000))
    names, unreadable = [one.name for one in listed.adapters], list(listed.unreadable)
    while listed.next_page_token:
        request = pb.ListAdaptersRequest(pool="p", page_size=1000, page_token=listed.next_page_token)
        listed = await admin.stub.ListAdapters(request)
        names += [one.name for one in listed.adapters]
        unreadable += listed.unreadable
    assert (names, unreadable) == (["a", "z"], [f"m{number:02}" for number in range(48)])
    call = admin.stub.WatchAdapters(pb.WatchAdaptersRequest(pool="p"))
    response = await call.read()
    assert (response.snapshot, len(response.events)) == (True, 50)
    call.cancel()
