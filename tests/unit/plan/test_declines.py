"""What a replica declines: since when, until when, and what of it the next process knows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from registry.lora.coverage.findings import EngineEvidence
from registry.model.placement import DECLINABLE, Declined, Member, decline_id
from registry.model.records import AskedRetry
from sidecar.desired.assignment import everything
from sidecar.desired.informer import DesiredState
from sidecar.plan.backoff import Decline, Declines, Failure
from sidecar.plan.limits import HEARD_SECONDS, _is_news, announced, is_own, limit_digest, passed_on, restored
from sidecar.plan.planner import make_plan
from sidecar.plan.types import FailedAdapter, Plan, ReplicaLimits
from tests.support.records import kv, record
from tests.support.worlds import desired, known, observed, placed_at, pool, rolling, staged

COUNTED = desired(kv("a", 1, placement=placed_at(1)), kv("all", 2))


def planned(state: DesiredState, before: Declines | None = None, *, of_pool=None, **limits: object) -> Plan:
    """A plan of a replica that has the files of all of them, with these limits of its engine."""
    found = {ref: replace(one, modules=("m.o_proj",)) for ref, one in staged(state, "v1").items()}
    facts = replace(known(state), staged=found, declined=before or {})
    return make_plan(state, of_pool or pool(), observed({}, **(limits or {"max_lora_rank": 4})), facts, now=0.0)


def test_what_the_engines_own_limits_refuse_is_declined_where_it_is_placed_by_number():
    plan = planned(COUNTED)
    assert {one.name for one in plan.failed} == {"a", "all"}
    assert list(plan.declined) == [("a", 1)]
    assert plan.declined["a", 1].reason == "rank_too_high"
    assert planned(COUNTED, plan.declined).declined is plan.declined, "nothing is new"
    (named,) = planned(COUNTED, target_modules=("v_proj",)).declined.values()
    assert named.reason == "target_modules_mismatch"


REFUSED = Declined("8", frozenset({decline_id("a", 1)}))


@pytest.mark.parametrize(
    ("others", "heard", "final"),
    [
        ({"r2": Member("r2", {})}, False, False),
        ({"r2": Member("r2", {})}, True, True),
        ({}, False, True),
        ({"r2": Member("r2", {}, declines={"rank_too_high": REFUSED})}, False, True),
        ({"r2": Member("r2", {}, declines=None)}, False, True),
        ({"r2": Member("r2", {"zone": "b"})}, False, True),
    ],
)
def test_a_refusal_is_no_answer_until_those_who_may_take_it_heard_of_it(others, heard, final):
    """R3, R9: no rollout fails while another replica is about to be asked; with none that may take it it does."""
    zones = {"zone": "a"} if "zone" in str(others) else {}
    state = desired(kv("a", 1, placement=placed_at(1, **zones)), kv("all", 2))
    found = {ref: replace(one, modules=("m.o_proj",)) for ref, one in staged(state, "v1").items()}
    mine = Member("r1", {"zone": "a"}, declines={"rank_too_high": REFUSED} if heard else {})
    share = replace(everything(state), replica="r1", members={"r1": mine, **others})
    facts = replace(known(state), staged=found, share=share)
    plan = make_plan(state, pool(), observed({}, max_lora_rank=4), facts, now=7.0)
    told = {one.name: (one.retry_at, one.final_at) for one in plan.failed}
    assert told["a"] == ((None, math.inf) if final else (7.0 + HEARD_SECONDS, math.inf))
    assert told["all"] == (None, math.inf), "of what all are to serve nothing is passed on"
    later = make_plan(state, pool(), observed({}, max_lora_rank=4), replace(facts, declined=plan.declined), now=9.0)
    assert later.failed == plan.failed, "a status says nothing new while nothing is"


def test_what_a_record_that_is_gone_was_refused_for_is_told_as_it_is():
    """R9: a lazy adapter has no place to pass on."""
    state = desired(kv("b", 1))
    share = replace(everything(state), replica="r1", members={"r1": Member("r1", {}), "r2": Member("r2", {})})
    said = FailedAdapter("a", 1, "rank_too_high", "", 1, None, "", is_settled=True, is_own=True)
    declined = {("a", 1): Decline("rank_too_high", "8", None, 7.0)}
    assert passed_on(state, said, declined, replace(known(state), share=share)) is said


def test_what_a_canary_refuses_is_passed_on_to_nobody():
    """R9: that halts its rollout at once."""
    state = desired(rolling("a", 5, placement=placed_at(2), strategy={"canary": {"replicas": 1}}))
    two = {name: Member(name, {}) for name in ("r1", "r2")}
    assert [_is_news(state.adapters["a"], generation, "r1", two) for generation in (1, 2)] == [True, False]
    assert not _is_news(state.adapters["a"], 1, "r3", two), "it drains"


def test_a_decline_stands_until_its_limit_its_generation_or_its_record_is_another():
    """No flapping: it stands though nobody tries it here any more."""
    before = planned(COUNTED).declined
    facts = replace(known(COUNTED), declined=before)
    assert make_plan(COUNTED, pool(), observed({}, max_lora_rank=4), facts, now=0.0).declined == before
    assert planned(COUNTED, before, max_lora_rank=64).declined == {}
    for other in (
        desired(kv("a", 3, generation=2, placement=placed_at(1))),
        desired(kv("a", 3)),
        desired(kv("b", 3, placement=placed_at(1))),
    ):
        assert ("a", 1) not in make_plan(other, pool(), observed({}, max_lora_rank=4), facts, now=0.0).declined


def test_somebody_may_ask_for_another_try():
    before = planned(COUNTED).declined
    made = record("a", 1, placement=placed_at(1)).model_copy(update={"retry": AskedRetry(request_id="again")})
    asked = desired(kv("a", 3, value=made.to_bytes()))
    facts = replace(known(asked), declined=before)
    assert make_plan(asked, pool(), observed({}, max_lora_rank=4), facts, now=0.0).declined == {}
    after = planned(asked).declined
    assert after["a", 1].asked == "again"
    assert planned(asked, after).declined is after


def test_the_stable_generation_of_a_rollout_may_be_declined_beside_the_new_one():
    state = desired(rolling("a", 5, placement=placed_at(2), strategy={"canary": {"replicas": 1}}))
    limits = observed({}, max_lora_rank=4)
    first = Decline("rank_too_high", limit_digest("rank_too_high", ReplicaLimits(max_rank=4), ""), "")
    facts = replace(known(state), declined={("a", 1): first, ("a", 2): first, ("a", 3): first})
    assert list(make_plan(state, pool(), limits, facts, now=0.0).declined) == [("a", 1), ("a", 2)]


def test_only_so_many_are_declined_and_the_oldest_stay(monkeypatch):
    """R16: a presence stays small; what is beyond it is refused here as before."""
    monkeypatch.setattr("sidecar.plan.limits.MAX_DECLINED", 2)
    names = ["a", "b", "c"]
    before = planned(desired(kv("c", 1, placement=placed_at(1)))).declined
    state = desired(*(kv(name, 1, placement=placed_at(1)) for name in names))
    plan = planned(state, before)
    assert [key for key, _ in plan.declined] == ["c", "a"]
    assert {one.name for one in plan.failed} == set(names)


@pytest.mark.parametrize(
    ("reason", "incarnation", "retry_at", "own"),
    [
        ("source_not_allowed", None, None, True),
        ("unknown_credential", None, None, True),
        ("source_not_allowed", None, 5.0, False),
        ("source_not_allowed", "e1", None, False),
        ("not_finite", None, None, False),
        ("not_applied_by_engine", None, None, False),
    ],
)
def test_what_may_not_be_read_here_may_be_read_elsewhere_and_what_is_wrong_is_wrong_everywhere(
    reason, incarnation, retry_at, own
):
    """R8: an adapter with wrong files does not wander through the pool."""
    failure = Failure(COUNTED.adapters["a"].ref, incarnation, reason, "m", 1, retry_at)
    assert is_own(failure) is own
    facts = replace(known(COUNTED), failures={"a": failure})
    plan = make_plan(COUNTED, pool(), observed({}), facts, now=0.0)
    assert (("a", 1) in plan.declined) is own


def test_each_reason_stands_for_as_long_as_the_limit_that_it_comes_from():
    evidence = EngineEvidence("vllm 1", "Llama", applied=("m.q_proj",), taken=())
    base = ReplicaLimits(max_rank=8, target_modules=("q",), evidence=evidence)
    changes = {
        "rank_too_high": replace(base, max_rank=16),
        "target_modules_mismatch": replace(base, target_modules=("v",)),
        "not_applied_by_engine": replace(base, evidence=replace(evidence, engine="vllm 2")),
    }
    for reason in DECLINABLE:
        mine = "not_applied_by_engine" if reason == "not_taken_by_engine" else reason
        now = limit_digest(reason, base, "")
        differ = {one for one, limits in changes.items() if limit_digest(reason, limits, "") != now}
        assert differ == {mine} & changes.keys()
        assert (limit_digest(reason, base, "other") != now) is (mine not in changes)


def test_what_is_told_is_known_again_after_a_restart():
    state = desired(kv("a", 1, placement=placed_at(1)), kv("b", 2, generation=4, placement=placed_at(1)), kv("all", 3))
    declined = {("a", 1): Decline("r", "8", "x"), ("gone", 1): Decline("r", "8", ""), ("b", 4): Decline("s", "9", "")}
    told = announced(declined)
    assert told == {
        "r": Declined("8", frozenset({decline_id("a", 1), decline_id("gone", 1)})),
        "s": Declined("9", frozenset({decline_id("b", 4)})),
    }
    again = restored(told, state)
    assert again == {("a", 1): Decline("r", "8", None), ("b", 4): Decline("s", "9", None)}
    assert restored({}, state) == {}
    assert Decline("r", "8", "x", 1.0) == Decline("r", "8", "x", 2.0), "what is declined as before is no news"
    assert announced(again) == {**told, "r": Declined("8", frozenset({decline_id("a", 1)}))}


def test_a_restored_decline_stands_while_its_limit_is_the_same():
    told = announced(planned(COUNTED).declined)
    assert list(planned(COUNTED, restored(told, COUNTED)).declined) == [("a", 1)]
    facts = replace(known(COUNTED), declined=restored(told, COUNTED))
    (stands,) = make_plan(COUNTED, pool(), observed({}, max_lora_rank=4), facts, now=0.0).declined.values()
    assert stands.asked == ""
    assert make_plan(COUNTED, pool(), observed({}, max_lora_rank=9), facts, now=0.0).declined == {}


@pytest.mark.parametrize(("replica", "is_kept"), [("r2", True), ("r1", False), ("", False)])
def test_another_try_that_another_replica_is_asked_for_is_none_here(replica, is_kept):
    """R3: what is declined here would be placed here again, only to be refused."""
    before, retry = planned(COUNTED).declined, AskedRetry(request_id="again", replica=replica)
    made = record("a", 1, placement=placed_at(1)).model_copy(update={"retry": retry})
    asked = desired(kv("a", 3, value=made.to_bytes()))
    facts = replace(known(asked), declined=before, share=replace(everything(asked), replica="r1"))
    plan = make_plan(asked, pool(), observed({}, max_lora_rank=4), facts, now=0.0)
    assert plan.declined == (before if is_kept else {})
