"""What a sidecar says of its replica's activity."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from registry.cli.commands import top
from registry.model.status import Presence
from registry.runtime.clock import Clock
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import EngineActivity
from sidecar.metrics import ENGINE_CALL_SECONDS, done_calls
from sidecar.plan.handoff import Need
from sidecar.plan.types import RoundReport
from sidecar.report.activity import ReplicaActivity
from sidecar.report.cache import StatusCache
from sidecar.report.events import EventRing
from sidecar.report.http import make_app
from sidecar.report.status import ReplicaIdentity
from tests.simulation.loop import virtual
from tests.support.worlds import observed
from tests.unit.report.test_events import PLAN
from tests.unit.report.test_status import situation

PRESENCE = Presence(pool="p", replica="r1", incarnation="x", owner="", started_at="")


ACTIVITY = EngineActivity(1, 2, 3, 4, 5, {"a": 7.5, "gone": 9.0}, {"a": 12})


class Asked:
    """An engine that is asked for its activity."""

    def __init__(self) -> None:
        self.answer: EngineActivity | None = ACTIVITY
        self.times = 0

    async def activity(self) -> EngineActivity:
        self.times += 1
        await asyncio.sleep(0)  # others come meanwhile
        if self.answer is None:
            raise EngineUnreachable("away")
        return self.answer


class HandClock(Clock):
    """Monotonic seconds that pass when told."""

    seconds = [100.0]  # of a frozen dataclass nothing else may change

    def monotonic(self) -> float:
        return self.seconds[0]


class Scene:
    """The activity of a replica whose engine lists two adapters, one of them swapped since."""

    def __init__(self) -> None:
        self.engine, self.clock = Asked(), HandClock()
        self.needed: Need | None = None
        clock = self.clock
        self.cache = StatusCache(ReplicaIdentity("r1", "p", "vllm", "http://e"), clock, lambda _: None)
        ring = EventRing(clock, lambda _: True)
        for look in (observed({"a": "v1", "b": "v1"}), observed({"a": "v2", "b": "v1"})):
            report = RoundReport(situation(PLAN, observed=look), 2)
            self.cache.take(report)
            ring.take(report)
        self.activity = ReplicaActivity(PRESENCE, self.engine, self.cache, ring, self.need, clock)  # type: ignore[arg-type]
        self.ring = ring

    async def need(self) -> Need | None:
        return self.needed

    async def get(self) -> httpx.Response:
        app = make_app(self.cache, [], None, self.ring, self.activity)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sidecar") as client:
            return await client.get("/activity")


async def test_engine_calls_and_adapters_together():
    scene, (loads, seconds) = Scene(), done_calls().get("load", (0, 0.0))
    ENGINE_CALL_SECONDS.labels("load", "done").observe(0.25)
    ENGINE_CALL_SECONDS.labels("load", "refused").observe(9.0)
    ENGINE_CALL_SECONDS.labels("load", "refused").observe(9.0)
    told = (await scene.get()).json()
    assert (told["schema"], told["replica"], told["pool"], told["incarnation"]) == (1, "r1", "p", "x")
    assert told["engine"] == {"running": 1, "waiting": 2, "requests": 3, "prompt_tokens": 4, "generation_tokens": 5}
    assert told["drain"] is None
    assert told["calls"]["load"] == {"count": loads + 1, "seconds": pytest.approx(seconds + 0.25)}
    nothing = {"loads": 0, "swaps": 0, "evictions": 0}
    assert told["adapters"] == [
        {"name": "a", "loaded": True, "last_used_seconds": 7.5, "requests": 12, **nothing, "swaps": 1},
        {"name": "b", "loaded": True, "last_used_seconds": None, "requests": 0, **nothing},
        {"name": "gone", "loaded": False, "last_used_seconds": 9.0, "requests": None, **nothing},
    ]
    scene.needed = Need.NOBODY
    assert (await scene.activity.read())["drain"] == {"reason": "nobody", "needed": Need.NOBODY.value}, "R20"


@pytest.mark.parametrize(
    ("answer", "is_looked_at", "expected"),
    [
        (EngineActivity(1, 2, 3), True, [("a", True, None), ("b", True, None)]),
        (ACTIVITY, False, [("a", False, None), ("gone", False, None)]),
    ],
    ids=["without the plugin, or with one of an earlier release", "before it was looked at"],
)
async def test_what_nobody_knows_of_adapters_is_told_as_not_known(answer, is_looked_at, expected):
    """R9: one that it used since is told all the same."""
    scene = Scene()
    scene.engine.answer = answer
    if not is_looked_at:
        scene.cache.take(RoundReport(situation(PLAN, observed=None), 2))
    told = await scene.activity.read()
    assert [(one["name"], one["loaded"], one["requests"]) for one in told["adapters"]] == expected  # type: ignore[attr-defined]


async def test_an_engine_out_of_reach_is_told_and_no_engine_is_pressed():
    """R16 bounded: those who ask at once, and soon after, are one question of it."""
    scene = Scene()
    scene.engine.answer = None
    told, *others = await asyncio.gather(*(scene.activity.read() for _ in range(8)))
    assert (told["engine"], [one["name"] for one in told["adapters"]]) == (None, ["a", "b"])  # type: ignore[attr-defined]
    assert others == [told] * 7
    for _ in range(9):
        assert await scene.activity.read() == told
    assert scene.engine.times == 1
    scene.clock.seconds[0] += 0.999
    await scene.activity.read()
    assert scene.engine.times == 1, "at most once a second, as docs/deployment.md says"
    scene.clock.seconds[0] += 0.002
    await scene.activity.read()
    assert scene.engine.times == 2


@virtual
async def test_an_engine_that_hangs_is_told_before_those_who_ask_give_up():
    """R18: `loraplane top` and a drain would take the sidecar for lost; those who come meanwhile wait no longer."""
    scene = Scene()
    scene.engine.activity = asyncio.Event().wait  # type: ignore[assignment]
    began = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*(scene.activity.read() for _ in range(8)))
    assert [one["engine"] for one in answers] == [None] * 8
    assert asyncio.get_running_loop().time() - began < top.ASK_SECONDS - 1


async def test_a_fault_of_our_own_is_no_engine_out_of_reach(monkeypatch):
    """R12: it is told as such, and the next who asks is answered."""
    scene = Scene()

    async def fail() -> None:
        raise ValueError("ours")

    with monkeypatch.context() as patch:
        patch.setattr(scene.engine, "activity", fail)
        with pytest.raises(ValueError, match="ours"):
            await scene.activity.read()
    assert (await scene.activity.read())["engine"] is not None
