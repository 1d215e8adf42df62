"""What the loop does, and does not do, because the engine asks for adapters by itself."""

from __future__ import annotations

import asyncio

from sidecar.artifacts.types import ArtifactRef
from sidecar.desired.mailbox import Mailbox
from sidecar.engines.observed import Done, Observed, Outcome
from sidecar.loop.executor import Executor
from sidecar.loop.observer import EXPECTING_SECONDS, EngineObserver
from sidecar.plan.names import key_of
from sidecar.plan.types import Load, Plan, Swap, Unload
from tests.support.worlds import observed

REF = ArtifactRef("file:///a", None)


class Engine:
    """Does what it is told, and counts looks."""

    url = "http://e"
    is_concurrent, swaps_alone, is_deciding = True, True, False
    paused = ""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.looks = 0

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        self.called.append(name)
        return Done()

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        self.called.append(name)
        return Done()

    async def observe(self) -> Observed:
        self.looks += 1
        return observed()


class StandingClock:
    """Stands still."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


async def test_a_name_that_comes_to_be_asked_about_after_the_plan_is_not_called():
    """The deadlock rule: the call would wait for the lock that the question holds."""
    engine, asked = Engine(), {"acme%2Fa", "b"}
    clock, may_call = StandingClock(), lambda call: key_of(call.name) not in asked
    executor = Executor(engine, Mailbox(), clock, may_call, asyncio.create_task)  # type: ignore[arg-type]
    calls = (Unload("acme/a", "/p"), Swap("b", "/p", "/q", REF, ""), Load("c", "/p", REF, ""))
    plan = Plan(1, (), calls, (), (), (), None)
    carried = await executor.carry_out(plan, "e1", is_serving=False)
    assert engine.called == ["c"]
    assert [one.name for one in carried.attempts] == ["c"]


async def test_an_engine_that_was_told_of_something_is_looked_at_often():
    """R6: what it loads then may have been deleted since, and no listing showed it to any plan."""
    engine, clock = Engine(), StandingClock()
    observer = EngineObserver(engine, clock)  # type: ignore[arg-type]
    await observer.look(has_unsettled=False)
    clock.now = EXPECTING_SECONDS
    await observer.look(has_unsettled=False)
    assert engine.looks == 1
    await observer.look(has_unsettled=False, is_expecting=True)
    assert engine.looks == 2
