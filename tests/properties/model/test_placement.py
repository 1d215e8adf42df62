"""Properties of rendezvous hashing: how many serve an adapter, and who moves when replicas come and go."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from registry.model.names import matches
from registry.model.placement import Declined, Member, decline_id, placed, rate
from registry.model.records import AdapterSpec, Canary, Placement, SourceSpec, Strategy
from tests.support.residency_world import assigned

KEYS = [f"k{number}" for number in range(30)]
names = st.sampled_from([f"r{number}" for number in range(8)])
labels = st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])
members = st.builds(Member, names, labels, st.one_of(st.none(), st.integers(0, 200)))
fleets = st.lists(members, max_size=8, unique_by=lambda one: one.replica)
placements = st.builds(
    Placement, replicas=st.one_of(st.just("all"), st.integers(1, 9)), selector=st.sampled_from([{}, {"zone": "a"}])
)
counts = st.dictionaries(st.sampled_from([frozenset(), frozenset({("zone", "a")})]), st.integers(1, 300), max_size=2)


def owners(placement: Placement, fleet: list[Member], everywhere) -> dict[str, tuple[str, ...]]:
    rated = rate(fleet, everywhere)
    return {key: placed("p", key, placement, rated) for key in KEYS}


@given(placements, fleets, counts)
def test_as_many_serve_it_as_it_asks_for_or_as_match(placement, fleet, everywhere):
    fitting = {one.replica for one in fleet if matches(placement.selector, one.labels)}
    wanted = len(fitting) if placement.replicas == "all" else min(placement.replicas, len(fitting))
    for serving in owners(placement, fleet, everywhere).values():
        assert len(serving) == len(set(serving)) == wanted
        assert set(serving) <= fitting


@given(placements, fleets, counts, st.data())
def test_the_order_in_which_replicas_are_known_says_nothing(placement, fleet, everywhere, data):
    shuffled = data.draw(st.permutations(fleet))
    assert owners(placement, fleet, everywhere) == owners(placement, shuffled, everywhere)


@given(placements, fleets, members, counts)
def test_a_replica_that_comes_wins_and_one_that_goes_loses_its_own_share_only(placement, fleet, other, everywhere):
    assume(other.replica not in {one.replica for one in fleet})
    without, with_it = owners(placement, fleet, everywhere), owners(placement, [*fleet, other], everywhere)
    for key in KEYS:
        rest = tuple(name for name in with_it[key] if name != other.replica)
        assert rest == without[key][: len(rest)]
        assert with_it[key] == without[key] or other.replica in with_it[key]


@given(fleets, counts, st.one_of(st.integers(1, 9), st.just("30%")))
def test_canaries_are_some_of_those_who_serve(fleet, everywhere, count):
    strategy = Strategy(canary=Canary(replicas=count))
    spec = AdapterSpec(source=SourceSpec(uri="file:///a"), placement=Placement(replicas=3), strategy=strategy)
    found = assigned("p", "a", spec, fleet, everywhere)
    assert found.canaries <= set(found.serving)
    assert bool(found.canaries) == bool(found.serving)


@given(placements, fleets, counts, st.sets(names), st.sampled_from(KEYS))
def test_only_what_is_declined_moves_and_it_goes_to_the_next(placement, fleet, everywhere, decliners, declined):
    """Where all who match decline it, nothing moves: it does not wander."""
    says = {"r": Declined("by", frozenset({decline_id(declined, 0)}))}
    told = [replace(one, declines=says) if one.replica in decliners else one for one in fleet]
    before, now = owners(placement, fleet, everywhere), owners(placement, told, everywhere)
    assert {key for key in KEYS if before[key] != now[key]} <= {declined}
    whole = owners(placement.model_copy(update={"replicas": 99}), fleet, everywhere)[declined]
    willing = tuple(one for one in whole if one not in decliners) or whole
    if placement.replicas != "all":
        assert now[declined] == willing[: placement.replicas]
