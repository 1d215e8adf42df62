"""A refused generation, and who restarts after it: the last good one comes back, and the status says so."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.adapters import digest_of, spoil
from tests.support.fleet import Hand, Sidecar, SimulatedEngine, serves
from tests.support.waiting import eventually


async def restart(engine: SimulatedEngine) -> None:
    engine.program.kill()
    await engine.start()


async def is_told(sidecar: Sidecar) -> bool:
    """Whether the replica is ready, and says that it refused generation 2 and answers with generation 1."""
    status = await sidecar.status()
    assert [(one["name"], one["generation"], one["reason"]) for one in status["failed"]] == [("a", 2, "not_finite")]
    assert [(one["name"], one["generation"]) for one in status["kept"]] == [("a", 1)]
    return status["ready"]


async def test_who_is_killed_comes_back_with_the_last_good_generation_until_there_is_a_right_one(
    hand: Hand, engine: SimulatedEngine, sidecar: Sidecar
):
    """R12, R13: the engine alone, and both, and without the source: the files are in the replica's store."""
    spoil(hand.source("nan"))
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()
    await serves(engine, sidecar, "a")
    await sidecar.kept()
    await hand.put(hand.record("a", "nan", 2))
    await eventually(lambda: is_told(sidecar))
    await restart(engine)
    listing = await serves(engine, sidecar, "a")
    assert digest_of(Path(listing["a"])) == digest_of(hand.source("v1"))
    await eventually(lambda: is_told(sidecar))
    sidecar.program.kill()
    shutil.move(hand.source("v1"), hand.sources / "away")
    await restart(engine)
    sidecar.program.start()
    await eventually(lambda: is_told(sidecar))
    assert set(await engine.listing()) == {"a"}
    await hand.put(hand.record("a", "v3", 3))

    async def is_replaced() -> bool:
        status = await sidecar.status()
        return (status["failed"], status["kept"], status["served"]["count"]) == ([], [], 1)

    await eventually(is_replaced)
    assert digest_of(Path((await engine.listing())["a"])) == digest_of(hand.source("v3"))
