"""Calls that wait for running requests to have the engine for a while, and what may have changed until then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

from sidecar.artifacts.types import ArtifactRef
from sidecar.chance import Chance
from sidecar.desired import DesiredState
from sidecar.executor import REST_FACTOR, Executor
from sidecar.inputs import Inputs
from sidecar.observed import Done, Outcome
from sidecar.plan import Call, Load, Plan, Swap, Unload
from tests.support.sim.loop import VirtualLoop

REF = ArtifactRef("file:///a", "sha256:" + "0" * 64)
A, B, C = Load("a", "/a", REF, ""), Swap("b", "/b", "/new", REF, ""), Unload("c", "/c")
LOAD_SECONDS = 0.5


class Engine:
    """Notes each call with its time; `on_question` is called when it is asked whether requests run."""

    def __init__(self, *, is_busy: bool = True) -> None:
        self.called: list[tuple[str, float]] = []
        self.may_call = True
        self.on_question: Callable[[], None] = lambda: None
        self._is_busy = is_busy
        self._executor = Executor(self, Inputs(), Chance(random.Random(0)), lambda _key: self.may_call)  # type: ignore[arg-type]

    async def is_busy(self) -> bool:
        self.on_question()
        return self._is_busy

    async def load(self, name: str, _path: str, *, request_id: str) -> Outcome:
        return await self._call(f"load {name}{request_id}")

    async def swap(self, name: str, _old: str, _new: str, *, request_id: str) -> Outcome:
        return await self._call(f"swap {name}{request_id}")

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        self.called.append((f"unload {name}{request_id}", _now()))
        return Done()

    async def _call(self, what: str) -> Outcome:
        self.called.append((what, _now()))
        await asyncio.sleep(LOAD_SECONDS)
        return Done()

    async def carry_out(self, *calls: Call) -> tuple[int, bool]:
        """How many of a plan's calls were made, and whether the plan was left because it is old."""
        plan = Plan(DesiredState().revision, (), calls, (), (), (), None)
        carried = await self._executor.carry_out(plan, "e1", is_serving=True)
        return len(carried.attempts), carried.is_overtaken


def _now() -> float:
    return asyncio.get_running_loop().time()


def run(work: Coroutine[Any, Any, None]) -> None:
    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(work)


def test_after_a_rest_the_engine_and_what_is_desired_are_looked_at_anew():
    """R1, R11: a rest may take minutes; what was planned before may be withdrawn, and the engine another's by then."""

    async def body() -> None:
        engine, start = Engine(), _now()
        assert await engine.carry_out(A) == (1, False)
        assert await engine.carry_out(C, B) == (1, True)
        rested = LOAD_SECONDS * (1 + REST_FACTOR)
        assert _now() - start == rested
        assert await engine.carry_out(B) == (1, False), "it has rested"
        assert [(what, at - start) for what, at in engine.called] == [
            ("load a", 0.0),
            ("unload c", LOAD_SECONDS),
            ("swap b", rested),
        ]

    run(body())


def test_who_loses_the_replica_id_during_a_rest_makes_no_call():
    """R10 one-owner."""

    async def body() -> None:
        engine = Engine()
        await engine.carry_out(A)
        engine.on_question = lambda: setattr(engine, "may_call", False)
        assert await engine.carry_out(B) == (0, True)
        assert await engine.carry_out(B) == (0, False)
        assert [what for what, _ in engine.called] == ["load a"]

    run(body())


def test_who_loses_it_while_the_engine_is_asked_for_requests_makes_none_either():
    """R10: between the question and the call nothing is waited for."""

    async def body() -> None:
        engine = Engine(is_busy=False)
        await engine.carry_out(A)
        engine.on_question = lambda: setattr(engine, "may_call", False)
        assert await engine.carry_out(B) == (0, False)

    run(body())


def test_an_engine_without_requests_needs_no_rest():
    async def body() -> None:
        engine, start = Engine(is_busy=False), _now()
        assert await engine.carry_out(A, B) == (2, False)
        assert _now() - start == 2 * LOAD_SECONDS

    run(body())
