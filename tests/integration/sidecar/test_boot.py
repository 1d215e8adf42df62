"""A sidecar that starts again: what it finds, and what it does without."""

from __future__ import annotations

import pytest

from registry.model.keys import Keys
from tests.support.fleet import Hand, Sidecar, serves, settled
from tests.support.waiting import eventually


async def test_a_killed_sidecar_comes_back_without_touching_what_runs(hand, engine, sidecar):
    """R1 monotonic, R12 crash-only: changes made while it was dead are caught up with."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"), hand.record("b", "v2"))
    sidecar.program.start()
    await serves(engine, sidecar, "a", "b")
    sidecar.program.kill()
    await hand.put(hand.record("c", "v3"))
    revision = await hand.delete("a")
    sidecar.program.start()
    await serves(engine, sidecar, "b", "c")
    await settled(sidecar, revision)
    plans = [line["revision"] for line in sidecar.program.logged() if line["event"] == "plan_made"]
    assert plans == sorted(plans)

    def are_logged() -> bool:  # the engine has let go of it before the call comes back
        calls = [line for line in sidecar.program.logged() if line["event"] == "engine_call"]
        assert [line["name"] for line in calls if line["call"] == "unload"] == ["a"]
        return True

    await eventually(are_logged)


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


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x00" * 4096])
async def test_no_local_file_can_prevent_the_boot(hand, engine, sidecar, damage):
    """R12 crash-only."""
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "a")
    await sidecar.kept()
    sidecar.program.kill()
    for path in (sidecar.store / "state" / "r1").iterdir():
        if path.is_file() and path.name != "lock":
            path.write_bytes(damage)
    await hand.put(hand.record("b", "v2"))
    sidecar.program.start()
    await serves(engine, sidecar, "a", "b")
