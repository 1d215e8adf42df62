"""What was asked and answered, and what therefore stays loaded."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from registry.model.records import AdapterRecord, AskedRetry
from sidecar.artifacts.types import Staged
from sidecar.desired.informer import Informer
from sidecar.engines.driver import USUAL
from sidecar.plan.backoff import Failure
from sidecar.plan.planner import make_plan
from sidecar.plan.types import PlanContext
from sidecar.resolver import demand as module
from sidecar.resolver.demand import (
    BIND_SECONDS,
    EXPECT_SECONDS,
    FRESH_SECONDS,
    HOLD_SECONDS,
    LOOK_SECONDS,
    Answered,
    ResidentSet,
)
from sidecar.resolver.policy import Catalogue
from tests.support.records import POOL, deletion, kv, put
from tests.support.worlds import observed, owns, path_of, pool, review


class World:
    """Three lazy adapters and an eager one, and an engine with room for `room` lazy ones."""

    def __init__(self, room: int = 9, idle_seconds: float = 600.0) -> None:
        self.informer = Informer(POOL)
        self.informer.replace(10, [kv(name, 1, load="lazy") for name in "abc"] + [kv("e", 2)])
        self.demand = ResidentSet(
            Catalogue(POOL, self.informer.record, self.informer.with_last_good), idle_seconds=idle_seconds
        )
        self.room = room

    def review(self, *listed: str, now: float, **kwargs):
        engine = replace(observed(dict.fromkeys(listed, "v1")), **kwargs)
        return self.look(engine, now=now)

    def look(self, engine, *, now: float, state=None):
        spec = pool(max_adapters=self.room + 1)
        return review(self.demand, state or self.informer.state, engine, now=now, spec=spec)

    def tell(self, name: str, at: float) -> None:
        self.demand.tell(name, Answered(name, path_of("v1"), at))


def names(wanted) -> list[str]:
    return [one.name for one in wanted.residents]


def test_what_the_engine_lists_from_our_store_is_resident_until_it_is_idle():
    """R11 foreign-safe, and names are what records say."""
    world = World(idle_seconds=100.0)
    engine = observed({"a": "v1", "B": "v1", "c": "/elsewhere", "e": "v1", "x": "v1"})
    assert names(world.look(engine, now=1000.0)) == ["a"]
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
    world.look(engine, now=100.0)
    wanted = world.look(engine, now=105.1)
    assert names(wanted) == [], "the look is as old as it is"


def test_an_answer_is_expected_to_be_listed_and_holds_its_files():
    """R7 files-pinned: though no listing shows it yet."""
    world = World()
    world.review(now=0.0)
    world.tell("a", at=1.0)
    use = {("a", path_of("v1"))}
    assert world.demand.is_expecting
    assert world.demand.rest_seconds(1.0) == LOOK_SECONDS
    world.review(now=EXPECT_SECONDS)
    assert world.demand.is_expecting
    world.review(now=1.0 + EXPECT_SECONDS)
    assert not world.demand.is_expecting
    assert world.demand.rest_seconds(1.0 + EXPECT_SECONDS) == HOLD_SECONDS - EXPECT_SECONDS, "so that it is let go of"
    assert world.demand.uses(HOLD_SECONDS) == use
    assert world.demand.uses(1.0 + HOLD_SECONDS) == set()
    world.review(now=1.0 + HOLD_SECONDS)
    assert world.demand._told == {}
    assert world.demand.rest_seconds(1.0 + HOLD_SECONDS) == math.inf


def test_files_are_held_for_longer_than_an_engine_may_take_to_load_them():
    """R7 files-pinned: whether a listing shows it in time or not."""
    assert USUAL.load_seconds + EXPECT_SECONDS < HOLD_SECONDS


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
    wanted = world.look(engine, now=0.0, state=old)
    assert (wanted.residents, wanted.asked) == ((), {"a"})
    assert world.demand.resident("a") is None
    assert world.review("a", now=0.0).residents[0].generation == 2
    assert world.demand.resident("a").generation == 2


def test_without_any_limit_a_hundred_share_the_engine():
    """R16 bounded, docs/lazy.md: where neither the engine nor the pool says how many, listings stay small."""
    world = World()
    state = world.informer.state
    review(world.demand, state, observed({"a": "v1"}), now=0.0, spec=pool())
    assert world.demand.terms.room == 100


def test_no_more_are_brought_in_than_a_listing_may_show(monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(module, "MAX_ABOVE_ROOM", 1)
    world = World(room=1)
    assert not world.demand.has_place("a", 0.0), "nothing is known yet"
    world.review("a", now=0.0)
    world.tell("b", at=0.0)
    assert world.demand.has_place("a", 0.0)
    assert world.demand.has_place("b", 0.0)
    assert not world.demand.has_place("c", 0.0)
    world.demand.suspend()
    assert world.demand.terms is None


def test_a_trouble_ends_when_somebody_asks_for_another_try():
    """R17: whatever it was, and once for each time."""
    world, refused = World(), Failure(None, None, "not_found", "", 1, None)
    before = kv("a", 1, load="lazy")
    asked = AdapterRecord.parse(before.value).model_copy(update={"retry": AskedRetry(request_id="q1")})
    ref = world.demand.catalogue.whole(world.informer.state, "a").ref
    world.demand.note_trouble("a", replace(refused, ref=ref))
    assert world.review(now=0.0).troubles
    world.informer.replace(11, [replace(before, value=asked.to_bytes(), mod_revision=11)])
    assert world.review(now=1.0).troubles == ()
    world.demand.note_trouble("a", replace(refused, ref=ref))
    assert world.review(now=2.0).troubles


def test_what_is_refused_is_told_once_the_engine_has_its_last_good_generation_instead():
    """R24: a status that tells the refusal alone takes the place from routers although the engine answers."""
    world = World()
    world.informer.note_served([("a", 1)])
    world.informer.apply(11, [put("a", 11, generation=2, source="v2", load="lazy")])
    newest = world.demand.catalogue.whole(world.informer.state, "a")
    with world.demand.asking("a"):
        world.demand.note_trouble("a", Failure(newest.ref, None, "not_finite", "", 1, None))
        assert world.review(now=0.0).troubles == ()
        world.demand.tell("a", Answered("a", path_of("v1"), 0.5), is_newest=False)
    assert world.review(now=1.0).troubles == ()
    assert [one.key for one, _ in world.review("a", now=2.0).troubles] == ["a"]
    assert [one.key for one, _ in world.review(now=3.0).troubles] == ["a"]


def test_what_is_refused_is_told_though_the_engine_never_gets_anything_instead():
    world = World()
    world.informer.note_served([("a", 1)])
    world.informer.apply(11, [put("a", 11, generation=2, source="v2", load="lazy")])
    newest = world.demand.catalogue.whole(world.informer.state, "a")
    world.demand.note_trouble("a", Failure(newest.ref, None, "not_finite", "", 1, None))
    assert [one.key for one, _ in world.review(now=0.0).troubles] == ["a"]
    world.demand.tell("a", Answered("a", path_of("v1"), 0.5), is_newest=False)
    assert [one.key for one, _ in world.review(now=1.0).troubles] == ["a"]


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
    state, engine = world.informer.state, observed({"a": "v1", "b": "v1"})
    lazy = world.demand.candidates(state, engine, owns, now=7.0)
    staged = Staged("v1", path_of("v1"), "", 8)
    context = PlanContext(lambda _: staged, set(), {}, set(), owns, lazy=lazy)
    plan = make_plan(state, pool(max_adapters=10), engine, context, now=7.0)
    world.demand.follow(plan, owns)
    situation = world.demand.situation(state, plan)
    assert (situation.count, situation.room, situation.used_at) == (3, 9, {"a": 7.0, "b": 7.0})
    world.demand.suspend()
    assert world.demand.situation(None, None).count == 0


def lazy(world: World, name: str):
    adapter = world.demand.catalogue.whole(world.informer.state, name)
    assert adapter is not None
    return adapter


def test_what_the_engine_was_told_of_in_vain_is_refused_for_longer_and_longer():
    """R8 isolation: it costs the engine a load each time. A request that was broken off once costs nobody anything."""
    world, path, now, waits = World(), path_of("v1"), 0.0, []
    world.review(now=now)
    adapter = lazy(world, "a")
    assert world.demand.refusal(adapter, path, now) is None
    for _ in range(12):
        world.tell("a", at=now)
        world.review(now=now)
        failure = world.demand.refusal(adapter, path, now)
        if failure is not None:
            assert failure.retry_at is not None
            waits.append(failure.retry_at - now)
            now = failure.retry_at
            assert world.demand.refusal(adapter, path, now - 0.01) is not None
        assert world.demand.refusal(adapter, path, now) is None
    assert waits[:4] == [2.0, 4.0, 8.0, 16.0]
    assert waits[-1] == 60.0
    ((told, failure),) = world.review(now=now).troubles
    assert (told.name, failure.reason, failure.attempts) == ("a", "engine_refused", 12)


def refused(world: World) -> bool:
    return world.demand.refusal(lazy(world, "a"), path_of("v1"), 1.0) is not None


def refuse(world: World) -> None:
    world.review(now=0.0)
    for _ in range(3):
        world.tell("a", at=1.0)
        world.demand.refusal(lazy(world, "a"), path_of("v1"), 1.0)
    assert refused(world)


def test_what_is_loaded_after_all_is_refused_no_more():
    """R17 heals: whoever loaded it."""
    world = World()
    refuse(world)
    assert world.review("a", now=1.0).troubles == ()
    assert not refused(world)


def test_another_process_of_the_engine_has_refused_nothing():
    world = World()
    refuse(world)
    assert world.look(observed(incarnation="e2"), now=1.0).troubles == ()
    assert not refused(world)
    world.tell("a", at=1.0)
    world.look(observed(incarnation="e3"), now=1.0)
    assert not refused(world), "what the process before was told says nothing of this one"


def test_other_weights_have_not_been_refused():
    world = World()
    refuse(world)
    world.informer.apply(11, [put("a", 11, generation=2, source="v2", load="lazy")])
    assert world.review(now=1.0).troubles == ()
    assert not refused(world)


def test_what_has_requests_keeps_its_place():
    """R16 bounded: or all would be loaded and unloaded in turn. What has none makes room."""
    world = World(room=1)
    world.review("a", now=0.0, last_used={"a": 0.0})
    with world.demand.asking("b"):
        assert not world.demand.has_place("b", 0.0)
        assert world.demand.is_expecting, "so that it is looked at often"
        assert world.demand.has_place("a", 0.0), "its own place"
        world.review("a", now=0.5, last_used={"a": 0.5})
        assert world.demand.has_place("b", 0.5)
        assert not world.demand.has_place("b", 0.5 + FRESH_SECONDS), "an old look tells nothing of requests"
    assert not world.demand.is_expecting


def test_who_gave_up_waiting_for_a_place_is_forgotten_at_the_next_look():
    """R16 bounded: who asks again for what is only being brought in does not have the engine looked at often."""
    world = World(room=1)
    world.review("a", now=0.0, last_used={"a": 0.0})
    with world.demand.asking("b"), world.demand.asking("c"):
        assert not world.demand.has_place("b", 0.0)
        assert not world.demand.has_place("c", 0.0)
    with world.demand.asking("c"):
        world.review("a", now=1.0, last_used={"a": 0.0})
        assert world.demand.is_expecting, "it still waits"
    with world.demand.asking("b"):
        assert not world.demand.is_expecting
