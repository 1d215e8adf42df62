"""The loop's rounds, with an engine that can be asked to let time pass while it is looked at."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from registry.etcd3.ops import KeyValue
from registry.model.records import AdapterRecord, AdapterSpec, Source
from sidecar.chance import Chance
from sidecar.desired import DesiredState, Informer
from sidecar.inputs import Inputs
from sidecar.observed import Done, EngineFacts, Observed, Outcome
from sidecar.reconciler import Reconciler, Report
from tests.support.records import KEYS, POOL
from tests.support.rig import Free
from tests.support.sim.artifacts import ROOT, SimStore, path_of
from tests.support.waiting import eventually


class Engine:
    """Lists one adapter of ours, until it is unloaded. `on_look` is called at each look but the first."""

    kind = "vllm"
    url = "http://engine"

    def __init__(self, on_look: Callable[[], None]) -> None:
        self.adapters = {"gone": path_of("r1", "gone")}
        self._on_look = on_look
        self._looks = 0

    async def observe(self) -> Observed:
        self._looks += 1
        if self._looks > 1:
            self._on_look()
        return Observed(EngineFacts("vllm", "0.32.0", self.url, "e1"), ("base",), dict(self.adapters))

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        del self.adapters[name]
        return Done()


def desired(revision: int, *names: str) -> DesiredState:
    """These adapters, at that revision."""
    informer = Informer(POOL)
    kvs = []
    for name in names:
        record = AdapterRecord(
            name=name,
            pool=POOL,
            tenant="default",
            generation=1,
            spec=AdapterSpec(source=Source(uri=f"{ROOT}{name}"), load="lazy"),
            updated_at="2026-01-01T00:00:00Z",
            updated_by="test",
        )
        kvs.append(KeyValue(KEYS.adapter(POOL, name), record.to_bytes(), 1, revision, 1))
    informer.replace(revision, kvs)
    return informer.state


async def test_a_status_speaks_of_the_revision_that_its_plan_was_made_from():
    """R9 status-truth: what etcd says newly while the engine is looked at is planned for, not only claimed."""
    inputs, reports = Inputs(), list[Report]()
    inputs.connected = inputs.pool_read = True
    inputs.desired = desired(1, "a")

    def moves_on() -> None:
        inputs.desired = desired(2, "a", "b")

    reconciler = Reconciler(
        Engine(moves_on), SimStore("r1", random.Random(0)), inputs, Free(), Chance(), reports.append
    )
    running = asyncio.create_task(reconciler.run())
    try:
        await eventually(lambda: any(report.situation.revision == 2 for report in reports))
    finally:
        running.cancel()
        await asyncio.wait([running])
    said = [(report.situation.revision, report.situation.plan.revision) for report in reports if report.situation.plan]
    assert said
    assert all(revision == planned for revision, planned in said), said
