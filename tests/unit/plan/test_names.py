"""What engines call adapters, and how they come from one name to another without a gap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.model.errors import InvalidArgument
from registry.model.names import check_adapter_name
from sidecar.desired.assignment import Assigner
from sidecar.desired.informer import Informer
from sidecar.plan.backoff import Failure
from sidecar.plan.handoff import Stuck
from sidecar.plan.names import SEPARATOR, engine_name, key_of, names_of
from sidecar.plan.planner import make_plan
from sidecar.plan.types import Plan, Unload
from tests.support.records import POOL, kv, put
from tests.support.worlds import desired, forgetless, known, observed, path_of, placed_at, pool, wants
from tests.unit.plan.test_planner import called, reasons

VERSIONED = pool(names="versioned")


def plan(state, engine, *sources: str, spec=VERSIONED, failures=None) -> Plan:
    return make_plan(state, spec, engine, known(state, *sources, failures=failures), now=1000.0)


def test_a_versioned_name_is_of_the_adapter_and_its_generation():
    """R11: so an engine's name never means two adapters."""
    with pytest.raises(InvalidArgument):
        check_adapter_name(f"a{SEPARATOR}1")
    adapter = desired(kv("acme/SQL", 1, generation=7)).adapters["acme%2Fsql"]
    assert engine_name(adapter, "plain") == "acme/SQL"
    assert engine_name(adapter, "versioned") == "acme/SQL@7"
    assert key_of("acme/SQL@7") == key_of("acme/SQL") == adapter.key
    assert (names_of(None), names_of(pool()), names_of(VERSIONED)) == ("plain", "plain", "versioned")


def test_the_earlier_generation_goes_once_the_new_one_is_served():
    """R3: there is no moment at which neither is there."""
    state = desired(kv("a", 2, generation=4, source="v2"))
    assert called(plan(state, observed({"a@3": "v1"}))) == []
    assert called(plan(state, observed({"a@3": "v1"}), "v2")) == ["Load a@4"]
    assert called(plan(state, observed({"a@3": "v1", "a@4": "v2"}), "v2")) == ["Unload a@3"]


@pytest.mark.parametrize(("old", "new", "spec"), [("a", "a@1", VERSIONED), ("a@1", "a", pool())], ids=str)
def test_a_pool_changes_its_way_to_name_adapters_without_a_gap(old, new, spec):
    state = wants({"a": "v1"})
    assert called(plan(state, observed({old: "v1"}), "v1", spec=spec)) == [f"Load {new}"]
    assert called(plan(state, observed({old: "v1", new: "v1"}), "v1", spec=spec)) == [f"Unload {old}"]
    assert called(plan(state, observed({new: "v1"}), "v1", spec=spec)) == []


def test_a_deleted_adapter_goes_under_every_name():
    """R6 unload-eventual."""
    made = plan(desired(), observed({"a@1": "v1", "a": "v2", "b@1": "/elsewhere"}))
    assert made.calls == (Unload("a@1", path_of("v1")), Unload("a", path_of("v2")))


def test_what_is_loaded_of_an_unreadable_record_stays():
    """R14: such a record says nothing about what should be served; of one with a last good one that is followed."""
    assert called(plan(desired(kv("a", 1, b"?")), observed({"a@1": "v1"}))) == []
    informer = Informer(POOL)
    informer.replace(1, [kv("a", 1, generation=2, source="v2")])
    informer.apply(2, [put("a", 2, b"?")])
    assert called(plan(informer.state, observed({"a@1": "v1", "a@2": "v2"}), "v2")) == ["Unload a@1"]


def test_room_for_one_generation_alone_is_told():
    """R14: nothing could be served, and over_capacity of each adapter would not say what to do about it."""
    state = wants({"a": "v1"})
    made = plan(state, observed(), "v1", spec=pool(names="versioned", max_adapters=1))
    assert (called(made), reasons(made.pending), reasons(made.warnings)) == (
        [],
        {"a": "over_capacity"},
        {"": "over_capacity"},
    )
    assert "or plain names" in made.warnings[0].message
    for room, names in ((2, "versioned"), (1, "plain")):
        assert not plan(state, observed(), "v1", spec=pool(names=names, max_adapters=room)).warnings
    assert not plan(wants({}), observed(), spec=pool(names="versioned", max_adapters=1)).warnings
    many = wants(dict.fromkeys("abc", "v1"))
    assert not plan(many, observed(), "v1", spec=pool(names="versioned", max_adapters=3)).warnings
    assert not plan(many, observed(), "v1", spec=pool(max_adapters=1)).warnings


def test_loads_without_room_are_put_off():
    """R16 bounded: two generations change, and there is room for one of them at a time."""
    spec = pool(names="versioned", max_adapters=3)
    state = desired(kv("a", 2, generation=2, source="v2"), kv("b", 2, generation=2, source="v2"))
    full = observed({"a@1": "v1", "b@1": "v1"})
    assert called(plan(state, full, "v2", spec=spec)) == ["Load a@2"]
    assert called(plan(state, observed({"a@1": "v1", "b@1": "v1", "a@2": "v2"}), "v2", spec=spec)) == ["Unload a@1"]
    assert called(plan(state, observed({"b@1": "v1", "a@2": "v2"}), "v2", spec=spec)) == ["Load b@2"]


def test_a_full_engine_changes_its_names_one_by_one():
    """One more than the pool asks for is there for a moment, and never a second one."""
    spec, state = pool(max_adapters=2), wants({"a": "v1", "b": "v1"})
    assert called(plan(state, observed({"a@1": "v1", "b@1": "v1"}), "v1", spec=spec)) == ["Load a"]
    over = observed({"a@1": "v1", "b@1": "v1", "a": "v1"})
    assert called(plan(state, over, "v1", spec=spec)) == ["Unload a@1"]
    stuck = Failure(None, "e1", "still_listed", "no", 1, 2000.0)
    assert called(plan(state, over, "v1", spec=spec, failures={"a@1": stuck})) == []


def test_what_stays_for_others_takes_no_room_from_what_is_to_come():
    """R3: a place that nobody can take over must not hold up the next generation of everything else for ever."""
    spec = pool(names="versioned", max_adapters=2)
    away = [kv(name, 1, placement=placed_at("all", zone="nowhere")) for name in ("x", "y", "z")]
    state = desired(kv("a", 2, generation=2, source="v2"), *away)
    listed = {"a@1": "v1", "x@1": "v1", "y@1": "v1", "z@1": "v1"}
    facts = replace(known(state, "v1", "v2"), share=Assigner(POOL, "r1", {}).find(state, None))
    made = make_plan(state, spec, observed(listed), facts, now=1000.0)
    assert [one.name for one in made.leaving] == ["x@1", "y@1", "z@1"]
    stuck = replace(facts, handed=dict.fromkeys(made.leaving, Stuck("nobody is there")))
    told = make_plan(state, spec, observed(listed), stuck, now=1000.0)
    assert reasons(told.warnings) == dict.fromkeys("xyz", "not_handed_over"), "by the adapter's own name"
    assert called(made) == ["Load a@2"]


def test_a_name_is_not_loaded_with_other_weights_than_it_had_before():
    """R4: deleted and added again with other weights, it would be answered from what is remembered."""
    state = wants({"a": "v2"})
    made = plan(state, forgetless({}, {"a": "v1"}), "v2", spec=pool())
    assert (made.calls, reasons(made.failed)) == ((), {"a": "name_remembered"})
    again = wants({"a": "v1"})
    assert called(plan(again, forgetless({}, {"a": "v1"}), "v1", spec=pool())) == ["Load a"]
    assert called(plan(state, forgetless({"a@7": "v1"}, {"a": "v1", "a@7": "v1"}), "v2")) == ["Load a@1"]


def test_calls_of_every_kind_leave_room_for_what_is_held_and_nothing_more():
    """R16 bounded."""
    state = desired(*(kv(name, 2, generation=2, source="v2") for name in "abcd"))
    held = {"a@1": "v1", "b@1": "v1"}
    for capacity, loads in ((5, 3), (6, 4)):
        spec = pool(names="versioned", max_adapters=capacity)
        made = plan(state, observed(held), "v2", spec=spec)
        assert called(made) == [f"Load {name}@2" for name in "abcd"[:loads]]
