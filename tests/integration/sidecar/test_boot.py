"""A sidecar that starts again: what it finds, and what it does without."""

from __future__ import annotations

from registry.etcd3.ops import Put
from registry.model.keys import Keys
from registry.model.records import PoolSpec
from tests.support.fleet import BASE, Hand, Sidecar, SimulatedEngine, serves, settled
from tests.support.waiting import eventually


async def test_without_etcd_a_restarted_sidecar_and_engine_come_back_from_the_snapshot(
    hand, engine, tmp_path, own_etcd
):
    """R13 static-stable, R12: etcd is down, sidecar and engine restart, adapters are back, the status says stale."""
    cluster = own_etcd
    client = cluster.patient()
    hand = Hand(client, Keys("/x"), hand.sources)
    sidecar = Sidecar(tmp_path, cluster.endpoints, "/x", engine.url)
    try:
        await hand.pool()
        await hand.put(hand.record("a", "v1"), hand.record("b", "v2"))
        sidecar.program.start()
        await serves(engine, sidecar, "a", "b")
        await hand.delete("b")
        await serves(engine, sidecar, "a")
        cluster.stop()

        async def is_stale() -> bool:
            return (await sidecar.status())["stale"]

        await eventually(is_stale)
        assert set(await engine.listing()) == {"a"}
        await sidecar.kept()
        sidecar.program.kill()
        engine.program.kill()
        await engine.start()
        sidecar.program.start()
        await serves(engine, sidecar, "a")
        assert (await sidecar.status())["stale"]
        await eventually(sidecar.is_ready)
        cluster.start()
        await cluster.ready()
        revision = await hand.put(hand.record("c", "v3"))
        await serves(engine, sidecar, "a", "c")
        assert not (await settled(sidecar, revision))["stale"]
        assert all(line.startswith("{") for line in sidecar.program.log.read_text().splitlines())
    finally:
        sidecar.program.kill()
        await client.aclose()


async def ended_with_one(hand: Hand, engine: SimulatedEngine, sidecar: Sidecar) -> None:
    """A sidecar that served adapter a, and was killed."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "a")
    await sidecar.kept()
    sidecar.program.kill()


async def test_no_local_file_can_prevent_the_boot(hand, engine, sidecar):
    """R12 crash-only, R1 monotonic: neither damage nor a change that was made meanwhile."""
    await ended_with_one(hand, engine, sidecar)
    for path in (sidecar.store / "state" / "r1").iterdir():
        if path.is_file() and path.name != "lock":
            path.write_bytes(b"garbage")
    await hand.put(hand.record("b", "v2"))
    sidecar.program.start()
    await serves(engine, sidecar, "a", "b")


async def test_a_pool_that_there_is_not_takes_nothing_away(hand, engine, sidecar):
    """R13, R15: a slip in --pool at a restart, say; once there is such a pool, what it has is served."""
    await ended_with_one(hand, engine, sidecar)
    sidecar.program.arguments += ["--pool", "slip"]
    sidecar.program.start()

    async def says_so() -> bool:
        return "loraplane pool create" in (await sidecar.status())["note"]

    await eventually(says_so)
    assert not [line for line in sidecar.program.logged() if "Unload a" in line.get("calls", [])]
    assert set(await engine.listing()) == {"a"}
    spec = PoolSpec(name="slip", base_models=[BASE])
    await hand.commit(Put(hand.keys.pool("slip"), spec.to_bytes()))
    await eventually(sidecar.is_ready)
    assert await engine.listing() == {}
