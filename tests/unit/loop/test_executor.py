"""Calls that wait for running requests to have the engine for a while, and what may have changed until then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from registry.runtime.clock import Clock
from sidecar.artifacts.types import ArtifactRef
from sidecar.desired.informer import DesiredState
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.driver import check_name
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    EngineGone,
    EnginePaused,
    NoEffect,
    Outcome,
    Refused,
    Transient,
    Unknown,
)
from sidecar.loop.executor import IDLE_SECONDS, MAX_CALLS, MOST_AT_ONCE, REST_FACTOR, SLOW_SECONDS, Executor
from sidecar.plan.types import Call, Load, Plan, Swap, Unload
from tests.simulation.loop import virtual

REF = ArtifactRef("file:///a", "sha256:" + "0" * 64)
EXPECTING = replace(REF, expect="what is expected")
A, B, C = Load("a", "/a", REF, ""), Swap("b", "/b", "/new", REF, ""), Unload("c", "/c")
LOAD_SECONDS = 0.5
HANG_SECONDS = 30.0


class Engine:
    """Notes each call with its time; `on_question` is called when it is asked whether requests run."""

    def __init__(self, *, is_busy: bool = True) -> None:
        self.called: list[tuple[str, float]] = []
        self.may_call = True
        self.is_concurrent, self.swaps_alone, self.is_deciding = True, False, False
        self.paused, self.outcome = "", Done()
        self.hanging: set[str] = set()
        self.on_question: Callable[[], None] = lambda: None
        self._is_busy = is_busy
        self.mailbox = Mailbox()
        self.executor = Executor(
            self, self.mailbox, Clock(random.Random(0)), lambda _key: self.may_call, asyncio.create_task
        )  # type: ignore[arg-type]

    async def is_busy(self) -> bool:
        self.on_question()
        return self._is_busy

    async def load(self, name: str, _path: str, *, request_id: str) -> Outcome:
        return await self._call(f"load {name}{request_id}")

    async def prove(self, path: str, expect: str = "", *, request_id: str) -> Outcome:
        self.called.append((f"prove {path}{request_id} {expect}", _now()))
        return NoEffect("m") if path in self.hanging else Done()

    async def swap(self, name: str, _old: str, _new: str, *, request_id: str) -> Outcome:
        return await self._call(f"swap {name}{request_id}")

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        self.called.append((f"unload {name}{request_id}", _now()))
        await asyncio.sleep(HANG_SECONDS if name in self.hanging else 0.0)
        return Done()

    async def _call(self, what: str) -> Outcome:
        self.called.append((what, _now()))
        await asyncio.sleep(HANG_SECONDS if what.split()[1] in self.hanging else LOAD_SECONDS)
        return self.outcome

    @property
    def made(self) -> list[str]:
        return [what for what, _ in self.called]

    async def carry_out(self, *calls: Call, is_serving: bool = True) -> tuple[int, float | None]:
        """How many of a plan's calls were made, and after how many seconds the rest is due; None: as the plan says."""
        plan = Plan(DesiredState().revision, (), calls, (), (), (), None)
        carried = await self.executor.carry_out(plan, "e1", is_serving=is_serving)
        return len(carried.attempts), carried.again_seconds


def _now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def engine() -> Engine:
    """One without requests."""
    return Engine(is_busy=False)


@virtual
async def test_after_a_rest_the_engine_and_what_is_desired_are_looked_at_anew():
    """R1, R11: a rest may take minutes; what was planned before may be withdrawn, and the engine another's by then."""
    engine = Engine()
    assert await engine.carry_out(A) == (1, None)
    rest = LOAD_SECONDS * REST_FACTOR
    assert await engine.carry_out(C, B) == (1, rest)
    assert await engine.carry_out(B) == (0, rest)
    assert _now() == LOAD_SECONDS, "what was called meanwhile can be told at once"
    await asyncio.sleep(rest)
    assert await engine.carry_out(B) == (1, None), "it has rested"
    assert engine.called == [("load a", 0.0), ("unload c", LOAD_SECONDS), ("swap b", LOAD_SECONDS + rest)]


@virtual
async def test_a_load_that_is_refused_is_rested_from_as_well():
    """R19: the engine has read and checked its files all the same."""
    engine = Engine()
    engine.outcome = Refused("no")
    assert await engine.carry_out(A, B) == (1, LOAD_SECONDS * REST_FACTOR)


@pytest.mark.parametrize("is_busy", [True, False])
@virtual
async def test_who_loses_the_replica_id_while_the_engine_is_asked_or_rests_makes_no_call(is_busy):
    """R10 one-owner: between the question and the call nothing is waited for."""
    engine = Engine(is_busy=is_busy)
    await engine.carry_out(A)
    engine.on_question = lambda: setattr(engine, "may_call", False)
    made, rest = await engine.carry_out(B)
    await asyncio.sleep(rest or 0.0)
    assert (made, await engine.carry_out(B), engine.made) == (0, (0, None), ["load a"])


@virtual
async def test_an_engine_without_requests_is_asked_a_few_times_while_many_adapters_are_loaded(engine, monkeypatch):
    """Else a question for each load takes half as long as the load; and R19: a request that comes is soon seen."""
    monkeypatch.setattr("tests.unit.loop.test_executor.LOAD_SECONDS", IDLE_SECONDS / 5)
    asked: list[float] = []
    engine.on_question = lambda: asked.append(_now())
    calls = [Load(f"a{number}", f"/p{number}", REF, "") for number in range(MAX_CALLS)]
    assert await engine.carry_out(*calls) == (MAX_CALLS, None)
    assert len(asked) == 3, "once for all that is loaded within five loads' time"
    engine._is_busy = True
    await asyncio.sleep(IDLE_SECONDS)
    await engine.carry_out(A)
    assert await engine.carry_out(B) == (0, pytest.approx(LOAD_SECONDS * REST_FACTOR))


@virtual
async def test_while_requests_run_loads_have_a_small_part_of_the_engines_time():
    """R19 not-held-up: a load stops its steps; and all of them come to their turn."""
    engine, left = Engine(), loads("abcdefghij")
    while left:
        made, rest = await engine.carry_out(*left)
        left = left[made:]
        await asyncio.sleep(rest or 0.0)
    assert 0.1 < 10 * LOAD_SECONDS / _now() < 0.35


def loads(names: str) -> list[Load]:
    return [Load(name, f"/{name}", REF, "") for name in names]


@virtual
async def test_a_slow_call_is_left_behind_and_others_are_made_beside_it(engine):
    """R19 not-held-up: of any kind; its name is left alone until it ends, for which the loop is woken to take it up."""
    engine.hanging = {"a"}
    assert await engine.carry_out(A, B) == (0, 0.0), "the engine is looked at again first"
    assert _now() == SLOW_SECONDS
    assert 1.0 <= SLOW_SECONDS <= 5.0, "most loads end before, and nobody waits for the others"
    assert await engine.carry_out(C, B) == (2, None)
    assert engine.made == ["load a", "unload c", "swap b"]
    assert await engine.carry_out(A, Unload("a", "/a")) == (0, None), "never two calls for one name"
    assert engine.executor.collect() == ()
    await engine.mailbox.wait(10 * HANG_SECONDS)
    assert _now() == HANG_SECONDS
    assert engine.executor.in_progress.keys == {"a"}, "no look since tells of it"
    assert [one.name for one in engine.executor.collect()] == ["a"]
    assert engine.executor.in_progress.keys == set()
    assert len(engine.called) == 3


@virtual
async def test_what_may_not_be_called_now_has_nothing_else_wait_for_the_end_of_a_rest():
    """R19 not-held-up: its name has a call under way, and what comes after it in the plan needs no rest."""
    engine = Engine()
    engine.hanging = {"a"}
    assert await engine.carry_out(A) == (0, 0.0)
    assert await engine.carry_out(*loads("x")) == (1, None)
    assert await engine.carry_out(A, C) == (1, None)
    assert engine.made == ["load a", "load x", "unload c"]


@virtual
async def test_a_long_plan_is_left_after_a_few_seconds_to_look_at_the_engine_again(engine):
    """R19 not-held-up, R11: each call is quick enough, but all of them are not, and what was seen grows old."""
    count, _ = await engine.carry_out(*loads("abcdefghijklmnop"))
    assert 1 < count < 16
    assert _now() < 3.0
    count, _ = await engine.carry_out(*(Unload(f"x{number}", "/a") for number in range(100)))
    assert 1 < count < 50, "nor are many made, however quick they are"


@virtual
async def test_a_plan_is_left_after_the_call_during_which_something_else_was_desired(engine):
    """R6, R19 not-held-up: what it goes on with may be withdrawn. That the same is said again changes nothing."""
    state = DesiredState()
    engine.mailbox.post(Snapshot(desired=state))
    assert await engine.carry_out(A, B) == (2, None)
    newer = Snapshot(desired=replace(state, revision=state.revision + 1))
    asyncio.get_running_loop().call_later(LOAD_SECONDS / 2, engine.mailbox.post, newer)
    assert await engine.carry_out(A, B) == (1, None)
    assert await engine.carry_out(B) == (1, None), "the first call is made in any case"


@virtual
async def test_few_calls_of_each_kind_are_under_way_at_once(engine):
    """R16 bounded, R19: loads that hang hold up neither swaps nor unloads."""
    engine.hanging = set("abcdefgh")
    for _ in range(6):
        await engine.carry_out(*loads("abcdefgh"))
    assert len(engine.called) == MOST_AT_ONCE[Load]
    assert await engine.carry_out(*loads("gh"), Swap("x", "/x", "/y", REF, ""), Unload("y", "/y")) == (2, None)


@virtual
async def test_an_engine_that_takes_one_call_at_a_time_gets_no_other(engine):
    engine.is_concurrent = False
    engine.hanging = {"a"}
    await engine.carry_out(A)
    assert await engine.carry_out(B, C) == (0, None)
    await asyncio.sleep(HANG_SECONDS)
    assert await engine.carry_out(B) == (0, None), "it was not looked at since"
    assert len(engine.executor.collect()) == 1
    assert await engine.carry_out(B, C) == (2, None)


@virtual
async def test_what_a_slow_call_may_read_stays_in_use(engine):
    """R7 files-pinned: a swap that fails puts back what was there, and proves the new weights under another name."""
    engine.hanging = {"a", "b"}
    await engine.carry_out(Load("A@2", "/a", REF, ""))
    assert engine.executor.in_progress.keys == set()
    await engine.carry_out(A)
    await engine.carry_out(B)
    assert engine.executor.uses == {("a", "/a"), ("b", "/b"), ("b", "/new")}
    assert engine.executor.in_progress.keys == {"a", "b", check_name("/new")}
    assert engine.executor.in_progress.loads == {"a"}


@virtual
async def test_a_generation_with_a_name_of_its_own_keeps_all_of_its_adapter_busy(engine):
    engine.hanging = {"A@2"}
    await engine.carry_out(Load("A@2", "/a", REF, ""))
    assert engine.executor.in_progress.keys == {"a", "a@2"}
    assert await engine.carry_out(Load("A@3", "/a", REF, "")) == (0, None)
    assert await engine.carry_out(Unload("A@1", "/old")) == (1, None)


@virtual
async def test_what_took_very_long_is_not_rested_from_for_a_multiple_of_it():
    """R19: it waited for something; the engine did not compute all that time."""
    engine = Engine()
    engine.hanging = {"a"}
    await engine.carry_out(A)
    await asyncio.sleep(HANG_SECONDS)
    made, rest = await engine.carry_out(B)
    assert (made, 1.0 < (rest or 0.0) < 15.0) == (0, True)


@virtual
async def test_beside_a_swap_that_must_be_alone_nothing_is_loaded(engine):
    """R7: the engine would have more adapters than the swap was decided for; what began before was counted."""
    engine.hanging = {"a", "b"}
    engine.swaps_alone = True
    await engine.carry_out(A)
    await engine.carry_out(B)
    assert engine.made == ["load a", "swap b"]
    assert await engine.carry_out(*loads("xy"), Swap("z", "/z", "/y", REF, ""), C) == (1, None)
    assert engine.made[2:] == ["unload c"]


@virtual
async def test_a_call_that_is_not_sent_yet_is_waited_for(engine):
    """R6: the plan that it is of could be withdrawn meanwhile.

    R19: one that has ended is not; another call may be what the engine is still waiting to send.
    """
    engine.is_deciding = True
    assert await engine.carry_out(A, B) == (2, None)
    engine.hanging = {"a"}
    assert await engine.carry_out(A) == (1, None), "nor once it has, for the next round to tell what came of it"
    began = _now()
    asyncio.get_running_loop().call_later(5.0, setattr, engine, "is_deciding", False)  # noqa: FBT003 - its value
    assert await engine.carry_out(A, B) == (0, 0.0)
    assert 4.9 < _now() - began < 5.5


@pytest.mark.parametrize("is_without", [False, True])
@pytest.mark.parametrize("call", [replace(one, prove=True, ref=EXPECTING) for one in (A, B)])
@virtual
async def test_what_has_no_effect_is_never_bound_to_a_name(engine, call, is_without):
    """R22 applied-whole: the engine is asked first, and then loads nothing."""
    path = call.path if isinstance(call, Load) else call.new
    engine.hanging = {path} if is_without else set()
    assert await engine.carry_out(call) == (1, None)
    assert engine.called[0][0] == f"prove {path} what is expected"
    made = [what.split()[0] for what, _ in engine.called]
    assert made == (["prove"] if is_without else ["prove", type(call).__name__.lower()])


@pytest.mark.parametrize(
    ("outcome", "made"),
    [
        (Unknown("lost"), 1),
        (EngineGone("away"), 1),
        (EnginePaused("asleep"), 1),
        (Refused("no"), 3),
        (Transient("busy"), 3),
        (AlreadyThere(), 3),
        (Done(), 3),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Outcome) else "",
)
@virtual
async def test_a_call_after_which_the_engine_has_to_be_looked_at_is_the_last_of_its_plan(engine, outcome, made):
    """R11, R17: what comes of the rest cannot be told; a refusal of one says nothing of the others."""
    engine.outcome = outcome
    assert await engine.carry_out(*loads("abc")) == (made, None)
    assert len(engine.called) == made


@pytest.mark.parametrize("is_serving", [True, False], ids=["none runs", "none can run"])
@virtual
async def test_where_no_requests_run_nothing_is_rested_from(is_serving):
    """R3: a replica that is not ready yet has all of the engine, and nobody is asked."""
    engine = Engine(is_busy=not is_serving)
    if not is_serving:
        engine.on_question = lambda: pytest.fail("nobody uses it")
    assert await engine.carry_out(A, B, is_serving=is_serving) == (2, None)
    assert _now() == 2 * LOAD_SECONDS


@virtual
async def test_what_is_called_is_in_progress_from_its_beginning(engine):
    """R7, R11: also while nobody knows yet whether it is slow."""
    carrying = asyncio.create_task(engine.carry_out(A))
    await asyncio.sleep(LOAD_SECONDS / 2)
    assert (engine.executor.in_progress.keys, engine.executor.uses) == ({"a"}, {("a", "/a")})
    assert await carrying == (1, None)
    assert (engine.executor.in_progress.keys, engine.executor.uses) == (set(), set())


@virtual
async def test_what_calls_took_is_measured_by_their_kind_and_outcome(engine):
    """An alert tells of an engine that loads ever slower."""

    def told(call: str) -> list[float]:
        labels, name = {"call": call, "outcome": "done"}, "loraplane_engine_call_seconds"
        return [REGISTRY.get_sample_value(f"{name}_{part}", labels) or 0.0 for part in ("count", "sum")]

    kinds = {"load": LOAD_SECONDS, "swap": LOAD_SECONDS, "unload": 0.0}
    before = {call: told(call) for call in kinds}
    await engine.carry_out(A, B, C)
    for call, seconds in kinds.items():
        count, total = told(call)
        assert (count - before[call][0], total - before[call][1]) == pytest.approx((1, seconds))
