"""What the engine's refusals say of a replica's readiness."""

from __future__ import annotations

import pytest

from sidecar.plan.backoff import Failure
from sidecar.plan.planner import make_plan
from sidecar.plan.readiness import NO_REFUSALS, EngineRefusals, ReadyRule
from tests.support.worlds import known, observed, wants


def refusals(count: int, unexplained: int, *, serves: bool = True) -> EngineRefusals:
    return EngineRefusals(10, count, unexplained, serves=serves, message="no")


BEGINS = {
    "nothing is refused": (NO_REFUSALS, False, True),
    "all": (refusals(10, 10, serves=False), False, False),
    "nothing is served": (refusals(1, 0, serves=False), False, False),
    "much, and nothing else loads": (refusals(3, 3), False, False),
    "little": (refusals(2, 2), False, True),
    "others load": (refusals(9, 0), False, True),
    "it was ready before this sidecar began": (refusals(10, 10, serves=False), True, True),
}


@pytest.mark.parametrize(("refused", "was_serving", "begins"), BEGINS.values(), ids=BEGINS)
def test_a_replica_begins_to_be_ready_once_what_failed_failed_for_reasons_of_the_adapters(refused, was_serving, begins):
    """R18 readiness-follows."""
    assert ReadyRule().may_begin(refused, was_serving=was_serving) == begins


@pytest.mark.parametrize(
    ("refused", "any_stays", "served_stays"),
    [
        (NO_REFUSALS, True, True),
        (refusals(2, 2), True, True),
        (refusals(3, 0), True, False),
        (refusals(3, 3, serves=False), False, False),
    ],
)
def test_a_ready_replica_stays_so_as_the_operator_chose(refused, any_stays, served_stays):
    """R18 readiness-follows."""
    assert (ReadyRule().may_stay(refused), ReadyRule("served").may_stay(refused)) == (any_stays, served_stays)


def test_more_than_a_share_is_degraded_and_says_what_the_engine_said():
    """R18."""
    assert ReadyRule().degraded(refusals(2, 0)) == ""
    assert (
        ReadyRule(share=0.1).degraded(refusals(2, 0))
        == "the engine refuses 2 of 10 adapters, or does not list them: no"
    )


def test_a_plan_tells_what_of_it_is_refused():
    """R18."""
    state = wants({"a": "v1", "b": "v2", "c": "v3"})
    failures = {key: Failure(state.adapters[key].ref, "e1", "engine_refused", "no", 3, 9.0) for key in ("a", "b")}
    context = known(state, "v1", "v2", "v3", failures=failures)
    refused = make_plan(state, None, observed({"b": "v2"}), context, now=0.0)
    assert refused.refusals == EngineRefusals(3, 1, 1, serves=True, message="no")
    foreign = make_plan(state, None, observed({"other": "/elsewhere"}), known(state), now=0.0)
    assert foreign.refusals == EngineRefusals(3)
