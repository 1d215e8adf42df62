"""Load of adapters whose number of replicas follows their requests, as a sidecar samples and tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from registry.model.records import Placement
from registry.model.status import MAX_LOADS, AdapterLoad, ByLoad, ReportedLoad
from registry.runtime.clock import Clock
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.driver import Engine, EngineUnreachable
from sidecar.engines.observed import EngineActivity
from sidecar.report.load import (
    LEAST_SAMPLES,
    SAMPLE_SECONDS,
    TELL_SECONDS,
    WINDOW_SECONDS,
    LoadSampler,
    averages,
    has_moved,
    reported,
    targets_of,
)
from tests.support.records import kv
from tests.support.worlds import desired

BY_LOAD = Placement(replicas=2, by_load=ByLoad(max=8, per_replica=50))
DESIRED = desired(kv("acme/a", 1, placement=BY_LOAD), kv("acme/b", 2, placement=Placement(replicas=2)), kv("c", 3))
TARGETS = {"acme%2Fa": ("acme/a", 50)}


def load(in_flight: float, omitted: int = 0) -> ReportedLoad:
    rows = [AdapterLoad(name="acme/a", in_flight=in_flight)] if in_flight else []
    return ReportedLoad(adapters=rows, omitted=omitted)


def test_only_what_follows_requests_is_looked_at():
    assert targets_of(DESIRED) == TARGETS
    assert targets_of(None) == {}


def test_requests_are_averaged_by_name_whatever_generation_the_engine_adds():
    assert averages([{"Acme/A@3": 4, "acme/a@4": 2}, {"acme/a": 1}]) == {"acme%2Fa": 3.5}


def test_the_busiest_are_told_and_the_others_counted():
    targets = {f"n{number}": (f"n{number}", 1) for number in range(MAX_LOADS + 3)}
    told = reported(targets, {key: 1.0 + at for at, key in enumerate(targets)} | {"n0": 0.0, "other": 9.0})
    assert (len(told.adapters), told.omitted) == (MAX_LOADS, 2)
    assert told.adapters[0] == AdapterLoad(name=f"n{MAX_LOADS + 2}", in_flight=MAX_LOADS + 3)


def test_news_are_a_tenth_of_what_one_replica_is_to_have_or_an_end():
    assert [has_moved(TARGETS, load(20), load(now)) for now in (20, 24.9, 25, 15.1, 15)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert has_moved(TARGETS, load(1), load(0))
    assert has_moved(TARGETS, load(1), load(1, omitted=1))


class Scene:
    """A sampler over an engine that has what a test says, on a clock that it moves."""

    def __init__(self) -> None:
        self.counts: Mapping[str, int] | None = {}
        self.away = False
        self.asked = 0
        self.time = 100.0
        self.told: list[ReportedLoad | None] = []
        self.mailbox = Mailbox()
        self.mailbox.post(Snapshot(desired=DESIRED))
        self.sampler = LoadSampler(self.mailbox, cast("Engine", self), cast("Clock", self), self.told.append)

    def monotonic(self) -> float:
        return self.time

    async def activity(self) -> EngineActivity:
        self.asked += 1
        if self.away:
            raise EngineUnreachable("away")
        return EngineActivity(adapter_in_flight=self.counts)

    async def samples(self, many: int, counts: Mapping[str, int] | None = None) -> list[Any]:
        """What is told meanwhile."""
        self.counts, self.told[:] = counts if counts is not None else self.counts, []
        for _ in range(many):
            self.time += SAMPLE_SECONDS
            await self.sampler.sample()
        return list(self.told)


async def test_an_average_is_told_once_there_is_one_and_then_seldom():
    scene = Scene()
    assert await scene.samples(LEAST_SAMPLES - 1, {"acme/a": 10}) == []
    assert await scene.samples(1) == [load(10)]
    assert await scene.samples(30, {"acme/a": 13}) == []
    told = await scene.samples(24, {"acme/a": 4000})
    assert 1 < len(told) <= 24 * SAMPLE_SECONDS / TELL_SECONDS
    assert [one.adapters[0].in_flight for one in told] == sorted(one.adapters[0].in_flight for one in told)
    assert await scene.samples(30, {}) != []
    assert scene.told[-1] == load(0)


async def test_what_nobody_can_count_is_unknown_after_a_minute():
    scene = Scene()
    await scene.samples(LEAST_SAMPLES, {"acme/a": 10})
    scene.away = True
    short = int(WINDOW_SECONDS / SAMPLE_SECONDS)
    assert await scene.samples(short - 1) == []
    assert await scene.samples(1) == [None]
    scene.away, scene.counts = False, None
    assert await scene.samples(20) == [], "an engine without the plugin"


async def test_an_engine_is_asked_only_while_something_follows_requests():
    scene = Scene()
    await scene.samples(LEAST_SAMPLES, {"acme/a": 10})
    asked = scene.asked
    scene.mailbox.post(Snapshot(desired=desired(kv("c", 3))))
    assert await scene.samples(3) == [None]
    assert scene.asked == asked
