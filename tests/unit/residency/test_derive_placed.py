"""Where adapters are that not all replicas serve, or not in one generation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.model.names import name_key
from registry.model.placement import Member, Selector, decline_id
from registry.model.records import Canary, CanaryRollout, Placement, Strategy
from registry.model.status import Found, Leaving, ReportedDeclines
from registry.residency.derive import residency
from registry.rollout import pool
from registry.rollout.pool import read_presence
from tests.support.records import POOL, kv, record
from tests.support.residency_world import (
    FAILED,
    PENDING,
    SERVING,
    UNKNOWN,
    World,
    among,
    assigned,
    engine_status,
    members,
)

ANYWHERE: Selector = frozenset()
NAMES = ("r1", "r2", "r3", "r4")


def owners(name: str, count: int, *replicas: str, taken: int = 0) -> set[str]:
    members = [Member(one, {}) for one in replicas]
    spec = record(name, placement=Placement(replicas=count)).spec
    return set(assigned(POOL, name_key(name), spec, members, {ANYWHERE: taken}).serving)


@pytest.mark.parametrize("strategy", [None, Strategy(canary=Canary(replicas=1))])
def test_nobody_is_there(world, strategy):
    """What no replica is to serve has no row, so somebody has to say why; it is told anew when that changes."""
    world.put("plain", strategy=strategy)
    world.put("zoned", placement=Placement(selector={"zone": "a"}), strategy=strategy)

    def notes() -> dict[str, str]:
        return {name: world.where(name).note for name in ("plain", "zoned")}

    nobody = "no live replica matches its selector"
    assert notes() == {"plain": "no replica is alive", "zoned": nobody}
    world.alive("r1", labels={"zone": "b"})
    assert notes() == {"plain": "", "zoned": nobody}
    world.alive("r2", labels={"zone": "a"})
    assert notes() == {"plain": "", "zoned": ""}
    world.dead("r2")
    assert world.look() >= {"zoned"}
    assert notes() == {"plain": "", "zoned": nobody}


def moved(names: tuple[str, ...]) -> str:
    """An adapter on one replica that moves to the last of the names when that comes."""
    before, newcomer = names[:-1], names[-1]
    tries = (f"n{i}" for i in range(1000))
    return next(one for one in tries if owners(one, 1, *names) == {newcomer} != owners(one, 1, *before))


def test_who_was_to_serve_it_by_the_record_before_is_told_until_it_knows_the_new_one(world):
    """R24: r2 serves what is not placed there any more, and nobody else serves anything yet."""
    for name, zone in (("r1", "a"), ("r2", "b"), ("r3", "b")):
        world.alive(name, labels={"zone": zone})
    live = [*members("r1", labels={"zone": "a"}), *members("r2", "r3", labels={"zone": "b"})]
    world.put("a", placement=Placement(replicas=1, selector={"zone": "a"}))
    for name in ("r1", "r2", "r3"):
        world.says(name, **among(live))
    assert world.states("a") == {"r1": (SERVING, "")}
    world.update("a", 2, source="v2", placement=Placement(replicas=2, selector={"zone": "b"}))
    world.says("r2", **among(live))
    assert world.states("a") == {"r1": (SERVING, "leaving"), "r2": (SERVING, ""), "r3": (PENDING, "not_seen")}


def test_a_share_that_moves(world):
    """Until a replica has heard who lives now it serves what it did; who takes over is told as soon as it does."""
    name = moved(NAMES)
    (before,) = owners(name, 1, *NAMES[:-1])
    world.alive(*NAMES[:-1])
    world.put(name, placement=Placement(replicas=1))
    for one in NAMES[:-1]:
        world.says(one, **among(members(*NAMES[:-1])))
    assert world.states(name) == {before: (SERVING, "")}
    world.alive("r4")
    world.says("r4", **among(members(*NAMES[:-1])))
    assert world.states(name) == {before: (SERVING, ""), "r4": (PENDING, "membership_not_seen")}
    world.says("r4", **among(members(*NAMES)))
    assert world.states(name) == {before: (SERVING, ""), "r4": (SERVING, "")}
    world.says(before, **among(members(*NAMES)))
    assert world.states(name) == {"r4": (SERVING, "")}
    world.says(before, **among(members(*NAMES)), stale=True)
    assert world.look() == frozenset()


SMALL_AND_LARGE = (Member("r1", {}, 2), Member("r2", {}, 100))


def crowded_out(world: World) -> str:
    """An adapter on one replica that moves from the small to the large one once something else is everywhere."""

    def owner(name: str, taken: int) -> str:
        spec = record(name, placement=Placement(replicas=1)).spec
        return assigned(POOL, name, spec, SMALL_AND_LARGE, {ANYWHERE: taken}).serving[0]

    for one in SMALL_AND_LARGE:
        world.alive(one.replica, capacity=one.capacity)
    name = next(one for one in (f"n{i}" for i in range(5000)) if (owner(one, 0), owner(one, 1)) == ("r1", "r2"))
    world.put(name, placement=Placement(replicas=1))
    return name


def test_room_is_reckoned_as_each_replica_saw_it(world):
    """R9: adapters that are everywhere take room, and a replica that has not seen them reckons without them."""
    name = crowded_out(world)
    for one in ("r1", "r2"):
        world.says(one, **among(SMALL_AND_LARGE))
    assert world.states(name) == {"r1": (SERVING, "")}
    world.put("big")
    assert world.states(name) == {"r1": (SERVING, ""), "r2": (PENDING, "room_not_seen")}
    world.says("r2", **among(SMALL_AND_LARGE, {ANYWHERE: 1}))
    assert world.states(name) == {"r1": (SERVING, ""), "r2": (SERVING, "")}
    world.says("r1", **among(SMALL_AND_LARGE, {ANYWHERE: 1}))
    assert world.states(name) == {"r2": (SERVING, "")}
    world.drop("big")
    assert world.states(name) == {"r2": (SERVING, ""), "r1": (PENDING, "room_not_seen")}


def test_room_that_is_not_remembered(world, monkeypatch):
    """R9: weights that fit nothing that is known prove nothing."""
    monkeypatch.setattr(pool, "REMEMBERED", 3)
    name = crowded_out(world)
    world.says("r1", **among(SMALL_AND_LARGE))
    for i in range(pool.REMEMBERED + 1):
        world.put(f"b{i}")
        world.look()
    world.says("r2", **among(SMALL_AND_LARGE, {ANYWHERE: 99}))
    assert world.states(name) == dict.fromkeys(("r1", "r2"), (UNKNOWN, "room_not_seen")), "nobody is known to serve it"


def test_members_that_are_not_remembered(world, monkeypatch):
    monkeypatch.setattr(pool, "REMEMBERED", 3)
    world.alive("r1")
    world.put("a", placement=Placement(replicas=99))
    world.put("of others", placement=Placement(replicas=99, selector={"zone": "a"}))
    world.says("r1", stale=True)
    assert world.states("a") == {"r1": (UNKNOWN, "stale")}, "that comes first"
    world.says("r1", **among(members("r1")))
    assert world.states("a")["r1"] == (SERVING, "")
    for i in range(2, pool.REMEMBERED + 2):
        world.alive(f"r{i}")
        world.look()
    assert world.states("a")["r1"] == (UNKNOWN, "membership_not_seen")
    assert world.states("of others") == {}, "it cannot have been placed there"


def test_canaries(world):
    """A generation that only canaries serve: all others serve the stable one, each by its own digest."""
    world.alive(*NAMES)
    strategy = Strategy(canary=Canary(replicas=1), promote="manual")
    stable = record("a", 4, pinned=False).spec
    rollout = CanaryRollout(stable_generation=4, stable_spec=stable)
    world.put("a", 5, rollout, source="v2", strategy=strategy)
    spec = record("a", 5, source="v2", strategy=strategy).spec
    (canary,) = assigned(POOL, "a", spec, [Member(name, {}) for name in NAMES], {}).canaries
    for i, name in enumerate(NAMES):
        found = [Found(name="a", generation=4, digest=f"sha256:{i}")]
        world.says(name, **among(members(*NAMES)), found=[] if name == canary else found)
    where = {one.replica: (one.generation, one.state) for one in world.where("a").replicas}
    others = set(NAMES) - {canary}
    assert where == {canary: (5, SERVING), **dict.fromkeys(others, (4, FAILED))}
    world.says(canary)
    assert world.states("a")[canary] == (PENDING, "membership_not_seen")


def test_a_store_that_was_set_back(world):
    """What was remembered is of another history."""
    world.alive("r1")
    world.put("a", placement=Placement(replicas=1))
    world.put("b")
    world.says("r1", 5, **among(members("r1")))
    world.look()
    world.records = {one.key: one for one in [kv("a", 3, record("a", placement=Placement(replicas=1)).to_bytes())]}
    world.look(7)
    found = residency(world.view, "a")
    assert found is not None
    assert found.replicas[0].state is SERVING


def leaving(name: str, generation: int = 1) -> dict[str, Any]:
    return {"leaving": [Leaving(name=name, generation=generation)]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"stale": True}, "stale"), ({"engine": engine_status(incarnation="")}, "engine_unreachable")],
)
def test_what_is_kept_for_others_must_be_proven_too(world, fields, reason):
    """R9 status-truth, R24: nobody else serves it, and nobody knows whether this one does."""
    world.alive("r1", labels={"zone": "a"})
    world.put("a", placement=Placement(selector={"zone": "b"}))
    world.says("r1", **leaving("a"))
    assert world.states("a") == {"r1": (SERVING, "leaving")}
    world.says("r1", **leaving("a"), **fields)
    assert world.states("a") == {"r1": (UNKNOWN, reason)}


def test_a_replica_that_is_to_serve_what_it_still_keeps(world):
    """It serves it, whatever it has heard of yet; and in a generation that others cannot doubt."""
    world.alive("r1", "r2")
    world.put("a", placement=Placement(replicas=2), pinned=False)
    found = [Found(name="a", generation=1, digest="sha256:1")]
    world.says("r1", **among(members("r2", "r3")), **leaving("a"), found=found)
    world.says("r2", **among(members("r1", "r2")), found=found)
    assert world.states("a") == {"r1": (SERVING, "leaving"), "r2": (SERVING, "")}
    other = [Found(name="a", generation=1, digest="sha256:2")]
    world.says("r1", **among(members("r2", "r3")), **leaving("a"), found=other)
    assert world.states("a") == dict.fromkeys(("r1", "r2"), (FAILED, "digests_differ"))


def declining(name: str, adapter: str, generation: int = 1) -> dict[str, ReportedDeclines]:
    return {"rank_too_high": ReportedDeclines(by="8", adapters=[decline_id(adapter, generation)])}


def test_whoever_declines_it_has_no_part_in_it_and_the_note_says_why(world):
    """R24: what the next one serves is told of it alone."""
    world.alive("r1", "r2")
    revision = world.put("a", placement=Placement(replicas=1))
    for name in ("r1", "r2"):
        world.says(name, revision - 1)
    world.look()
    first = next(iter(world.states("a")))
    second = "r2" if first == "r1" else "r1"
    world.alive(first, declines=declining(first, "a"))
    world.look()
    assert world.states("a") == {second: (PENDING, "not_seen")}
    fleet = [read_presence(kv)[0] for kv in world.presences.values()]
    for name in ("r1", "r2"):
        world.says(name, **among(fleet))
    world.look()
    assert world.states("a") == {second: (SERVING, "")}
    why = f"{first} does not take it: rank_too_high (its engine's --max-lora-rank is lower)"
    assert world.where("a").note == why
    world.put("a", 1, placement=Placement(replicas=2))
    world.look()
    assert world.where("a").note == f"placed on 2, 1 take it; {why}"
    world.alive(first, declines=declining(first, "b"))
    world.look()
    assert world.where("a").note == ""


def test_whoever_served_it_among_those_of_before_is_named_also_where_the_store_was_set_back(world):
    """R24: a status names the live replicas by a digest, and who these were is not the store's to forget."""
    world.alive("r1", "r2")
    world.put("a", placement=Placement(replicas=2))
    for name in ("r1", "r2"):
        world.says(name, **among(members("r1", "r2")))
    assert world.states("a") == {"r1": (SERVING, ""), "r2": (SERVING, "")}
    world.revision -= 1
    world.records = {key: replace(one, mod_revision=world.revision) for key, one in world.records.items()}
    world.alive("r3")
    world.says("r3", **among(members("r1", "r2", "r3")))
    for name in ("r1", "r2"):
        world.says(name, **among(members("r1", "r2")))
    states = world.states("a")
    assert (states["r1"], states["r2"]) == ((SERVING, ""), (SERVING, ""))
