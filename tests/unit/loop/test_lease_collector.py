"""The keeper's rounds, with an engine and a store that can be told to fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from registry.model.status import ReportedStore
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.maintenance import Holdings
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import DrainEvidence, EngineFacts, Observed
from sidecar.loop import lease_collector as module
from sidecar.loop.drain import DrainTracker
from sidecar.loop.lease_collector import LeaseCollector
from tests.simulation.loop import virtual
from tests.support.waiting import eventually
from tests.unit.loop.test_drain import owns

GRACE = 10.0


class Engine:
    """Lists `cards`; fails with `error`; says that it is idle."""

    def __init__(self) -> None:
        self.cards: dict[str, str] = {}
        self.error: Exception | None = None
        self.asked = 0

    async def observe(self) -> Observed:
        if self.error:
            raise self.error
        return Observed(EngineFacts("vllm", "0.32.0", "http://e", "e1"), ("base",), dict(self.cards))

    async def drain_evidence(self) -> DrainEvidence:
        self.asked += 1
        if self.error:
            raise self.error
        return DrainEvidence("e1", 0, 0, frozenset())


class Store:
    """Leases in memory; `error` befalls what is leased."""

    def __init__(self, *leased: str) -> None:
        self.ids = set(leased)
        self.error: OSError | None = None

    def leased(self) -> frozenset[str]:
        return frozenset(self.ids)

    def lease(self, artifacts: Collection[str]) -> None:
        if self.error:
            raise self.error
        self.ids |= set(artifacts)

    def let_go(self, artifacts: Collection[str]) -> frozenset[str]:
        self.ids -= set(artifacts)
        return frozenset(artifacts)


ROOM = ReportedStore(room_bytes=5, in_use_bytes=7, largest_bytes=4, bound="disk")


class Rig:
    """A keeper with everything that it needs, and a clock."""

    def __init__(self, *leased: str) -> None:
        self.now = 0.0
        self.engine, self.store = Engine(), Store(*leased)
        self.upkeeps: list[Exception | None] = []
        self.rounds = self.news = 0
        self.rooms: list[ReportedStore | None] = []
        self.room: ReportedStore | None = ROOM
        self.troubles: dict[str, str] = {}
        self.lease_collector = LeaseCollector(
            self.engine,  # type: ignore[arg-type]
            self.store,
            DrainTracker(GRACE, owns),
            self,
            monotonic=lambda: self.now,
            pause_seconds=0.0,
            look_seconds=0.0,
            on_news=self.hear,
            on_room=self.rooms.append,
        )

    def hear(self) -> None:
        self.news += 1

    def scrub(self, stop: Stop) -> None:
        """See `StoreRounds`."""
        self.round(stop)

    def look_at_sources(self, stop: Stop) -> None:
        """See `StoreRounds`."""
        self.round(stop)

    def look(self, stop: Stop) -> dict[str, str]:
        """See `StoreRounds`."""
        self.round(stop)
        return dict(self.troubles)

    def round(self, stop: Stop) -> Holdings:
        """See `StoreRounds`."""
        stop.check()
        self.rounds += 1
        error = self.upkeeps.pop(0) if self.upkeeps else None
        if error:
            raise error
        return Holdings(7, 3, 2, 1, self.room)

    async def notice(self, *uses: tuple[str, str]) -> None:
        self.lease_collector.notice(await self.engine.observe(), set(uses))

    async def review(self, times: int = 1) -> None:
        """After the grace each time."""
        for _ in range(times):
            self.now += GRACE
            await self.lease_collector._review()


@pytest.mark.parametrize("is_told", [True, False])
async def test_before_the_first_plan_nothing_is_asked_or_let_go(is_told):
    """R13 static-stable: nobody knows yet what is wanted, and a restarted engine will need it."""
    keeper = Rig("X")
    if is_told:
        keeper.lease_collector.expect(("x", "/s/X"))
    else:  # even if the tracker had looked, and took it for idle
        keeper.lease_collector._drain_tracker.look(await keeper.engine.observe(), set(), {"X"}, now=0.0)
    await keeper.review(4)
    assert (keeper.store.ids, keeper.engine.asked) == ({"X"}, 0)


async def test_what_is_not_used_any_more_is_let_go_and_the_engine_is_not_asked_in_vain():
    """R7, R16: without anything to let go of, no token is spent."""
    keeper = Rig("X", "Y", "Z")
    keeper.engine.cards = {"y": "/s/Y"}
    await keeper.notice(("z", "/s/Z"))
    with capture_logs() as logs:
        await keeper.lease_collector._review()
        assert not keeper.engine.asked
        await keeper.review(2)
    assert [line["event"] for line in logs] == ["leases_dropped"], "R9: no lease was missing"
    assert keeper.store.ids == {"Y", "Z"}
    asked = keeper.engine.asked
    await keeper.review()
    assert keeper.engine.asked == asked


async def test_what_was_said_before_the_engine_could_not_be_asked_is_evidence_no_more():
    """R7 files-pinned: it is asked twice again before anything is let go of."""
    keeper = Rig("X")
    await keeper.notice()
    await keeper.review()
    keeper.engine.error = EngineUnreachable("away")
    await keeper.review()
    keeper.engine.error = None
    await keeper.review()
    assert keeper.store.ids == {"X"}
    await keeper.review()
    assert keeper.store.ids == set()


async def test_what_others_changed_is_told_to_whoever_plans():
    """R3 converge: the engine tells of changes since the last look, whosever that was; so this look would hide them."""
    keeper = Rig("X", "Y")
    keeper.engine.cards = {"y": "/s/Y"}
    await keeper.notice()
    await keeper.review()
    assert (keeper.engine.asked > 0, keeper.news) == (True, 0)
    keeper.engine.cards = {"y": "/elsewhere"}
    await keeper.review()
    assert keeper.news == 1
    await keeper.notice()
    await keeper.review()
    assert keeper.news == 1


async def test_what_is_listed_when_a_plan_is_made_may_be_put_back_by_it():
    """R7: a swap that fails loads the old weights again; until the next plan they are in use."""
    keeper = Rig("X", "Y", "Z")  # of which Z is idle, so that the engine is asked
    keeper.engine.cards = {"x": "/s/X"}
    await keeper.notice(("x", "/s/Y"))
    keeper.engine.cards = {"x": "/s/Y"}
    await keeper.review(4)
    assert keeper.store.ids == {"X", "Y"}
    await keeper.notice(("x", "/s/Y"))
    await keeper.review(3)
    assert keeper.store.ids == {"Y"}


async def test_what_the_engine_lists_is_leased_whatever_the_file_said():
    """R7: a lost lease file heals."""
    keeper = Rig()
    keeper.engine.cards = {"x": "/s/X", "foreign": "/elsewhere"}
    keeper.store.error = OSError(28, "No space left on device")
    await keeper.notice()
    assert not keeper.store.ids
    keeper.store.error = None
    await keeper.notice()
    assert keeper.store.ids == {"X"}


async def test_a_store_that_fails_is_looked_after_and_scrubbed_again_later():
    """R12, R8: and it is told how much there is."""
    keeper = Rig()
    keeper.upkeeps = [OSError(5, "Input/output error"), ArtifactError("store_io", "no")]
    async with during(keeper.lease_collector.run()):
        await eventually(lambda: keeper.rounds >= 4)
    gauges = (module.STORE_BYTES, module.STORE_ARTIFACTS, module.STORE_LEASED, module.STORE_DAMAGED)
    assert [gauge._value.get() for gauge in gauges] == [7, 3, 2, 1]
    damaged = ROOM.model_copy(update={"damaged": 1})
    assert keeper.rooms[:3] == [None, None, damaged], "of a store that fails it is not known"
    keeper.room = None
    await keeper.lease_collector._keep_store()
    assert keeper.rooms[-1] is None, "nor where nobody can tell"
    keeper.rounds, keeper.upkeeps = 0, [OSError(5, "Input/output error")]
    async with during(keeper.lease_collector.scrub()):
        await eventually(lambda: keeper.rounds >= 3)


@asynccontextmanager
async def during(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While it runs, which it does until it is cancelled."""
    running = asyncio.create_task(work)
    yield
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


async def test_files_that_somebody_touches_are_told_once_and_so_is_that_they_are_well():
    """R9: each has a new plan made, whatever fails between."""
    keeper = Rig()
    keeper.troubles = {"/a": "was removed"}
    keeper.upkeeps = [None, OSError(5, "Input/output error")]
    async with during(keeper.lease_collector.watch_files()):
        await eventually(lambda: keeper.rounds >= 4)
        assert (keeper.news, module.STORE_TOUCHED._value.get()) == (1, 1)
        keeper.troubles = {}
        await eventually(lambda: keeper.news == 2)
    assert module.STORE_TOUCHED._value.get() == 0


async def test_what_the_engine_is_about_to_be_told_of_is_kept_from_that_moment_on():
    """R7 files-pinned: it is proven to be idle, and the engine will load it a moment later."""
    keeper = Rig("X")
    await keeper.notice()
    await keeper.review()
    keeper.lease_collector.expect(("x", "/s/X"))
    await keeper.review(2)
    assert keeper.store.ids == {"X"}, "no plan has been made since"
    await keeper.notice()
    await keeper.review(3)
    assert keeper.store.ids == set()


async def test_what_comes_to_be_listed_while_the_engine_is_asked_is_kept():
    """R7 files-pinned: only a look after the evidence can show it."""
    keeper = Rig("X")
    await keeper.notice()
    await keeper.review()
    ask = keeper.engine.drain_evidence

    async def loaded_meanwhile() -> DrainEvidence:
        evidence = await ask()
        keeper.engine.cards = {"x": "/s/X"}
        return evidence

    keeper.engine.drain_evidence = loaded_meanwhile  # type: ignore[method-assign]
    await keeper.review()
    assert keeper.store.ids == {"X"}


@virtual
async def test_the_store_is_looked_after_a_few_times_a_minute():
    """R16: what may go is proven by two looks, and goes within a minute; and a host has better things to do."""
    keeper, now = Rig("X"), asyncio.get_running_loop().time
    tracker = DrainTracker(GRACE, owns)
    collector = LeaseCollector(keeper.engine, keeper.store, tracker, keeper, monotonic=now)  # type: ignore[arg-type]
    collector.notice(await keeper.engine.observe(), set())
    async with during(collector.run()), during(collector.scrub()), during(collector.watch_sources()):
        await asyncio.sleep(1.0)
        assert keeper.rounds == 3, "the first at once, so that a status says how much room there is"
        await asyncio.sleep(59.0)
        assert keeper.store.ids == set()
        await asyncio.sleep(60.0)
    assert 24 <= keeper.rounds <= 90, "all three together"
    keeper.rounds = 0
    async with during(collector.watch_files()):
        await asyncio.sleep(60.0)
    assert 6 <= keeper.rounds <= 61


async def test_a_problem_is_logged_once_until_it_is_another_or_was_over():
    """R16: a disk that is full for a night leaves a line, not thousands."""
    keeper = Rig("X")
    full, broken = OSError(28, "full"), OSError(5, "broken")
    with capture_logs() as logs:
        for error in (full, full, broken, None, broken):
            keeper.upkeeps = [error]
            await keeper.lease_collector._keep_store()
    told = [(one["what"], one["problem"].rpartition(" ")[2]) for one in logs if one["event"] == "store_not_kept"]
    assert told == [("store", "full"), ("store", "broken"), ("store", "broken")]
    with capture_logs() as logs:
        await keeper.notice()
        keeper.engine.error = EngineUnreachable("away")
        for _ in range(3):
            await keeper.review()
        keeper.engine.error = None
        await keeper.review()
        keeper.engine.error = EngineUnreachable("away")
        await keeper.review()
    assert [one["what"] for one in logs if one["event"] == "store_not_kept"] == ["drain", "drain"]


async def test_who_ends_a_round_has_its_thread_stop():
    """R12: else a sidecar that is asked to end would hash for minutes."""
    keeper, begun, go_on = Rig(), asyncio.Event(), threading.Event()
    loop, stops = asyncio.get_running_loop(), list[Stop]()

    def work(stop: Stop) -> None:
        stops.append(stop)
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(60)

    running = asyncio.create_task(keeper.lease_collector._in_thread("scrub", work))
    try:
        async with asyncio.timeout(60):
            await begun.wait()
        stops[0].check()
        running.cancel()
        await asyncio.wait([running])
        with pytest.raises(ArtifactError):
            stops[0].check()
    finally:
        go_on.set()


@pytest.mark.parametrize("where", ["evidence", "store"])
async def test_a_fault_of_our_own_is_not_taken_for_one_of_the_engine_or_the_disk(where):
    """Fail stop: whoever keeps the part has to know of it."""
    keeper = Rig("X")
    await keeper.notice()
    keeper.engine.error = RuntimeError("ours") if where == "evidence" else None
    keeper.upkeeps = [RuntimeError("ours")] if where == "store" else []
    keeper.now += GRACE
    with pytest.raises(RuntimeError):
        await asyncio.wait_for(keeper.lease_collector.run(), 60)
