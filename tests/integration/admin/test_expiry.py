"""What has a ttl ends, on a real etcd over real gRPC, by one admin service of two."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from registry.v1 import registry_pb2 as pb
from tests.integration.admin.test_rollouts import adapters, audits
from tests.support.admin import admin_inside, change_set, put, refusal, wait_ready
from tests.support.waiting import eventually

TTL = 10


async def test_two_admin_services_end_an_adapter_once_and_quotas_count_what_lives(etcd, ledger, admin):
    """R25 ends-once, W5, W7: and history has it, so that it can come back."""
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(admin_inside(etcd.endpoints, etcd.prefix))
        await wait_ready(other)
        loop = asyncio.get_running_loop()
        await admin.stub.ApplyAdapters(change_set(put("acme/stays", "file:///a/v1")))
        names = [f"acme/n{number}" for number in range(5)]
        await other.stub.ApplyAdapters(change_set(*(put(name, "file:///a/v1", ttl_seconds=TTL) for name in names)))
        begun = loop.time()
        found = await adapters(admin)
        assert all(found[name].expires_at > found[name].updated_at for name in names)
        assert not found["acme/stays"].expires_at
        changed = await admin.stub.ApplyAdapters(change_set(put(names[0], "file:///a/v1", ttl_seconds=3600)))
        assert changed.results[0].adapter.generation == 1

        async def have_ended() -> bool:
            left = {*await adapters(other)}
            assert left >= {*names} or loop.time() - begun >= TTL
            return left == {"acme/stays", names[0]}

        await eventually(have_ended)
        (tenant,) = (await admin.stub.ListTenants(pb.ListTenantsRequest())).tenants
        assert tenant.adapters == 2
        told = [one for one in await audits(ledger) if one["method"] == "ExpireAdapter"]
        assert sorted(one["changes"][0]["name"] for one in told) == names[1:]
        assert {(one["principal"], one["role"], one["reason"]) for one in told} == {
            ("loraplane-admin", "conductor", "ttl")
        }
        events = (await admin.stub.ListChanges(pb.ListChangesRequest(pool="p"))).changes
        assert {one.note for one in events if one.action == "deleted"} == {f"ttl: {TTL} s without a change"}
        back = await admin.stub.RollbackAdapter(pb.RollbackAdapterRequest(pool="p", name=names[1]))
        assert (back.results[0].adapter.generation, back.results[0].adapter.spec.ttl_seconds) == (2, TTL)
        wrong = await refusal(other.stub.ApplyAdapters(change_set(put("acme/x", "file:///a/v1", ttl_seconds=0))))
        assert (wrong.reason, wrong.field) == ("INVALID_FIELD", "changes[0].upsert.spec.ttl_seconds")
        await ledger.check()
