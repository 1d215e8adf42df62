"""An engine that refuses loads, for any length of time: everything is served once it is well, at little cost before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from registry.model.records import AdapterRecord, AdapterSpec, AskedRetry, PoolSpec, SourceSpec
from registry.model.status import ReplicaStatus
from sidecar.plan.backoff import REFUSED_CAP_SECONDS, REFUSED_PACE_SECONDS, SETTLED_SECONDS
from tests.simulation.artifacts import ROOT
from tests.simulation.engines import BASE, EngineHost
from tests.simulation.history import POOL
from tests.simulation.simulation import play_by_hand
from tests.simulation.world import KEYS, World
from tests.support.ordered import ordered

# More than are tried within the longest wait of one.
MANY = 32
# Beside the wait before the next try: looks, staging, and the loads themselves.
WORK_SECONDS = 15.0
Scene = Callable[["Stage"], Coroutine[Any, Any, None]]


class Stage:
    """One replica of a world; its engine runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.host = world.replicas[0]
        self.engine: EngineHost = self.host.engine
        self.refused = 0
        world.store.put(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=[BASE]).to_bytes())

    def apply(self, *names: str) -> None:
        for name in names:
            record = AdapterRecord(
                name=name,
                pool=POOL,
                tenant="default",
                generation=1,
                spec=AdapterSpec(source=SourceSpec(uri=f"{ROOT}good-{name}")),
                updated_at="2026-01-01T00:00:00Z",
                updated_by="test",
            )
            self.world.store.put(KEYS.adapter(POOL, name), record.to_bytes())

    def start(self) -> None:
        self.engine.start()
        self.world.start(self.host)

    def refuse(self, when: Callable[[str], bool] = lambda _name: True) -> None:
        def refuses(name: str) -> bool:
            is_refused = when(name)
            self.refused += is_refused
            return is_refused

        self.engine.refuses = refuses
        before = self.refused
        ordered("a refusal of the engine", lambda: self.refused > before)

    @property
    def status(self) -> ReplicaStatus | None:
        kv = self.world.store.kvs.get(KEYS.status(POOL, self.host.name))
        return None if kv is None else ReplicaStatus.parse(kv.value)

    async def served(self, count: int, within_seconds: float) -> float:
        """Waits until so many are served, by engine and status; gives the seconds."""
        begun = now()
        while now() - begun < within_seconds:
            status = self.status
            is_said = status is not None and status.served.count == count and status.ready and not status.failed
            if len(self.engine.listing) == count and is_said:
                return now() - begun
            await asyncio.sleep(0.1)
        raise AssertionError(
            f"{len(self.engine.listing)} of {count} are served after {within_seconds} s: {self.status}"
        )


def now() -> float:
    return asyncio.get_running_loop().time()


def names(count: int) -> list[str]:
    return [f"a{number:03}" for number in range(count)]


def play(scene: Scene, seed: int = 0) -> None:
    async def work(world: World) -> None:
        await scene(Stage(world))
        assert world.checks.violations == []

    play_by_hand(seed, work)


@pytest.mark.parametrize("seconds", [2.0, 5.0, 60.0, 600.0])
@pytest.mark.parametrize("count", [1, MANY])
def test_what_an_engine_refused_for_a_while_is_served_once_it_is_well(seconds, count):
    """R17 heals: without anybody's help, however long it lasted."""

    async def scene(stage: Stage) -> None:
        stage.apply(*names(count))
        stage.refuse()
        stage.start()
        await asyncio.sleep(seconds)
        assert stage.engine.listing == {}
        stage.engine.heal()
        await stage.served(count, min(2 * seconds, REFUSED_CAP_SECONDS) + WORK_SECONDS)

    play(scene)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_what_is_refused_now_and_then_is_served_all_the_same(share):
    """R17 heals, R8: a share of all calls fails, whoever makes them."""
    rng = random.Random(7)

    async def scene(stage: Stage) -> None:
        stage.apply(*names(MANY))
        stage.refuse(lambda _name: rng.random() < share)
        stage.start()
        await asyncio.sleep(60.0)
        stage.engine.heal()
        await stage.served(MANY, REFUSED_CAP_SECONDS + WORK_SECONDS)

    play(scene)


def test_one_that_is_refused_delays_no_other_and_heals():
    """R8 isolation, R17 heals."""

    async def scene(stage: Stage) -> None:
        stage.apply(*names(MANY))
        stage.refuse(lambda name: name == "a000")
        stage.start()
        await asyncio.sleep(WORK_SECONDS)
        assert len(stage.engine.listing) == MANY - 1
        assert stage.status is not None
        assert stage.status.ready
        await asyncio.sleep(SETTLED_SECONDS)
        (failed,) = stage.status.failed
        assert (failed.name, failed.reason, failed.settled) == ("a000", "engine_refused", True)
        assert failed.retry_at is not None
        stage.engine.heal()
        await stage.served(MANY, REFUSED_CAP_SECONDS + WORK_SECONDS)

    play(scene)


def test_many_that_are_refused_cost_an_engine_little():
    """R8, R17: over all adapters, so many refused loads a minute at most, and others are served at once meanwhile."""
    count, seconds = 100, 300.0

    async def scene(stage: Stage) -> None:
        stage.apply(*names(count))
        stage.refuse(lambda name: name.startswith("a"))
        stage.start()
        await asyncio.sleep(60.0)
        before = stage.refused
        await asyncio.sleep(seconds)
        assert 0 < stage.refused - before <= seconds / REFUSED_PACE_SECONDS + 1
        stage.apply("b")
        begun = now()
        while "b" not in stage.engine.listing:
            assert now() - begun < WORK_SECONDS
            await asyncio.sleep(0.1)
        stage.engine.heal()
        await stage.served(count + 1, REFUSED_CAP_SECONDS + WORK_SECONDS)

    play(scene)


def test_what_was_refused_is_tried_at_once_when_others_begin_to_load():
    """R17 heals: the first that loads tells that the engine is well."""

    async def scene(stage: Stage) -> None:
        stage.apply(*names(MANY))
        stage.refuse()
        stage.start()
        await asyncio.sleep(900.0)
        stage.engine.heal()
        stage.apply("new")
        await stage.served(MANY + 1, WORK_SECONDS)

    play(scene)


def test_another_process_of_the_engine_is_asked_at_once():
    """R17 heals."""

    async def scene(stage: Stage) -> None:
        stage.apply(*names(MANY))
        stage.refuse()
        stage.start()
        await asyncio.sleep(900.0)
        stage.engine.kill()
        stage.engine.heal()
        stage.engine.start()
        await stage.served(MANY, WORK_SECONDS)

    play(scene)


def test_a_replica_whose_engine_refuses_everything_does_not_become_ready():
    """R18 readiness-follows: an engine that serves nothing that it should is told from adapters that are not fit."""

    async def scene(stage: Stage) -> None:
        stage.apply(*names(MANY))
        stage.refuse()
        stage.start()
        for _ in range(120):
            await asyncio.sleep(1.0)
            assert stage.status is None or not stage.status.ready
        assert stage.status is not None
        assert f"refuses {MANY} of {MANY}" in stage.status.degraded
        assert stage.status.note == stage.status.degraded
        stage.engine.heal()
        await stage.served(MANY, REFUSED_CAP_SECONDS + WORK_SECONDS)
        assert stage.status.degraded == ""

    play(scene)


def test_a_ready_replica_stays_so_and_says_that_it_is_degraded():
    """R18: what it serves it goes on serving, also over a restart of its sidecar."""

    async def scene(stage: Stage) -> None:
        stage.apply("good")
        stage.start()
        await stage.served(1, WORK_SECONDS)
        stage.refuse()
        stage.apply(*names(MANY))
        await asyncio.sleep(WORK_SECONDS)
        assert stage.status is not None
        assert (stage.status.ready, stage.status.served.count) == (True, 1)
        assert f"refuses {MANY} of {MANY + 1}" in stage.status.degraded
        stage.world.kill(stage.host)
        stage.world.start(stage.host)
        await asyncio.sleep(2 * WORK_SECONDS)
        assert stage.status.ready
        assert stage.status.degraded

    play(scene)


@pytest.mark.parametrize(("replica", "is_tried"), [("", True), ("r0", True), ("another", False)])
def test_a_replica_that_is_asked_to_tries_at_once(replica, is_tried):
    """R17 heals: the record is written again, as the same generation; what is asked of another replica is not done."""

    async def scene(stage: Stage) -> None:
        stage.apply("a")
        stage.refuse()
        stage.start()
        await asyncio.sleep(900.0)
        stage.engine.heal()
        record = AdapterRecord.parse(stage.world.store.kvs[KEYS.adapter(POOL, "a")].value)
        asked = record.model_copy(update={"retry": AskedRetry(request_id="asked", replica=replica)})
        stage.world.store.put(KEYS.adapter(POOL, "a"), asked.to_bytes())
        await asyncio.sleep(3.0)
        assert bool(stage.engine.listing) == is_tried

    play(scene)
