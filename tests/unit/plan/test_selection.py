"""What an engine is to hold, what there is no room for, and what of it answers meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.model.names import PROOF_PREFIX
from sidecar.artifacts.types import ArtifactRef
from sidecar.desired.assignment import Share
from sidecar.desired.informer import DesiredState
from sidecar.plan.backoff import Failure
from sidecar.plan.planner import make_plan
from sidecar.plan.selection import select, stay
from sidecar.plan.types import FailedAdapter, LazyCandidates, LazySelection, Plan, Selection, Unload
from tests.support.records import kv
from tests.support.worlds import (
    desired,
    fleet,
    forgetless,
    keys_of,
    known,
    observed,
    path_of,
    placed_at,
    pool,
    wants,
    without,
)
from tests.unit.desired.test_assignment import share

THREE = wants({"a": "v1", "b": "v1", "c": "v1"})


def chosen_of(
    state: DesiredState, *, names="plain", room: int | None = None, of_engine: int | None = None
) -> Selection:
    engine = observed(max_cpu_loras=of_engine) if of_engine else observed()
    return select(state, pool(names=names, max_adapters=room), engine, known(state), now=0.0)


def test_what_is_brought_in_is_unwanted_once_nothing_here_is_or_may_be_made_of_it():
    """Critique 29: deleted or replaced; what waits for room or for a place, and what may be served instead, is not."""
    state = wants({"a": "v2", "b": "v1", "c": "v1"})
    gone, wanted = ArtifactRef("file:///gone", None), {adapter.ref for adapter in state.adapters.values()}
    elsewhere = replace(share(state), order=share(state).order[:1], undecided=share(state).order[1:])
    for room, found in ((None, None), (1, None), (None, elsewhere)):
        context = replace(known(state, staging=frozenset({gone, *wanted})), share=found)
        assert select(state, pool(max_adapters=room), observed(), context, now=0.0).unwanted == {gone}


@pytest.mark.parametrize(
    ("names", "room", "of_engine", "held", "over", "lazy_room"),
    [
        ("plain", None, None, "abc", "", 100),
        ("plain", 2, None, "ab", "c", 0),
        ("plain", 3, None, "abc", "", 0),
        ("plain", 5, None, "abc", "", 2),
        ("plain", None, 2, "ab", "c", 0),
        ("plain", 5, 2, "ab", "c", 0),
        ("plain", 2, 5, "ab", "c", 0),
        ("versioned", None, None, "abc", "", 0),
        ("versioned", 4, None, "abc", "", 0),
        ("versioned", 3, None, "ab", "c", 0),
        ("versioned", 1, None, "", "abc", 0),
    ],
)
def test_what_there_is_room_for_by_the_engine_and_by_the_pool(names, room, of_engine, held, over, lazy_room):
    """R16 bounded: the lower limit counts; names of their own need a place more, and leave none to lazy adapters."""
    found = chosen_of(THREE, names=names, room=room, of_engine=of_engine)
    assert [one.name for one in found.adapters] == [*held]
    assert (keys_of(found.over), found.room) == ([*over], lazy_room)


def test_what_was_asked_for_and_moved_on_since_is_left_alone():
    """The deadlock rule, R2: its record is another by now, so nothing is known of what it should be."""
    state = wants({"a": "v1"})
    lazy = LazyCandidates(
        {"a": 0.0, "b": 0.0}, dict(state.adapters), asked=frozenset({"q"}), idle_seconds=9.0, troubles=()
    )
    found = select(state, None, observed(), replace(known(state), lazy=lazy), now=1.0)
    assert found.lazy == LazySelection((state.adapters["a"],), frozenset({"b", "q"}), ())


@pytest.mark.parametrize(
    ("used_at", "bound", "room", "stays"),
    [
        ({"old": 0.0, "a": 50.0, "b": 60.0, "c": 70.0}, "", 9, {"a", "b", "c"}),
        ({"old": 0.0, "a": 50.0, "b": 60.0, "c": 70.0}, "", 2, {"b", "c"}),
        ({"old": 0.0, "a": 50.0, "b": 60.0, "c": 70.0}, "", 0, set()),
        ({"old": 0.0, "a": 50.0, "b": 60.0}, "old a", 1, {"old", "a"}),
        ({"old": 0.0, "a": 50.0, "b": 60.0}, "old x", 2, {"old", "b"}),
    ],
)
def test_the_idle_go_then_the_least_recently_used_but_for_what_was_just_asked_for(used_at, bound, room, stays):
    lazy = LazyCandidates(used_at=used_at, bound={*bound.split()}, idle_seconds=50.0)
    assert stay(lazy, room=room, now=100.0) == stays


def plan(state: DesiredState, engine, facts, **limits) -> Plan:
    return make_plan(state, pool(**limits), engine, facts, now=1000.0)


def kept(made: Plan) -> list[tuple[str, int, bool]]:
    return sorted((one.name, one.generation, one.is_counted) for one in made.kept)


# The last that may be one, one of too many digits, a sign, parts, and digits of other scripts.
SUFFIXES = {"3": 3, "12": 12, "9" * 16: 10**16 - 1}
NO_SUFFIXES = ("9" * 20, "x", "", "-1", "1_0", "\u0663", "\u00b2")


@pytest.mark.parametrize(("suffix", "generation"), [*SUFFIXES.items(), *((one, 0) for one in NO_SUFFIXES)])
def test_a_name_of_a_generation_tells_it_if_it_can_be_one(suffix, generation):
    """R9, X2: somebody else may have loaded our files under any name."""
    state = wants({"a": "v2"}, generation=4)
    made = plan(state, observed({f"a@{suffix}": "v1"}), known(state), names="versioned")
    assert kept(made) == [("a", generation, False)]


def test_what_answers_is_told_by_the_files_that_a_record_names_or_by_what_was_seen():
    """R9 status-truth: eager or lazy; of a lazy one only what was seen to be served tells."""
    state = desired(kv("a", 1, generation=4, source="v2"), kv("l", 2, generation=7, load="lazy"))
    asked = LazyCandidates(asked=frozenset({"a", "l"}))
    failure = Failure(state.adapters["a"].ref, "e1", "engine_refused", "m", 3, None)
    facts = replace(
        known(state, "v2", failures={"a": failure}),
        lazy=asked,
        generations={("l", path_of("v1")): 6, ("a", path_of("v1")): 3},
    )
    assert kept(plan(state, observed({"a": "v1", "l": "v1"}), facts)) == [("a", 3, False), ("l", 6, False)]
    assert kept(plan(state, observed({"l": "v2"}), facts)) == [("l", 0, False)], "it was not seen as this"
    refused = plan(state, observed({"a": "v2"}, max_lora_rank=1), known(state, "v2"))
    assert kept(refused) == [("a", 4, False)]


def test_an_unload_that_is_put_off_is_told_as_that():
    """R6, R8: by the name in the engine, of no generation; nothing waits for it."""
    failure = Failure(None, "e1", "still_listed", "it is there", 5, 1030.0)
    made = plan(wants({}), observed({"Old": "v1"}), known(wants({}), failures={"old": failure}))
    assert made.failed == (FailedAdapter("Old", 0, "still_listed", "it is there", 5, 1030.0, "", is_settled=True),)
    assert made.is_settled
    due = make_plan(wants({}), pool(), observed({"Old": "v1"}), known(wants({}), failures={"old": failure}), now=1030.0)
    assert due.calls == (Unload("Old", path_of("v1")),)


@pytest.mark.parametrize("reason", [None, "not_listed", "engine_refused"])
def test_a_name_for_files_that_are_loaded_under_another_and_not_listed_stays(reason):
    """R6, R8: the engine may spell our names otherwise; else it is another adapter's, which goes."""
    state = wants({"a": "v1"})
    failure = Failure(state.adapters["a"].ref, "e1", f"{reason}", "m", 1, 1000.0)
    failures = {"a": failure} if reason else {}
    engine = observed({"x/a": "v1", "y": "v2", f"{PROOF_PREFIX}0": "v1"})
    made = plan(state, engine, known(state, "v1", failures=failures))
    gone = {call.name for call in made.calls if isinstance(call, Unload)}
    assert gone == {"y", f"{PROOF_PREFIX}0"} | (set() if reason == "not_listed" else {"x/a"})
    assert made.refusals.serves is False
    served = plan(state, observed({"x/a": "v1", "a": "v1"}), known(state, "v1", failures=failures))
    assert [call.name for call in served.calls] == ["x/a"]
    assert served.refusals.serves


def test_calls_carry_the_request_that_they_are_made_for():
    """R9: a log line of the engine can be found by it; an unload goes with the newest change."""
    state = wants({"a": "v1"})
    facts = replace(known(state, "v1"), request_id="req-9", taken=frozenset({"t"}))
    seen = observed({"gone": "v1", "t": "/elsewhere"})
    calls = plan(state, seen, facts).calls
    assert [(call.name, call.request_id) for call in calls] == [("t", "req-9"), ("gone", "req-9"), ("a", "req-a-1")]


FLEET = fleet("r1", "r2", "r3")


def leaving_of(state: DesiredState, found: Share, name: str = "a"):
    (one,) = select(state, None, observed({name: "v1"}), replace(known(state), share=found), now=0.0).leaving
    return one


@pytest.mark.parametrize("pinned", [True, False])
def test_what_leaves_is_known_with_all_that_its_takers_have_to_prove(pinned):
    state = desired(kv("a", 7, generation=3, pinned=pinned, placement=placed_at(2)))
    found = share(state, without(FLEET, "r1"))
    one = leaving_of(state, found)
    assert (one.key, one.name, one.revision, one.generation, one.pinned) == ("a", "a", 7, 3, pinned)
    assert sorted(one.owners or ()) == ["r2", "r3"]
    assert one.among == found.among
    assert one.terms == state.adapters["a"].terms


def test_what_a_leaving_adapter_may_still_be_loaded_from_is_known_to_whoever_keeps_files():
    """R7: only if the engine had it until others take it over. R11: another spelling of its name is another one's."""
    state = desired(kv("a", 7, placement=placed_at(2)))
    facts = replace(known(state, "v1"), share=share(state, without(FLEET, "r1")))
    assert plan(state, observed({"a": "v1"}), facts).chosen.versions.keys() == frozenset()
    assert plan(state, observed({"A": "v1"}), facts).chosen.leaving == ()
    handing = replace(facts, handing=frozenset({"a"}))
    for engine in (observed({"a": "v1"}), observed()):
        assert plan(state, engine, handing).chosen.versions.keys() == {("a", path_of("v1"))}


@pytest.mark.parametrize("past", [{"a": "v1"}, {}])
def test_a_swap_is_refused_by_what_is_listed_as_well_as_by_what_was(past):
    """R4: where the engine answers from what it remembers by name."""
    state = wants({"a": "v2"})
    made = plan(state, forgetless({"a": "v1"}, past), known(state, "v2"))
    assert [(one.name, one.reason, one.attempts) for one in made.failed] == [("a", "name_remembered", 1)]
    assert (made.calls, made.is_settled) == ((), True)
    assert "--engine-names versioned" in made.failed[0].message
    usual = replace(observed({"a": "v1"}), past={})
    assert [type(call).__name__ for call in plan(state, usual, known(state, "v2")).calls] == ["Swap"]
