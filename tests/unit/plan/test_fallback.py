"""The planner where the newest generation is not served: the engine gets the last good one that it has lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.artifacts.types import Stage
from sidecar.desired.assignment import Share
from sidecar.desired.informer import DesiredState, Informer
from sidecar.engines.observed import Observed
from sidecar.plan.backoff import Failure
from sidecar.plan.handoff import Waiting
from sidecar.plan.planner import make_plan
from sidecar.plan.types import InProgress, KeptAdapter, Load, Plan, PlanContext, Swap, Unload
from tests.support.records import POOL, deletion, kv, put
from tests.support.worlds import desired, fleet, known, observed, path_of, placed_at, pool, rolling, staged, without
from tests.unit.desired.test_assignment import share

NOT_FINITE = "not_finite"
NEVER_FAILED = 0.0
TOO_HIGH = 1.0


def second(*generations: int, is_served: bool = True, **spec: Any) -> DesiredState:
    """Generation 2 of ``a``, or the last of these, of whose generation 1 this replica served ``v1``."""
    informer = Informer(POOL)
    informer.replace(1, [kv("a", 1, **spec)])
    if is_served:
        informer.note_served([("a", 1)])
    for one in generations or (2,):
        informer.apply(one, [put("a", one, generation=one, source=f"v{one}", **spec)])
    return informer.state


def elsewhere(state: DesiredState) -> Share:
    """The share of a replica that is to hand it over."""
    return share(state, without(fleet("r1", "r2", "r3"), "r1"))


def refused(state: DesiredState, reason: str = NOT_FINITE, *, retry_at: float | None = None) -> dict[str, Failure]:
    return {"a": Failure(state.adapters["a"].ref, None, reason, "one of its numbers is none", 1, retry_at)}


def context(state: DesiredState, *sources: str, **facts: Any) -> PlanContext:
    """With these sources in the store, of the last good generation too."""
    good = state.adapters["a"].last_good
    assert good is not None
    of_good = staged(replace(state, adapters=state.adapters.set("a", good)), *sources)
    made = known(state, *sources, failures=facts.pop("failures", None), unsettled=facts.pop("unsettled", frozenset()))
    return replace(made, staged={**made.staged, **of_good}, **facts)


def plan(state: DesiredState, engine: Observed, facts: PlanContext, names: str = "plain") -> Plan:
    return make_plan(state, pool(names=names), engine, facts, now=1000.0)  # type: ignore[arg-type]


def good_ref(state: DesiredState):
    good = state.adapters["a"].last_good
    assert good is not None
    return good.ref


@pytest.mark.parametrize(("names", "name"), [("plain", "a"), ("versioned", "a@1")])
def test_an_engine_that_lost_it_gets_the_last_good_generation(names, name):
    """R13: and it is told as failed still, with what is answered beside it once that is listed."""
    state = second()
    facts = context(state, "v1", failures=refused(state))
    made = plan(state, observed(), facts, names)
    assert made.calls == (Load(name, path_of("v1"), good_ref(state), "req-a-2", key="a@1"),)
    assert (made.stage, made.kept) == ((), ())
    assert (name, path_of("v1")) in made.chosen.versions, "R7 files-pinned"
    assert [(one.name, one.generation, one.reason) for one in made.failed] == [("a", 2, NOT_FINITE)]
    assert not made.is_settled, "a replica is ready once it is there"
    after = plan(state, observed({name: "v1"}), facts, names)
    assert (after.calls, after.stage) == ((), ())
    assert (name, path_of("v1")) in after.chosen.versions
    assert after.kept == (KeptAdapter("a", 1),)
    assert after.is_settled


@pytest.mark.parametrize("names", ["plain", "versioned"])
def test_each_version_that_an_engine_may_have_has_what_proves_it(names):
    """R26 answered-by: that of the generation with those files, also while another one is to come."""
    state = second()
    made = plan(state, observed(), context(state, "v1", "v2"), names)
    name = "a@{}" if names == "versioned" else "a"
    proofs = {(name.format(number), path_of(f"v{number}")): f"a@{number} " for number in (1, 2)}
    assert {use: proof.partition("sha256:")[0] for use, proof in made.chosen.versions.items()} == proofs


def test_files_that_are_gone_are_fetched_again_under_a_name_of_their_own():
    """What fails of them is not to hide what fails of the newest."""
    state = second()
    facts = context(state, failures=refused(state))
    made = plan(state, observed(), facts)
    assert made.stage == (Stage("a@1", good_ref(state), "req-a-2"),)
    away = {"a@1": Failure(good_ref(state), None, "source_unreachable", "", 1, 1007.0)}
    waiting = plan(state, observed(), replace(facts, failures={**facts.failures, **away}))
    assert (waiting.stage, waiting.calls, waiting.wake_at) == ((), (), 1007.0)
    assert [one.reason for one in waiting.failed] == [NOT_FINITE]


def test_while_the_newest_is_fetched_the_last_good_one_is_loaded_if_it_is_there():
    """R13: an old answer is better than none; it is replaced once the newest is there."""
    state = second()
    made = plan(state, observed(), context(state, "v1"))
    assert [type(one) for one in made.calls] == [Load]
    assert [one.name for one in made.stage] == ["a"]
    assert plan(state, observed({"a": "v1"}), context(state, "v1")).calls == ()
    swap = Swap("a", path_of("v1"), path_of("v2"), state.adapters["a"].ref, "req-a-2")
    made = plan(state, observed({"a": "v1"}), context(state, "v1", "v2"))
    assert (made.calls, made.is_destructive) == ((swap,), True)
    assert plan(state, observed(), context(state)).stage == (Stage("a", state.adapters["a"].ref, "req-a-2"),)


def test_an_engine_that_replaces_nothing_gets_it_only_once_the_newest_fails():
    """It could not be given the newest after it."""
    state, engine = second(), observed()
    engine = replace(engine, facts=replace(engine.facts, swap="refused"))
    assert plan(state, engine, context(state, "v1")).calls == ()
    failing = context(state, "v1", failures=refused(state, "source_unreachable", retry_at=999.0))
    assert [type(one) for one in plan(state, engine, failing).calls] == [Load]


@pytest.mark.parametrize("path", ["/elsewhere", path_of("v0")])
def test_what_stands_under_the_name_stays(path):
    """R11 foreign-safe; and what is ours has been served since."""
    state = second()
    assert plan(state, observed({"a": path}), context(state, "v1", failures=refused(state))).calls == ()


@pytest.mark.parametrize(
    "facts",
    [
        {"unsettled": {"a"}},
        {"unsettled": {"a@1"}},
        {"in_progress": InProgress(frozenset({"a"}), frozenset({"a"}))},
        {"in_progress": InProgress(frozenset({"a@1"}))},
    ],
)
def test_while_a_call_for_the_name_is_open_there_is_no_other(facts):
    state = second()
    assert plan(state, observed(), context(state, "v1", failures=refused(state), **facts)).calls == ()


@pytest.mark.parametrize(
    ("stable", "between", "source"),
    [
        (NEVER_FAILED, NEVER_FAILED, "v1"),
        (TOO_HIGH, NEVER_FAILED, "v0"),
        (None, NEVER_FAILED, "v0"),
        (1002.0, NEVER_FAILED, "v0"),
        (None, 1002.0, None),
        (1003.0, 999.0, "v0"),
    ],
)
def test_a_canary_whose_stable_generation_fails_too_goes_on_with_what_it_served_between(stable, between, source):
    """R13: what is tried is what does not fail, else what may be tried again first."""
    state = desired(rolling("a", 1, generation=3, stable="v1"))
    adapter = state.adapters["a"]
    served = replace(adapter.earlier(1, adapter.ref), key="a@1", ref=replace(adapter.ref, uri="file:///a/v0"))
    state = replace(state, adapters=state.adapters.set("a", replace(adapter, last_good=served)))
    others, _ = state.adapters["a"].fallbacks
    facts = known(state, "v1", failures=refused(state))
    found = staged(replace(state, adapters=state.adapters.set("a", served)), "v0")
    tried = ((others, stable), (served, between))
    own = {
        one.key: Failure(one.ref, None, NOT_FINITE, "", 1, at)
        for one, at in tried
        if at not in {NEVER_FAILED, TOO_HIGH}
    }
    of_others = staged(state, "v1", rank=128 if stable == TOO_HIGH else 8)
    facts = replace(facts, staged={**of_others, **found}, failures={**facts.failures, **own})
    made = plan(state, observed(max_lora_rank=64), facts)
    loaded = [call.path for call in made.calls if isinstance(call, Load)]
    assert loaded == ([path_of(source)] if source else [])


@pytest.mark.parametrize("source", ["v2", "of-before"])
def test_who_is_a_canary_no_more_keeps_what_it_has_while_the_stable_generation_cannot_be_had(source):
    """R13, R24: simulated seed 770537. What stands there since before the name was made anew goes (R4)."""
    state = desired(rolling("a", 1, strategy={"canary": {"replicas": 1}}))
    state = replace(state, adapters=state.adapters.set("a", replace(state.adapters["a"], made=1)))
    shares = [share(state, fleet("r1", "r2", "r3"), replica) for replica in ("r1", "r2", "r3")]
    others = next(one for one in shares if one.instead)
    failures = {"a": Failure(others.instead["a"].ref, None, NOT_FINITE, "", 1, None)}
    made = plan(state, observed({"a": source}), replace(known(state, "v2", failures=failures), share=others))
    assert [one.name for one in made.calls if isinstance(one, Unload)] == ([] if source == "v2" else ["a"])
    assert [(one.name, one.generation) for one in made.kept] == ([("a", 2)] if source == "v2" else [])


@pytest.mark.parametrize(("names", "name"), [("plain", "a"), ("versioned", "a@1")])
@pytest.mark.parametrize("failure", [NOT_FINITE, "engine_refused", ""])
def test_what_others_are_to_take_over_is_loaded_again_of_its_last_good_generation(names, name, failure):
    """R13, R20: until they serve it, which they cannot while its newest generation is refused."""
    state = second(placement=placed_at(2))
    others = elsewhere(state)
    failed = refused(state, failure) if failure else {}
    there = ("v1", "v2") if failure == "engine_refused" else ("v1",)
    facts = context(state, *there, failures=failed, share=others, handing=frozenset({name}))
    listed = plan(state, observed({name: "v1"}), facts, names)
    assert [(one.name, one.generation) for one in listed.still_served] == [("a", 1)], "R24: routers go on to ask here"
    (leaving,) = listed.leaving
    made = plan(state, observed(), replace(facts, handed={leaving: Waiting()}), names)
    assert made.calls == (Load(name, path_of("v1"), good_ref(state), "req-a-2", key="a@1"),)
    assert (name, path_of("v1")) in made.chosen.versions
    away = replace(facts, handed={leaving: Waiting()}, staged={})
    assert plan(state, observed(), away, names).calls == ()


@pytest.mark.parametrize(("generation", "told"), [(1, [("a", 1)]), (0, [])])
def test_what_others_are_to_take_over_is_told_as_it_was_before_a_publish(generation, told):
    """R24: the engine has the generation before until others serve the newest; of which it is, it was seen to serve."""
    state = desired(kv("a", 7, generation=2, source="v2", placement=placed_at(2)))
    others = elsewhere(state)
    facts = replace(known(state), share=others, generations={("a", path_of("v1")): generation})
    made = plan(state, observed({"a": "v1"}), facts)
    assert [(one.name, one.generation) for one in made.still_served] == told
    assert [one.name for one in made.kept] == ([] if told else ["a"])


def test_what_others_are_to_take_over_is_told_by_its_files_where_its_record_was_replaced_before_it_was_seen():
    """R24: the engine got it late, and answers with it until others serve the newest."""
    state = second(2, 3, is_served=False, placement=placed_at(2))
    others = elsewhere(state)
    former = {one.ref: one for one in state.adapters["a"].former}
    for version in former.values():
        found = staged(replace(state, adapters=state.adapters.set("a", version)), "v1", "v2")
        facts = replace(known(state), share=others, staged=found)
        made = plan(state, observed({"a": found[version.ref].path}), facts)
        assert [(one.name, one.generation) for one in made.still_served] == [("a", version.generation)]
        assert made.kept == ()


@pytest.mark.parametrize(
    ("listed", "there", "failing", "facts", "unloaded"),
    [
        ("v1", ("v2",), True, {}, True),
        ("v1", ("v2",), False, {}, False),
        ("v1", ("v2",), True, {"unsettled": {"a"}}, False),
        ("v1", ("v2",), True, {"in_progress": InProgress(frozenset({"a"}))}, False),
        ("v1", ("v2",), True, {"taken": frozenset({"a"})}, True),
        ("v3", ("v3",), True, {}, False),
        ("v2", ("v2",), True, {}, False),
        ("v2", (), True, {}, False),
        ("/foreign", ("v2",), True, {}, False),
        ("v1", ("v2",), True, {"no_effect": frozenset({path_of("v1")})}, True),
    ],
)
def test_what_had_the_name_before_goes_once_the_new_cannot_be_had(listed, there, failing, facts, unloaded):
    """R2: whoever deletes an adapter and makes another of that name is not answered with the first for good."""
    informer = Informer(POOL)
    informer.replace(1, [kv("a", 1)])
    informer.note_served([("a", 1)])
    informer.apply(2, [deletion("a", 2)])
    informer.apply(3, [put("a", 3, generation=2, source="v2")])
    if listed != "v1":
        informer.note_served([("a", 2)])
    informer.apply(4, [put("a", 4, generation=3, source="v3")])
    state = informer.state
    [former] = [one for one in (state.adapters["a"].last_good, *state.adapters["a"].former) if one is not None]
    found = {**staged(state, *there), **staged(replace(state, adapters=state.adapters.set("a", former)), *there)}
    failures = refused(state) if failing else {}
    made = known(state, failures=failures, unsettled=facts.pop("unsettled", frozenset()))
    seen = observed({"a": listed})
    seen = replace(seen, facts=replace(seen.facts, proves=True), no_effect=facts.pop("no_effect", frozenset()))
    plan_made = plan(state, seen, replace(made, staged=found, **facts))
    assert [type(one) for one in plan_made.calls] == [Unload] * unloaded


@pytest.mark.parametrize(
    ("names", "listed", "served", "unloaded"),
    [
        ("plain", "a", 2, False),
        ("plain", "a", 3, False),
        ("plain", "a", 1, True),
        ("versioned", "a@3", None, False),
    ],
)
def test_what_was_served_since_the_name_was_made_stays_though_it_may_not_be_given_anew(names, listed, served, unloaded):
    """R13: a pool asks for signatures from now on, or its files are gone from the store and from their source; also
    where another setting made a generation of the same files meanwhile.
    """
    informer = Informer(POOL)
    informer.replace(1, [])
    informer.apply(2, [put("a", 2, generation=2)])
    informer.note_served([("a", 2)])
    informer.apply(3, [put("a", 3, generation=3, priority=7)])
    informer.note_served([("a", 3)])
    state = informer.state
    seen = {} if served is None else {("a", path_of("v1")): served}
    facts = replace(known(state, failures=refused(state, "signature_keys_missing")), staged={}, generations=seen)
    made = plan(state, observed({listed: "v1"}), facts, names)
    assert [type(one) for one in made.calls] == [Unload] * unloaded


def test_of_whom_not_all_is_known_what_stands_under_the_name_stays():
    """R13: it may be an earlier generation of the same adapter, which came before this replica's first list."""
    state = desired(kv("a", 5, generation=3, source="v3"))
    assert plan(state, observed({"a": "v1"}), known(state, failures=refused(state))).calls == ()
