"""A replica that has served nothing of an adapter: what it reads of others, how often, and what it takes."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from registry.etcd3.errors import EtcdPermissionDenied
from registry.etcd3.ops import Put, RangeResult, Txn
from registry.model.status import Failed, Kept
from registry.runtime.clock import Clock
from sidecar.desired.last_good import GoodRecord
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.plan.types import FailedAdapter, KeptAdapter, Plan, RoundReport, Selection
from sidecar.report.good_finder import MAX_REPLICAS, GoodFinder
from tests.simulation.loop import virtual
from tests.support.memory_etcd import MemoryEtcd
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import LEASE, presence, replica_status
from tests.support.worlds import desired
from tests.unit.report.test_handoff_watch import Client
from tests.unit.report.test_proven import retired
from tests.unit.report.test_status import situation


class Scene:
    """A replica at generation 3 of ``a``, which fails; generations 1 and 2 are in history."""

    def __init__(self) -> None:
        self.store, self.mailbox, self.pool = MemoryEtcd(), Mailbox(), POOL
        self.client = Client(self.store)
        self.adopted: list[tuple[str, GoodRecord]] = []
        for generation in (1, 2):
            self.store.put(KEYS.history(POOL, "a", generation), retired(generation).value)
        self.state = desired(kv("a", 1, generation=3))
        self.mailbox.post(Snapshot(connected=True, desired=self.state))
        clock = Clock(random.Random(0))
        finder = GoodFinder(self.client, KEYS, "r1", self, clock)  # type: ignore[arg-type]
        self.finder = finder
        self.live("r1")

    def adopt(self, key: str, good: GoodRecord) -> None:
        self.adopted.append((key, good))
        self.report(kept=(KeptAdapter(key, good.generation),))

    def live(self, replica: str, kept: int | None = None) -> None:
        """A replica lives, and goes on with a generation."""
        failed = [Failed(name="a", generation=3, reason="not_finite", message="", attempts=1, retry_at=None)]
        said: dict[str, Any] = {"failed": failed, "kept": [] if kept is None else [Kept(name="a", generation=kept)]}
        status = replica_status(replica, 100, **said)
        keys = (KEYS.replica(POOL, replica), presence(replica)), (KEYS.status(POOL, replica), status)
        self.store.txn(Txn((), tuple(Put(key, value.to_bytes(), LEASE) for key, value in keys)))

    def report(self, **changes: Any) -> None:
        """A round in which ``a`` fails."""
        failed = FailedAdapter("a", 3, "not_finite", "", 1, None, "", is_settled=True)
        chosen = Selection(adapters=(self.state.adapters["a"],))
        plan = replace(Plan(1, (), (), (), (), (failed,), None, chosen=chosen), **changes)
        self.finder.take(RoundReport(situation(plan), 1))

    async def run(self, seconds: float) -> None:
        running = asyncio.create_task(self.finder.run())
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize(
    ("kept", "taken"),
    [([2], [2]), ([1, 2], [2]), ([2, 2, 2], [2]), ([1, None, None], [1]), ([], []), ([7], [])],
)
@virtual
async def test_the_newest_that_another_replica_answers_with_is_taken(kept, taken):
    """R13, R14."""
    scene = Scene()
    for number, generation in enumerate(kept):
        scene.live(f"o{number}", generation)
    scene.report()
    await scene.run(1.0)
    assert [(key, good.generation) for key, good in scene.adopted] == [("a", one) for one in taken]
    assert kept != [2, 2, 2] or scene.client.asked == 1, "R16 bounded: none is newer"


@virtual
async def test_what_nobody_proves_is_asked_for_again_with_growing_pauses_until_somebody_does():
    """R16 bounded: deliveries are etcd's budget. A newer record is asked about at once."""
    scene = Scene()
    scene.report()
    running = asyncio.create_task(scene.run(9000.0))
    for _ in range(120):
        await asyncio.sleep(30.0)
        scene.report()
    assert 8 <= scene.client.listed / 2 <= 40, "of history and of presences"
    asked = scene.client.listed
    scene.state = desired(kv("a", 2, generation=3))
    scene.mailbox.post(Snapshot(connected=True, desired=scene.state))
    scene.report()
    await asyncio.sleep(0.1)
    assert scene.client.listed > asked
    scene.live("r2", 2)
    await asyncio.sleep(1300.0)
    assert [good.generation for _, good in scene.adopted] == [2]
    asked = scene.client.listed
    await asyncio.sleep(3600.0)
    assert scene.client.listed == asked, "nothing is lacking any more"
    await running


@virtual
async def test_what_comes_to_lack_while_it_reads_is_read_at_once():
    """R13 static-stable."""
    scene = Scene()
    scene.live("r2", 2)
    scene.report()
    read = scene.client.list_prefix

    async def reading(prefix: bytes) -> RangeResult:
        scene.client.list_prefix = read  # type: ignore[method-assign]
        scene.state = desired(kv("a", 2, generation=3))
        scene.mailbox.post(Snapshot(connected=True, desired=scene.state))
        scene.report()
        return await read(prefix)

    scene.client.list_prefix = reading  # type: ignore[method-assign]
    await scene.run(0.01)
    assert [good.generation for _, good in scene.adopted] == [2]


@virtual
async def test_where_history_has_nothing_nobody_is_asked():
    """R16 bounded."""
    scene = Scene()
    scene.live("r2", 2)
    for generation in (1, 2):
        scene.store.delete(KEYS.history(POOL, "a", generation))
    scene.report()
    await scene.run(0.1)
    assert (scene.client.listed, scene.client.asked) == (1, 0)


@virtual
async def test_of_a_large_pool_some_are_asked():
    """R16 bounded."""
    scene = Scene()
    for number in range(100):
        scene.live(f"o{number}")
    scene.report()
    await scene.run(0.1)
    assert scene.client.asked == MAX_REPLICAS
    scene.live("r1", 2)
    assert scene.adopted == [], "nobody is a witness for himself"
    scene.live("o99", 2)
    await scene.run(100_000.0)
    assert [good.generation for _, good in scene.adopted] == [2], "others are asked each time"


@virtual
async def test_nothing_is_read_where_nothing_lacks_or_the_state_may_be_old():
    scene = Scene()
    scene.live("r2", 2)
    scene.finder.take(RoundReport(situation(None), 1))
    scene.report(failed=())
    await scene.run(60.0)
    for changes in ({"connected": False}, {"held": "another store"}):
        scene.mailbox.post(replace(scene.mailbox.snapshot, **{"connected": True, "held": ""} | changes))
        scene.report()
        await scene.run(60.0)
    assert (scene.client.listed, scene.client.asked) == (0, 0)


@pytest.mark.parametrize("now", [kv("a", 2, generation=4), kv("b", 1)])
@virtual
async def test_what_was_read_of_another_record_than_the_newest_is_not_taken(now):
    """R6: the name may be another's by now."""
    scene = Scene()
    scene.live("r2", 2)
    scene.report()
    scene.mailbox.post(Snapshot(connected=True, desired=desired(now)))
    await scene.run(1.0)
    assert scene.adopted == []


@virtual
async def test_an_etcd_that_does_not_let_it_read_is_told():
    scene = Scene()
    scene.live("r2", 2)
    scene.client.error = EtcdPermissionDenied("permission denied")
    scene.report()
    with capture_logs() as logs:
        await scene.run(1.0)
    assert [one["event"] for one in logs] == ["last_good_not_found"]
    scene.client.error = None
    await scene.run(30.0)
    assert [good.generation for _, good in scene.adopted] == [2]
