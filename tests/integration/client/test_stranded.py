"""Connections that are dead without a word: whoever only listens on one notices, and calls find another."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import grpc
import pytest

from loraplane import AsyncRegistry
from registry.admin import server
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.admin import Admin, admin_with_pool, change_set, put
from tests.support.made_up_replicas import POOL
from tests.support.proxy import Proxy


async def test_a_reader_whose_connection_is_dead_ends_equal_to_etcd(admin):
    """R24 always-placed: the host of an admin service that loses its power closes nothing, and others are there."""
    async with (
        Proxy(port_of(admin)) as proxy,
        AsyncRegistry(proxy.endpoint) as registry,
        aclosing(registry.watch(POOL)) as listings,
        asyncio.timeout(60),
    ):
        assert not (await anext(listings)).adapters
        proxy.strand()
        await admin.stub.ApplyAdapters(change_set(put("acme/a")))
        assert [one.name for one in (await anext(listings)).adapters] == ["acme/a"]


async def test_a_call_does_not_wait_for_a_dead_connection_until_its_time_is_up(admin):
    """Nor does another client of this process keep that connection, which both may share."""
    async with (
        Proxy(port_of(admin)) as proxy,
        AsyncRegistry(proxy.endpoint) as other,
        AsyncRegistry(proxy.endpoint) as registry,
    ):
        await asyncio.gather(other.pools(), registry.pools())
        proxy.strand()
        assert await registry.pools()


async def test_who_only_listens_may_ask_whether_its_connection_lives(etcd, monkeypatch):
    """Twenty times as often as a client does, of a service that allows it twenty times as often."""
    allowed = {"grpc.http2.min_ping_interval_without_data_ms"}
    options = [(name, value // 20 if name in allowed else value) for name, value in server._OPTIONS]
    monkeypatch.setattr(server, "_OPTIONS", options)
    pings = [("grpc.keepalive_time_ms", 500), ("grpc.http2.max_pings_without_data", 0)]
    async with (
        admin_with_pool(etcd.endpoints, etcd.prefix) as admin,
        grpc.aio.insecure_channel(admin.address, options=pings) as channel,
    ):
        call = registry_pb2_grpc.AdapterRegistryStub(channel).WatchAdapters(pb.WatchAdaptersRequest(pool=POOL))
        assert await call.read() is not grpc.aio.EOF
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call.read(), 4)


def port_of(admin: Admin) -> int:
    return int(admin.address.rpartition(":")[2])
