"""The planner, case by case: whole plans are compared, not parts of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.model.names import PROOF_PREFIX
from sidecar.conditions import MAX_OVER_CAPACITY_LISTED
from sidecar.failures import Failure
from sidecar.lazy.wanted import Wanted
from sidecar.plan import FailedAdapter, Load, PendingAdapter, Plan, ServedAdapter, Stage, Swap, Unload
from sidecar.planner import make_plan
from tests.support.records import digest, kv
from tests.support.worlds import desired, known, observed, path_of, pool, wants


def plan(state, engine, facts, spec=None) -> Plan:
    return make_plan(state, spec or pool(), engine, facts, now=1000.0)


def ref_of(state, name):
    return state.adapters[name].ref


def reasons(entries) -> dict[str, str]:
    return {entry.name: entry.reason for entry in entries}


def test_what_is_not_in_the_store_is_staged_first():
    state = wants({"a": "v1"})
    made = plan(state, observed(), known(state))
    assert made == Plan(
        revision=100,
        stage=(Stage("a", ref_of(state, "a"), "req-a-1"),),
        calls=(),
        served=(),
        pending=(PendingAdapter("a", 1, "staging", "req-a-1"),),
        failed=(),
        wake_at=None,
    )
    assert not made.is_settled


def test_what_is_being_staged_is_waited_for():
    state = wants({"a": "v1"})
    made = plan(state, observed(), known(state, staging={ref_of(state, "a")}))
    assert (made.stage, made.calls, reasons(made.pending)) == ((), (), {"a": "staging"})
    assert not made.is_settled


def test_what_is_staged_is_loaded_by_priority():
    state = desired(kv("a", 1), kv("b", 2, priority=9))
    made = plan(state, observed(), known(state, "v1"))
    assert [call.name for call in made.calls] == ["b", "a"]
    assert made.calls[0] == Load("b", path_of("v1"), ref_of(state, "b"), "req-b-1")
    assert not made.is_destructive


def test_what_the_engine_lists_with_the_right_path_is_served():
    """R9 status-truth: served is what the listing shows with the desired artifact's path, nothing else."""
    state = wants({"a": "v1"})
    made = plan(state, observed({"a": "v1"}), known(state, "v1"))
    assert made.served == (ServedAdapter("a", 1, digest("v1")),)
    assert (made.calls, made.pending, made.failed) == ((), (), ())
    assert made.is_settled


def test_new_weights_are_swapped_in_only_when_they_are_staged():
    state = wants({"a": "v2"})
    waiting = plan(state, observed({"a": "v1"}), known(state))
    assert (len(waiting.stage), waiting.calls) == (1, ())
    made = plan(state, observed({"a": "v1"}), known(state, "v2"))
    assert made.calls == (Swap("a", path_of("v1"), path_of("v2"), ref_of(state, "a"), "req-a-1"),)
    assert made.is_destructive


def test_what_is_not_desired_any_more_is_unloaded_before_anything_is_loaded():
    """R6 unload-eventual."""
    state = wants({"b": "v1"})
    made = plan(state, observed({"a": "v1"}), known(state, "v1"))
    assert made.calls[0] == Unload("a", path_of("v1"))
    assert isinstance(made.calls[1], Load)
    assert made.is_destructive


def test_a_lazy_adapter_is_not_loaded_and_one_that_is_not_to_stay_is_unloaded():
    state = desired(kv("a", 1, load="lazy"))
    assert plan(state, observed({"a": "v1"}), known(state, "v1")).calls == (Unload("a", path_of("v1")),)


def test_foreign_adapters_are_left_alone():
    """R11 foreign-safe: neither unloaded nor replaced; a name conflict is reported."""
    state = wants({"a": "v1"})
    made = plan(state, observed({"a": "/elsewhere/a", "x": "/elsewhere/x"}), known(state, "v1"))
    assert made.calls == ()
    assert reasons(made.failed) == {"a": "name_conflict"}
    assert made.is_settled


def test_what_a_driver_left_behind_from_a_check_is_unloaded():
    state = wants({"a": "v1"})
    name = PROOF_PREFIX + "0123456789ab"
    assert plan(state, observed({"a": "v1", name: "v2"}), known(state, "v1")).calls == (Unload(name, path_of("v2")),)


def test_a_name_of_the_base_model_is_never_loaded():
    """R5 no-silent-base."""
    state = wants({"BASE": "v1"})
    made = plan(state, observed(), known(state, "v1"), pool("base"))
    assert (made.calls, reasons(made.failed)) == ((), {"BASE": "name_is_base_model"})


def test_an_engine_of_another_base_is_not_touched():
    state = wants({"a": "v1"})
    made = plan(state, observed({"old": "v1"}), known(state, "v1"), pool("other"))
    assert (made.calls, made.stage) == ((), ())
    assert "other" in made.blocked
    assert not made.is_settled


def test_without_a_pool_record_the_adapters_are_served_all_the_same():
    state = wants({"a": "v1"})
    assert len(make_plan(state, None, observed(), known(state, "v1"), now=0.0).calls) == 1


@pytest.mark.parametrize(
    ("limits", "spec"), [({"max_lora_rank": 4}, {}), ({}, {"max_rank": 4}), ({"max_lora_rank": 16}, {"max_rank": 4})]
)
def test_a_rank_above_the_limit_is_refused(limits, spec):
    state = wants({"a": "v1"})
    made = plan(state, observed(**limits), known(state, "v1"), pool(**spec))
    assert (made.calls, reasons(made.failed)) == ((), {"a": "rank_too_high"})


def test_beyond_the_capacity_the_less_important_wait():
    state = desired(kv("a", 1), kv("b", 2, priority=1), kv("c", 3))
    made = plan(state, observed({"c": "v1"}, max_cpu_loras=3), known(state, "v1"), pool(max_adapters=2))
    assert [type(call).__name__ + " " + call.name for call in made.calls] == ["Unload c", "Load b", "Load a"]
    assert reasons(made.pending)["c"] == "over_capacity"
    settled = plan(state, observed({"a": "v1", "b": "v1"}, max_cpu_loras=2), known(state, "v1"))
    assert settled.is_settled


def test_names_beyond_the_capacity_that_are_too_many_are_counted():
    """R16 bounded."""
    state = desired(*(kv(f"n{i:04}", i + 1) for i in range(MAX_OVER_CAPACITY_LISTED + 11)))
    made = plan(state, observed(max_cpu_loras=1), known(state))
    assert len([entry for entry in made.pending if entry.reason == "over_capacity"]) == MAX_OVER_CAPACITY_LISTED
    assert made.omitted == 10


def test_a_refused_record_keeps_what_is_loaded():
    """R14 nack: what cannot be read says nothing about what should be served."""
    state = desired(kv("a", 7, b"?"))
    made = plan(state, observed({"a": "v1"}), known(state, "v1"))
    assert made.calls == ()
    assert made.failed == (
        FailedAdapter("a", 0, "unreadable_record", made.failed[0].message, 1, None, "", is_settled=True),
    )
    assert "revision 7" in made.failed[0].message


def test_a_failure_delays_its_own_adapter_and_no_other():
    """R8 isolation."""
    state = wants({"bad": "v1", "good": "v2"})
    failure = Failure(ref_of(state, "bad"), "e1", "engine_refused", "no", 1, 1030.0)
    made = plan(state, observed(), known(state, "v1", "v2", failures={"bad": failure}))
    assert [call.name for call in made.calls] == ["good"]
    assert reasons(made.failed) == {"bad": "engine_refused"}
    assert made.wake_at == 1030.0
    due = make_plan(state, pool(), observed(), known(state, "v1", "v2", failures={"bad": failure}), now=1030.0)
    assert [call.name for call in due.calls] == ["bad", "good"]


def test_a_permanent_failure_ends_with_another_engine_or_another_artifact():
    """R8 isolation: permanent means per (digest, engine incarnation)."""
    state = wants({"a": "v1"})
    failure = Failure(ref_of(state, "a"), "e1", "engine_refused", "no", 3, None)
    facts = known(state, "v1", failures={"a": failure})
    stuck = plan(state, observed(), facts)
    assert (stuck.calls, stuck.wake_at, stuck.is_settled) == ((), None, True)
    assert len(plan(state, observed(incarnation="e2"), facts).calls) == 1
    other = wants({"a": "v2"})
    assert len(plan(other, observed(), known(other, "v2", failures={"a": failure})).calls) == 1


def test_a_call_whose_outcome_is_unknown_is_not_made_again():
    state = wants({"a": "v1"})
    made = plan(state, observed(), known(state, "v1", unsettled={"a"}))
    assert (made.calls, reasons(made.pending)) == ((), {"a": "outcome_unknown"})


def test_an_unload_that_failed_is_put_off():
    state = wants({})
    failure = Failure(None, "e1", "still_listed", "no", 1, 1030.0)
    facts = known(state, failures={"a": failure})
    put_off = plan(state, observed({"a": "v1"}), facts)
    assert (put_off.calls, reasons(put_off.failed), put_off.wake_at) == ((), {"a": "still_listed"}, 1030.0)
    assert len(plan(state, observed({"a": "v1"}, incarnation="e2"), facts).calls) == 1


def lazily(*sources: str, asked: frozenset[str] = frozenset(), failure: Failure | None = None, **lazy: str):
    """A state with these lazy adapters, and what is known where all of them are to stay loaded."""
    state = wants(lazy)
    wanted = Wanted(tuple(state.adapters.values()), asked)
    facts = known(state, *sources, failures={"a": failure} if failure else None)
    return desired(*(kv(name, 1, source=v, load="lazy") for name, v in lazy.items())), replace(facts, lazy=wanted)


def test_a_lazy_adapter_that_stays_is_told_apart_from_what_is_served():
    state, facts = lazily("v1", a="v1")
    made = plan(state, observed({"a": "v1"}), facts)
    assert (made.calls, made.served, [one.name for one in made.residents]) == ((), (), ["a"])


def test_its_new_generation_is_staged_and_swapped_and_holds_nobody_up():
    state, facts = lazily(a="v2")
    made = plan(state, observed({"a": "v1"}), facts)
    assert ([one.name for one in made.stage], made.calls, made.pending[0].is_settled) == (["a"], (), True)
    state, facts = lazily("v2", a="v2")
    made = plan(state, observed({"a": "v1"}), facts)
    assert [type(call) for call in made.calls] == [Swap]


def test_nothing_is_called_for_what_is_being_asked_about():
    """The deadlock rule: the engine holds the name until it is answered."""
    state, facts = lazily("v2", a="v2", asked=frozenset({"a", "gone"}))
    made = plan(state, observed({"a": "v1", "gone": "v1"}), facts)
    assert made.calls == ()
    state, facts = lazily(a="v2", asked=frozenset({"a"}))
    assert plan(state, observed({"a": "v1"}), facts).stage != ()


def test_what_was_refused_when_it_was_asked_for_is_told_and_tried_by_nobody():
    state, facts = lazily("v1", a="v1")
    (adapter,) = facts.lazy.residents
    failure = Failure(adapter.ref, None, "not_found", "no files", 2, 5.0)
    facts = replace(facts, lazy=Wanted(troubles=((adapter, failure),)))
    made = plan(state, observed(), facts)
    assert [(one.name, one.reason, one.is_settled) for one in made.failed] == [("a", "not_found", True)]
    assert (made.wake_at, made.is_settled) == (None, True)
    both = replace(facts, lazy=Wanted((adapter,), troubles=((adapter, failure),)))
    assert plan(state, observed({"a": "v1"}), both).failed == ()
