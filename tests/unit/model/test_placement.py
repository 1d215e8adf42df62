"""Weights of replicas, and digests of what a share was found among."""

from __future__ import annotations

import hashlib
from collections import Counter
from types import SimpleNamespace

import pytest

from registry.model.placement import (
    Candidate,
    Member,
    canary_count,
    candidate,
    capacity_within,
    counted,
    looks_at_room,
    members_digest,
    placed,
    ranks,
    rate_evenly,
    room_taken,
    weights_digest,
)
from registry.model.records import AdapterSpec, Canary, Placement, SourceSpec, Strategy
from tests.support.residency_world import assigned


def test_who_has_twice_the_room_gets_twice_as_much():
    rated = [candidate(Member("small", {}, 64), 32), candidate(Member("large", {}, 96), 32)]
    first = Counter(placed("p", f"k{number}", Placement(replicas=1), rated)[0] for number in range(3000))
    assert 1.8 < first["large"] / first["small"] < 2.2


@pytest.mark.parametrize(
    ("told", "held", "counts"),
    [
        (None, None, None),
        (8, None, 8),
        (8, 8, 8),
        (8, 900, 8),
        (1_000_000, 4, 4),
        (0, 4, 0),
        (None, 4, 4),
        (None, 900, None),  # of one that says nothing a hundred are taken
    ],
)
def test_nobody_has_more_room_than_its_engine_holds(told, held, counts):
    """X3 given-back, R3: a presence that said 2^62 drew every new adapter."""
    assert capacity_within(told, held) == counts


def test_who_does_not_report_is_left_out_once_all_who_do_are_of_releases_that_do_so():
    """R24: else sidecars of one pool would not find the same. A presence alone has no say in it."""
    ghost, new = Member("ghost", {}, reports=False, by_reports=False), Member("new", {})
    old = Member("old", {}, by_reports=False)
    assert counted([new, ghost]) == (new,)
    assert counted([new, ghost, old]) == (new, ghost, old)
    assert counted([ghost]) == ()


@pytest.mark.parametrize(
    ("replicas", "serving", "expected"),
    [
        (2, 5, 2),
        (9, 5, 5),
        (1, 0, 0),
        ("1%", 5, 1),
        ("1%", 100, 1),
        ("1%", 101, 2),
        ("50%", 5, 3),
        ("34%", 300, 102),
        ("100%", 0, 0),
        ("100%", 1000, 1000),
    ],
)
def test_how_many_are_canaries(replicas, serving, expected):
    assert canary_count(Canary(replicas=replicas), serving) == expected


@pytest.mark.parametrize(
    ("capacity", "everywhere", "weight"),
    [
        (1, 0, 1.0),
        (2, 1, 1.0),
        (1, 1, 0.01),
        (8, 9, 0.01),
        (2, 0, 2.0),
        (16, 0, 16.0),
        (20, 0, 19.027313840043536),
        (23, 0, 22.627416997969522),
        (24, 0, 22.627416997969522),
        (96, 32, 64.0),
        (None, 0, 107.63474115247546),
        (None, 99, 1.0),
        (None, 100, 0.01),
        (0, 0, 7.888609052210118e-31),
        (0, 50, 7.888609052210118e-31),
    ],
)
def test_all_releases_give_a_room_the_same_weight(capacity, everywhere, weight):
    """While a fleet is upgraded, sidecars and admin service of two releases find the same replicas."""
    assert candidate(Member("a", {}, capacity), everywhere).weight == weight


def test_all_releases_find_the_same_ranks():
    """A score that is another one in its last digit is another share for somebody."""
    rated = [Candidate(Member(f"r{at}", {}), weight) for at, weight in enumerate((1.0, 2.0, 8.0))]
    assert sorted(ranks("p", "sql", Placement(), rated)) == [
        (-15.099991842488901, "r2"),
        (-6.421960487974411, "r0"),
        (-3.9749801838879484, "r1"),
    ]
    assert list(ranks("p", "k0", Placement(), rate_evenly([Member("r0", {})]))) == [(-0.5078921917732293, "r0")]
    assert placed("p", "chat", Placement(replicas=2), rated) == ("r2", "r0")


@pytest.mark.parametrize(("byte", "least", "most"), [(0, -0.03, -0.02), (255, -1e17, -1e15)])
def test_no_name_has_a_rank_that_cannot_be_calculated(monkeypatch, byte, least, most):
    """X2: whatever the hash of a name is that somebody has searched for."""
    monkeypatch.setattr(hashlib, "sha256", lambda _: SimpleNamespace(digest=lambda: bytes([byte] * 32)))
    ((score, _),) = ranks("p", "k", Placement(), [Candidate(Member("r", {}), 1.0)])
    assert least < score < most


def test_all_releases_find_the_same_digests_of_a_fleet():
    """A replica whose share was found among others is pending: it must not be so because of its release."""
    fleet = [Member("a", {"zone": "x", "b": "c"}, 8), Member("b", {}), Member("c", {}, 0)]
    text = "a\0[('b', 'c'), ('zone', 'x')]\x008\nb\0[]\0\nc\0[]\x000\n"
    assert members_digest(fleet) == members_digest(fleet[::-1]) == hashlib.sha256(text.encode()).hexdigest()[:32]
    weights = "a\x008.0\nb\x001.0\n"
    rated = [Candidate(fleet[0], 8.0), Candidate(fleet[1], 1.0)]
    assert weights_digest(rated) == hashlib.sha256(weights.encode()).hexdigest()[:32]


MEMBERS = [Member(f"r{number}", {"zone": "a" if number < 3 else "b"}, capacity=10) for number in range(5)]


def spec(replicas="all", selector=None, canary=None, load="eager") -> AdapterSpec:
    return AdapterSpec(
        source=SourceSpec(uri="file:///a"),
        placement=Placement(replicas=replicas, selector=selector or {}),
        strategy=Strategy(canary=Canary(replicas=canary)) if canary else None,
        load=load,
    )


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
