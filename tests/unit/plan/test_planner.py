"""The planner, case by case: whole plans are compared, not parts of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.model.names import PROOF_PREFIX
from sidecar.artifacts.types import Stage
from sidecar.desired.assignment import Share
from sidecar.desired.informer import DesiredAdapter, DesiredState
from sidecar.engines.observed import EngineHazard
from sidecar.plan.backoff import Failure
from sidecar.plan.conditions import ENGINE_PAUSED, MAX_OVER_CAPACITY_LISTED
from sidecar.plan.planner import make_plan
from sidecar.plan.types import (
    NOTHING_LAZY,
    FailedAdapter,
    InProgress,
    LazyCandidates,
    Load,
    PendingAdapter,
    Plan,
    ServedAdapter,
    Swap,
    Unload,
    WarnedAdapter,
)
from sidecar.vllm_plugin.protocol import expected_key
from tests.support.records import digest, kv
from tests.support.worlds import desired, known, observed, path_of, pool, relisted, staged, wants


def plan(state, engine, facts, spec=None) -> Plan:
    return make_plan(state, spec or pool(), engine, facts, now=1000.0)


def ref_of(state, name):
    return state.adapters[name].ref


def reasons(entries) -> dict[str, str]:
    return {entry.name: entry.reason for entry in entries}


def called(made: Plan) -> list[str]:
    return [f"{type(call).__name__} {call.name}" for call in made.calls]


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
    waits = plan(state, observed(), known(state, staging={ref_of(state, "a")}))
    assert (waits.stage, waits.calls, reasons(waits.pending), waits.is_settled) == ((), (), {"a": "staging"}, False)
    refused = {"a": Failure(ref_of(state, "a"), "e1", "engine_refused", "", 1, 999.0)}
    again = plan(state, observed(), known(state, failures=refused))
    assert (reasons(again.pending), again.failed) == ({"a": "staging"}, ()), "of the files nothing failed"


def test_what_is_staged_is_loaded_by_priority():
    state = desired(kv("a", 1), kv("b", 2, priority=9))
    made = plan(state, observed(), known(state, "v1"))
    assert [call.name for call in made.calls] == ["b", "a"]
    assert made.calls[0] == Load("b", path_of("v1"), ref_of(state, "b"), "req-b-1")
    assert not made.is_destructive


@pytest.mark.parametrize(("engine", "is_served"), [({}, False), ({"a": "v0"}, False), ({"a": "v1"}, True)])
def test_what_is_not_proven_is_proven_before_an_engine_is_given_it(engine, is_served):
    """R21: neither loaded nor swapped in. R13: what the engine serves since before we started is proven meanwhile.

    R9 status-truth: it is served with the desired artifact's path; another description loads nothing anew.
    """
    state = wants({"a": "v1"}, generation=2, description="of the sales schema")
    unproven = {ref: replace(one, is_proven=False) for ref, one in staged(state, "v1").items()}
    made = plan(state, observed(engine), replace(known(state), staged=unproven))
    assert made.stage == (() if is_served else (Stage("a", ref_of(state, "a"), "req-a-2"),))
    assert (made.calls, made.failed, made.is_settled) == ((), (), is_served)
    assert reasons(made.pending) == ({} if is_served else {"a": "staging"})
    assert made.served == ((ServedAdapter("a", 2, digest("v1")),) if is_served else ())


def test_what_is_not_desired_any_more_is_unloaded_before_anything_is_loaded():
    """R6 unload-eventual: a lazy one that is not to stay, too, and what a driver left behind from a check."""
    state, proof = desired(kv("b", 1), kv("l", 1, load="lazy")), PROOF_PREFIX + "0123456789ab"
    made = plan(state, observed({"a": "v1", "l": "v1", proof: "v2"}), known(state, "v1"))
    assert made.calls[:-1] == (Unload("a", path_of("v1")), Unload("l", path_of("v1")), Unload(proof, path_of("v2")))
    assert isinstance(made.calls[-1], Load)
    assert made.is_destructive


def test_foreign_adapters_are_left_alone():
    """R11 foreign-safe: neither unloaded nor replaced; a name conflict is reported."""
    state = wants({"a": "v1"})
    made = plan(state, observed({"a": "/elsewhere/a", "x": "/elsewhere/x"}), known(state, "v1"))
    assert made.calls == ()
    assert reasons(made.failed) == {"a": "name_conflict"}
    assert made.is_settled
    made = plan(state, observed({"a@1": "/elsewhere"}), known(state, "v1"), pool(names="versioned"))
    assert (made.calls, reasons(made.failed)) == ((), {"a": "name_conflict"})


def test_a_name_that_somebody_took_from_us_is_unloaded_at_once_and_loaded_by_the_next_plan():
    """R4 digest-true, R11 foreign-safe: the name is ours, so that what stands under it now is not theirs to keep."""
    state = wants({"a": "v1"})
    theirs = observed({"a": "/elsewhere/a", "x": "/elsewhere/x"})
    for in_store in ([], ["v1"]):
        made = plan(state, theirs, replace(known(state, *in_store), taken=frozenset({"a"})))
        assert made.calls == (Unload("a", "/elsewhere/a"),)
        assert (made.is_destructive, reasons(made.pending)) == (True, {"a": "swapping"})
    made = plan(state, observed({"x": "/elsewhere/x"}), replace(known(state, "v1"), taken=frozenset({"a"})))
    assert [type(call) for call in made.calls] == [Load]
    seen = proving({"a": "v1", "b": "v1"}, without=["v1"])
    state = wants({"a": "v1", "b": "v1"})
    made = plan(state, seen, replace(known(state, "v1"), taken=frozenset({"a"})))
    assert [call.name for call in made.calls] == ["a", "b"], "R22: of what has no effect besides, once"


def test_a_lazy_adapters_name_is_unloaded_too_so_that_the_next_request_asks_for_it():
    """R4 digest-true, R8 isolation: paced like any other."""
    state = desired(kv("a", 1, load="lazy"))
    facts, theirs = replace(known(state, "v1"), taken=frozenset({"a", "gone"})), observed({"a": "/elsewhere/a"})
    assert plan(state, theirs, facts).calls == (Unload("a", "/elsewhere/a"),)
    failure = Failure(None, "e1", "engine_refused", "m", 1, 2000.0)
    made = plan(state, theirs, replace(facts, failures={"a": failure}))
    assert (made.calls, reasons(made.failed)) == ((), {"a": "engine_refused"})


def test_beyond_the_capacity_the_less_important_wait():
    state = desired(kv("a", 1), kv("b", 2, priority=1), kv("c", 3))
    made = plan(state, observed({"c": "v1"}, max_cpu_loras=3), known(state, "v1"), pool(max_adapters=2))
    assert called(made) == ["Unload c", "Load b", "Load a"]
    assert (reasons(made.pending)["c"], kept(made)) == ("over_capacity", {}), "it is about to be unloaded"
    settled = plan(state, observed({"a": "v1", "b": "v1"}, max_cpu_loras=2), known(state, "v1"))
    assert settled.is_settled


def test_names_beyond_the_capacity_that_are_too_many_are_counted():
    """R16 bounded, R9: a name that a status leaves out must not be taken for one that is served."""
    names = [f"n{i:04}" for i in range(MAX_OVER_CAPACITY_LISTED + 11)]
    state = desired(*(kv(name, at) for at, name in enumerate(names, start=1)))
    made = plan(state, observed(max_cpu_loras=1), known(state))
    assert len([entry for entry in made.pending if entry.reason == "over_capacity"]) == MAX_OVER_CAPACITY_LISTED
    assert made.omitted == 10
    made = plan(state, observed(), replace(known(state), share=Share((), undecided=state.order)))
    assert reasons(made.pending) == dict.fromkeys(names[:MAX_OVER_CAPACITY_LISTED], "replicas_unknown")
    assert made.omitted == 11


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


@pytest.mark.parametrize("listed", [{}, {"a": "v0"}])
def test_what_is_tried_again_stays_failed_until_it_is_served(listed):
    """R16, R17: another try of the same is nothing that a status should tell everybody."""
    state = wants({"a": "v1"})
    failure = Failure(ref_of(state, "a"), "e1", "engine_refused", "no", 3, 1000.0, since=980.0)
    facts = known(state, "v1", failures={"a": failure})
    due = make_plan(state, pool(), observed(listed), facts, now=1000.0)
    assert (len(due.calls), reasons(due.failed), due.pending) == (1, {"a": "engine_refused"}, ())
    assert (due.wake_at, due.failed[0].final_at) == (1040.0, 1040.0)


@pytest.mark.parametrize(
    ("failure", "refused"),
    [
        ({"reason": "source_io", "retry_at": 1000.0}, None),
        ({"reason": "not_finite", "retry_at": None, "look_at": 1000.0, "version": "1"}, "1"),
    ],
)
def test_files_that_are_tried_or_looked_at_again_stay_failed_until_they_are_there(failure, refused):
    """R8, R16."""
    state = wants({"a": "v1"})
    failed = Failure(ref_of(state, "a"), None, message="no", attempts=3, since=900.0, **failure)
    facts = known(state, failures={"a": failed})
    before = make_plan(state, pool(), observed(), facts, now=999.0)
    assert (before.stage, before.wake_at) == ((), 1000.0)
    due = make_plan(state, pool(), observed(), facts, now=1000.0)
    assert ([one.refused for one in due.stage], due.pending) == ([refused], ())
    assert reasons(due.failed) == reasons(before.failed) == {"a": failure["reason"]}


def test_a_call_whose_outcome_is_unknown_is_not_made_again():
    state = wants({"a": "v1"})
    made = plan(state, observed(), known(state, "v1", unsettled={"a"}))
    assert (made.calls, reasons(made.pending)) == ((), {"a": "outcome_unknown"})


def loaded(*adapters: DesiredAdapter, asked: frozenset[str] = frozenset()) -> LazyCandidates:
    """These lazy adapters are loaded, and have just been used."""
    whole = {one.key: one for one in adapters}
    return LazyCandidates(dict.fromkeys(whole, 1000.0), whole, asked=asked)


def lazily(*sources: str, asked: frozenset[str] = frozenset(), failure: Failure | None = None, **lazy: str):
    """A state with these lazy adapters, and what is known where all of them are to stay loaded."""
    state = wants(lazy)
    wanted = loaded(*state.adapters.values(), asked=asked)
    facts = known(state, *sources, failures={"a": failure} if failure else None)
    return desired(*(kv(name, 1, source=v, load="lazy") for name, v in lazy.items())), replace(facts, lazy=wanted)


def test_a_lazy_adapter_that_stays_is_told_apart_and_its_new_generation_holds_nobody_up():
    """The deadlock rule: nothing is called for what is asked about; the engine holds the name until it is answered."""
    state, facts = lazily("v1", a="v1")
    made = plan(state, observed({"a": "v1"}), facts)
    assert (made.calls, made.served, [one.name for one in made.residents]) == ((), (), ["a"])
    for in_store, asked, staged_names, calls in (
        ([], "", ["a"], []),
        (["v2"], "", [], [Swap]),
        (["v2"], "a gone", [], []),
        ([], "a", ["a"], []),
    ):
        state, facts = lazily(*in_store, a="v2", asked=frozenset(asked.split()))
        made = plan(state, observed({"a": "v1", **dict.fromkeys(asked.split(), "v1")}), facts)
        assert ([one.name for one in made.stage], [type(call) for call in made.calls]) == (staged_names, calls)
        assert all(one.is_settled for one in made.pending)


def test_a_plan_itself_chooses_the_lazy_adapters_that_stay_and_says_what_it_may_load():
    """R7 files-pinned, R16 bounded: those that were used last, in the room that eager adapters leave."""
    state = desired(kv("e", 1), kv("a", 2, load="lazy"), kv("b", 3, load="lazy"))
    whole = {one.key: one for one in wants({"a": "v1", "b": "v1"}).adapters.values()}
    lazy = LazyCandidates({"a": 10.0, "b": 20.0}, whole, idle_seconds=5000.0)
    facts = replace(known(wants({"e": "v1", "a": "v1", "b": "v1"}), "v1"), lazy=lazy)
    made = plan(state, observed({"a": "v1", "b": "v1"}), facts, pool(max_adapters=2))
    assert made.calls[0] == Unload("a", path_of("v1"))
    assert (made.chosen.room, [one.name for one in made.chosen.lazy.residents]) == (1, ["b"])
    assert made.chosen.versions.keys() == {("e", path_of("v1")), ("b", path_of("v1"))}
    blocked = plan(state, observed({"a": "v1"}), replace(facts, base_problem="no base"), pool(max_adapters=2))
    assert (blocked.calls, ("e", path_of("v1")) in blocked.chosen.versions) == ((), True), (
        "its files are kept meanwhile"
    )


def test_what_an_earlier_call_is_under_way_for_is_left_alone_and_waited_for():
    """R19: neither loaded, swapped nor unloaded, nor said to be served; R9: and a replica is not ready before."""
    state = wants({"a": "v1", "b": "v2", "c": "v1"})
    proof = f"{PROOF_PREFIX}x"
    engine = observed({"b": "v1", "c": "v1", "d": "v1", proof: "v2"})
    facts = replace(known(state, "v1", "v2"), in_progress=InProgress(frozenset({"a", "b", "c", "d", proof})))
    made = plan(state, engine, facts)
    assert (made.calls, made.served) == ((), ())
    assert reasons(made.pending) == {"a": "loading", "b": "swapping", "c": "swapping"}
    assert not made.is_settled
    done = plan(wants({"c": "v1"}), observed({"c": "v1"}), known(wants({"c": "v1"}), "v1"))
    assert done.is_settled
    assert not replace(done, is_awaiting=True).is_settled


def removing(state: DesiredState, listed: dict[str, str], **more: Any) -> int:
    return plan(state, observed(listed), replace(known(state, "v1"), **more)).removing


def test_what_is_on_its_way_out_is_counted_until_it_is_gone():
    """R6: also while its unload is out or was refused, and what a call may bring yet that nobody desires any more."""
    state, listed = wants({"a": "v1"}), {"a": "v1", "x": "v1", "theirs": "/elsewhere"}
    assert removing(state, {"a": "v1", "theirs": "/elsewhere"}) == 0
    assert removing(state, listed) == 1
    assert removing(state, {**listed, "a": "v2"}) == 1, "another version of what is desired is swapped"
    assert removing(state, listed, in_progress=InProgress(frozenset({"x"}))) == 1
    assert removing(state, listed, in_progress=InProgress(frozenset({"a", "x", "y"}), frozenset({"a", "y"}))) == 2
    assert removing(state, {"a": "v1"}, unsettled=frozenset({"a", "y"})) == 1
    assert removing(state, listed, lazy=LazyCandidates(asked=frozenset({"x", "a"}))) == 1
    refused = Failure(None, "e1", "engine_refused", "no", 1, 99.0)
    assert removing(state, listed, failures={"x": refused}) == 1
    paused = replace(observed(listed), paused="it sleeps")
    assert plan(state, paused, known(state, "v1")).removing == 1


def test_a_load_under_way_takes_room_beside_what_is_held():
    """R16: as long as the engine does not list it."""
    state = desired(kv("a", 1, generation=2), kv("b", 1, generation=2), kv("c", 1, generation=2))
    spec, engine = pool(names="versioned", max_adapters=4), observed({"a@1": "v0", "b@1": "v0"})
    alone = plan(state, engine, known(state, "v1"), spec)
    assert [call.name for call in alone.calls] == ["a@2", "b@2"]
    facts = replace(known(state, "v1"), in_progress=InProgress(frozenset({"a", "a@2"}), frozenset({"a@2"})))
    assert [call.name for call in plan(state, engine, facts, spec).calls] == ["b@2"]
    listed = relisted(engine, {**engine.adapters, "a@2": path_of("v1")})
    assert [call.name for call in plan(state, listed, facts, spec).calls] == ["a@1", "b@2"]


def numbered(*names: str, since: int, **priority: int) -> DesiredState:
    """Adapters whose records have the revisions after `since`, in this order."""
    return desired(*(kv(name, since + at, priority=priority.get(name, 0)) for at, name in enumerate(names, start=1)))


def loaded_by(state: DesiredState, **more: Any) -> list[str]:
    return [call.name for call in plan(state, observed(), replace(known(state, "v1"), **more)).calls]


def test_a_change_made_now_comes_before_the_backlog_and_a_flood_of_them_holds_up_no_backlog():
    """R19 not-held-up: the newest first; what is old, as all that was there when it started, has every other turn.

    Of that the most important comes first, and then what was used last; what is staged and swapped has the same order.
    """
    five = numbered("a", "b", "c", "d", "e", since=0, e=9)
    assert loaded_by(five) == ["e", "a", "b", "c", "d"]
    assert loaded_by(five, since=100, used_at={"c": 90.0, "d": 80.0}) == ["e", "c", "d", "a", "b"]
    made = desired(kv("a", 1), kv("b", 2, source="v2"), kv("c", 3))
    made = plan(made, observed({"b": "v1"}), replace(known(made, "v2"), since=2))
    assert [one.name for one in (*made.stage, *made.calls)] == ["c", "a", "b"]
    two = numbered("a", "b", since=0)
    assert [loaded_by(two, since=since) for since in (2, 1, 0, None)] == [[*one] for one in ("ab", "ba", "ba", "ab")]
    state = numbered("a", "b", "c", "z", since=0, a=9, b=9)
    assert loaded_by(state, since=3) == ["z", "a", "b", "c"]
    flood = numbered("a", "b", "w", "x", "y", "z", since=0, a=9, b=9)
    assert loaded_by(flood, since=2) == ["z", "a", "y", "b", "x", "w"]


def test_nothing_is_called_while_the_engine_is_paused():
    """R9: what is listed is served, files are brought in, and what wants a call says why there is none."""
    state = wants({"a": "v1", "b": "v2", "c": "v3", "d": "v4"})
    engine = replace(observed({"a": "v1", "b": "v1", "gone": "v1"}), paused="it sleeps")
    made = plan(state, engine, known(state, "v1", "v2", "v3"))
    assert (made.calls, [one.name for one in made.stage]) == ((), ["d"])
    assert [one.name for one in made.served] == ["a"]
    assert reasons(made.pending) == {"b": ENGINE_PAUSED, "c": ENGINE_PAUSED, "d": "staging"}
    assert made.paused == "it sleeps"
    assert WarnedAdapter("", 0, ENGINE_PAUSED, "it sleeps") in made.warnings
    failure = Failure(ref_of(state, "c"), "e1", "engine_refused", "no", 3, 900.0)
    made = plan(state, engine, known(state, "v1", "v2", "v3", failures={"c": failure}))
    assert (made.calls, reasons(made.failed)) == ((), {"c": "engine_refused"})


HAZARDS = (EngineHazard("kv_connector", "keyed by name"), EngineHazard("kv_shared", "keyed by nothing"))


def test_no_name_gets_other_weights_where_they_would_be_answered_from_outside():
    """R4: and versioned names do."""
    state = wants({"a": "v2"}, generation=2)
    engine = observed({"a": "v1"})
    engine = replace(engine, facts=replace(engine.facts, swap="refused", hazards=HAZARDS))
    made = plan(state, engine, known(state, "v2"))
    assert (made.calls, reasons(made.failed)) == ((), {"a": "name_remembered"})
    assert "keyed by name" in made.failed[0].message
    assert [one.reason for one in made.warnings][:2] == ["kv_connector", "kv_shared"]
    made = plan(state, engine, known(state, "v2"), pool(names="versioned"))
    assert [call.name for call in made.calls] == ["a@2"]
    assert [one.reason for one in made.warnings] == ["kv_shared"]


def kept(made: Plan) -> dict[str, int]:
    return {one.name: one.generation for one in made.kept}


@pytest.mark.parametrize("engine", [{"a": "/elsewhere/a"}, {"A": "v1"}, {"a@3": "v1"}, {"b": "v1"}, {}])
def test_what_is_not_ours_or_not_by_its_name_is_not_told(engine):
    """R9, R11: nobody's requests for the adapter are answered with its weights by these."""
    state = wants({"a": "v2"}, generation=4)
    assert kept(plan(state, observed(engine), known(state))) == {}


def proving(adapters=None, *, without=()):
    """An engine with the plugin that can be asked whether adapters have an effect."""
    seen = observed(adapters)
    return replace(seen, facts=replace(seen.facts, proves=True), no_effect=frozenset(map(path_of, without)))


def test_what_was_bound_before_the_engine_could_be_asked_is_unloaded():
    """R22 applied-whole, R5: an error is better than the base's answer; what is not ours is left alone (R11)."""
    state, lists = wants({"a": "v1"}), {"a": "v1", "foreign": "/elsewhere"}
    seen = replace(proving(lists, without=["v1"]), no_effect=frozenset({path_of("v1"), "/elsewhere"}))
    made = plan(state, seen, known(state, "v1"))
    assert made.calls == (Unload("a", path_of("v1"), made.calls[0].request_id),)
    assert reasons(made.failed) == {"a": "no_effect"}
    under_way = replace(known(state, "v1"), in_progress=InProgress(frozenset({"a"})))
    assert plan(state, seen, under_way).calls == ()
    assert plan(state, seen, known(state, "v1"), pool(prove="off")).calls == ()
    assert plan(state, replace(seen, paused="asleep"), known(state, "v1")).calls == ()
    asked = replace(known(state, "v1"), lazy=replace(NOTHING_LAZY, asked=frozenset({"a"})))
    assert plan(state, seen, asked).calls == ()


EXPECT = {"answers": [{"prompt": [1], "tokens": [2], "logprobs": [-1.0]}]}


def key_in(state, name="a", source="v1"):
    return expected_key(path_of(source), ref_of(state, name).expect)


def expecting(seen, **more):
    """An engine with a plugin that can also be asked what adapters answer."""
    return replace(seen, facts=replace(seen.facts, expects=True), **more)


def test_what_answers_otherwise_is_not_loaded_and_the_old_version_stays():
    """R22 applied-whole, R8: of two names with the same files, that which expects nothing is served.

    So it is with all that a limit of the replica refuses.
    """
    state = desired(kv("a", 1, source="v2", expect=EXPECT), kv("b", 2, source="v2"))
    engine = expecting(proving({"a": "v1"}), unexpected={key_in(state, source="v2"): "otherwise"})
    made = plan(state, engine, known(state, "v2"))
    assert [(type(call), call.name, call.prove) for call in made.calls] == [(Load, "b", True)]
    assert reasons(made.failed) == {"a": "not_as_expected"}
    assert made.failed[0].message.startswith("otherwise; make spec.expect anew")
    assert ref_of(state, "a").expect


def test_what_was_bound_before_it_was_found_to_answer_otherwise_is_unloaded():
    """R22 applied-whole, R5: an error is better than a wrong answer."""
    state = desired(kv("a", 1, expect=EXPECT), kv("b", 2))
    seen = expecting(proving({"a": "v1", "b": "v1"}), unexpected={key_in(state): "otherwise"})
    made = plan(state, seen, known(state, "v1"))
    assert made.calls == (Unload("a", path_of("v1"), made.calls[0].request_id),)
    assert (reasons(made.failed), [one.name for one in made.served]) == ({"a": "not_as_expected"}, ["b"])
    assert plan(state, seen, known(state)).calls == (), "what is not in the store is staged first"
    assert plan(state, seen, known(state, "v1"), pool(prove="off")).calls == ()
    other = desired(kv("a", 1, expect=EXPECT | {"tolerance": 0.5}))
    assert [one.name for one in plan(other, seen, known(other, "v1")).served] == ["a"], "it is another question"


@pytest.mark.parametrize(
    ("proves", "expects", "prove", "said"),
    [
        (True, True, "effect", "the engine has no room for it yet"),
        (True, True, "off", "the pool has --prove off"),
        (True, False, "effect", "the plugin of this release"),
        (False, False, "effect", "the plugin of this release"),
    ],
)
def test_it_is_said_of_what_is_served_that_nobody_knows_what_it_answers(proves, expects, prove, said):
    """R22 applied-whole: never silence."""
    more = kv("c", 3, source="v2", expect=EXPECT), kv("d", 4, expect=EXPECT)
    state = desired(kv("a", 1, expect=EXPECT), kv("b", 2), *more)
    seen = observed({"a": "v1", "b": "v1"})
    seen = replace(seen, facts=replace(seen.facts, proves=proves, expects=expects))
    warned = plan(state, seen, known(state, "v1"), pool(prove=prove)).warnings
    found = [one for one in warned if one.reason == "expect_unproven"]
    assert [(one.name, one.generation) for one in found] == [("a", 1)]
    assert said in found[0].message
    asked = replace(seen, as_expected=frozenset({key_in(state)}))
    assert not [one for one in plan(state, asked, known(state, "v1")).warnings if one.reason == "expect_unproven"]


DONE = Plan(1, (), (), (), (), (), None)
WAITING, GIVEN_UP = (PendingAdapter("a", 1, "loading", "", is_settled=settled) for settled in (False, True))
TRIED, FINAL = (FailedAdapter("a", 1, "r", "m", 1, 9.0, "", is_settled=settled) for settled in (False, True))


@pytest.mark.parametrize(
    ("left", "is_settled"),
    [
        ({}, True),
        ({"blocked": "why"}, False),
        ({"is_awaiting": True}, False),
        ({"stage": (Stage("a", wants({"a": "v1"}).adapters["a"].ref, ""),)}, False),
        ({"calls": (Unload("a", "/a"),)}, False),
        ({"pending": (GIVEN_UP,)}, True),
        ({"pending": (GIVEN_UP, WAITING)}, False),
        ({"failed": (FINAL,)}, True),
        ({"failed": (FINAL, TRIED)}, False),
        ({"paused": "it sleeps", "warnings": (WarnedAdapter("", 0, "r", "m"),)}, True),
    ],
    ids=lambda one: "-".join(one) or "nothing" if isinstance(one, dict) else str(one),
)
def test_a_replicas_readiness_waits_for_all_that_can_be_waited_for(left, is_settled):
    """R9 status-truth."""
    assert replace(DONE, **left).is_settled == is_settled


def test_the_pool_names_one_of_the_engines_base_models():
    """R5: an engine may serve its base under several names."""
    state = wants({"a": "v1", "BASE": "v1"})
    seen = replace(observed({"old": "v1"}), base_models=("other", "base"))
    made = plan(state, seen, known(state, "v1"), pool("base", "third"))
    assert [(type(call), call.name) for call in made.calls] == [(Unload, "old"), (Load, "a")]
    assert reasons(made.failed) == {"BASE": "name_is_base_model"}
    assert len(make_plan(state, None, seen, known(state, "v1"), now=0.0).calls) == 2, "also without its record"
    blocked = plan(state, seen, known(state, "v1"), pool("third"))
    assert blocked.blocked == "the engine serves other, base, the pool is for third: check --engine and --pool"
    assert (blocked.calls, blocked.stage, blocked.is_settled) == ((), (), False)
    assert blocked.warnings == (WarnedAdapter("", 0, "blocked", blocked.blocked),)
    kind = plan(state, seen, known(state, "v1"), pool().model_copy(update={"engine": "sglang"}))
    assert kind.blocked == "the engine is vllm, the pool is for sglang: check --engine-kind and --pool"
    assert kind.calls == ()


def test_a_plan_that_may_do_nothing_tells_what_the_engine_answers_all_the_same():
    """R9, R23: what is meant counts as served, whatever base it was prepared for; of all else it is told that it is."""
    state = wants({"a": "v1", "b": "v2", "c": "v1", "d": "v1"})
    listed = {"a": "v1", "b": "v1", "d": "v1", "x": "v1"}
    (b,) = (one for one in state.adapters.values() if one.name == "b")

    refs = {one.ref for one in state.adapters.values()} - {b.ref}
    made_of = dict.fromkeys(((ref, path_of("v1")) for ref in refs), "sha256:v1")
    facts = replace(known(state), base_problem="another base", made_of=made_of)
    (lazy,) = (one for one in state.adapters.values() if one.name == "d")
    made = plan(state, observed(listed), facts)
    assert ([one.name for one in made.served], [one.name for one in made.kept]) == (["a", "d"], ["b"])
    assert {(one.generation, one.digest) for one in made.served} == {(lazy.generation, "sha256:v1")}
    assert (made.blocked, made.calls, made.stage, made.is_settled) == ("another base", (), (), False)


def test_what_failed_otherwise_before_is_no_failure_of_the_load_that_is_tried_now():
    """R9: files that have come since, or another process of the engine, are another matter."""
    state = wants({"a": "v1"})
    of_files = Failure(ref_of(state, "a"), None, "source_io", "m", 3, 900.0)
    made = plan(state, observed(), known(state, "v1", failures={"a": of_files}))
    assert (len(made.calls), reasons(made.pending), made.failed) == (1, {"a": "loading"}, ())
    of_another = Failure(ref_of(state, "a"), "e1", "engine_refused", "m", 3, 900.0)
    made = plan(state, observed(incarnation="e2"), known(state, "v1", failures={"a": of_another}))
    assert (len(made.calls), reasons(made.pending), made.failed) == (1, {"a": "loading"}, ())
    old = Failure(wants({"a": "v9"}).adapters["a"].ref, "e1", "engine_refused", "m", 3, 900.0)
    made = plan(state, observed({"a": "v0"}), known(state, "v1", failures={"a": old}))
    assert (len(made.calls), reasons(made.pending), made.failed) == (1, {"a": "swapping"}, ())
