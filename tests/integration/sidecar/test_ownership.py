"""Who speaks for a replica: its presence and status in etcd, and one process of several."""

from __future__ import annotations

import json
import signal
from importlib.metadata import version

from registry.etcd3.ops import Delete, Range
from registry.model.status import Presence
from sidecar.main import EXIT_REPLICA_TAKEN
from tests.support.fleet import POOL, Sidecar, SimulatedEngine, serves, settled
from tests.support.made_up_replicas import take_over
from tests.support.waiting import eventually


async def test_presence_and_status_stand_in_etcd_under_a_lease(hand, engine, sidecar):
    """R9, R10: what /status says is what etcd holds; both keys go with the sidecar."""
    await hand.pool()
    revision = await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await settled(sidecar, revision)
    key = hand.keys.status(POOL, "r1")

    async def published() -> dict | None:
        found = (await hand.client.range(Range(key))).kvs
        assert found
        value = json.loads(found[0].value)
        assert found[0].lease
        assert value["observed_revision"] >= revision
        assert value["ready"]
        return value

    value = await eventually(published)
    assert value["served"]["count"] == 1
    presence = (await hand.client.range(Range(hand.keys.replica(POOL, "r1")))).kvs[0]
    assert json.loads(presence.value)["pool"] == POOL
    assert json.loads(presence.value)["version"] == version("loraplane")
    assert sidecar.program.stop() == 0

    async def is_gone() -> bool:
        return not (await hand.client.range(Range(key))).kvs

    await eventually(is_gone)


async def test_a_second_sidecar_with_the_same_replica_id_stays_passive(hand, engine, sidecar, etcd, tmp_path):
    """R10 one-owner: the loser says so and calls no engine."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "a")
    other_engine = SimulatedEngine(tmp_path / "other")
    twin = Sidecar(tmp_path / "other", etcd.endpoints, etcd.prefix, other_engine.url, sources=hand.sources)
    try:
        await other_engine.start()
        twin.program.start()

        async def says_so() -> bool:
            code, body = await twin.get("/readyz")
            return code == 503 and "held by another sidecar" in body["note"]

        await eventually(says_so)
        await settled(sidecar, await hand.put(hand.record("b", "v2")))
        assert await other_engine.listing() == {}
        assert not [line for line in twin.program.logged() if line["event"] == "engine_call"]
        sidecar.program.kill()
        await eventually(twin.is_ready, timeout_seconds=60)
        assert set(await other_engine.listing()) == {"a", "b"}
    finally:
        twin.program.kill()
        other_engine.program.kill()


async def test_a_sidecar_that_comes_back_without_its_store_is_known_again_at_once(
    hand, engine, sidecar, etcd, tmp_path
):
    """R10, R13: as a container whose disk goes with it; the one before was killed, and its lease stands."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "a")
    sidecar.program.kill()
    again = Sidecar(tmp_path / "other", etcd.endpoints, etcd.prefix, engine.url, sources=hand.sources)
    try:
        again.program.start()
        await eventually(again.is_ready, timeout_seconds=60)
        assert not [line for line in again.program.logged() if line["event"] == "replica_id_taken"]
    finally:
        again.program.kill()


async def test_who_loses_its_id_twice_ends(hand, engine, sidecar):
    """R10 one-owner, fail stop: the first time it stays and comes back; then somebody has to give each its own id."""
    key = hand.keys.replica(POOL, "r1")
    twin = Presence(pool=POOL, replica="r1", incarnation="twin", owner="twin", started_at="2026-01-01T00:00:00.000Z")
    await hand.pool()
    sidecar.program.start()
    await settled(sidecar, await hand.put(hand.record("a", "v1")))

    async def is_ours() -> bool:
        found = (await hand.client.range(Range(key))).kvs
        return bool(found) and Presence.parse(found[0].value).owner != "twin"

    async def is_lost() -> bool:
        code, body = await sidecar.get("/readyz")
        return code == 503 and "held by another sidecar (twin, lease " in body["note"]

    await eventually(is_ours)
    await take_over(hand.client, key, twin)
    await eventually(is_lost)
    await hand.commit(Delete(key))
    await eventually(is_ours)
    await settled(sidecar, 0)
    await take_over(hand.client, key, twin)
    assert sidecar.program.wait() == EXIT_REPLICA_TAKEN == 3, "as docs/operations.md says"
    assert "was lost to another sidecar twice; give each its own" in sidecar.program.log.read_text()


async def test_a_frozen_sidecar_whose_lease_expired_publishes_everything_again(hand, engine, sidecar):
    """Fault 15: SIGSTOP past the lease's TTL, then SIGCONT."""
    await hand.pool()
    revision = await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await settled(sidecar, revision)
    keys = (hand.keys.status(POOL, "r1"), hand.keys.replica(POOL, "r1"))

    async def are_there() -> bool:
        return all([(await hand.client.range(Range(key))).kvs for key in keys])

    async def are_gone() -> bool:
        return not any([(await hand.client.range(Range(key))).kvs for key in keys])

    await eventually(are_there)
    sidecar.program.signal(signal.SIGSTOP)
    await eventually(are_gone, timeout_seconds=60)
    sidecar.program.signal(signal.SIGCONT)
    await eventually(are_there, timeout_seconds=60)
