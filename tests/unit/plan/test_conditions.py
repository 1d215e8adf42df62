"""What a plan says of adapters: every warning and every failure, whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.lora.coverage.findings import EngineEvidence
from registry.lora.engine_base import UNKNOWN_BASE
from registry.lora.findings import AdapterWarning
from sidecar.desired.assignment import Assigner
from sidecar.desired.informer import Informer
from sidecar.engines.observed import EngineHazard
from sidecar.plan.backoff import Failure
from sidecar.plan.handoff import Stuck, Taken, Waiting
from sidecar.plan.planner import MAX_WARNINGS_LISTED, make_plan
from sidecar.plan.types import FailedAdapter, Plan, WarnedAdapter
from tests.support.records import POOL, kv, put
from tests.support.worlds import desired, known, observed, path_of, placed_at, pool, staged, wants

HAZARDS = tuple(
    EngineHazard(reason, f"of {reason}") for reason in ("rust_frontend", "kv_connector", "kv_shared", "anything")
)
EVIDENCE = EngineEvidence("vllm", "Llama", applied=("a",), taken=("a",))


def said(made: Plan) -> list[tuple[str, int, str]]:
    return [(one.name, one.generation, one.reason) for one in made.warnings]


def plan(state, engine, facts, **limits: Any) -> Plan:
    return make_plan(state, pool(**limits), engine, facts, now=1000.0)


def facts_of(**changes: Any):
    """An engine that lists a, with other facts."""
    seen = observed({"a": "v1"})
    return replace(seen, facts=replace(seen.facts, **changes))


@pytest.mark.parametrize(
    ("facts", "expected", "words"),
    [
        ({"swap": "plugin", "proves_answers": False}, ["answers_unproven"], "plugin is of an earlier release"),
        ({"swap": "plugin", "proves_answers": True}, [], ""),
        ({"swap": "pipelined", "proves_answers": False}, [], ""),
        ({"base": UNKNOWN_BASE}, ["base_unproven"], "nobody knows"),
        ({"swap": "unproven"}, ["adapter_unproven"], "vllm lists nothing"),
    ],
)
def test_what_an_engine_does_not_prove_is_told(facts, expected, words):
    """R26 answered-by: that is of a plugin; an engine without one is another matter.

    R9, R23 same-base: what it serves is what it was told, as far as anybody knows.
    """
    warned = plan(wants({"a": "v1"}), facts_of(**facts), known(wants({"a": "v1"}), "v1")).warnings
    assert [(one.name, one.generation, one.reason) for one in warned] == [("", 0, reason) for reason in expected]
    assert all(words in one.message for one in warned)


def test_all_that_holds_for_every_adapter_is_said_of_none_by_name_in_one_order():
    """R9: a status has room for few warnings, and what concerns all comes first."""
    state = wants({"a": "v1"})
    told = {"pool_refusal": "no number", "proxied": "a proxy", "not_taken": {"/f": "line 4: what it is"}}
    facts = replace(known(state, "v1"), base_known=False, **told)
    engine = replace(facts_of(hazards=HAZARDS), paused="it sleeps")
    assert said(plan(state, engine, facts)) == [
        ("", 0, "base_unknown"),
        ("", 0, "pool_refused"),
        ("", 0, "file_not_taken"),
        ("", 0, "etcd_proxy"),
        ("", 0, "engine_paused"),
        *(("", 0, one.reason) for one in HAZARDS),
    ]
    assert [one.message for one in plan(state, engine, facts).warnings][1:6] == [
        "no number; what it said before goes on",
        "line 4: what it is; what that file said before goes on",
        "a proxy",
        "it sleeps",
        "of rust_frontend",
    ]
    assert said(plan(state, engine, facts, names="versioned"))[5:] == [("", 0, "kv_shared"), ("", 0, "anything")]
    assert said(plan(state, facts_of(), known(state, "v1"))) == []


def test_an_engine_that_ends_at_a_misfit_is_given_nothing_that_nobody_compared():
    """X2: adapters that do not fit its base would end it."""
    state, engine = wants({"a": "v1"}), facts_of(swap="unproven")
    made = plan(state, engine, replace(known(state, "v1"), base_known=False))
    assert (made.calls, made.served) == ((), ())
    assert made.blocked.startswith("vllm ends at an adapter that does not fit its base model")
    assert said(made) == [("", 0, "blocked")]
    assert plan(state, engine, known(state, "v1")).blocked == ""
    assert plan(state, facts_of(), replace(known(state, "v1"), base_known=False)).blocked == ""


WARNINGS = (AdapterWarning("engine_coverage_unknown", "nobody asked"), AdapterWarning("other", "of the files"))


@pytest.mark.parametrize(("evidence", "left"), [(None, ["engine_coverage_unknown", "other"]), (EVIDENCE, ["other"])])
def test_what_was_found_of_files_is_said_of_each_adapter_that_has_them(evidence, left):
    """R22: but for what the engine itself answered meanwhile."""
    state = desired(kv("a", 1, generation=3), kv("b", 2, source="v2"), kv("c", 3))
    found = {ref: replace(one, warnings=WARNINGS) for ref, one in staged(state, "v1").items()}
    made = plan(state, facts_of(evidence=evidence), replace(known(state), staged=found))
    of_one = {"a": 3, "c": 1}
    assert said(made) == [(name, generation, reason) for name, generation in of_one.items() for reason in left]
    assert made.warnings[-1] == WarnedAdapter("c", 1, "other", "of the files")


def test_files_that_somebody_touched_are_told_of_each_name_that_the_engine_has_them_under():
    """R9: also of what is desired no more, and of a name that no record ever had."""
    state = wants({"a": "v1"})
    engine = observed({"a": "v1", "old": "v1", "b": "v2"})
    facts = replace(known(state), touched={path_of("v1"): "was removed", path_of("v3"): "was removed"})
    warned = plan(state, engine, facts).warnings
    assert [(one.name, one.generation, one.reason) for one in warned] == [
        ("a", 1, "files_touched"),
        ("old", 0, "files_touched"),
    ]
    assert f"{path_of('v1')} was removed" in warned[0].message


def test_of_very_many_warnings_the_first_are_listed():
    """R16 bounded: a status stays small, and says enough to look further."""
    state = desired(*(kv(f"n{number:04}", 1) for number in range(1500)))
    found = {ref: replace(one, warnings=WARNINGS) for ref, one in staged(state, "v1").items()}
    made = plan(state, observed(), replace(known(state), staged=found))
    assert 50 <= len(made.warnings) == MAX_WARNINGS_LISTED <= 500
    assert made.warnings[0].name == "n0000"


def test_a_record_that_cannot_be_followed_is_named_as_its_last_good_one_was():
    """R14 nack: eager or lazy, with the generation that stays; nothing waits for it."""
    informer = Informer(POOL)
    informer.replace(5, [kv("Sales", 1, generation=3), kv("Lazy", 2, generation=4, load="lazy")])
    informer.apply(7, [put("Sales", 7, b"?"), put("Lazy", 7, b"?")])
    state = informer.state
    made = plan(state, observed({"Sales": "v1"}), known(state, "v1"))
    told = {one.name: one for one in made.failed}
    assert set(told) == {"Sales", "Lazy"}
    for name, generation in (("Sales", 3), ("Lazy", 4)):
        message = told[name].message
        assert message.startswith("the record at revision 7 cannot be followed: ")
        assert told[name] == FailedAdapter(name, generation, "unreadable_record", message, 1, None, "", is_settled=True)
    assert made.is_settled


def test_a_failure_is_told_with_all_that_is_known_of_it():
    """R9: when it is tried again, and from when on a rollout takes it for an answer."""
    state = wants({"a": "v1"}, generation=2)
    ref = state.adapters["a"].ref
    failure = Failure(ref, "e1", "engine_refused", "no", 4, 1030.0, since=990.0)
    made = plan(state, observed(), known(state, "v1", failures={"a": failure}))
    (told,) = made.failed
    assert told == FailedAdapter("a", 2, "engine_refused", "no", 4, 1030.0, "req-a-2", is_settled=True, final_at=1050.0)
    assert made.wake_at == 1030.0
    early = plan(state, observed(), known(state, "v1", failures={"a": replace(failure, attempts=1)}))
    assert (early.failed[0].is_settled, early.is_settled) == (False, False)


def test_the_next_plan_is_made_when_the_first_of_several_things_is_due():
    """R17, R3: what is past or never comes wakes nobody."""
    state = wants(dict.fromkeys("abcd", "v1"))
    refs = {key: one.ref for key, one in state.adapters.items()}
    failures = {
        "a": Failure(refs["a"], "e1", "engine_refused", "no", 4, 1200.0, since=900.0),  # final in the past
        "b": Failure(refs["b"], "e1", "engine_busy", "no", 1, 1090.0),
        "c": Failure(refs["c"], "e1", "engine_refused", "no", 4, 1300.0, since=1010.0),  # final at 1070
        "d": Failure(refs["d"], None, "digest_mismatch", "no", 1, None, since=950.0),
    }
    assert plan(state, observed(), known(state, "v1", failures=failures)).wake_at == 1070.0
    failures.pop("c")
    assert plan(state, observed(), known(state, "v1", failures=failures)).wake_at == 1090.0
    only = {"d": failures["d"]}
    assert plan(state, observed({"a": "v1", "b": "v1", "c": "v1"}), known(state, "v1", failures=only)).wake_at is None


def test_only_what_nobody_can_take_over_is_warned_of():
    """R3: who waits for others, or has handed over, needs nobody."""
    away = [kv(name, 1, generation=4, placement=placed_at("all", zone="nowhere")) for name in ("x", "y", "z")]
    state = desired(*away)
    facts = replace(known(state, "v1"), share=Assigner(POOL, "r1", {}).find(state, None))
    listed = observed(dict.fromkeys("xyz", "v1"))
    leaving = {one.name: one for one in plan(state, listed, facts).leaving}
    handed = {leaving["x"]: Stuck("r2 has no room"), leaving["y"]: Waiting(), leaving["z"]: Taken(routers_know=False)}
    made = plan(state, listed, replace(facts, handed=handed))
    assert said(made) == [("x", 4, "not_handed_over")]
    assert made.warnings[0].message.endswith("kept here until it is: r2 has no room")
