"""Properties of the steps of a number of replicas that follows requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from registry.rollout.scaling import CALM_SECONDS, STEP_SECONDS, Demand, ScaleRange, Watched, look, watched

ranges = st.builds(
    lambda least, more, per: ScaleRange(least, least + more, per),
    st.integers(1, 20),
    st.integers(0, 20),
    st.integers(1, 100),
)
demands = st.builds(Demand, st.floats(0, 5000), st.booleans(), st.integers(0, 50))
# Time between two looks, and what the second finds.
looks = st.lists(st.tuples(st.floats(0.1, 120), demands), max_size=60)


def played(within: ScaleRange, number: int, found: list[tuple[float, Demand]]) -> list[tuple[float, int, Demand]]:
    """Each step that was taken: when, to which number, and at what demand."""
    now, taken, seen = 0.0, [], watched(None, number, 0.0)
    for pause, demand in found:
        now += pause
        seen, step = look(seen, within, demand, now)
        if step is not None:
            taken.append((now, step.replicas, demand))
            seen = watched(seen, step.replicas, now)
    return taken


@given(ranges, st.data(), looks)
def test_each_step_is_of_one_within_the_range_and_a_minute_after_the_last(within: ScaleRange, data, found):
    number, at = data.draw(st.integers(within.least, within.most)), 0.0
    for now, after, demand in played(within, number, found):
        assert abs(after - number) == 1
        assert within.least <= after <= within.most
        assert after < number or after <= max(within.least, demand.living)
        assert now - at >= STEP_SECONDS
        number, at = after, now


@given(ranges, st.data(), demands)
def test_more_requests_never_bring_about_a_lower_number(within: ScaleRange, data, demand: Demand):
    number, more = data.draw(st.integers(within.least, within.most)), data.draw(st.floats(0, 5000))
    seen = Watched(number, 0.0, 0.0)
    busier = Demand(demand.in_flight + more, demand.is_whole, demand.living)
    one, other = (look(seen, within, which, 1000.0)[1] for which in (demand, busier))
    assert (one.replicas if one else number) <= (other.replicas if other else number)


@given(ranges, st.floats(0, 5000), st.integers(0, 60))
def test_under_one_demand_the_number_comes_to_rest_and_stays(within: ScaleRange, in_flight: float, number: int):
    number = max(within.least, min(number, within.most))
    found = [(STEP_SECONDS + CALM_SECONDS, Demand(in_flight, is_whole=True, living=100))] * 100
    numbers = [number, *(after for _, after, _ in played(within, number, found))]
    assert numbers in (sorted(numbers), sorted(numbers, reverse=True)), "it goes one way only"
    last = numbers[-1]
    assert last == within.most or in_flight <= last * within.per_replica
    assert last == within.least or in_flight >= 0.7 * (last - 1) * within.per_replica
