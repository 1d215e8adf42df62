"""Presence and status in real etcd, written by a publisher in this process, while others write there too."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import structlog.testing

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, Put, Range
from registry.model.keys import Keys
from registry.model.status import LeftReplica, Presence, ReplicaStatus
from registry.runtime.clock import Clock
from sidecar.plan.types import LazySituation, StatusInputs
from sidecar.report.status import ReplicaIdentity, derive_status
from sidecar.report.writer import StatusWriter
from tests.support.etcd import commit
from tests.support.fleet import POOL
from tests.support.made_up_replicas import take_over
from tests.support.waiting import eventually

REPLICA = ReplicaIdentity("r1", POOL, "vllm", "http://engine")


def presence(owner: str) -> Presence:
    return Presence(pool=POOL, replica="r1", incarnation=owner, owner=owner, started_at="2026-01-01T00:00:00Z")


def status(revision: int) -> ReplicaStatus:
    situation = StatusInputs(
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
    return derive_status(REPLICA, situation, Clock().moment())


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

    async def owner(self) -> str:
        found = (await self.client.range(Range(self.presence))).kvs
        return Presence.parse(found[0].value).owner if found else ""


@pytest.fixture
def published(etcd, etcd_client) -> Published:
    return Published(etcd_client, Keys(etcd.prefix))


@pytest.fixture
async def status_writer(etcd, etcd_client, monkeypatch):
    """Runs, and confirms nothing merely because time has passed: that would hide a lease that nobody missed.

    It looks whether presence is still its own more often than in production, which is only waited for here. At its end
    it waits for etcd, however late the machine lets that answer.
    """
    monkeypatch.setattr("sidecar.report.writer.LOOK_SECONDS", 0.5)
    monkeypatch.setattr("sidecar.report.writer._LEFT_SECONDS", 60.0)
    status_writer = StatusWriter(etcd_client, Keys(etcd.prefix), presence("ours"), Clock(), on_change=lambda: None)
    running = asyncio.create_task(status_writer.run())
    status_writer.announcement.offer(lambda: status(1))
    yield status_writer
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_status_is_never_written_once_the_id_is_another_s(status_writer, published):
    """R10 one-owner: whoever lost the id writes nothing any more, although its own lease still lives."""
    await eventually(lambda: says(published, 1))
    await take_over(published.client, published.presence, presence("twin"))
    status_writer.announcement.offer(lambda: status(2))
    await eventually(lambda: bool(status_writer.claim.refusal))
    assert await published.revision() == 1
    assert await published.owner() == "twin"


async def test_who_ends_in_order_says_so_unless_it_lost_its_id(status_writer, published, etcd, monkeypatch):
    """R10 one-owner, R20 drain: nobody is to wait for it; the mark outlives it, and goes by itself."""
    monkeypatch.setattr("sidecar.report.writer.LOOK_SECONDS", 3600.0)  # it runs on here, and would come back
    left = Keys(etcd.prefix).left(POOL, "r1")
    await eventually(lambda: says(published, 1))
    status_writer.announcement.offer(lambda: status(2))  # the look before this one may be over in a moment
    await eventually(lambda: says(published, 2))
    await status_writer.say_left()
    assert not await published.owner()
    (kv,) = (await published.client.range(Range(left))).kvs
    assert (LeftReplica.parse(kv.value).incarnation, kv.lease > 0) == ("ours", True)
    await commit(published.client, Delete(left))
    await take_over(published.client, published.presence, presence("twin"))
    await status_writer.say_left()
    assert not (await published.client.range(Range(left))).kvs
    assert await published.owner() == "twin"


async def lease_of(published: Published, key: bytes) -> int:
    found = (await published.client.range(Range(key))).kvs
    return found[0].lease if found else 0


@pytest.mark.parametrize("is_leased", [True, False])
async def test_who_overwrites_a_presence_does_not_have_the_id(status_writer, published, is_leased):
    """R10, X2: a second process makes an absent key; nobody ends or silences a sidecar by writing into its own."""
    await eventually(lambda: says(published, 1))
    ours, theirs = await lease_of(published, published.presence), await published.client.lease_grant(3600)
    for _ in range(3):
        written = presence("somebody").to_bytes()
        with structlog.testing.capture_logs() as logged:
            await commit(published.client, Put(published.presence, written, theirs if is_leased else 0))

            async def is_defended() -> bool:
                return await lease_of(published, published.presence) == ours

            await eventually(is_defended)
        (told,) = [line for line in logged if line["event"] == "presence_overwritten"]
        assert (told["lease"], told["holder"]) == (f"{theirs if is_leased else 0:x}", "somebody")
        assert await published.owner() == "ours"
        assert not status_writer.claim.refusal
    status_writer.announcement.offer(lambda: status(2))
    await eventually(lambda: says(published, 2))


async def test_a_lost_lease_is_had_anew_and_everything_is_written_again(status_writer, published):
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
