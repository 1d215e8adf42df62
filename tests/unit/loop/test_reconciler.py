"""The loop's rounds: whose they are, of which moment, and what holds them up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest

from registry.etcd3.ops import KeyValue
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase
from registry.model.placement import Member
from registry.model.records import AdapterRecord, AdapterSpec, Placement, PoolLimits, PoolSpec, SourceSpec
from registry.runtime.clock import Clock
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.desired.assignment import Assigner, Share
from sidecar.desired.informer import DesiredState, Informer
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.desired.placement import Members
from sidecar.engines.driver import USUAL, EngineUnreachable
from sidecar.engines.observed import AlreadyThere, Done, EngineFacts, Observed, Outcome, Unknown, Use
from sidecar.loop.executor import REST_FACTOR, Attempt
from sidecar.loop.observer import EngineObserver, EngineProbes
from sidecar.loop.reconciler import DesiredParts, EngineParts, Notice, Reconciler, Round, RoundLinks
from sidecar.loop.rounds import Backlog
from sidecar.ownership import Ownership
from sidecar.plan.readiness import USUAL_RULE, ReadyRule
from sidecar.plan.types import RoundReport
from sidecar.resolver.demand import ResidentSet
from sidecar.resolver.policy import Catalogue
from tests.simulation.artifacts import ROOT, SimStore, path_of
from tests.simulation.loop import virtual
from tests.support.records import KEYS, POOL
from tests.support.waiting import eventually
from tests.support.worlds import observed


class Engine:
    """Lists one adapter of ours, until it is unloaded."""

    kind = "vllm"
    url = "http://engine"
    is_concurrent, swaps_alone, is_deciding = True, False, False
    paused = ""

    def __init__(self) -> None:
        self.adapters = {"gone": path_of("r1", "gone")}
        self.looks = 0
        self.on_probed: Callable[[], None] = lambda: None

    async def observe(self) -> Observed:
        self.looks += 1
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
            spec=AdapterSpec(**{"source": SourceSpec(uri=f"{ROOT}{name}"), "load": "lazy", **terms}),
            updated_at="2026-01-01T00:00:00Z",
            updated_by="test",
        )
        kvs.append(KeyValue(KEYS.adapter(POOL, name), record.to_bytes(), 1, revision, 1))
    informer.replace(revision, kvs)
    return informer.state


THE_POOL = PoolSpec(name=POOL, base_models=["base"])
TAKEN = "replica id 'r1' is held by another sidecar"


def wanting(revision: int = 1, *names: str, **terms: Any) -> Mailbox:
    """Has these adapters, eager unless `terms` say otherwise."""
    mailbox = Mailbox()
    mailbox.post(Snapshot(pool=THE_POOL, desired=desired(revision, *names, **{"load": "eager", **terms})))
    return mailbox


def nothing_asked() -> ResidentSet:
    return ResidentSet(Catalogue(Informer(POOL)))


@asynccontextmanager
async def running(
    engine: Engine,
    mailbox: Mailbox,
    ownership: Ownership | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
    *,
    notice: Notice = lambda _observed, _uses: None,
    lease_file: Path | None = None,
    sharing: Assigner | None = None,
    probes: EngineProbes | None = None,
    demand: ResidentSet | None = None,
    store: SimStore | None = None,
    rule: ReadyRule = USUAL_RULE,
    paced: Callable[[Round], Awaitable[float]] | None = None,
    **links: Any,
) -> AsyncIterator[list[RoundReport]]:
    """A reconciler that runs within the body; gives its reports. `links`: whom it also asks."""
    mailbox.post(replace(mailbox.snapshot, connected=True, pool_read=True))
    reports: list[RoundReport] = []
    own = TemporaryDirectory()
    clock = Clock(random.Random(0))
    store = store or SimStore("r1", random.Random(0), lease_file or Path(own.name) / "leases")
    observer = EngineObserver(engine, clock, mailbox.wake, store.owns)
    reconciler = Reconciler(
        EngineParts(engine, observer, probes or EngineProbes(engine, clock)),
        DesiredParts(mailbox, sharing or Assigner(POOL, "r1", labels), demand or nothing_asked()),
        store,
        ownership or Mock(refusal=""),
        clock,
        RoundLinks(reports.append, notice, **links),
        rule,
    )
    engine.on_probed = reconciler.heed_probes
    task = asyncio.create_task(reconciler.run(*([paced] if paced else ())))
    try:
        yield reports
    finally:
        task.cancel()
        await asyncio.wait([task])
        own.cleanup()


async def test_who_lost_the_replica_id_neither_looks_at_the_engine_nor_calls_it():
    """R10 one-owner: round for round it only says why."""
    engine, mailbox = Engine(), Mailbox()
    async with running(engine, mailbox, Mock(refusal=TAKEN)) as reports:
        for revision in range(1, 4):
            mailbox.post(replace(mailbox.snapshot, desired=desired(revision, "a")))
            await eventually(lambda: reports and reports[-1].situation.revision == revision)  # noqa: B023 - at once
    assert all(report.situation.note == TAKEN for report in reports)
    assert not any(report.situation.ready for report in reports)
    assert engine.looks == 0
    assert set(engine.adapters) == {"gone"}


class Losing(Engine):
    """The replica id is lost to another sidecar during the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters |= {"old": path_of("r1", "old")}
        self.refusal = ""

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        self.refusal = TAKEN
        return await super().unload(name, request_id=request_id)


class OfSeveral(EngineProbes):
    several = property(lambda self: self._engine.refusal)  # type: ignore[assignment]


@pytest.mark.parametrize("several", [False, True], ids=["another has the id", "several engines answer"])
async def test_who_loses_the_replica_id_amid_a_plan_makes_no_further_call_of_it(several):
    """R10 one-owner: the other one drives from now on. Where several engines answer, a call may reach any of them."""
    engine, mailbox = Losing(), wanting(1, "a", load="lazy")
    probes = OfSeveral(engine, Clock(random.Random(0))) if several else None
    async with running(engine, mailbox, None if several else engine, probes=probes) as reports:
        await eventually(lambda: reports and reports[-1].situation.note == TAKEN)
    assert len(engine.adapters) == 1


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
    async with running(Engine(), wanting(1, "a", "b", **terms), labels={"gpu": "a10"}) as reports:
        await eventually(lambda: reports and reports[-1].situation.plan)
    assert {report.desired_count for report in reports} == {count}


def test_what_a_call_was_said_to_have_done_is_borne_out_by_the_listing_alone():
    """R9: that a name is there already says nothing of where it was loaded from, and nothing at all a moment later."""
    ref = ArtifactRef("file:///a", "sha256:" + "0" * 64)
    for outcome in (Done(), AlreadyThere(), Unknown("no answer")):
        load = Attempt("a", "a", "/store/new", ref, "e1", outcome)
        assert load.is_borne_out(observed({"a": "/store/new"}))
        assert not load.is_borne_out(observed())
        assert load.is_borne_out(observed({"a": "/elsewhere"})) == isinstance(outcome, AlreadyThere)
    swap = Attempt("a", "a", "/store/new", ref, "e1", AlreadyThere(), before="/store/old")
    assert swap.is_borne_out(observed({"a": "/elsewhere"}))
    assert not swap.is_borne_out(observed({"a": "/store/old"})), "it would be planned again at once, for ever"
    unload = Attempt("a", "a", None, None, "e1", Done())
    assert unload.is_borne_out(observed({"b": "/store/b"}))
    assert not unload.is_borne_out(observed({"a": "/store/new"}))


class Slow(Assigner):
    """Finds its share in a thread, while etcd moves on: each revision has another limit of the pool, and members."""

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__(POOL, "r1", {})
        self._mailbox = mailbox
        self.seen: list[tuple[int, int]] = []

    def is_long(self, desired: DesiredState, members: Members | None) -> bool:
        return True

    def find(self, state: DesiredState, members: Members | None) -> Share:
        self.seen.append((state.revision, len(members or ())))
        if state.revision < 4:
            self._mailbox.post(at(state.revision + 1))
        return super().find(state, members)


def at(revision: int) -> Snapshot:
    """A pool with as many places as the revision says, and as many live replicas."""
    spec = PoolSpec(name=POOL, base_models=["base"], limits=PoolLimits(max_adapters=revision))
    members = {f"r{number}": Member(f"r{number}", {}, None) for number in range(revision)}
    return Snapshot(
        desired(revision, "a"), spec, pool_read=True, connected=True, last_request_id=f"req-{revision}", members=members
    )


async def test_a_round_is_of_one_moment():
    """R2, R9: whatever etcd says while a round is under way comes into force with the next plan, all of it."""
    mailbox = Mailbox()
    mailbox.post(at(1))
    sharing = Slow(mailbox)
    async with running(Engine(), mailbox, sharing=sharing) as reports:
        await eventually(lambda: any(report.situation.ready for report in reports))
    assert all(revision == members for revision, members in sharing.seen)
    said = [
        (one.situation.revision, one.capacity, one.situation.last_request_id) for one in reports if one.situation.plan
    ]
    assert said
    assert said == [(revision, revision, f"req-{revision}") for revision, *_ in said]


class Loading(Engine):
    """Has nothing, and takes what it is told to load, after `seconds`."""

    is_said_busy = False

    def __init__(self) -> None:
        super().__init__()
        self.adapters = {}
        self.seconds: Callable[[str], float] = lambda _name: 0.0

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        if seconds := self.seconds(name):
            await asyncio.sleep(seconds)
        self.adapters[name] = path
        return Done()

    async def is_busy(self) -> bool:
        return self.is_said_busy


class Proving(Loading):
    """Its answers can prove what made them. Notes whether that was told, and its files known to the keeper, before."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: AbstractSet[Use] = set()
        self.versions: Mapping[Use, str] = {}
        self.were_told: list[tuple[str, bool]] = []

    async def tell_versions(self, versions: Mapping[Use, str]) -> None:
        await asyncio.sleep(0)
        self.versions = versions

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        use = name, path
        self.were_told.append((self.versions.get(use, "").partition(" ")[0], use in self.uses))
        return await super().load(name, path, request_id=request_id)


async def test_what_a_plan_will_load_is_known_to_who_keeps_files_and_to_the_engine_before_it_is_loaded(tmp_path):
    """R7 files-pinned: what is staged and not listed yet would be let go of, and gone when the engine reads it.

    R26 answered-by: no answer of it goes without what proves its version, nor with what proved the one before.
    """
    engine, mailbox = Proving(), wanting(1, "good-a", "good-b")

    def notice(_observed: Observed, uses: AbstractSet[Use]) -> None:
        engine.uses = uses

    async with running(engine, mailbox, notice=notice, lease_file=tmp_path / "leases"):
        await eventually(lambda: len(engine.were_told) == 2)
    assert sorted(engine.were_told) == [("good-a@1", True), ("good-b@1", True)]


BUSY_SECONDS = 1.5


class Reopened(SimStore):
    """A store of which this process has seen nothing yet; its engine is of `problem`'s base model."""

    problem = ""
    recalled = False

    @property
    def seen(self) -> dict[ArtifactRef, Staged]:
        return super().seen if self.recalled else {}

    async def recall(self, refs: Collection[ArtifactRef]) -> bool:
        await asyncio.sleep(0.1)
        self.recalled = bool(refs)
        return True

    def use_pool(self, _pool: PoolSpec | None, _engine: EngineBase = UNKNOWN_BASE) -> str:
        return self.problem


@pytest.mark.parametrize("problem", ["", "the engine has another base model"])
async def test_what_an_earlier_process_staged_is_served_as_of_the_first_plan(tmp_path, problem):
    """R13, R23: the store's files are read before it, also where nothing may be called."""
    state = desired(7, "gone", load="eager")
    ref = state.adapters["gone"].ref
    store = Reopened("r1", random.Random(0), tmp_path / "leases")
    store.problem = problem
    store.staged[ref] = store._staged("gone")
    store.leases.add(store.staged[ref].id)
    mailbox = Mailbox()
    mailbox.post(Snapshot(pool=THE_POOL, desired=state))
    async with running(Engine(), mailbox, store=store) as reports:
        await eventually(lambda: bool(reports))
        plan = reports[0].situation.plan
    assert [one.name for one in plan.served] == ["gone"]
    assert (plan.stage, plan.calls, plan.blocked) == ((), (), problem)


@virtual
async def test_what_is_served_is_told_before_the_engine_has_rested_from_it():
    """R9, R19: nobody waits for one adapter's status since another one waits for its turn; nor for what needs none."""
    engine, mailbox, now = Loading(), wanting(1, "good-a"), asyncio.get_running_loop().time
    engine.is_said_busy, engine.seconds = True, lambda _: BUSY_SECONDS
    async with running(engine, mailbox) as reports:
        await eventually(lambda: reports and reports[-1].situation.ready)
        wanted = ("good-a", "good-b", "good-c")
        mailbox.post(replace(mailbox.snapshot, desired=desired(2, *wanted, load="eager")))
        await eventually(lambda: len(engine.adapters) == 2)
        loaded_at = now()
        await eventually(lambda: len(reports[-1].situation.plan.served) == 2)
        assert now() - loaded_at < 1.0
        mailbox.post(replace(mailbox.snapshot, desired=desired(3, *wanted[1:], load="eager")))
        await eventually(lambda: "good-a" not in engine.adapters)
        assert now() - loaded_at < 2.0
        await eventually(lambda: len(engine.adapters) == 2)
        assert now() - loaded_at >= BUSY_SECONDS * (1 + REST_FACTOR) - 0.1


class Frozen(Loading):
    """Stops, as by SIGSTOP, in the middle of its first load, and answers nothing from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_frozen = False

    async def _answer(self, seconds: float) -> None:
        if self.is_frozen:
            await asyncio.sleep(seconds)
            raise EngineUnreachable("no answer in time")

    async def observe(self) -> Observed:
        await self._answer(USUAL.probe_seconds + USUAL.list_seconds)
        return await super().observe()

    async def incarnation(self) -> str:
        await self._answer(USUAL.probe_seconds)
        return "e1"

    async def turns(self) -> bool:
        await asyncio.sleep(USUAL.turn_seconds if self.is_frozen else 0.1)
        return not self.is_frozen

    async def pulse(self) -> None:
        return None

    async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
        self.is_frozen = True
        await asyncio.sleep(USUAL.load_seconds)
        return Unknown("no answer")


@virtual
async def test_a_frozen_engine_is_not_called_ready_whatever_call_is_out():
    """R18 readiness-follows: a hung GPU, a stopped process: within 10 s, though the load that is out lasts for 60 s."""
    engine, mailbox = Frozen(), wanting()
    probes = EngineProbes(engine, Clock(random.Random(0)))
    async with running(engine, mailbox, probes=probes) as reports:
        watching = asyncio.create_task(probes.watch(engine.on_probed))
        await asyncio.sleep(1.0)
        assert reports[-1].situation.ready
        mailbox.post(replace(mailbox.snapshot, desired=desired(2, "good-a", load="eager")))
        await asyncio.sleep(10.0)
        assert engine.is_frozen
        assert (reports[-1].situation.ready, reports[-1].situation.note) == (False, "no answer in time")
        told = len(reports)
        await asyncio.sleep(USUAL.load_seconds + USUAL.turn_seconds + 30.0)
        assert not any(report.situation.ready for report in reports[told:])
        engine.is_frozen = False
        mailbox.post(replace(mailbox.snapshot, desired=desired(3)))
        await asyncio.sleep(USUAL.turn_seconds + 30.0)
        assert reports[-1].situation.ready, "it goes on where it was"
        watching.cancel()


@virtual
async def test_one_load_that_hangs_among_many_delays_nothing_else():
    """R19 not-held-up, R7: neither loads nor removals, and is itself taken up when it ends."""
    names = [f"good-{number:02}" for number in range(40)]
    engine, mailbox = Loading(), wanting(1, *names)
    engine.seconds = lambda name: 30.0 if name == "good-00" else 0.0
    engine.adapters = {"old": path_of("r1", "old")}
    used: list[AbstractSet[Use]] = []
    async with running(engine, mailbox, notice=lambda _observed, uses: used.append(uses)) as reports:
        await asyncio.sleep(10.0)
        assert set(engine.adapters) == set(names[1:])
        assert not reports[-1].situation.ready
        assert [entry.name for entry in reports[-1].situation.plan.pending] == names[:1]
        mailbox.post(replace(mailbox.snapshot, desired=desired(2, *names[1:20], load="eager")))
        await asyncio.sleep(2.0)
        assert set(engine.adapters) == set(names[1:20])
        assert (names[0], path_of("r1", names[0])) in used[-1], "its files may be read, though nobody wants it any more"
        mailbox.post(replace(mailbox.snapshot, desired=desired(3, *names[:20], load="eager")))
        await asyncio.sleep(20.0)
        assert set(engine.adapters) == set(names[:20])
        assert reports[-1].situation.ready


def test_what_is_news_to_an_engine_and_what_was_used_last_outlives_its_processes():
    """R19: after a restart, what was used last is back first, and what is changed from then on is news."""
    backlog = Backlog()
    first = replace(observed({"a": "/a"}), last_used={"a": 5.0, "B@2": 1.0, "gone": 0.0})
    backlog.look(first, desired(7, "a", "b", load="eager"), 100.0)
    backlog.look(first, desired(8, "a", "b", load="eager"), 200.0)
    assert (backlog.since, backlog.used_at) == (7, {"a": 95.0, "b": 99.0, "gone": 100.0})
    again = observed(incarnation="e2")
    backlog.look(again, desired(9, "a", "b", load="eager"), 300.0)
    assert (backlog.since, backlog.used_at["a"]) == (9, 95.0)
    backlog.look(replace(again, last_used={"a": 1.0}), desired(10, "a", "b", load="eager"), 400.0)
    assert (backlog.since, backlog.used_at) == (9, {"a": 399.0, "b": 99.0})
