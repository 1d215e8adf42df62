"""Which earlier generations of an adapter a replica may take that has served none of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.records import Restoration, RetiredRecord
from registry.model.replica_state import parse_status
from registry.model.status import Failed, Kept
from sidecar.plan.backoff import Failure
from sidecar.plan.planner import make_plan
from sidecar.report.good_finder import earlier_of, lacking
from tests.support.records import KEYS, POOL, kv, record
from tests.support.residency_world import replica_status
from tests.support.worlds import desired, known, observed, pool, staged


def retired(
    generation: int,
    *,
    deleted: bool = False,
    pinned: bool = True,
    value: bytes | None = None,
    by: Restoration | None = None,
) -> KeyValue:
    fields = record("a", generation, source=f"v{generation}", pinned=pinned).model_dump()
    made = RetiredRecord(**fields, retired_by_request="", deleted=deleted, restored_by=by).to_bytes()
    return KeyValue(KEYS.history(POOL, "a", generation), value or made, 1, 50 + generation, 1)


def newest(generation: int = 12):
    return desired(kv("a", 90, generation=generation)).adapters["a"]


def test_generations_of_this_life_that_say_which_files_are_meant_may_be_served():
    """R6: what was deleted is another life. The keys come in the order of their bytes."""
    history = [retired(10), retired(11, pinned=False), retired(12), retired(7), retired(8, deleted=True), retired(9)]
    found = earlier_of(newest(), history)
    assert sorted(found.records) == [9, 10]
    assert (found.newest, found.records[9].revision) == (10, 59)
    assert earlier_of(newest(), [retired(3, value=b"?"), retired(11, deleted=True)]).newest == 0
    theirs = Restoration(principal="mallory", at="then")
    assert earlier_of(newest(), [retired(9), retired(10, by=theirs)]).newest == 9
    assert earlier_of(newest(), [retired(9), retired(10, deleted=True, by=theirs)]).newest == 0


@pytest.mark.parametrize(
    ("said", "proven"),
    [
        ({"kept": [Kept(name="a", generation=10)]}, 10),
        ({"kept": [Kept(name="a", generation=11)]}, 0),
        ({"kept": [Kept(name="a", generation=0)]}, 0),
        ({"kept": []}, 0),
        ({"kept": [Kept(name="a", generation=10)], "stale": True}, 0),
        ({"kept": [Kept(name="a", generation=10)], "revision": 80}, 10),
    ],
)
def test_a_generation_is_proven_by_a_replica_that_answers_with_it(said, proven):
    """R9, R14: by a status that proves anything at all, whichever record it follows."""
    failed = [Failed(name="a", generation=12, reason="not_finite", message="", attempts=1, retry_at=None)]
    status = replica_status("r2", said.pop("revision", 95), **({"failed": failed} | said))
    reading = parse_status(KeyValue(b"", status.to_bytes(), 1, 1, 1))
    assert earlier_of(newest(), [retired(10)]).proven_by(reading) == proven
    assert earlier_of(newest(), [retired(10)]).proven_by(None) == 0


def test_what_fails_and_is_answered_with_nothing_is_lacking():
    state = desired(kv("a", 1), kv("b", 2), kv("c", 3))
    failures = {one.key: Failure(one.ref, None, "not_finite", "", 1, None) for one in state.adapters.values()}
    good = state.adapters["b"].earlier(0, state.adapters["b"].ref)
    with_good = replace(state, adapters=state.adapters.set("b", replace(state.adapters["b"], last_good=good)))
    facts = replace(known(state, failures=failures), staged=staged(state))
    plan = make_plan(with_good, pool(), observed({"c": "v0"}), facts, now=0.0)
    assert [one.key for one in lacking(plan)] == ["a"]
    assert lacking(replace(plan, failed=())) == ()
