"""Records that somebody wrote by hand, or another release."""

from __future__ import annotations

import asyncio
import json

from grpc import StatusCode

from registry.etcd3.ops import Put, Range, Txn
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_inside, change_set, drop, put, refusal
from tests.support.waiting import eventually


async def write(ledger, key: bytes, value: bytes) -> int:
    return (await ledger.client.txn(Txn((), (Put(key, value),)))).revision


async def test_what_cannot_be_read_is_named_and_replaced(ledger, admin):
    """R14 nack, W5 quota-never: it fails no listing; nothing is added to a tenant that cannot be read."""
    key, tenant = ledger.keys.adapter("p", "acme/a"), ledger.keys.tenant("acme")
    await admin.stub.ApplyAdapters(change_set(put("acme/a"), put("acme/b")))
    await write(ledger, key, b"\xff{")
    listed = await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p"))
    assert ([one.name for one in listed.adapters], list(listed.unreadable)) == (["acme/b"], ["acme/a"])
    told = await refusal(admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name="acme/a")))
    assert (told.reason, told.metadata) == ("UNREADABLE_RECORD", {"key": key.decode()})
    reply = await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    assert (reply.results[0].outcome, reply.results[0].adapter.generation) == (pb.AdapterResult.UPDATED, 2)
    await write(ledger, tenant, b"?")
    told = await refusal(admin.stub.ApplyAdapters(change_set(put("acme/c"))))
    assert (told.reason, told.metadata) == ("UNREADABLE_RECORD", {"key": tenant.decode()})


async def test_what_a_later_release_wrote_is_kept(etcd, ledger, admin):
    """Unknown fields at every depth; a record, and a store, of a future schema are refused by name."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    key = ledger.keys.adapter("p", "acme/a")

    async def stored() -> dict:
        return json.loads((await ledger.client.range(Range(key))).kvs[0].value)

    record = await stored()
    record["note"], record["spec"]["source"]["mirror"] = "new", "file:///m"
    await write(ledger, key, json.dumps(record).encode())
    await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")))
    now = await stored()
    assert (now["note"], now["spec"]["source"]["mirror"], now["generation"]) == ("new", "file:///m", 2)
    revision = await write(ledger, key, b'{"schema":2,"name":"acme/a","pool":"p","more":"than we know"}')
    for change in (put("acme/a", "file:///a/v3"), drop("acme/a")):
        told = await refusal(admin.stub.ApplyAdapters(change_set(change)))
        assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "FUTURE_SCHEMA")
    assert await ledger.revision() == revision
    await write(ledger, ledger.keys.meta(), b'{"schema":2,"epoch":"e","created_at":"t"}')
    async with admin_inside(etcd.endpoints, etcd.prefix) as other:

        async def is_told() -> bool:
            pool = pb.CreatePoolRequest(pool=pb.Pool(name="q", base_models=["b"]))
            return (await refusal(other.stub.CreatePool(pool))).reason == "FUTURE_SCHEMA"

        await eventually(is_told)


async def test_many_large_values_hide_nothing(ledger, admin):
    """R14 nack: more than a message takes at once, written by hand."""
    await admin.stub.ApplyAdapters(change_set(put("a"), put("z")))
    large = [f"m{number:02}" for number in range(48)]
    await asyncio.gather(*(write(ledger, ledger.keys.adapter("p", name), b"?" * 1_450_000) for name in large))
    request, names, unreadable = pb.ListAdaptersRequest(pool="p", page_size=1000), list[str](), list[str]()
    while not names or request.page_token:
        listed = await admin.stub.ListAdapters(request)
        names += [one.name for one in listed.adapters]
        unreadable += listed.unreadable
        request.page_token = listed.next_page_token
    assert (names, unreadable) == (["a", "z"], large)
    call = admin.stub.WatchAdapters(pb.WatchAdaptersRequest(pool="p"))
    response = await call.read()
    assert (response.snapshot, len(response.events)) == (True, 50)
    call.cancel()
