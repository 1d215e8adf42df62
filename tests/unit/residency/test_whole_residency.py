"""Each field of a residency: the whole of what is derived, compared with what it should be."""

from __future__ import annotations

from typing import Any

import pytest

from registry.model.records import Canary, CanaryRollout, Placement, Strategy
from registry.model.status import Failed, Kept, Lazy, Leaving, Pending, Resident
from registry.residency.derive import (
    CountedResidency,
    DerivedResidence,
    DerivedResidency,
    ReplicaStanding,
    counted,
    residence_on,
)
from registry.residency.shares import WantedGeneration
from tests.support.records import record
from tests.support.residency_world import FAILED, PENDING, SERVING, UNKNOWN, among, engine_status, members

HERE = members("r1", "r2")
NOW: dict[str, Any] = among(HERE)


def part(replica: str, generation: int = 1, **fields: Any) -> DerivedResidence:
    """A replica that serves a, and of which nothing else is to be said."""
    said: dict[str, Any] = {
        "engine_url": f"http://{replica}",
        "labels": {},
        "model": "a",
        "state": SERVING,
        "reason": "",
        "loaded": True,
        "last_used": "",
    } | fields
    return DerivedResidence(replica=replica, generation=generation, **said)


def waiting(reason: str = "staging") -> list[Pending]:
    return [Pending(name="a", generation=2, reason=reason)]


def failed(retry_at: str | None = None) -> list[Failed]:
    return [Failed(name="a", generation=2, reason="BAD", message="m", attempts=1, retry_at=retry_at)]


def test_what_is_on_all_replicas(world):
    """R9 status-truth: what each serves, what it is to serve, and what requests are to call it. What an engine answers
    with is served whatever became of the newest: else a router would answer with an error where clients get 200.
    """
    world.alive("r1", labels={"zone": "a"})
    world.alive("r2", "r3", "r4", "r5", "r6", "r7")
    world.put("a", 2)
    world.says("r1")
    world.says("r2", pending=waiting(), kept=[Kept(name="a", generation=1)], engine=engine_status(names="versioned"))
    world.says("r3", failed=failed(), kept=[Kept(name="a", generation=0)])
    world.says("r4", pending=waiting())
    world.says("r6", failed=failed("soon"), kept=[Kept(name="a", generation=1)])
    world.says("r7", omitted=1, serves=[], kept=[Kept(name="a", generation=1)])
    assert world.where("a") == DerivedResidency(
        "a",
        2,
        lazy=False,
        replicas=(
            part("r1", 2, labels={"zone": "a"}),
            part(
                "r2",
                1,
                engine_url="http://e",
                model="a@1",
                reason="earlier_generation",
                wanted=WantedGeneration(2, PENDING, "staging"),
            ),
            part("r3", 0, reason="earlier_generation", wanted=WantedGeneration(2, FAILED, "BAD")),
            part("r4", 2, state=PENDING, reason="staging", loaded=False),
            part("r5", 2, engine_url="", state=PENDING, reason="no_status", loaded=False),
            part("r6", 1, reason="earlier_generation", wanted=WantedGeneration(2, PENDING, "BAD")),
            part("r7", 1, reason="earlier_generation", wanted=WantedGeneration(2, PENDING, "omitted")),
        ),
    )
    ((_, found),) = counted(world.view, ["a"])
    earlier = "earlier_generation"
    assert found == CountedResidency(
        "a",
        2,
        lazy=False,
        counts={
            ReplicaStanding(SERVING, ""): 1,
            ReplicaStanding(SERVING, earlier, (PENDING, "staging")): 1,
            ReplicaStanding(SERVING, earlier, (FAILED, "BAD")): 1,
            ReplicaStanding(SERVING, earlier, (PENDING, "BAD")): 1,
            ReplicaStanding(SERVING, earlier, (PENDING, "omitted")): 1,
            ReplicaStanding(PENDING, "staging"): 1,
            ReplicaStanding(PENDING, "no_status"): 1,
        },
    )
    adapter = world.view.adapter("a")
    assert adapter is not None
    assert residence_on(world.view, adapter, "r1") == part("r1", 2, labels={"zone": "a"})
    assert residence_on(world.view, adapter, "r9") is None
    world.says("r6")
    world.look()
    assert residence_on(world.view, adapter, "r6") == part("r6", 2)


def test_a_lazy_adapter_is_loaded_where_it_is_resident(world):
    """R9: at the generation that is meant; since when it is idle is told of nothing else."""
    world.alive("r1", "r2", "r3", "r4", "r5")
    world.put("a", 2, load="lazy")

    def lazy(generation: int) -> Lazy:
        used = [Resident(name="A", generation=generation, last_used="then")]
        return Lazy(count=1, servable=True, resident=used)

    world.says("r1", lazy=lazy(2))
    world.says("r2", lazy=lazy(1))
    world.says("r3", lazy=lazy(2), failed=failed())
    world.says("r4", lazy=lazy(1), failed=failed("soon"), kept=[Kept(name="a", generation=1)])
    world.says("r5", lazy=Lazy(count=1, servable=False, reason="needs_plugin"))
    found = world.where("a")
    assert (found.lazy, found.replicas) == (
        True,
        (
            part("r1", 2, reason="lazy", last_used="then"),
            part("r2", 2, reason="lazy", loaded=False),
            part("r3", 2, state=FAILED, reason="BAD", loaded=False),
            part("r4", 1, reason="earlier_generation", last_used="then", wanted=WantedGeneration(2, PENDING, "BAD")),
            part("r5", 2, state=FAILED, reason="needs_plugin", loaded=False),
        ),
    )


def test_what_canaries_try_is_told_beside_what_the_others_serve(world):
    """W6, R9: whichever of them is the canary; halted or not."""
    world.alive("r1", "r2")
    strategy = Strategy(canary=Canary(replicas=1))
    for halted in ("", "they refuse it"):
        rollout = CanaryRollout(stable_generation=1, stable_spec=record("a").spec, halted=halted)
        world.put("a", 2, rollout, source="v2", strategy=strategy)
        for name in ("r1", "r2"):
            world.says(name, **NOW)
        found = world.where("a")
        ((_, told),) = counted(world.view, ["a"])
        assert told is not None
        assert (found.generation, found.halted, told.halted) == (2, halted, halted)
        assert sorted(one.generation for one in found.replicas) == [1, 2]
        assert {one.state for one in found.replicas} == {SERVING}
    world.says("r1", members="other")
    states = {one.replica: (one.state, one.reason) for one in world.where("a").replicas}
    assert states == {"r1": (PENDING, "membership_not_seen"), "r2": (SERVING, "")}
    world.says("r2", **NOW | {"weights": "other"})
    assert world.states("a")["r2"] == (SERVING, ""), "room decides nothing where each replica serves it"


@pytest.mark.parametrize(
    ("placement", "missing"),
    [
        (Placement(), 4),
        (Placement(selector={"zone": "a"}), 2),
        (Placement(selector={"zone": "b"}), 2),
        (Placement(selector={"zone": "c"}), 0),
        (Placement(replicas=3), 0),
    ],
)
def test_who_is_missing_is_counted_where_it_would_serve(world, placement, missing):
    """R9: of each group as many as lack to it, by name or without."""
    world.expect(({"zone": "a"}, 2), ({"zone": "b"}, 2))
    world.remember("r8", "r9", labels={"zone": "b"})
    world.put("a", placement=placement)
    world.look()
    ((_, found),) = counted(world.view, ["a"])
    assert found is not None
    assert dict(found.counts) == ({ReplicaStanding(UNKNOWN, "not_alive"): missing} if missing else {})


@pytest.mark.parametrize(
    "placement", [Placement(), Placement(replicas=1), Placement(selector={"llm-d.ai/role": "decode"})]
)
@pytest.mark.parametrize(("second", "lacking"), [("prefill", 0), ("both", 0), ("prefill-decode", 0), ("encode", 1)])
def test_a_role_of_which_no_replica_is_to_serve_it_counts_as_one_that_lacks(world, placement, second, lacking):
    """R9: "served" is said only where each role of its pool's has it; `look` compares what changes with all of it."""
    for name, role in (("r1", "decode"), ("r2", second)):
        world.alive(name, labels={"llm-d.ai/role": role})
    world.put("a", placement=placement)
    world.look()
    for name in ("r1", "r2"):
        world.says(name)
    world.ask_for("prefill", "decode")
    assert "a" in world.look()
    where = world.where("a")
    served = " ".join(dict(world.view.everybody[one.replica].member.labels)["llm-d.ai/role"] for one in where.replicas)
    absent = [one for one in ("prefill", "decode") if one not in served.replace("both", "prefill-decode")]
    assert len(absent) == lacking or placement != Placement()
    assert [role in where.note for role in ("role prefill is", "role decode is")] == [
        role in absent for role in ("prefill", "decode")
    ]
    ((_, found),) = counted(world.view, ["a"])
    assert found is not None
    assert found.pool_replicas == (0 if placement == Placement() else 2)
    assert found.counts.get(ReplicaStanding(UNKNOWN, "role_not_served"), 0) == len(absent)
    world.ask_for()
    assert ("a" in world.look()) == bool(absent)
    assert world.where("a").note == ""


def test_one_that_drains_plays_its_role_no_more(world):
    """R20, R24: it is named as long as nobody else serves it, and its role lacks."""
    world.ask_for("prefill", "decode")
    world.alive("r1", labels={"llm-d.ai/role": "decode"})
    world.alive("r2", labels={"llm-d.ai/role": "prefill"})
    world.put("a")
    world.says("r1")
    world.says("r2")
    world.look()
    assert world.where("a").note == ""
    world.alive("r2", labels={"llm-d.ai/role": "prefill"}, leaving=True)
    assert "a" in world.look()
    assert [one.replica for one in world.where("a").replicas] == ["r1"]
    assert "no replica of the role prefill" in world.where("a").note


def test_one_that_is_to_hand_it_over_plays_its_role_no_more(world):
    """R20: it serves until another does, and nobody of its role is to serve it after that."""
    world.ask_for("decode")
    world.alive("r1", labels={"llm-d.ai/role": "prefill"})
    world.alive("r2", labels={"llm-d.ai/role": "decode"})
    world.put("a", placement=Placement(selector={"llm-d.ai/role": "prefill"}))
    world.says("r1")
    world.says("r2", leaving=[Leaving(name="a", generation=1)])
    world.look()
    assert {one.replica: one.reason for one in world.where("a").replicas} == {"r1": "", "r2": "leaving"}
    assert "no replica of the role decode" in world.where("a").note
