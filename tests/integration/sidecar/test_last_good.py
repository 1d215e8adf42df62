"""A refused generation, and who restarts after it: the last good one comes back, and the status says so."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from registry.etcd3.ops import Put
from registry.model.keys import Keys
from registry.model.records import RetiredRecord
from tests.support.adapters import digest_of, spoil
from tests.support.fleet import POOL, Hand, Sidecar, SimulatedEngine, serves
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Refused:
    """A replica that serves generation 1 of ``a``, and whose sidecar refused generation 2."""

    hand: Hand
    engine: SimulatedEngine
    sidecar: Sidecar

    async def is_told(self, sidecar: Sidecar | None = None, reason: str = "not_finite") -> dict[str, Any]:
        """Waits until the replica is ready, and says that it refused generation 2 and answers with generation 1."""

        async def is_so() -> dict[str, Any]:
            status = await (sidecar or self.sidecar).status()
            assert [(one["name"], one["generation"], one["reason"]) for one in status["failed"]] == [("a", 2, reason)]
            assert [(one["name"], one["generation"]) for one in status["kept"]] == [("a", 1)]
            assert status["ready"]
            return status

        return await eventually(is_so)

    async def serves_the_first(self, engine: SimulatedEngine | None = None, sidecar: Sidecar | None = None) -> None:
        listing = await serves(engine or self.engine, sidecar or self.sidecar, "a")
        assert digest_of(Path(listing["a"])) == digest_of(self.hand.source("v1"))


async def refused(hand: Hand, engine: SimulatedEngine, sidecar: Sidecar) -> Refused:
    scene = Refused(hand, engine, sidecar)
    spoil(hand.source("nan"))
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "a")
    await sidecar.kept()
    await hand.put(hand.record("a", "nan", 2))
    await scene.is_told()
    return scene


@pytest.fixture
async def scene(hand, engine, sidecar) -> Refused:
    return await refused(hand, engine, sidecar)


async def restart(engine: SimulatedEngine) -> None:
    engine.program.kill()
    await engine.start()


async def test_who_is_killed_comes_back_with_the_last_good_generation_until_there_is_a_right_one(scene):
    """R12, R13: the engine alone, and both, and without the source: the files are in the replica's store."""
    await restart(scene.engine)
    await scene.serves_the_first()
    await scene.is_told()
    scene.sidecar.program.kill()
    shutil.move(scene.hand.source("v1"), scene.hand.sources / "away")
    await restart(scene.engine)
    scene.sidecar.program.start()
    await scene.is_told()
    assert set(await scene.engine.listing()) == {"a"}
    await scene.hand.put(scene.hand.record("a", "v3", 3))

    async def is_replaced() -> bool:
        status = await scene.sidecar.status()
        return (status["failed"], status["kept"], status["served"]["count"]) == ([], [], 1)

    await eventually(is_replaced)
    assert digest_of(Path((await scene.engine.listing())["a"])) == digest_of(scene.hand.source("v3"))


async def test_without_etcd_the_last_good_generation_comes_back_too(hand, engine, tmp_path, own_etcd):
    """R13 static-stable."""
    client = own_etcd.patient()
    hand = Hand(client, Keys("/x"), hand.sources)
    sidecar = Sidecar(tmp_path, own_etcd.endpoints, "/x", engine.url)
    try:
        scene = await refused(hand, engine, sidecar)
        own_etcd.stop()
        sidecar.program.kill()
        await restart(engine)
        sidecar.program.start()
        await scene.serves_the_first()
        assert (await scene.is_told())["stale"]
    finally:
        sidecar.program.kill()
        await client.aclose()


async def test_what_is_deleted_and_made_anew_has_no_last_good_generation(scene):
    """R6 unload-eventual: the name may be another tenant's now."""
    scene.sidecar.program.kill()
    await scene.hand.delete("a")
    await scene.hand.put(scene.hand.record("a", "nan", 3))
    await restart(scene.engine)
    scene.sidecar.program.start()

    async def is_refused() -> bool:
        status = await scene.sidecar.status()
        assert [(one["generation"], one["reason"]) for one in status["failed"]] == [(3, "not_finite")]
        return (status["kept"], status["ready"]) == ([], True)

    await eventually(is_refused)
    assert await scene.engine.listing() == {}


async def test_a_new_replica_takes_the_generation_that_its_neighbour_goes_on_with(scene, etcd, tmp_path):
    """R13: with an empty store of its own; history tells what the generation is made of, and its files are there."""
    digest = digest_of(scene.hand.source("v1"))
    first = scene.hand.record("a", "v1", digest=digest)
    retired = RetiredRecord(**first.model_dump(), retired_by_request="req-a-2", deleted=False)
    await scene.hand.commit(Put(scene.hand.keys.history(POOL, "a", 1), retired.to_bytes()))
    engine = SimulatedEngine(tmp_path / "second")
    sources = scene.hand.sources
    sidecar = Sidecar(tmp_path / "second", etcd.endpoints, etcd.prefix, engine.url, replica="r2", sources=sources)
    try:
        await engine.start()
        sidecar.program.start()
        await scene.serves_the_first(engine, sidecar)
        await scene.is_told(sidecar)
    finally:
        sidecar.program.kill()
        engine.program.kill()
