"""Weights of replicas, and digests of what a share was found among."""

from __future__ import annotations

from collections import Counter

import pytest

from registry.model.placement import (
    LEAST_WEIGHT,
    Member,
    canary_count,
    candidate,
    members_digest,
    placed,
    weights_digest,
)
from registry.model.records import Canary, Placement


def test_who_has_twice_the_room_gets_twice_as_much():
    rated = [candidate(Member("small", {}, 64), 32), candidate(Member("large", {}, 96), 32)]
    first = Counter(placed("p", f"k{number}", Placement(replicas=1), rated)[0] for number in range(3000))
    assert 1.8 < first["large"] / first["small"] < 2.2


def test_who_has_no_room_gets_next_to_nothing():
    rated = [candidate(Member("full", {}, 8), 9), candidate(Member("free", {}, 8), 0)]
    assert rated[0].weight == LEAST_WEIGHT
    first = Counter(placed("p", f"k{number}", Placement(replicas=1), rated)[0] for number in range(1000))
    assert first["full"] < 20


def test_a_little_less_room_moves_nothing():
    assert candidate(Member("a", {}, 110), 0) == candidate(Member("a", {}, 110), 5)


def test_digests_differ_where_replicas_do():
    one, other = Member("a", {"zone": "x"}, 8), Member("a", {"zone": "y"}, 8)
    assert members_digest([one]) != members_digest([other]) != members_digest([])
    assert members_digest([one, Member("b", {})]) == members_digest([Member("b", {}), one])
    assert weights_digest([candidate(one, 0)]) == weights_digest([candidate(other, 0)])
    assert weights_digest([candidate(one, 0)]) != weights_digest([candidate(one, 6)])


@pytest.mark.parametrize(
    ("replicas", "serving", "expected"), [(2, 5, 2), (9, 5, 5), ("1%", 5, 1), ("50%", 5, 3), ("100%", 0, 0)]
)
def test_how_many_are_canaries(replicas, serving, expected):
    assert canary_count(Canary(replicas=replicas), serving) == expected
