"""When the loop looks at the engine, and what it believes: in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from registry.model.records import SourceSpec
from registry.runtime.clock import Clock
from sidecar.desired.informer import Informer
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import Done, Observed, Outcome, Refused, Unknown, Use
from sidecar.loop.executor import SLOW_SECONDS
from sidecar.loop.observer import EngineProbes
from sidecar.loop.rounds import ServedNews
from sidecar.plan.types import KeptAdapter, LazySelection, PendingAdapter, Plan, RoundReport, Selection, ServedAdapter
from sidecar.resolver.demand import EXPECT_SECONDS, Answered
from tests.simulation.artifacts import ROOT, SimStore, path_of
from tests.simulation.loop import virtual
from tests.support.records import POOL, kv
from tests.unit.loop.test_reconciler import THE_POOL, Loading, desired, nothing_asked, running, wanting
from tests.unit.report.test_status import situation

A, B = path_of("r1", "good-a"), path_of("r1", "good-b")


class Odd(Loading):
    """Answers a load with `outcome`, whatever came of it, and fails to be looked at as often as `failing` says.

    Attributes:
        called: what it was told, in order.
        takes: whether a load binds the name.
    """

    def __init__(self, outcome: Outcome | None = None, *, takes: bool = True) -> None:
        super().__init__()
        self.outcome: Outcome = outcome or Done()
        self.takes, self.failing = takes, 0
        self.called: list[str] = []

    async def observe(self) -> Observed:
        if self.failing:
            self.failing -= 1
            raise EngineUnreachable("HTTP 500")
        return await super().observe()

    async def incarnation(self) -> str:
        return "e1"

    async def turns(self) -> bool:
        return True

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        self.called.append(f"load {name}")
        if self.takes:
            await super().load(name, path, request_id=request_id)
        return self.outcome

    async def swap(self, name: str, _old: str, new: str, *, request_id: str) -> Outcome:
        self.called.append(f"swap {name}")
        self.adapters[name] = new
        return self.outcome

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        self.called.append(f"unload {name}")
        return await super().unload(name, request_id=request_id)


@virtual
async def test_what_somebody_else_does_to_the_engine_is_found_within_fifteen_seconds():
    """R3 converge, R6: nobody tells of it, and no change of what is desired comes to help."""
    engine = Odd()
    async with running(engine, wanting(1, "good-a")):
        await asyncio.sleep(5.0)
        del engine.adapters["good-a"]
        await asyncio.sleep(16.0)
        assert engine.adapters == {"good-a": A}


@virtual
async def test_an_engine_that_is_doubted_is_looked_at_at_once_and_one_failed_look_is_told_to_nobody():
    """R18: the probes found it away, or back; one failed look takes nothing out where its process answers."""
    async with serving() as (engine, _, _, reports):
        looks, told = engine.looks, len(reports)
        engine.on_probed()
        await asyncio.sleep(0.1)
        assert engine.looks == looks + 1
        told, engine.failing = len(reports), 1
        engine.on_probed()
        await asyncio.sleep(0.1)
        assert (engine.failing, len(reports)) == (0, told)
        await asyncio.sleep(2.0)
        assert all(report.situation.ready for report in reports[told:])
        engine.failing = 4
        engine.on_probed()
        await asyncio.sleep(12.0)
        assert (engine.failing, ready(reports)) == (0, (True, "")), "R17: it is looked at again within seconds"


@virtual
async def test_an_engine_that_is_found_away_is_told_once_and_by_the_rounds_too():
    """R18 readiness-follows, R12: the probes may be there before the first round, and find the same again and again.

    The engine lists as ever, and something else may be news meanwhile.
    """
    engine, mailbox = Odd(), wanting(1, "good-a")
    probes = SetProbes(engine, Clock(random.Random(0)))
    async with running(engine, mailbox, probes=probes) as reports:
        probes.problem = "it is away"
        engine.on_probed()
        assert reports == []
        probes.problem = ""
        await asyncio.sleep(2.0)
        assert ready(reports) == (True, "")
        told, probes.problem = len(reports), "it is away"
        engine.on_probed()
        engine.on_probed()
        assert (len(reports), ready(reports)) == (told + 1, (False, "it is away"))
        for _ in range(3):
            told = len(reports)
            mailbox.wake()
            await asyncio.sleep(0.5)
            assert len(reports) > told
            assert ready(reports) == (False, "it is away")
        probes.problem = ""
        mailbox.wake()
        await asyncio.sleep(0.5)
        assert ready(reports) == (True, "")


@virtual
async def test_before_anything_is_taken_away_the_engine_is_looked_at_anew():
    """R11 foreign-safe: somebody put other files behind the name since the last look, which are not ours to unload."""
    async with serving() as (engine, _, mailbox, _):
        engine.on_probed()
        await asyncio.sleep(0.1)  # however young that look is
        engine.adapters["good-a"] = "/elsewhere"
        mailbox.post(replace(mailbox.snapshot, desired=desired(2)))
        await asyncio.sleep(30.0)
        assert (engine.adapters, engine.called) == ({"good-a": "/elsewhere"}, ["load good-a"])


@virtual
async def test_a_name_of_ours_that_somebody_gave_other_files_gets_ours_again():
    """R4 digest-true: nobody tells of it, and no record changes."""
    async with serving() as (engine, _, _, reports):
        engine.adapters["good-a"] = "/elsewhere"
        engine.on_probed()
        await asyncio.sleep(2.0)
        assert engine.adapters == {"good-a": A}
        assert engine.called == ["load good-a", "unload good-a", "load good-a"]
        assert [one.name for one in reports[-1].situation.plan.served] == ["good-a"]


@virtual
async def test_what_a_slow_call_put_off_is_done_as_soon_as_it_is_known_to_be_slow():
    """R19 not-held-up: the plan is left, and the next one made at once."""
    engine, mailbox = Odd(), wanting(1, "good-a", "good-b")
    async with running(engine, mailbox):
        await asyncio.sleep(2.0)
        engine.adapters.clear()
        engine.seconds = lambda name: 30.0 if name == "good-a" else 0.0
        engine.on_probed()
        await asyncio.sleep(1.0)
        assert engine.adapters == {}
        await asyncio.sleep(SLOW_SECONDS)
        assert list(engine.adapters) == ["good-b"]


@virtual
async def test_a_load_without_an_answer_that_the_engine_lists_is_served():
    """R17 heals, R9: the listing says what came of it, and the replica is not kept from being ready."""
    engine = Odd(Unknown("no answer"))
    async with running(engine, wanting(1, "good-a")) as reports:
        await asyncio.sleep(10.0)
        assert reports[-1].situation.ready
        looks = engine.looks
        await asyncio.sleep(10.0)
        assert engine.looks <= looks + 1, "nothing is in doubt any more"


@virtual
async def test_what_the_engine_may_yet_load_stays_in_use_though_nobody_wants_it_any_more():
    """R7 files-pinned: a load without an answer, that no listing has told of, by an engine that generates nothing."""

    async def hangs() -> bool:
        return False

    engine, mailbox, used = Odd(Unknown("no answer"), takes=False), wanting(1, "good-a"), list[AbstractSet[Use]]()
    engine.turns = hangs  # type: ignore[method-assign]
    async with running(engine, mailbox, notice=lambda _, uses: used.append(uses)):
        await asyncio.sleep(1.0)
        mailbox.post(replace(mailbox.snapshot, desired=desired(2)))
        await asyncio.sleep(10.0)
        assert ("good-a", A) in used[-1]


@virtual
async def test_an_engine_that_starts_gets_the_most_important_first_however_new_others_are():
    """R19: as of its very first plan; what changes from then on is news."""
    informer, engine = Informer(POOL), Odd()
    informer.replace(9, [kv("good-a", 2, source="good-a", priority=1), kv("good-b", 9, source="good-b")])
    mailbox = Mailbox()
    mailbox.post(Snapshot(pool=THE_POOL, desired=informer.state))
    async with running(engine, mailbox):
        await asyncio.sleep(2.0)
    assert engine.called == ["load good-a", "load good-b"]


@virtual
async def test_what_was_touched_since_it_was_proven_is_neither_loaded_nor_swapped_in(monkeypatch):
    """R21 proven-here: it is looked at anew before the engine is given it."""
    touched = {A, B}
    monkeypatch.setattr(SimStore, "is_intact", lambda _, path: path not in touched)
    engine, mailbox = Odd(), wanting(1, "good-a")
    async with running(engine, mailbox):
        await asyncio.sleep(1.0)
        assert engine.called == []
        touched.remove(A)
        await asyncio.sleep(1.0)
        assert engine.adapters == {"good-a": A}
        other = desired(2, "good-a", load="eager", source=SourceSpec(uri=f"{ROOT}good-b"))
        mailbox.post(replace(mailbox.snapshot, desired=other))
        await asyncio.sleep(1.0)
        assert engine.called == ["load good-a"]
        touched.remove(B)
        await asyncio.sleep(1.0)
        assert engine.adapters == {"good-a": B}


@virtual
async def test_an_engine_that_pauses_amid_a_plan_gets_no_further_call():
    """R17 heals, R11: somebody put it to sleep, and it would answer when it wakes, or never."""

    class Tired(Odd):
        async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
            await asyncio.sleep(1.0)
            self.paused = "it sleeps"
            return await super().load(name, path, request_id=request_id)

    engine = Tired()
    async with running(engine, wanting(1, "good-a", "good-b")):
        await asyncio.sleep(10.0)
        assert len(engine.called) == 1
        engine.paused = ""
        await asyncio.sleep(20.0)
        assert sorted(engine.called) == ["load good-a", "load good-b"]


@virtual
async def test_a_name_that_is_asked_about_amid_a_plan_is_left_alone():
    """The deadlock rule: the engine holds the name's lock until it is answered, and takes one call after another."""
    engine, demand = Odd(), nothing_asked()
    engine.seconds = lambda _: 1.0
    async with running(engine, wanting(1, "good-a", "good-b"), demand=demand):
        await asyncio.sleep(0.8)
        assert (len(engine.called), engine.adapters) == (1, {})
        with demand.asking("good-a"), demand.asking("good-b"):
            await asyncio.sleep(10.0)
            assert len(engine.called) == 1
        await asyncio.sleep(20.0)
        assert sorted(engine.called) == ["load good-a", "load good-b"]


class Moody(Odd):
    """Has the base model, sleeps, and generates as it is set to."""

    base, generates = "base", True

    async def observe(self) -> Observed:
        return replace(await super().observe(), base_models=(self.base,), paused=self.paused)

    async def turns(self) -> bool:
        return self.generates


class SetProbes(EngineProbes):
    """Found what it is set to."""

    problem = ""


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Moody, SetProbes, Mailbox, list[RoundReport]]]:
    """A replica that serves one adapter and is ready."""
    engine, mailbox = Moody(), wanting(1, "good-a")
    probes = SetProbes(engine, Clock(random.Random(0)))
    async with running(engine, mailbox, probes=probes) as reports:
        await asyncio.sleep(2.0)
        assert ready(reports) == (True, "")
        yield engine, probes, mailbox, reports


def ready(reports: list[RoundReport]) -> tuple[bool, str]:
    """Whether the replica is, and why not, as it is told now."""
    return reports[-1].situation.ready, reports[-1].situation.note


@virtual
async def test_what_a_replica_waits_for_before_it_is_ready_is_told():
    """R9 status-truth, R18: in the order in which it can be mended; an engine that is mended is found in seconds.

    R14 nack: etcd was reached, and says something that nobody here understands.
    """
    engine, mailbox = Moody(), Mailbox()
    async with running(engine, mailbox) as reports:
        for change, words in [
            ({}, "etcd was not reached and there is no snapshot"),
            (
                {"desired": desired(1), "pool_read": False, "pool_refusal": "it cannot be followed"},
                "cannot be followed",
            ),
            ({"pool_read": True, "pool_refusal": ""}, "there is no such pool"),
        ]:
            mailbox.post(replace(mailbox.snapshot, **change))
            await asyncio.sleep(1.0)
            assert words in reports[-1].situation.note
        assert not any(one.situation.ready for one in reports)
    engine.base = "another"
    async with running(engine, wanting(1, "good-a")) as reports:
        await asyncio.sleep(1.0)
        situation = reports[-1].situation
        assert situation.plan is not None
        assert (situation.ready, situation.note) == (False, situation.plan.blocked)
        engine.base = "base"
        await asyncio.sleep(4.0)
        assert ready(reports) == (True, "")
        notes = {one.situation.note for one in reports}
        assert notes == {situation.note, "the first plan is being carried out", ""}


@virtual
async def test_no_question_is_answered_while_the_engine_cannot_be_looked_at():
    """R9, R18: what it would be told of could be gone by then; the status says that there is no room."""
    engine, demand = Odd(), nothing_asked()
    async with running(engine, wanting(1, "good-a"), demand=demand) as reports:
        await asyncio.sleep(2.0)
        assert demand.terms is not None
        assert reports[-1].situation.lazy.room == demand.terms.room > 0
        seen = reports[-1].situation.last_seen
        assert ([one.name for one in seen.served], bool(seen.at)) == (["good-a"], True)
        engine.failing = 1000
        await asyncio.sleep(30.0)
        assert (demand.terms, reports[-1].situation.observed) == (None, None)
        assert reports[-1].situation.last_seen == seen, "what it served is told with the time of that look"
        assert {one.situation.lazy.room for one in reports if one.situation.observed is None} == {0}
        engine.failing = 0
        await asyncio.sleep(30.0)
        assert demand.terms is not None


@virtual
async def test_news_that_change_nothing_do_not_press_the_engine():
    """R16 bounded: each listing costs it something, and what it said is young enough for the next plan."""
    async with serving() as (engine, _, mailbox, reports):
        looks, told = engine.looks, len(reports)
        for _ in range(8):
            await asyncio.sleep(0.7)
            mailbox.wake()
        assert len(reports) >= told + 7
        assert engine.looks == looks


@virtual
async def test_an_engine_that_was_told_of_an_adapter_is_looked_at_until_it_lists_it():
    """R9 status-truth, R19: nobody tells that it has loaded it; what it never lists is not looked for without end."""
    engine, mailbox, demand = Odd(), wanting(1, "good-a"), nothing_asked()
    async with running(engine, mailbox, demand=demand):
        await asyncio.sleep(2.0)
        looks = engine.looks
        demand.tell("lazy", Answered("lazy", path_of("r1", "lazy"), asyncio.get_running_loop().time()))
        mailbox.wake()
        await asyncio.sleep(4.0)
        assert 5 <= engine.looks - looks <= 20
        await asyncio.sleep(EXPECT_SECONDS)
        looks = engine.looks
        await asyncio.sleep(10.0)
        assert engine.looks <= looks + 1


@virtual
async def test_what_is_refused_of_a_last_good_generation_is_tried_again_in_its_own_time():
    """R13, R8: beside what failed of the newest, which is not forgotten with it."""
    state = desired(1, "missing-2", load="eager")
    newest = state.adapters["missing-2"]
    good = newest.earlier(1, replace(newest.ref, uri=f"{ROOT}good-1"))
    newest = replace(newest, generation=2, last_good=good)
    mailbox, engine = Mailbox(), Odd(Refused("out of memory"), takes=False)
    mailbox.post(Snapshot(pool=THE_POOL, desired=replace(state, adapters=state.adapters.set(newest.key, newest))))
    async with running(engine, mailbox) as reports:
        await asyncio.sleep(20.0)
        tries = len(engine.called)
        assert 2 <= tries <= 8, "it is tried again with pauses"
        engine.outcome, engine.takes = Done(), True
        await asyncio.sleep(40.0)
    plan = reports[-1].situation.plan
    assert plan is not None
    assert [(one.generation, one.reason) for one in plan.failed] == [(2, "weights_not_safetensors")]
    assert [(one.name, one.generation) for one in plan.kept] == [("missing-2", 1)]
    assert engine.adapters["missing-2"] == path_of("r1", "good-1")


class Memory:
    """Notes what it is told."""

    def __init__(self, *placed: str) -> None:
        self.placed = {*placed}
        self.told: list[tuple[str, int]] = []

    def note_served(self, generations: Iterable[tuple[str, int]]) -> None:
        self.told = [*generations]


def test_what_is_newly_served_is_told_once_and_what_others_are_to_serve_with_a_change_of_that():
    """R13: so that it is known after a restart."""
    memory, state = Memory("a", "b", "waits", "unsure"), desired(1, "a", "b", load="eager")
    waiting = {"over": ((0, "waits"),), "undecided": ((0, "unsure"),)}
    news, chosen = ServedNews(memory), Selection(adapters=(state.adapters["a"],), **waiting)

    def told(revision: int, *served: str, **parts: Any) -> list[tuple[str, int]]:
        found = tuple(ServedAdapter(name, 1, "") for name in served)
        plan = replace(Plan(revision, (), (), found, (), (), None, chosen=chosen), **parts)
        news.take(RoundReport(situation(plan), 1))
        return memory.told

    assert told(1, "a", "B", blocked="another base") == [("b", 1), ("a", 1)]
    assert told(1, "a") == [("b", 0)]
    assert told(1, "a") == []
    assert told(2, "a", "B") == [("b", 1), ("b", 0)]
    kept = KeptAdapter("a", 0), KeptAdapter("B", 3)
    assert told(2, kept=kept) == [("b", 3)], "of the other nothing is known"
    memory.placed.clear()
    assert told(3, kept=kept) == []
    waits = PendingAdapter("B", 4, "staging", "")
    assert told(4, kept=(KeptAdapter("B", 4),), pending=(waits,)) == [], "that is of another store: it has one number"
    assert told(4, "B", kept=(KeptAdapter("a", 1),)) == [("b", 1), ("a", 1)]
    memory.placed.add("lazy")
    resident = Selection(lazy=LazySelection((replace(state.adapters["a"], key="lazy"),)))
    assert told(5, chosen=resident) == [], "its record was made eager just now, and of that the plan knows nothing yet"
    memory.placed.clear()
    made = Plan(5, (), (), (ServedAdapter("B", 1, "sha256:other"),), (), (), None)
    news.take(RoundReport(situation(made), 1))
    assert memory.told == [("b", 1)], "under the same number other weights are served"
    memory.told = [("kept", 1)]
    news.take(RoundReport(situation(), 1))
    assert memory.told == [("kept", 1)], "without a plan nothing is known"
