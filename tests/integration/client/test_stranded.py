"""Connections that are dead without a word: whoever only listens on one notices, and calls find another."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from loraplane import AsyncRegistry
from tests.support.admin import Admin, change_set, put
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


def port_of(admin: Admin) -> int:
    return int(admin.address.rpartition(":")[2])
