"""What was asked and answered, what therefore stays loaded, and how long it counts: each time from both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.model.records import AdapterRecord, AskedRetry
from sidecar.artifacts.types import Staged
from sidecar.desired.informer import DesiredAdapter, Informer
from sidecar.engines.driver import USUAL
from sidecar.engines.observed import Observed
from sidecar.plan.backoff import Failure
from sidecar.plan.planner import make_plan
from sidecar.plan.types import LazyCandidates, Plan, PlanContext
from sidecar.resolver.demand import Answered, ResidentSet
from sidecar.resolver.policy import Catalogue
from tests.support.records import POOL, kv, put
from tests.support.worlds import observed, path_of, pool, review

INFINITE = float("inf")


class World:
    """Lazy adapters a to d, an eager one, and an engine with room for `room` lazy ones; all its usual times."""

    def __init__(self, room: int = 9) -> None:
        self.informer = Informer(POOL)
        self.informer.replace(10, [*(kv(name, 1, load="lazy") for name in "abcd"), kv("e", 2)])
        self.demand = ResidentSet(Catalogue(self.informer))
        self.room = room

    def adapter(self, name: str) -> DesiredAdapter:
        found = self.demand.catalogue.whole(self.informer.state, name)
        assert found is not None
        return found

    def candidates(self, *listed: str, now: float, **kwargs) -> LazyCandidates:
        """What a look says, without a plan."""
        engine = replace(observed(dict.fromkeys(listed, "v1")), **kwargs)
        return self.demand.candidates(self.informer.state, engine, now=now)

    def look(self, *listed: str, now: float, engine: Observed | None = None, state=None, **kwargs) -> Plan:
        """A look and the plan that follows from it."""
        engine = engine or replace(observed(dict.fromkeys(listed, "v1")), **kwargs)
        state = state or self.informer.state
        lazy = self.demand.candidates(state, engine, now=now)
        context = PlanContext({}, set(), {}, set(), lazy=lazy)
        plan = make_plan(state, pool(max_adapters=self.room + 1), engine, context, now=now)
        self.demand.follow(plan)
        return plan

    def review(self, *listed: str, now: float, **kwargs) -> LazyCandidates:
        """What such a plan was made of."""
        return self.look(*listed, now=now, **kwargs).chosen.lazy

    def tell(self, name: str, at: float) -> None:
        self.demand.tell(name, Answered(name, path_of("v1"), at))

    def residents(self) -> str:
        return "".join(name for name in "abcde" if self.demand.resident(name) is not None)


def test_what_is_not_used_for_ten_minutes_goes():
    """docs/lazy.md: 600 seconds, and the engine is looked at again when they are over."""
    world = World()
    world.look(now=0.0, engine=observed({"a": "v1", "B": "v1", "c": "/elsewhere", "e": "v1", "x": "v1"}))
    assert world.residents() == "a", "what is ours, lazy, and named so by its record"
    world.look("a", now=100.0, last_used={"a": 0.0})
    assert world.demand.rest_seconds(100.0) == 600.0
    world.look("a", now=700.0)
    assert world.residents() == "a"
    world.look("a", now=700.1)
    assert world.residents() == ""
    world.look(now=701.0)
    world.look("a", now=2000.0)
    assert world.residents() == "a", "it is loaded anew"


def test_an_answer_is_a_use_of_its_time():
    """docs/lazy.md: of several the last; an earlier one that is told late takes nothing away."""
    world = World()
    world.look("a", now=0.0)
    for at in (1.0, 500.0, 400.0):
        world.tell("a", at=at)
    world.look("a", now=1100.0)
    assert world.residents() == "a"
    world.look("a", now=1100.1)
    assert world.residents() == ""


def test_an_answer_counts_for_as_long_as_an_engine_needs_it():
    """R7 files-pinned: two minutes for its files; ten seconds to be listed; two to be bound to a request."""
    world = World()
    world.look(now=0.0)
    world.tell("a", at=1.0)
    assert world.demand.rest_seconds(1.0) == 0.5
    assert world.candidates(now=2.9).bound == {"a"}
    assert world.candidates(now=3.0).bound == frozenset()
    world.look(now=10.9)
    assert world.demand.is_expecting
    world.look(now=11.0)
    assert not world.demand.is_expecting
    assert world.demand.rest_seconds(11.0) == 110.0
    assert world.demand.rest_seconds(120.9) == 0.5, "no oftener for anything that is due"
    assert world.demand.uses(120.9) == {("a", path_of("v1"))}
    assert world.demand.uses(121.0) == set()
    world.look(now=121.0)
    assert (world.demand.rest_seconds(121.0), world.demand._answers.told) == (INFINITE, {})
    assert USUAL.load_seconds + 10.0 < 120.0, "longer than an engine may take to load it"


def test_requests_run_while_an_adapter_was_used_just_before_a_look_that_is_not_old():
    """R16: what has requests makes no room; a fiftieth of a second, as a look of the last second had it."""
    world = World(room=1)
    world.look("a", now=5.0, last_used={"a": 0.019})
    assert not world.demand.has_place("b", 5.0)
    engine = replace(observed({"a": "v1"}), last_used={"a": 0.02})
    world.look(now=6.0, engine=engine)
    assert world.demand.has_place("b", 6.9)
    assert not world.demand.has_place("b", 7.0)
    world.look(now=6.9, engine=engine)
    assert not world.demand.has_place("b", 7.0), "the same look again is no newer one"
    world.look("a", now=8.0)
    assert world.demand.has_place("b", 8.0), "of what the engine says nothing no request is known"


def test_as_many_more_as_an_engine_can_be_told_of_at_once_are_told():
    """R16 bounded: 128 above the room, those that are listed among them."""
    world = World(room=2)
    world.look("a", now=0.0)
    for number in range(128):
        world.tell(f"n{number}", at=0.0)
    assert world.demand.has_place("b", 0.0)
    world.tell("n128", at=0.0)
    assert not world.demand.has_place("b", 0.0)
    assert world.demand.has_place("n128", 0.0)


def test_who_found_a_place_waits_for_none():
    """R16: the engine is looked at often for the sake of others only."""
    world = World(room=1)
    assert not world.demand.has_place("b", 0.0)
    with world.demand.asking("b"):
        assert not world.demand.is_expecting, "nothing is known of the room yet"
        world.look("a", now=0.0, last_used={"a": 0.0})
        assert not world.demand.has_place("b", 0.0)
        assert world.demand.is_expecting
        world.look("a", now=1.0)
        assert world.demand.has_place("b", 1.0)
        world.tell("b", at=1.0)
        world.look("a", "b", now=1.1)
        assert not world.demand.is_expecting


def test_a_question_that_is_open_binds_its_name_and_keeps_calls_from_it():
    """The deadlock rule: whatever is listed."""
    world = World()
    with world.demand.asking("b"):
        with world.demand.asking("b"):
            assert world.demand.is_asked("b")
        found = world.candidates("a", now=0.0)
        assert (found.bound, found.asked) == ({"b"}, {"b"})
    assert not world.demand.is_asked("b")
    found = world.candidates("a", now=0.0)
    assert (found.bound, found.asked) == (frozenset(), frozenset())


def refusal(world: World, now: float = 0.0, path: str = path_of("v1")) -> Failure | None:
    return world.demand.refusal(world.adapter("a"), path, now)


@pytest.mark.parametrize("why", ["another path", "listed since", "long ago", "not told"])
def test_what_says_nothing_of_a_refusal_is_not_counted(why):
    """R17 heals."""
    world = World()
    world.look(now=0.0)
    for now in (0.0, 120.0, 240.0):
        if why != "not told":
            world.tell("a", at=now)
        if why == "listed since":
            world.look("a", now=now)
        if why == "long ago":
            world.look(now=now + 120.0)
        assert refusal(world, now + 120.0, path_of("v2" if why == "another path" else "v1")) is None
        assert world.demand.troubles.of("a") is None


def test_a_refusal_that_an_older_look_does_not_show_stands():
    """R9: only a look since then proves that it is loaded after all."""
    world = World()
    engine = observed({"a": "v1"})
    world.look(now=0.0, engine=engine)
    failure = Failure(world.adapter("a").ref, "e1", "engine_refused", "", 2, None)
    world.demand.troubles.note("a", failure)
    made = world.look(now=0.5, engine=engine)
    assert (bool(made.chosen.lazy.troubles), made.failed) == (True, ()), "R9: not while the engine lists it"
    assert world.look("a", now=1.0).chosen.lazy.troubles == ()
    assert world.demand.troubles.of("a") is None


def test_the_hundred_newest_troubles_are_remembered():
    """R16 bounded: one that comes again is new."""
    world = World()
    failure = Failure(None, None, "not_found", "", 1, None)
    for number in range(100):
        world.demand.troubles.note(f"n{number}", failure)
    world.demand.troubles.note("n0", failure)
    assert all(world.demand.troubles.of(f"n{number}") for number in range(100))
    world.demand.troubles.note("n100", failure)
    assert world.demand.troubles.of("n1") is None
    assert world.demand.troubles.of("n0")
    assert world.demand.troubles.of("n2")
    world.demand.troubles.forget()
    assert world.demand.troubles.of("n0") is None


def test_another_try_counts_once_and_for_each_adapter_alone():
    """R17: who asked for one of a, and later has trouble again, asks anew."""
    world = World()
    failures = {name: Failure(world.adapter(name).ref, None, "not_found", "", 1, None) for name in "ab"}

    def note(*names: str) -> list[str]:
        for name in names:
            world.demand.troubles.note(name, failures[name])
        return [one.key for one, _ in world.look(now=0.0).chosen.lazy.troubles]

    def ask(revision: int, request: str) -> None:
        before = kv("a", 1, load="lazy")
        record = AdapterRecord.parse(before.value).model_copy(update={"retry": AskedRetry(request_id=request)})
        others = [kv(name, 1, load="lazy") for name in "bcd"]
        self_value = replace(before, value=record.to_bytes(), mod_revision=revision)
        world.informer.replace(revision, [self_value, *others])

    assert note("a", "b") == ["a", "b"]
    ask(11, "q1")
    assert note() == ["b"]
    assert note("a") == ["b", "a"]
    ask(12, "q2")
    assert note() == ["b"]


def test_a_plan_that_is_blocked_lets_no_question_be_answered_and_one_that_is_paused_says_so():
    """R10, R13."""
    world = World(room=3)
    plan = world.look("a", now=0.0)
    assert world.demand.terms is not None
    assert (world.demand.terms.room, world.demand.is_paused) == (3, False)
    world.demand.follow(replace(plan, paused="it sleeps"))
    assert world.demand.is_paused
    world.demand.follow(replace(plan, blocked="another base"))
    assert (world.demand.terms, world.demand.is_paused) == (None, False)
    assert world.demand.situation(world.informer.state, plan).room == 0


def test_who_is_kept_above_the_room_is_looked_at_when_that_may_end():
    """R16: and nobody is while there is room."""
    world = World(room=2)
    world.tell("a", at=0.0)
    world.look("a", "b", now=0.5)
    assert world.demand.rest_seconds(0.5) == 119.5
    world.tell("b", at=0.5)
    world.tell("c", at=0.6)
    world.look("a", "b", "c", now=0.7)
    assert world.residents() == "abc"
    assert world.demand.rest_seconds(0.7) == pytest.approx(1.3)
    world.look("a", "b", "c", now=2.7)
    assert world.residents() == "bc"
    world.look(now=200.0)
    assert world.demand.rest_seconds(200.0) == INFINITE


def test_what_moved_on_is_left_alone_until_the_state_has_it_too():
    world = World()
    old = world.informer.state
    world.informer.apply(11, [put("a", 11, generation=2, source="v2", load="lazy")])
    wanted = world.review("a", now=0.0, state=old)
    assert (wanted.residents, wanted.asked) == ((), {"a"})
    assert world.demand.resident("a") is None
    assert world.review("a", now=0.0).residents[0].generation == 2
    resident = world.demand.resident("a")
    assert resident is not None
    assert resident.generation == 2


def test_without_any_limit_a_hundred_share_the_engine():
    """R16 bounded, docs/lazy.md: where neither the engine nor the pool says how many, listings stay small."""
    world = World()
    state = world.informer.state
    review(world.demand, state, observed({"a": "v1"}), now=0.0, spec=pool())
    assert world.demand.terms.room == 100


def test_what_is_refused_is_told_once_the_engine_has_its_last_good_generation_instead():
    """R24: a status that tells the refusal alone takes the place from routers although the engine answers."""
    world = World()
    world.informer.note_served([("a", 1)])
    world.informer.apply(11, [put("a", 11, generation=2, source="v2", load="lazy")])
    failure = Failure(world.adapter("a").ref, None, "not_finite", "", 1, None)

    def told(*listed: str, now: float) -> list[str]:
        return [one.key for one, _ in world.review(*listed, now=now).troubles]

    with world.demand.asking("a"):
        world.demand.troubles.note("a", failure)
        assert told(now=0.0) == []
        world.demand.tell("a", Answered("a", path_of("v1"), 0.5), is_newest=False)
    assert [told(now=1.0), told("a", now=2.0), told(now=3.0)] == [[], ["a"], ["a"]]


def test_the_situation_tells_of_what_is_loaded_as_desired():
    world = World()
    state, engine = world.informer.state, observed({"a": "v1", "b": "v1"})
    lazy = world.demand.candidates(state, engine, now=7.0)
    staged = {one.ref: Staged("v1", path_of("v1"), "", 8) for one in lazy.whole.values()}
    context = PlanContext(staged, set(), {}, set(), lazy=lazy)
    plan = make_plan(state, pool(max_adapters=10), engine, context, now=7.0)
    world.demand.follow(plan)
    situation = world.demand.situation(state, plan)
    assert (situation.count, situation.room, situation.used_at) == (4, 9, {"a": 7.0, "b": 7.0})
    world.demand.suspend()
    assert world.demand.situation(None, None).count == 0


def test_what_the_engine_was_told_of_in_vain_is_refused_for_longer_and_longer():
    """R8 isolation: it costs the engine a load each time. A request that was broken off once costs nobody anything."""
    world, now, waits = World(), 0.0, []
    world.look(now=now)
    assert refusal(world, now) is None
    for _ in range(12):
        world.tell("a", at=now)
        world.look(now=now)
        failure = refusal(world, now)
        if failure is not None:
            assert failure.retry_at is not None
            waits.append(failure.retry_at - now)
            now = failure.retry_at
            assert refusal(world, now - 0.01) is not None
        assert refusal(world, now) is None
    assert waits[:4] == [2.0, 4.0, 8.0, 16.0]
    assert waits[-1] == 60.0
    ((told, failure),) = world.review(now=now).troubles
    assert (told.name, failure.reason, failure.attempts) == ("a", "engine_refused", 12)


def test_a_first_try_in_vain_is_told_as_no_refusal():
    """R9 status-truth: the request may have been broken off, or the adapter unloaded by somebody before the look."""
    world = World()
    world.review(now=0.0)
    for told in (0, 1):
        world.tell("a", at=1.0)
        assert refusal(world, 1.0) is None or told
        assert len(world.review(now=1.0).troubles) == told


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


@pytest.mark.parametrize("why", ["it is loaded after all", "another process", "other weights"])
def test_what_is_another_matter_has_not_been_refused(why):
    """R17 heals: whoever loaded it; what the process before was told says nothing of this one."""
    world = World()
    world.look(now=0.0)
    for _ in range(3):
        world.tell("a", at=1.0)
        refusal(world, 1.0)
    assert refusal(world, 1.0) is not None
    if why == "other weights":
        world.informer.apply(11, [put("a", 11, generation=2, source="v2", load="lazy")])
    engine = observed({"a": "v1"} if "loaded" in why else {}, incarnation="e2" if "process" in why else "e1")
    assert world.review(now=1.0, engine=engine).troubles == ()
    assert refusal(world, 1.0) is None
    if why == "another process":
        world.tell("a", at=1.0)
        world.look(now=1.0, engine=observed(incarnation="e3"))
        assert refusal(world, 1.0) is None
