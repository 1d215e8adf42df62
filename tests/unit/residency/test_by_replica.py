"""Residency counted by replica: the same parts as counted by adapter."""

from __future__ import annotations

from collections import Counter

from registry.model.records import Placement
from registry.model.status import Failed, Lazy, Leaving, Resident
from registry.residency.derive import ReplicaStanding, by_replica, counted
from registry.rollout.status import NOT_ALIVE
from tests.support.residency_world import FAILED, SERVING, UNKNOWN, World, engine_status

WELL = ReplicaStanding(SERVING, "")
REFUSED = Failed(name="a", generation=1, reason="bad", message="", attempts=1, retry_at=None)


def by_name(world: World, *names: str) -> dict[str, tuple[dict[ReplicaStanding, int], int]]:
    world.look()
    keys = names or tuple(world.view.records)
    return {one.replica: (dict(one.counts), one.loaded) for one in by_replica(world.view, keys)}


def test_each_part_is_counted_once_for_its_adapter_and_once_for_its_replica(world):
    """R9 status-truth: adapters that stand alike, one that does not, one that is lazy, and one that is disabled."""
    for name in ("a", "b", "c"):
        world.put(name)
    world.put("zoned", placement=Placement(selector={"zone": "x"}))
    world.put("off", enabled=False)
    world.put("lazy", load="lazy")
    world.alive("r1", labels={"zone": "x"})
    world.alive("r2")
    resident = [Resident(name="lazy", generation=1, last_used="now")]
    world.says("r1", lazy=Lazy(count=1, servable=True, resident=resident))
    world.says("r2", lazy=Lazy(count=1, servable=True))
    world.remember("r1", "r2", "gone")
    found = by_name(world)
    lazily = ReplicaStanding(SERVING, "lazy")
    gone = ReplicaStanding(UNKNOWN, NOT_ALIVE)
    assert found["r1"] == ({WELL: 4, lazily: 1}, 5)
    assert found["r2"] == ({WELL: 3, lazily: 1}, 3)
    assert found["gone"] == ({gone: 4}, 0)
    totals = Counter[ReplicaStanding]()
    for _, one in counted(world.view, world.view.records):
        totals.update(one.counts if one else {})
    whole = Counter[ReplicaStanding]()
    for counts, _ in found.values():
        whole.update(counts)
    assert whole == totals
    assert by_name(world, "a", "nobody")["r2"] == ({WELL: 1}, 1)


def test_a_replica_that_drains_counts_as_long_as_it_serves(world):
    """Nobody waits for it: with a dead engine it has no numbers, and its end is told as a change."""
    world.put("a")
    world.alive("r1", "r2")
    world.says("r1", failed=[REFUSED])
    world.says("r2", engine=engine_status(incarnation=""), leaving=[Leaving(name="a", generation=1)])
    assert by_name(world)["r2"] == ({ReplicaStanding(UNKNOWN, "engine_unreachable"): 1}, 0)
    world.alive("r2", leaving=True)
    world.look()
    assert by_name(world) == {"r1": ({ReplicaStanding(FAILED, "bad"): 1}, 0)}
    world.says("r2")
    assert by_name(world)["r2"] == ({ReplicaStanding(SERVING, "leaving"): 1}, 1)
