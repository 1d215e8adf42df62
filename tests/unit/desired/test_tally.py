"""What the adapters of a pool ask of its replicas, in numbers."""

from __future__ import annotations

import pytest

from sidecar.desired.placement import NO_TALLY, Tally
from tests.support.records import kv
from tests.support.worlds import desired, placed_at, rolling

EVERYWHERE = frozenset[tuple[str, str]]()


X = frozenset({("zone", "x")})


@pytest.mark.parametrize(
    ("one", "everywhere", "with_terms", "by_members"),
    [
        (kv("a", 1), {EVERYWHERE: 1}, 0, 0),
        (kv("a", 1, placement=placed_at("all", zone="x")), {X: 1}, 1, 0),
        (kv("a", 1, placement=placed_at(2)), {}, 1, 1),
        (kv("a", 1, placement=placed_at(2, zone="x")), {}, 1, 1),
        (rolling("a", 1), {EVERYWHERE: 1}, 1, 1),
        (rolling("a", 1, placement=placed_at("all", zone="x")), {X: 1}, 1, 1),
        (rolling("a", 1, placement=placed_at(2)), {}, 1, 1),
    ],
    ids=["everywhere", "by labels", "by number", "by both", "a rollout", "one by labels", "one by number"],
)
def test_each_kind_of_placement_is_counted_as_what_it_asks_for(one, everywhere, with_terms, by_members):
    """R3: room is kept on whoever matches; and the live replicas are followed only if somebody has to know them."""
    terms = desired(one).adapters["a"].terms
    assert terms is None or len({terms, terms}) == 1, "alike ones are found by what they are"
    tally = NO_TALLY.after([], [terms])
    assert (dict(tally.everywhere), tally.with_terms, tally.by_members) == (everywhere, with_terms, by_members)
    three = tally.after([], [terms, terms])
    counts = dict.fromkeys(everywhere, 3)
    assert (dict(three.everywhere), three.with_terms, three.by_members) == (counts, 3 * with_terms, 3 * by_members)
    assert three.after([terms, terms, terms], []) == Tally() == NO_TALLY
