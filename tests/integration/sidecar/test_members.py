"""Which replicas a sidecar knows: followed only where somebody has to know them, and kept without etcd."""

from __future__ import annotations

import asyncio
from unittest import mock

import structlog

from registry.etcd3.client import Client
from registry.etcd3.ops import Delete, Put
from registry.model.keys import Keys
from registry.model.placement import Member
from registry.model.records import Placement, PoolSpec
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.members import Membership
from sidecar.desired.snapshot import SnapshotBase
from tests.integration.sidecar.feeding import feeding
from tests.support.etcd import compact
from tests.support.fleet import POOL, Hand, Sidecar
from tests.support.residency_world import LEASE_SECONDS, assigned, presence, replica_status
from tests.support.waiting import eventually

ONE = Placement(replicas=1)
NAMES = [f"n{number}" for number in range(10)]


def unreadable(hand: Hand, replica: str) -> Put:
    return Put(hand.keys.replica(POOL, replica), b"{")


async def reports(hand: Hand, *replicas: str, **labels: str) -> list[Put]:
    """Presences and statuses, as sidecars write them: under a lease, and at once."""
    lease, made = await hand.client.lease_grant(LEASE_SECONDS), list[Put]()
    for replica in replicas:
        lives, said = (
            presence(replica, POOL, labels=labels, capacity=8, by_reports=True),
            replica_status(replica, 1, POOL),
        )
        made += (
            Put(hand.keys.replica(POOL, replica), lives.to_bytes(), lease),
            Put(hand.keys.status(POOL, replica), said.to_bytes(), lease),
        )
    return made


def knows(mailbox: Mailbox, *replicas: str) -> bool:
    return mailbox.snapshot.members is not None and set(mailbox.snapshot.members) == set(replicas)


async def test_replicas_are_known_while_a_place_depends_on_them_and_survive_a_restart(hand, tmp_path):
    """R13 static-stable, R14 nack: a presence that cannot be read is told, and left out."""
    await hand.commit(*await reports(hand, "r1"), *await reports(hand, "r2", zone="x"), unreadable(hand, "r9"))
    await hand.put(hand.record("a", "v1"))
    with structlog.testing.capture_logs() as logs, mock.patch("sidecar.desired.members.BELIEVE_SECONDS", 0.3):
        async with feeding(hand, tmp_path / "state", Mailbox()) as mailbox:
            await eventually(lambda: mailbox.snapshot.desired is not None)
            assert mailbox.snapshot.members is None
            await hand.put(hand.record("b", "v1", placement=ONE))
            await eventually(lambda: knows(mailbox, "r1", "r2"))
            assert mailbox.snapshot.members is not None
            assert mailbox.snapshot.members["r2"] == Member("r2", {"zone": "x"}, 8)
            await hand.commit(*await reports(hand, "r3"))
            await eventually(lambda: knows(mailbox, "r1", "r2", "r3"))
            await hand.commit(Delete(hand.keys.replica(POOL, "r2")))
            await eventually(lambda: knows(mailbox, "r1", "r3"))
            await hand.commit(unreadable(hand, "r1"), *await reports(hand, "r4"))
            await hand.commit(*await reports(hand, "r1"))
            await eventually(lambda: knows(mailbox, "r1", "r3", "r4"))
    assert {line["replica"] for line in logs if line["event"] == "presence_refused"} == {"r1", "r9"}

    nowhere = Client(hand.client.options.__class__(("127.0.0.1:1",)))
    try:
        async with feeding(Hand(nowhere, hand.keys, hand.sources), tmp_path / "state", Mailbox()) as mailbox:
            assert knows(mailbox, "r1", "r3", "r4")
    finally:
        await nowhere.aclose()


async def test_nobody_is_followed_any_more_once_no_place_depends_on_them(hand, tmp_path):
    await hand.commit(*await reports(hand, "r1"))
    await hand.put(hand.record("b", "v1", placement=ONE))
    with mock.patch("sidecar.desired.members.BELIEVE_SECONDS", 0.0):
        async with feeding(hand, tmp_path / "state", Mailbox()) as mailbox:
            await eventually(lambda: knows(mailbox, "r1"))
            await hand.delete("b")
            await eventually(lambda: mailbox.snapshot.members is None)
            await hand.commit(*await reports(hand, "r2"))
            await hand.put(hand.record("b", "v1", placement=ONE))
            await eventually(lambda: knows(mailbox, "r1", "r2"))


async def test_a_store_whose_list_is_held_says_nothing_of_who_lives(own_etcd, tmp_path):
    """R15 brake: a share that grows because others are missing too would push out what runs."""
    client = own_etcd.patient()
    hand = Hand(client, Keys("/x"), tmp_path)
    (tmp_path / "sources").mkdir()
    many = [f"m{number}" for number in range(20)]
    try:
        await hand.pool()
        await hand.commit(*await reports(hand, "r1", "r2"))
        await hand.put(*(hand.record(name, "v1", placement=ONE) for name in many))
        with mock.patch("sidecar.desired.members.BELIEVE_SECONDS", 0.0):
            async with feeding(hand, tmp_path / "state", Mailbox()) as mailbox:
                await eventually(lambda: knows(mailbox, "r1", "r2"))
            await hand.delete(*many)
            await compact(client, await hand.commit(Delete(hand.keys.replica(POOL, "r2"))))
            with mock.patch.object(Membership, "call", autospec=True, side_effect=Membership.call) as call:
                async with feeding(hand, tmp_path / "state", Mailbox()) as mailbox:
                    await eventually(lambda: mailbox.snapshot.held and mailbox.snapshot.desired is not None)
                    await hand.commit(*await reports(hand, "r3"))
                    await eventually(lambda: any("r3" in one.args[1] for one in call.mock_calls))
                    await asyncio.sleep(0)
                    assert knows(mailbox, "r1", "r2")
                    revision = int(mailbox.snapshot.held.rpartition("--revision ")[2])
                    spec = PoolSpec(name=POOL, base_models=["base"], removals_confirmed_revision=revision)
                    again = hand.record(many[0], "v1", placement=ONE)
                    await hand.put(again)
                    await hand.commit(Put(hand.keys.pool(POOL), spec.to_bytes()))
                    await eventually(lambda: knows(mailbox, "r1", "r3"))
    finally:
        await client.aclose()


class Gate:
    """Holds up whoever writes a snapshot."""

    def __init__(self) -> None:
        self.is_reached, self.is_open = asyncio.Event(), asyncio.Event()
        self._rewrite = Journal.rewrite

    async def rewrite(self, journal: Journal, base: SnapshotBase, **how: bool) -> None:
        self.is_reached.set()
        await self.is_open.wait()
        await self._rewrite(journal, base, **how)


async def test_a_list_that_is_confirmed_comes_into_force_with_its_pool_and_its_replicas(own_etcd, tmp_path):
    """R1, R15: not a moment before, also while the snapshot is written; two stores at once would be a third."""
    client = own_etcd.patient()
    hand = Hand(client, Keys("/x"), tmp_path)
    (tmp_path / "sources").mkdir()
    many, gate = [f"m{number}" for number in range(20)], Gate()
    try:
        await hand.pool()
        await hand.commit(*await reports(hand, "r1", "r2"))
        await hand.put(*(hand.record(name, "v1", placement=ONE) for name in many))
        with mock.patch("sidecar.desired.members.BELIEVE_SECONDS", 0.0), structlog.testing.capture_logs() as logs:
            async with feeding(hand, tmp_path / "state", Mailbox()) as mailbox:
                await eventually(lambda: knows(mailbox, "r1", "r2"))
            await hand.delete(*many)
            await compact(client, await hand.commit(Delete(hand.keys.replica(POOL, "r2"))))
            async with feeding(hand, tmp_path / "state", Mailbox()) as mailbox:
                await eventually(lambda: mailbox.snapshot.held and mailbox.snapshot.desired is not None)
                with mock.patch.object(Journal, "rewrite", autospec=True, side_effect=gate.rewrite):
                    revision = int(mailbox.snapshot.held.rpartition("--revision ")[2])
                    spec = PoolSpec(name=POOL, base_models=["other"], removals_confirmed_revision=revision)
                    await hand.commit(Put(hand.keys.pool(POOL), spec.to_bytes()))
                    await gate.is_reached.wait()
                    for _ in range(100):  # whoever waits for no more than news has its turn
                        await asyncio.sleep(0)
                    assert knows(mailbox, "r1", "r2")
                    assert mailbox.snapshot.pool is not None
                    assert (mailbox.snapshot.pool.base_models, mailbox.snapshot.desired.count) == (["base"], len(many))
                    assert mailbox.snapshot.held
                    assert not [line for line in logs if line["event"] == "removals_confirmed"]
                    gate.is_open.set()
                    await eventually(lambda: not mailbox.snapshot.held)
                    assert (mailbox.snapshot.pool.base_models, mailbox.snapshot.desired.count) == (["other"], 0)
    finally:
        await client.aclose()


async def test_without_etcd_a_restart_comes_back_to_its_own_share(hand, engine, tmp_path, own_etcd):
    """R13 static-stable, R12: neither a share of others is taken nor the own one dropped."""
    client = own_etcd.patient()
    hand = Hand(client, Keys("/x"), hand.sources)
    sidecar = Sidecar(tmp_path, own_etcd.endpoints, "/x", engine.url, extra=["--engine-max-cpu-loras", "8"])
    records = [hand.record(name, "v1", placement=ONE) for name in NAMES]
    members = [Member(name, {}, 8) for name in ("r1", "r2", "r3")]
    share = {one.name for one in records if assigned(POOL, one.name, one.spec, members, {}).serving == ("r1",)}
    assert 0 < len(share) < len(NAMES)

    async def serves_its_share() -> bool:
        status = await sidecar.status()
        assert set(await engine.listing()) == share
        return bool(status.get("ready")) and status["served"]["count"] == len(share)

    try:
        await hand.pool()
        await hand.commit(*await reports(hand, "r2", "r3"))
        await hand.put(*records)
        sidecar.program.start()
        await eventually(serves_its_share, timeout_seconds=60)
        await sidecar.kept()
        own_etcd.stop()
        sidecar.program.kill()
        engine.program.kill()
        await engine.start()
        sidecar.program.start()
        await eventually(serves_its_share, timeout_seconds=60)
        assert (await sidecar.status())["stale"]
    finally:
        sidecar.program.kill()
        await client.aclose()
