"""The loop's rounds, with an engine that can be asked to let time pass while it is looked at."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.records import AdapterRecord, AdapterSpec, Placement, PoolSpec, Source
from sidecar.artifacts.types import ArtifactRef
from sidecar.chance import Chance
from sidecar.desired import DesiredState, Informer
from sidecar.executor import Attempt
from sidecar.inputs import Inputs
from sidecar.journal import Journal
from sidecar.lazy.catalogue import Catalogue
from sidecar.lazy.demand import Demand
from sidecar.observed import AlreadyThere, Done, EngineFacts, Observed, Outcome, Unknown
from sidecar.ownership import Ownership
from sidecar.pool_feed import PoolFeed
from sidecar.reconciler import Notice, Reconciler, Report
from sidecar.retention import Use
from sidecar.share import Sharing
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
        self.looks = 0

    async def observe(self) -> Observed:
        self.looks += 1
        if self.looks > 1:
            self._on_look()
        return Observed(EngineFacts("vllm", "0.32.0", self.url, "e1"), ("base",), dict(self.adapters))

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        del self.adapters[name]
        return Done()


def desired(revision: int, *names: str, **terms: Any) -> DesiredState:
    """These adapters, lazy unless `terms` of their specs say otherwise, at that revision."""
    informer = Informer(POOL)
    kvs = []
    for name in names:
        record = AdapterRecord(
            name=name,
            pool=POOL,
            tenant="default",
            generation=1,
            spec=AdapterSpec(**{"source": Source(uri=f"{ROOT}{name}"), "load": "lazy", **terms}),
            updated_at="2026-01-01T00:00:00Z",
            updated_by="test",
        )
        kvs.append(KeyValue(KEYS.adapter(POOL, name), record.to_bytes(), 1, revision, 1))
    informer.replace(revision, kvs)
    return informer.state


class Taken:
    """Another sidecar has the replica id."""

    refusal = "replica id 'r1' is held by another sidecar"


@asynccontextmanager
async def running(
    engine: Engine,
    inputs: Inputs,
    ownership: Ownership | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
    *,
    notice: Notice = lambda _observed, _uses: None,
    lease_file: Path = Path(os.devnull),  # nothing is leased here
) -> AsyncIterator[list[Report]]:
    """A reconciler that runs within the body; gives its reports."""
    inputs.connected = inputs.pool_read = True
    reports: list[Report] = []
    reconciler = Reconciler(
        engine,
        SimStore("r1", random.Random(0), lease_file),
        inputs,
        ownership or Free(),
        Chance(),
        reports.append,
        notice,
        sharing=Sharing(POOL, "r1", labels),
        demand=Demand(Catalogue(POOL, inputs.record_of)),
    )
    task = asyncio.create_task(reconciler.run())
    try:
        yield reports
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_who_lost_the_replica_id_neither_looks_at_the_engine_nor_calls_it():
    """R10 one-owner: round for round it only says why."""
    engine, inputs = Engine(lambda: None), Inputs()
    async with running(engine, inputs, Taken()) as reports:
        for revision in range(1, 4):
            inputs.desired = desired(revision, "a")
            inputs.wake()
            await eventually(lambda: reports and reports[-1].situation.revision == revision)  # noqa: B023 - at once
    assert all(report.situation.note == Taken.refusal for report in reports)
    assert not any(report.situation.ready for report in reports)
    assert engine.looks == 0
    assert set(engine.adapters) == {"gone"}


class Losing(Engine):
    """The replica id is lost to another sidecar during the first call."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.adapters |= {"old": path_of("r1", "old")}
        self.refusal = ""

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        self.refusal = Taken.refusal
        return await super().unload(name, request_id=request_id)


async def test_who_loses_the_replica_id_amid_a_plan_makes_no_further_call_of_it():
    """R10 one-owner: the other one drives from now on."""
    engine, inputs = Losing(), Inputs()
    inputs.desired = desired(1, "a")
    async with running(engine, inputs, engine) as reports:
        await eventually(lambda: reports and reports[-1].situation.note == Taken.refusal)
    assert len(engine.adapters) == 1


async def test_a_replica_is_ready_once_nothing_is_left_to_do_and_not_before():
    """R9 status-truth: a load balancer sends nothing to a replica whose engine is not yet as it should be."""
    engine, inputs = Engine(lambda: None), Inputs()
    inputs.desired = desired(1, "a")
    async with running(engine, inputs) as reports:
        await eventually(lambda: reports and reports[-1].situation.ready)
    assert [bool(one.situation.plan and one.situation.plan.calls) for one in reports] == [True, False]
    assert [one.situation.ready for one in reports] == [False, True]


@pytest.mark.parametrize(
    ("terms", "count"),
    [
        ({"load": "eager"}, 2),
        ({"load": "lazy"}, 0),
        ({"load": "eager", "placement": Placement(selector={"gpu": "a10"})}, 2),
        ({"load": "eager", "placement": Placement(selector={"gpu": "h100"})}, 0),
        ({"load": "eager", "placement": Placement(replicas=1)}, 2),  # nobody knows yet who lives: perhaps it is its own
    ],
)
async def test_what_is_wanted_of_a_replica_is_what_it_should_serve_by_itself(terms, count):
    """An alert compares it with what is served: adapters that are others', or wait to be asked for, must not count."""
    engine, inputs = Engine(lambda: None), Inputs()
    inputs.desired = desired(1, "a", "b", **terms)
    async with running(engine, inputs, labels={"gpu": "a10"}) as reports:
        await eventually(lambda: reports and reports[-1].situation.plan)
    assert {report.desired_count for report in reports} == {count}


async def test_a_pool_whose_record_cannot_be_read_is_told_as_that(tmp_path):
    """R14 nack: etcd was reached, and says something that nobody here understands."""
    inputs = Inputs()
    inputs.desired = desired(1, "a")
    feed = PoolFeed(None, KEYS, POOL, inputs, Journal(tmp_path), Chance())  # type: ignore[arg-type]
    async with running(Engine(lambda: None), inputs) as reports:
        inputs.pool_read = False
        feed.take(b'{"schema": 99}')
        inputs.wake()
        await eventually(lambda: reports and "record cannot be followed" in reports[-1].situation.note)
        feed.take(PoolSpec(name=POOL, base_models=["base"]).to_bytes())
        inputs.wake()
        await eventually(lambda: reports[-1].situation.ready)


def test_what_a_call_was_said_to_have_done_is_borne_out_by_the_listing_alone():
    """R9: that a name is there already says nothing of where it was loaded from, and nothing at all a moment later."""
    ref = ArtifactRef("file:///a", "sha256:" + "0" * 64)
    for outcome in (Done(), AlreadyThere(), Unknown("no answer")):
        load = Attempt("a", "a", "/store/new", ref, "e1", outcome)
        assert load.is_borne_out(listing(a="/store/new"))
        assert not load.is_borne_out(listing())
        assert load.is_borne_out(listing(a="/elsewhere")) == isinstance(outcome, AlreadyThere)
    swap = Attempt("a", "a", "/store/new", ref, "e1", AlreadyThere(), before="/store/old")
    assert swap.is_borne_out(listing(a="/elsewhere"))
    assert not swap.is_borne_out(listing(a="/store/old")), "it would be planned again at once, for ever"
    unload = Attempt("a", "a", None, None, "e1", Done())
    assert unload.is_borne_out(listing(b="/store/b"))
    assert not unload.is_borne_out(listing(a="/store/new"))


def listing(**adapters: str) -> Observed:
    return Observed(EngineFacts("vllm", "0.32.0", "http://engine", "e1"), ("base",), adapters)


async def test_a_status_speaks_of_the_revision_that_its_plan_was_made_from():
    """R9 status-truth: what etcd says newly while the engine is looked at is planned for, not only claimed."""
    inputs = Inputs()
    inputs.desired = desired(1, "a")

    def moves_on() -> None:
        inputs.desired = desired(2, "a", "b")

    async with running(Engine(moves_on), inputs) as reports:
        await eventually(lambda: any(report.situation.revision == 2 for report in reports))
    said = [(report.situation.revision, report.situation.plan.revision) for report in reports if report.situation.plan]
    assert said
    assert all(revision == planned for revision, planned in said), said


class Loading(Engine):
    """Has nothing, and takes what it is told to load. Notes of each load whether the keeper knew of its files."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.adapters = {}
        self.uses: AbstractSet[Use] = set()
        self.were_known: list[bool] = []

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        self.were_known.append((name, path) in self.uses)
        self.adapters[name] = path
        return Done()


async def test_who_keeps_the_files_knows_what_a_plan_will_load_before_it_is_made(tmp_path):
    """R7 files-pinned: what is staged and not listed yet would be let go of, and gone when the engine reads it."""
    engine, inputs = Loading(), Inputs()

    def notice(_observed: Observed, uses: AbstractSet[Use]) -> None:
        engine.uses = uses

    inputs.desired = desired(1, "good-a", "good-b", load="eager")
    async with running(engine, inputs, notice=notice, lease_file=tmp_path / "leases"):
        await eventually(lambda: len(engine.were_known) == 2)
    assert engine.were_known == [True, True]
