"""Leases and sessions against a real etcd."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, LeaseExpired
from registry.etcd3.ops import Range
from registry.etcd3.session import hold_lease
from tests.contract.etcd3.mirror import put
from tests.support.waiting import eventually


class Body:
    """What runs under the lease: publishes a key and stays."""

    def __init__(self, client: Client, key: bytes) -> None:
        self._client = client
        self._key = key
        self.leases: list[int] = []
        self.cancelled = 0
        self.errors: list[EtcdError] = []
        self.may_end = asyncio.Event()

    async def run(self, lease: int) -> None:
        self.leases.append(lease)
        try:
            await self._client.txn(put((self._key, b"x"), lease=lease))
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@asynccontextmanager
async def session(client: Client, body: Body, rng, ttl_seconds: int = 2):
    holding = hold_lease(client, ttl_seconds=ttl_seconds, body=body.run, rng=rng, on_error=body.errors.append)
    task = asyncio.create_task(holding)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def count(client: Client, key: bytes) -> int:
    return (await client.range(Range(key, count_only=True))).count


async def test_a_lease_takes_its_keys_along_and_that_it_is_gone_is_told_by_every_call(etcd, etcd_client):
    lease = await etcd_client.lease_grant(30)
    await etcd_client.txn(put((etcd.key("a"), b"x"), lease=lease))
    assert (await etcd_client.range(Range(etcd.key("a")))).kvs[0].lease == lease
    await etcd_client.lease_revoke(lease)
    assert await count(etcd_client, etcd.key("a")) == 0
    with pytest.raises(LeaseExpired):
        await etcd_client.lease_keepalive(lease)
    with pytest.raises(LeaseExpired):
        await etcd_client.lease_revoke(lease)
    with pytest.raises(LeaseExpired):
        await etcd_client.txn(put((etcd.key("a"), b"x"), lease=lease))


async def test_a_lease_lives_while_it_is_renewed_and_expires_when_nobody_renews_it(etcd, etcd_client):
    renewed, other = etcd.key("a"), etcd.key("b")

    async def outlives() -> bool:
        """Another of twice its time; False too if the machine stood still for as long as it lasts."""
        try:
            lease, twice = await etcd_client.lease_grant(2), await etcd_client.lease_grant(4)
            await etcd_client.txn(put((renewed, b"x"), lease=lease))
            await etcd_client.txn(put((other, b"x"), lease=twice))
            while await count(etcd_client, other):
                assert await etcd_client.lease_keepalive(lease) == 2
                await asyncio.sleep(0.2)
        except LeaseExpired:
            return False
        return await count(etcd_client, renewed) == 1

    await eventually(outlives)


async def test_a_session_is_renewed_beyond_its_ttl(etcd, etcd_client, rng, monkeypatch):
    renewed = []
    keepalive = etcd_client.lease_keepalive

    async def noting(lease):
        renewed.append(await keepalive(lease))

    monkeypatch.setattr(etcd_client, "lease_keepalive", noting)

    async def is_one_lease() -> bool:
        """False too if the machine stood still for as long as a lease lasts."""
        renewed.clear()
        body = Body(etcd_client, etcd.key("a"))
        async with session(etcd_client, body, rng):
            await eventually(lambda: len(renewed) > 5 or len(body.leases) > 1)
            return len(body.leases) == await count(etcd_client, etcd.key("a")) == 1

    await eventually(is_one_lease)
    assert await count(etcd_client, etcd.key("a")) == 0, "a session that is cancelled revokes"


async def test_only_the_server_declares_a_lease_dead(etcd, etcd_client, proxy, rng):
    """Cut off for longer than the TTL: the body runs on until the server itself says that the lease is gone."""
    client = Client(etcd.options(endpoints=(proxy.endpoint,), call_timeout_seconds=1))
    body = Body(etcd_client, etcd.key("a"))
    async with session(client, body, rng, ttl_seconds=8):
        await eventually(lambda: count(etcd_client, etcd.key("a")))
        proxy.refuse()
        await eventually(lambda: _gone(etcd_client, etcd.key("a")))
        await eventually(lambda: len(body.errors) > 2)
        assert (len(body.leases), body.cancelled) == (1, 0)
        proxy.pass_on()
        await eventually(lambda: count(etcd_client, etcd.key("a")))
        assert (len(body.leases), body.cancelled) == (2, 1)
    assert [isinstance(error, LeaseExpired) for error in body.errors[:3]] == [False] * 3
    await client.aclose()


async def _gone(client: Client, key: bytes) -> bool:
    return await count(client, key) == 0
