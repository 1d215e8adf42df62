"""What was asked and answered, and what therefore stays loaded."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sidecar.desired import Informer
from sidecar.failures import Failure
from sidecar.known import Known
from sidecar.lazy import demand as module
from sidecar.lazy.answers import Terms
from sidecar.lazy.catalogue import Catalogue
from sidecar.lazy.demand import BIND_SECONDS, EXPECT_SECONDS, HOLD_SECONDS, LOOK_SECONDS, Demand, Told
from sidecar.planner import make_plan
from sidecar.rules import rules_of
from tests.support.records import POOL, deletion, kv, put
from tests.support.worlds import known, observed, owns, path_of, pool


class World:
    """Three lazy adapters and an eager one, and an engine with room for `room` lazy ones."""

    def __init__(self, room: int = 9, idle_seconds: float = 600.0) -> None:
        self.informer = Informer(POOL)
        self.informer.replace(10, [kv(name, 1, load="lazy") for name in "abc"] + [kv("e", 2)])
        self.demand = Demand(Catalogue(POOL, self.informer.record), idle_seconds=idle_seconds)
        self.room = room

    def review(self, *listed: str, now: float, **kwargs):
        engine = replace(observed(dict.fromkeys(listed, "v1")), **kwargs)
        terms = Terms(rules_of(pool(), engine), self.room, owns)
        return self.demand.review(self.informer.state, engine, terms, now=now)

    def tell(self, name: str, at: float) -> None:
        self.demand.tell(name, Told(name, path_of("v1"), at))


def names(wanted) -> list[str]:
    return [one.name for one in wanted.residents]


def test_what_the_engine_lists_from_our_store_is_resident_until_it_is_idle():
    """R11 foreign-safe, and names are what records say."""
    world = World(idle_seconds=100.0)
    engine = observed({"a": "v1", "B": "v1", "c": "/elsewhere", "e": "v1", "x": "v1"})
    terms = Terms(rules_of(pool(), engine), 9, owns)
    assert names(world.demand.review(world.informer.state, engine, terms, now=1000.0)) == ["a"]
    assert world.demand.rest_seconds(1000.0) == 100.0
    assert names(world.review("a", now=1100.0)) == ["a"]
    assert names(world.review("a", now=1100.1)) == []
    assert world.demand.rest_seconds(1100.1) == math.inf


def test_the_engine_knows_best_when_it_was_used_then_the_last_answer():
    world = World(room=2)
    world.tell("b", at=50.0)
    assert names(world.review("a", "b", "c", now=100.0, last_used={"a": 70.0, "c": 1.0})) == ["b", "c"]
    assert names(world.review("a", "b", "c", now=110.0, last_used={"a": 2.0, "c": 11.0})) == ["a", "c"]


def test_one_look_says_once_when_something_was_used():
    world = World(idle_seconds=10.0)
    engine = replace(observed({"a": "v1"}), last_used={"a": 5.0})
    terms = Terms(rules_of(pool(), engine), 9, owns)
    world.demand.review(world.informer.state, engine, terms, now=100.0)
    wanted = world.demand.review(world.informer.state, engine, terms, now=105.1)
    assert names(wanted) == [], "the look is as old as it is"


def test_an_answer_is_expected_to_be_listed_and_holds_its_files():
    """R7 files-pinned: though no listing shows it yet."""
    world = World()
    world.review(now=0.0)
    world.tell("a", at=1.0)
    use = {("a", path_of("v1"))}
    assert world.demand.is_expecting
    assert world.demand.rest_seconds(1.0) == LOOK_SECONDS
    world.review(now=1.0 + EXPECT_SECONDS)
    assert not world.demand.is_expecting
    assert world.demand.rest_seconds(1.0 + EXPECT_SECONDS) == HOLD_SECONDS - EXPECT_SECONDS, "so that it is let go of"
    assert world.demand.uses(HOLD_SECONDS) == use
    assert world.demand.uses(1.0 + HOLD_SECONDS) == set()
    world.review(now=1.0 + HOLD_SECONDS)
    assert world.demand._told == {}
    assert world.demand.rest_seconds(1.0 + HOLD_SECONDS) == math.inf


def test_what_is_listed_is_expected_no_more():
    world = World()
    world.tell("a", at=1.0)
    assert names(world.review("a", now=1.5)) == ["a"]
    assert not world.demand.is_expecting


def test_who_has_just_been_answered_stays_a_moment_above_the_room():
    world = World(room=1)
    for at, name in enumerate("abc"):
        world.tell(name, at=float(at) / 10)
    assert names(world.review("a", "b", "c", now=1.0)) == ["a", "b", "c"]
    assert world.demand.rest_seconds(1.0) == pytest.approx(BIND_SECONDS - 1.0)
    assert names(world.review("a", "b", "c", now=0.15 + BIND_SECONDS)) == ["c"]


def test_nothing_is_called_for_a_name_that_is_being_asked_about():
    """The deadlock rule: the engine holds the name's lock until it is answered."""
    world = World(idle_seconds=0.0)
    with world.demand.asking("a"), world.demand.asking("a"):
        assert world.demand.is_asked("a")
        assert world.review("a", now=5.0).asked == {"a"}
    assert not world.demand.is_asked("a")
    assert world.review("a", now=6.0).asked == frozenset()


def test_what_moved_on_is_left_alone_until_the_state_has_it_too():
    world = World()
    old = world.informer.state
    world.informer.apply(11, [put("a", 11, generation=2, source="v2", load="lazy")])
    engine = observed({"a": "v1"})
    wanted = world.demand.review(old, engine, Terms(rules_of(pool(), engine), 9, owns), now=0.0)
    assert (wanted.residents, wanted.asked) == ((), {"a"})
    assert world.demand.resident("a") is None
    assert world.review("a", now=0.0).residents[0].generation == 2
    assert world.demand.resident("a").generation == 2


def test_no_more_are_brought_in_than_a_listing_may_show(monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(module, "MAX_ABOVE_ROOM", 1)
    world = World(room=1)
    assert not world.demand.has_place("a"), "nothing is known yet"
    world.review("a", now=0.0)
    world.tell("b", at=0.0)
    assert world.demand.has_place("a")
    assert world.demand.has_place("b")
    assert not world.demand.has_place("c")
    world.demand.suspend()
    assert world.demand.terms is None


def test_troubles_stand_as_long_as_the_record_and_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_TROUBLES", 2)
    world = World()
    refs = {key: world.demand.catalogue.whole(world.informer.state, key).ref for key in "abc"}
    for key in "abc":
        world.demand.note_trouble(key, Failure(refs[key], None, "not_found", "", 1, None))
    assert [(one.key, why.reason) for one, why in world.review(now=0.0).troubles] == [
        ("b", "not_found"),
        ("c", "not_found"),
    ]
    world.informer.apply(11, [deletion("b", 11), put("c", 11, generation=2, source="v2", load="lazy")])
    assert world.review(now=1.0).troubles == ()
    assert world.demand.trouble("c") is None
    world.demand.note_trouble("a", Failure(refs["a"], None, "not_found", "", 1, None))
    world.demand.forget_troubles()
    assert world.demand.trouble("a") is None


def test_the_situation_tells_of_what_is_loaded_as_desired():
    world = World()
    lazy = world.review("a", "b", now=7.0)
    state = world.informer.state
    facts: Known = replace(known(state, "v1"), lazy=lazy)
    engine = observed({"a": "v1", "b": "v1"})
    plan = make_plan(state, pool(), engine, replace(facts, staged=staged_of(lazy)), now=7.0)
    situation = world.demand.situation(state, plan)
    assert (situation.count, situation.room, situation.used_at) == (3, 9, {"a": 7.0, "b": 7.0})
    world.demand.suspend()
    assert world.demand.situation(None, None).count == 0


def staged_of(lazy):
    from sidecar.artifacts.types import Staged

    return {one.ref: Staged("v1", path_of("v1"), "", 8) for one in lazy.residents}
