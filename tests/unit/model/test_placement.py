"""Weights of replicas, digests of what a share was found among, and what a replica refuses for good."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from registry.model.placement import (
    Candidate,
    Declined,
    Member,
    canary_count,
    candidate,
    capacity_within,
    counted,
    decline_id,
    decline_note,
    decliners,
    heeded,
    looks_at_room,
    member_of,
    members_digest,
    placed,
    ranks,
    rate,
    rate_evenly,
    room_taken,
    weights_digest,
)
from registry.model.records import AdapterSpec, Canary, Placement, SourceSpec, Strategy
from registry.model.status import Presence, ReportedDeclines
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


def test_the_room_of_all_is_told_by_the_least():
    """R9: where it changes alike for all of them, nobody's share is found anew."""
    for room in (64, 16):
        fleet = [Member(f"{share}", {}, share * room) for share in (4, 1, 2)]
        assert [one.weight for one in rate(fleet, {})] == [4.0, 1.0, 2.0]
    assert rate([], {}) == ()


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


ALIKE = [Member(f"r{number}", {"zone": "x"}) for number in range(3)]


def declining(member: Member, *ids: str, reason: str = "rank_too_high") -> Member:
    return replace(member, declines={reason: Declined("16", frozenset(ids))})


def test_replicas_say_whom_they_reckoned_with_and_what_those_decline():
    """R9: only who knows the same has the same digest; where nobody declines it is that of earlier releases."""
    fleet = [declining(ALIKE[0], "1", "2"), *ALIKE[1:]]
    assert members_digest(fleet) != members_digest(ALIKE)
    assert members_digest(fleet) == members_digest([declining(ALIKE[0], "2", "1"), *ALIKE[1:]])
    assert members_digest([replace(ALIKE[0], declines=None), *ALIKE[1:]]) == members_digest(ALIKE)


def test_what_is_declined_counts_once_all_replicas_are_of_releases_that_know_of_it():
    fleet = [declining(ALIKE[0], "1"), *ALIKE[1:]]
    assert heeded(fleet) == tuple(fleet)
    old = Member("old", {}, declines=None)
    assert heeded([*fleet, old]) == (*ALIKE, Member("old", {}))
    assert [one.why_declined("1") for one in (fleet[0], fleet[1], old)] == ["rank_too_high", "", ""]


def test_a_presence_tells_it_by_reason():
    said = Presence(pool="p", replica="r", incarnation="i", owner="o", started_at="t")
    assert member_of("r", said, reports=True, held=None).declines is None, "of an earlier release"
    assert member_of("r", Presence.parse(said.to_bytes()), reports=True, held=None).declines == {}
    told = said.model_copy(update={"declines": {"rank_too_high": ReportedDeclines(by="16", adapters=["1"])}})
    assert (
        member_of("r", Presence.parse(told.to_bytes()), reports=True, held=None)
        == declining(Member("r", {}), "1")
        == Member("r", {}, declines={"rank_too_high": Declined("16", frozenset({"1"}))})
    )


def test_it_is_said_who_does_not_take_it_and_why():
    adapter = decline_id("a", 1)
    spec = AdapterSpec(source=SourceSpec(uri="file:///a"), placement=Placement(replicas=1, selector={"zone": "x"}))
    fleet = [
        declining(ALIKE[1], adapter),
        declining(ALIKE[0], adapter),
        declining(ALIKE[2], "other"),
        declining(Member("elsewhere", {}), adapter),
        Member("idle", {"zone": "x"}),
    ]
    found = decliners("a", spec, 1, fleet)
    assert found == {"r0": "rank_too_high", "r1": "rank_too_high"}
    assert decline_note(found) == "r0, r1 do not take it: rank_too_high (its engine's --max-lora-rank is lower)"
    assert decliners("a", spec, 2, fleet) == {}
    assert decliners("a", spec.model_copy(update={"placement": Placement()}), 1, fleet) == {}
    assert decline_note({}) == ""
    many = {f"r{number}": "of_a_later_release" for number in range(5)}
    assert decline_note(many) == "r0, r1, r2 and 2 more do not take it: of_a_later_release"
    both = decline_note({"r0": "unknown_credential", "r1": "of_a_later_release"})
    assert both == (
        "r0 does not take it: unknown_credential (its --credentials do not have the credential); "
        "r1 does not take it: of_a_later_release"
    )


def test_where_all_decline_it_stays_where_it_would_be():
    """R8: one that nobody takes does not wander; another generation is another matter, and all are all."""
    two, order = Placement(replicas=2), placed("p", "a", Placement(replicas=3), rate(ALIKE, {}), 1)
    every = rate([declining(one, decline_id("a", 1)) for one in ALIKE], {})
    assert placed("p", "a", two, every, 1) == placed("p", "a", two, every, 2) == order[:2]
    fleet = [declining(one, decline_id("a", 1)) if one.replica == order[0] else one for one in ALIKE]
    assert placed("p", "a", Placement(replicas=3), rate(fleet, {}), 1) == order[1:], "it counts as none"
    assert set(placed("p", "a", Placement(), rate_evenly(fleet), 1)) == set(order)
