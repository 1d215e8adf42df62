"""Who serves an adapter, and who its canaries are."""

from __future__ import annotations

from collections import Counter

from registry.model.placement import Member, looks_at_room, room_taken
from registry.model.records import AdapterSpec, Canary, Placement, SourceSpec, Strategy
from tests.support.residency_world import assigned

MEMBERS = [Member(f"r{number}", {"zone": "a" if number < 3 else "b"}, capacity=10) for number in range(5)]


def spec(replicas="all", selector=None, canary=None, load="eager") -> AdapterSpec:
    return AdapterSpec(
        source=SourceSpec(uri="file:///a"),
        placement=Placement(replicas=replicas, selector=selector or {}),
        strategy=Strategy(canary=Canary(replicas=canary)) if canary else None,
        load=load,
    )


def test_everybody_who_matches_serves_it():
    assert set(assigned("p", "a", spec(), MEMBERS, {}).serving) == {f"r{number}" for number in range(5)}
    assert set(assigned("p", "a", spec(selector={"zone": "b"}), MEMBERS, {}).serving) == {"r3", "r4"}


def test_canaries_are_the_first_of_those_who_serve():
    found = assigned("p", "a", spec(canary=2), MEMBERS, {})
    assert found.canaries == set(found.serving[:2])
    assert assigned("p", "a", spec(canary="50%"), MEMBERS, {}).canaries == set(found.serving[:3])
    assert assigned("p", "a", spec(), MEMBERS, {}).canaries == set()
    placed = assigned("p", "a", spec(replicas=2, canary=1), MEMBERS, {})
    assert len(placed.serving) == 2
    assert placed.canaries == {placed.serving[0]}


def test_what_else_the_pool_serves_moves_only_what_is_placed_by_number():
    crowded = Counter({frozenset({("zone", "a")}): 10})
    assert assigned("p", "a", spec(canary=2), MEMBERS, crowded) == assigned("p", "a", spec(canary=2), MEMBERS, {})
    few = spec(replicas=1)
    taken = Counter(name for n in range(200) for name in assigned("p", f"n{n}", few, MEMBERS, crowded).serving)
    assert taken["r3"] + taken["r4"] > 190


def test_what_takes_room():
    assert room_taken(spec(selector={"zone": "a"})) == frozenset({("zone", "a")})
    assert room_taken(spec(replicas=2)) is None
    assert room_taken(spec(load="lazy")) is None
    assert (looks_at_room(spec()), looks_at_room(spec(replicas=2))) == (False, True)
