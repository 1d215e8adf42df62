"""Presence and status in real etcd, written by a publisher in this process, while others write there too."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Range
from registry.keys import Keys
from registry.model.status import Presence, ReplicaStatus
from sidecar.chance import Chance
from sidecar.lazy.wanted import LazySituation
from sidecar.publisher import Publisher
from sidecar.status import Replica, Situation, derive_status
from tests.support.etcd import commit
from tests.support.fleet import POOL
from tests.support.waiting import eventually

REPLICA = Replica("r1", POOL, "vllm", "http://engine")


def presence(owner: str) -> Presence:
    return Presence(pool=POOL, replica="r1", incarnation=owner, owner=owner, started_at="2026-01-01T00:00:00Z")


def status(revision: int) -> ReplicaStatus:
    situation = Situation(
        revision=revision,
        observed=None,
        plan=None,
        ready=False,
        stale=False,
        lazy=LazySituation(),
        note="",
        held="",
        last_request_id="",
    )
    return derive_status(REPLICA, situation, Chance().moment())


class Published:
    """What stands in etcd."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self.client = client
        self.presence = keys.replica(POOL, "r1")
        self.status = keys.status(POOL, "r1")

    async def revision(self) -> int:
        """The revision that the status speaks of; 0: there is none."""
        found = (await self.client.range(Range(self.status))).kvs
        return ReplicaStatus.parse(found[0].value).observed_revision if found else 0

    async def capacity(self) -> int | None:
        found = (await self.client.range(Range(self.presence))).kvs
        return Presence.parse(found[0].value).capacity if found else None

    async def owner(self) -> str:
        found = (await self.client.range(Range(self.presence))).kvs
        return Presence.parse(found[0].value).owner if found else ""


@pytest.fixture
def published(etcd, etcd_client) -> Published:
    return Published(etcd_client, Keys(etcd.prefix))


@pytest.fixture
async def publisher(etcd, etcd_client, monkeypatch):
    """Runs, and confirms nothing merely because time has passed: that would hide a lease that nobody missed."""
    monkeypatch.setattr("sidecar.publisher.CONFIRM_SECONDS", 3600.0)
    publisher = Publisher(etcd_client, Keys(etcd.prefix), presence("ours"), Chance(), on_change=lambda: None)
    running = asyncio.create_task(publisher.run())
    publisher.offer(lambda: status(1))
    yield publisher
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_status_is_never_written_once_the_id_is_another_s(publisher, published):
    """R10 one-owner: whoever lost the id writes nothing any more, although its own lease still lives."""
    await eventually(lambda: says(published, 1))
    await commit(published.client, Put(published.presence, presence("twin").to_bytes()))
    publisher.offer(lambda: status(2))
    await eventually(lambda: bool(publisher.refusal))
    assert await published.revision() == 1
    assert await published.owner() == "twin"


async def test_a_lost_lease_is_had_anew_and_everything_is_written_again(publisher, published):
    """R9 status-truth, R10: also while nothing else changes."""
    await eventually(lambda: says(published, 1))
    (kv,) = (await published.client.range(Range(published.status))).kvs
    await published.client.lease_revoke(kv.lease)

    async def is_anew() -> bool:
        found = (await published.client.range(Range(published.status))).kvs
        return bool(found) and found[0].create_revision > kv.create_revision and found[0].lease != kv.lease

    await eventually(is_anew)
    assert await published.revision() == 1
    assert await published.owner() == "ours"


async def says(published: Published, revision: int) -> bool:
    return await published.revision() == revision


async def test_presence_says_how_many_adapters_the_engine_can_hold(publisher, published):
    """It is written anew, under the same lease, when that becomes known or changes."""
    await eventually(lambda: says(published, 1))
    assert await published.capacity() is None

    async def holds(capacity: int) -> bool:
        return await published.capacity() == capacity

    publisher.hold(16)
    await eventually(lambda: holds(16))
    publisher.hold(16)
    publisher.hold(8)
    await eventually(lambda: holds(8))
    assert await published.owner() == "ours"
    publisher.offer(lambda: status(2))
    await eventually(lambda: says(published, 2))


async def test_a_restart_says_what_the_process_before_said_until_it_has_looked_itself(etcd, etcd_client, published):
    """R3 converge: others place adapters by it, and none of them is to move for a restart."""
    before = presence("ours").model_copy(update={"capacity": 16, "incarnation": "before"})
    await commit(etcd_client, Put(published.presence, before.to_bytes()))
    publisher = Publisher(etcd_client, Keys(etcd.prefix), presence("ours"), Chance(), on_change=lambda: None)
    running = asyncio.create_task(publisher.run())
    publisher.offer(lambda: status(1))
    try:
        await eventually(lambda: says(published, 1))
        (kv,) = (await etcd_client.range(Range(published.presence))).kvs
        assert (Presence.parse(kv.value).incarnation, Presence.parse(kv.value).capacity) == ("ours", 16)
        publisher.hold(None)

        async def holds_none() -> bool:
            return await published.capacity() is None

        await eventually(holds_none)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
