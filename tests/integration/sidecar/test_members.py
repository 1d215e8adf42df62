"""A share of what is placed by number, which a replica keeps through a restart without etcd."""

from __future__ import annotations

from registry.etcd3.ops import Put
from registry.model.keys import Keys
from registry.model.placement import Member
from registry.model.records import Placement
from tests.support.fleet import POOL, Hand, Sidecar
from tests.support.residency_world import LEASE_SECONDS, assigned, presence, replica_status
from tests.support.waiting import eventually

ONE = Placement(replicas=1)
NAMES = [f"n{number}" for number in range(10)]


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
