"""What rounds remember of an engine, what they say of it, and how soon the next one comes: in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from registry.model.records import Placement, PoolLimits, SourceSpec
from registry.runtime.clock import Clock
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.desired.assignment import Assigner
from sidecar.desired.informer import DesiredAdapter, DesiredState, Informer
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.observed import AlreadyThere, Done, NotThere, Observed, Outcome, Refused, Transient, Unknown
from sidecar.loop.retries import RetryTracker
from sidecar.loop.rounds import FLOOD_ROUNDS, REST_SECONDS, RateLimiter
from sidecar.plan.backoff import Failure
from sidecar.plan.handoff import Handoff, HandoffVerdict, Stuck, Taken, Waiting
from sidecar.plan.readiness import ReadyRule
from sidecar.plan.types import RoundReport
from sidecar.resolver.demand import ResidentSet
from sidecar.resolver.policy import Catalogue
from tests.simulation.artifacts import ROOT, SimStore, path_of
from tests.simulation.loop import virtual
from tests.support.records import POOL
from tests.support.worlds import fleet
from tests.unit.loop.test_reconciler import THE_POOL, desired, running, wanting
from tests.unit.loop.test_rounds import A, Odd, ready, serving


class Timed(Odd):
    """Notes when it was looked at, and when what was unloaded. What is in `answers` it says of an unload."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.adapters = {name: path_of("r1", name) for name in names}
        self.looked_at: list[float] = []
        self.unloaded_at: list[float] = []
        self.answers: dict[str, Outcome] = {}

    async def observe(self) -> Observed:
        self.looked_at.append(asyncio.get_running_loop().time())
        return await super().observe()

    async def unload(self, name: str, *, request_id: str) -> Outcome:
        self.unloaded_at.append(asyncio.get_running_loop().time())
        await super().unload(name, request_id=request_id)
        return self.answers.get(name, Done())


def newer(state: DesiredState, generation: int, **changes: object) -> DesiredState:
    adapters = {key: replace(one, generation=generation, **changes) for key, one in state.adapters.items()}
    return replace(state, adapters=adapters)


@virtual
async def test_what_answers_while_the_newest_generation_cannot_be_had_is_told_with_its_own():
    """R9 status-truth: as it was seen to be served."""
    engine, mailbox = Odd(), wanting(1, "good-a")
    async with running(engine, mailbox) as reports:
        await asyncio.sleep(2.0)
        bad = desired(2, "good-a", load="eager", source=SourceSpec(uri=f"{ROOT}missing-a"))
        mailbox.post(replace(mailbox.snapshot, desired=newer(bad, 2)))
        await asyncio.sleep(5.0)
        plan = reports[-1].situation.plan
        assert [(one.name, one.generation, one.reason) for one in plan.failed] == [
            ("good-a", 2, "weights_not_safetensors")
        ]
        assert [(one.name, one.generation) for one in plan.kept] == [("good-a", 1)]
        assert engine.adapters == {"good-a": A}


@virtual
async def test_files_that_were_refused_are_looked_at_anew_by_other_terms_and_by_no_others(monkeypatch):
    """R8, R17: the pool asks for something else, or the host was given what it lacked; also of what was asked for."""
    fetched: list[str] = []
    ensure, taken = SimStore.ensure, 0

    async def noting(store: SimStore, ref: ArtifactRef, refused: str | None = None) -> Staged:
        if refused is None:  # else it is but looked at for a change
            fetched.append(ref.uri)
        return await ensure(store, ref, refused)

    monkeypatch.setattr(SimStore, "ensure", noting)
    monkeypatch.setattr(SimStore, "reads", property(lambda _: str(taken)))
    (lazy,) = desired(1, "lazy", load="eager").adapters.values()
    trouble = Failure(lazy.ref, None, "source_missing", "m", 1, None)

    class Whole(Catalogue):
        def whole(self, _state: DesiredState, key: str) -> DesiredAdapter | None:
            return lazy if key == "lazy" else None

    mailbox, demand = wanting(1, "missing-a"), ResidentSet(Whole(Informer(POOL)))
    async with running(Odd(), mailbox, demand=demand):
        await asyncio.sleep(30.0)
        assert len(fetched) == 1
        demand.troubles.note("lazy", trouble)
        mailbox.post(replace(mailbox.snapshot, pool=THE_POOL.model_copy(update={"etag": "other"})))
        await asyncio.sleep(30.0)
        assert (len(fetched), demand.troubles.of("lazy")) == (1, trouble)
        signed = THE_POOL.model_copy(update={"limits": PoolLimits(require_signature=True)})
        mailbox.post(replace(mailbox.snapshot, pool=signed))
        await asyncio.sleep(30.0)
        assert (len(fetched), demand.troubles.of("lazy")) == (2, None)
        demand.troubles.note("lazy", trouble)
        taken = 1
        mailbox.wake()
        await asyncio.sleep(30.0)
        assert (len(fetched), demand.troubles.of("lazy")) == (3, None)
        mailbox.post(replace(mailbox.snapshot, pool=None))
        await asyncio.sleep(30.0)
        assert len(fetched) == 4


NAMES = [f"good-{number:02}" for number in range(40)]


@pytest.mark.parametrize(
    ("answers", "is_calm"),
    [({}, True), ({"good-00": NotThere()}, False), ({"good-00": NotThere(), "good-01": AlreadyThere()}, False)],
    ids=["done", "one was not there", "none was done"],
)
@virtual
async def test_after_calls_that_were_carried_out_the_engine_is_left_in_peace_for_a_moment(answers, is_calm):
    """R19: others wait for the same engine. What it did not carry out is looked at at once."""
    engine, mailbox = Timed(*NAMES[:2]), wanting(1, *NAMES[:2])
    engine.answers = answers
    async with running(engine, mailbox) as reports:
        await asyncio.sleep(2.0)
        assert ready(reports) == (True, "")
        mailbox.post(replace(mailbox.snapshot, desired=desired(2)))
        await asyncio.sleep(5.0)
        last = engine.unloaded_at[-1]
        assert engine.adapters == {}
        # One look is made just before the calls, which take no time here.
        looks = [at - last for at in engine.looked_at if at >= last]
        assert (len([one for one in looks if one < 0.001]) == 1) == is_calm
        if is_calm:
            assert 0.05 <= looks[1] <= 0.5


@pytest.mark.parametrize("is_ready", [True, False])
@virtual
async def test_a_plan_that_is_longer_than_one_round_is_gone_on_with_at_once(is_ready):
    """R6, R19: not only once a moment has passed after each part. R3: before it is ready, nor after the last."""
    engine, mailbox = Timed(*NAMES), wanting(1, *(NAMES if is_ready else ()))
    async with running(engine, mailbox) as reports:
        await asyncio.sleep(3.0)
        if is_ready:
            assert ready(reports) == (True, "")
            mailbox.post(replace(mailbox.snapshot, desired=desired(2)))
            await asyncio.sleep(5.0)
        assert (len(engine.unloaded_at), engine.adapters) == (40, {})
        assert engine.unloaded_at[-1] - engine.unloaded_at[0] < 0.05
        assert is_ready or engine.looked_at[-1] - engine.unloaded_at[0] < 0.05


@pytest.mark.parametrize("outcome", [Transient("busy"), Refused("no")])
@virtual
async def test_what_failed_is_tried_again_when_its_pause_ends(outcome):
    """R17, R8: nothing else comes that would wake anybody."""
    engine = Odd(outcome, takes=False)
    async with running(engine, wanting(1, "good-a")) as reports:
        await asyncio.sleep(0.6)
        engine.outcome, engine.takes = Done(), True
        await asyncio.sleep(10.0)
        assert ready(reports) == (True, "")
        assert len(engine.called) <= 4


@virtual
async def test_what_a_lost_answer_came_to_is_asked_every_few_seconds(monkeypatch):
    """R17, R16: the engine is neither left alone with it nor pressed."""
    engine = Odd(Unknown("lost"), takes=False)
    monkeypatch.setattr(engine, "turns", turns := mock.AsyncMock(return_value=False))
    async with running(engine, wanting(1, "good-a")):
        await asyncio.sleep(2.0)
        before = turns.await_count
        await asyncio.sleep(40.0)
        assert 10 <= turns.await_count - before <= 60


@virtual
async def test_an_engine_for_which_nothing_is_known_to_be_wanted_is_not_pressed():
    """R16: an etcd that is away for a night must not cost an engine a listing each second."""
    engine = Odd()
    async with running(engine, Mailbox()) as reports:
        await asyncio.sleep(61.0)
        assert 1 <= engine.looks <= 8
        assert reports[-1].situation.plan is None


@virtual
async def test_the_same_decision_is_logged_once():
    """R16: S has one line for each, however often the engine was looked at meanwhile."""
    mailbox = wanting(1, "good-a")
    with capture_logs() as logs:
        async with running(Odd(), mailbox):
            await asyncio.sleep(100.0)
            for _ in range(5):
                mailbox.wake()
                await asyncio.sleep(1.0)
            mailbox.post(replace(mailbox.snapshot, desired=desired(2), last_request_id="req-2"))
            await asyncio.sleep(50.0)
    made = [one for one in logs if one["event"] == "plan_made"]
    decisions = [(one["revision"], one["actions"], one["served"]) for one in made]
    assert (decisions[0], decisions[-1], (1, 0, 1) in decisions) == ((1, 1, 0), (2, 0, 0), True)
    assert len(decisions) <= 6
    assert made[-1]["request_id"] == "req-2"


@virtual
async def test_what_is_said_of_etcd_and_of_the_pool_is_that_of_the_plans_snapshot():
    """R9, R13: whether it is stale, held and up to which change; and by which names and limits."""
    mailbox = wanting(7, "good-a")
    async with running(Odd(), mailbox) as reports:

        async def said() -> tuple[object, ...]:
            await asyncio.sleep(3.0)
            one = reports[-1].situation
            return one.revision, one.stale, one.held, one.last_request_id, one.names, reports[-1].capacity

        assert await said() == (7, False, "", "", "plain", None)
        mailbox.post(replace(mailbox.snapshot, connected=False, last_request_id="req-7"))
        assert await said() == (7, True, "", "req-7", "plain", None)
        mailbox.post(replace(mailbox.snapshot, connected=True, held="it lacks 40 of 40"))
        assert await said() == (7, True, "it lacks 40 of 40", "req-7", "plain", None)
        spec = THE_POOL.model_copy(update={"engine_names": "versioned", "limits": PoolLimits(max_adapters=5)})
        mailbox.post(replace(mailbox.snapshot, held="", pool=spec))
        assert await said() == (7, False, "", "req-7", "versioned", 5)
        mailbox.post(replace(mailbox.snapshot, desired=None))
        # R24: its engine may serve what its predecessor loaded, and others would take its silence for a no.
        assert await said() == (0, True, "", "req-7", "versioned", None)
        assert not reports[-1].situation.ready
        mailbox.post(replace(mailbox.snapshot, desired=desired(8, "good-a", load="eager"), pool=None))
        assert (await said())[0] == 8
        assert not reports[-1].situation.ready, "whose pool is gone takes no requests"


@virtual
async def test_the_reason_that_is_told_is_the_one_that_can_be_mended():
    """R9, R18: a record that cannot be read keeps nobody from being ready while the one before is in force."""
    async with serving() as (engine, _, mailbox, reports):
        mailbox.post(replace(mailbox.snapshot, pool_refusal="the pool's record cannot be followed"))
        await asyncio.sleep(1.0)
        assert ready(reports) == (True, "")
        engine.paused = "it sleeps"
        engine.on_probed()
        await asyncio.sleep(1.0)
        assert ready(reports) == (False, "it sleeps")
        engine.paused = ""
        await asyncio.sleep(4.0)
        assert ready(reports) == (True, ""), "where nobody tells that it woke, either"
        engine.outcome, engine.takes, engine.generates = Unknown("lost"), False, False
        mailbox.post(replace(mailbox.snapshot, desired=desired(2, "good-a", "good-b", load="eager")))
        await asyncio.sleep(5.0)
        assert "generates nothing" in ready(reports)[1]
        engine.paused = "it sleeps"
        await asyncio.sleep(5.0)
        assert ready(reports) == (False, "it sleeps"), "which is why it generates nothing"
        engine.paused = ""
        mailbox.post(replace(mailbox.snapshot, pool_read=False))
        await asyncio.sleep(5.0)
        assert "generates nothing" in ready(reports)[1]
        mailbox.post(replace(mailbox.snapshot, pool_read=True))
        engine.outcome, engine.takes, engine.generates = Done(), True, True
        await asyncio.sleep(10.0)
        assert (ready(reports), sorted(engine.adapters)) == ((True, ""), ["good-a", "good-b"])


@virtual
async def test_a_pool_that_cannot_be_read_any_more_is_told_beside_all_that_is_served():
    """R14 nack: the replica goes on by what it said before."""
    mailbox = wanting(1, "good-a")
    async with running(Odd(), mailbox) as reports:
        await asyncio.sleep(2.0)
        mailbox.post(replace(mailbox.snapshot, pool_refusal="it has no number", proxied="a proxy"))
        await asyncio.sleep(1.0)
        plan = reports[-1].situation.plan
        assert plan is not None
        assert {"pool_refused", "etcd_proxy"} <= {one.reason for one in plan.warnings}
        assert ready(reports) == (True, "")


@virtual
async def test_an_operator_chooses_whether_a_degraded_replica_is_ready():
    """R18 readiness-follows."""

    class Choosy(Odd):
        async def load(self, name: str, path: str, *, request_id: str) -> Outcome:
            self.outcome, self.takes = (Done(), True) if name == "good-a" else (Refused("no memory"), False)
            return await super().load(name, path, request_id=request_id)

    for rule, is_ready in ((ReadyRule("any"), True), (ReadyRule("served"), False)):
        mailbox = wanting(1, "good-a")
        async with running(Choosy(), mailbox, rule=rule) as reports:
            await asyncio.sleep(2.0)
            assert ready(reports) == (True, "")
            mailbox.post(replace(mailbox.snapshot, desired=desired(2, "good-a", "good-b", load="eager")))
            await asyncio.sleep(60.0)
            situation = reports[-1].situation
            assert (situation.ready, "1 of 2 adapters" in situation.degraded) == (is_ready, True)
            assert situation.note == ("" if is_ready else situation.degraded)
    async with running(Choosy(), wanting(1, "good-a", "good-b"), rule=ReadyRule("any")) as reports:
        await asyncio.sleep(60.0)
        assert not any(one.situation.ready for one in reports), "it never was, and the fault may be the engine's"
        assert reports[-1].situation.degraded


@virtual
async def test_each_round_is_run_by_whoever_supervises_it():
    """R12: also one that fails; the pause is the supervisor's then."""
    rounds: list[float] = []

    async def paced(round_: Callable[[], Awaitable[float]]) -> float:
        rounds.append(asyncio.get_running_loop().time())
        await round_()
        return 5.0

    async with running(Odd(), wanting(1), paced=paced):
        await asyncio.sleep(21.0)
    gaps = {round(later - before, 3) for before, later in pairwise(rounds)}
    assert gaps == {5.0}


@virtual
async def test_how_long_a_change_took_is_measured_once_it_is_served():
    """An alert tells of changes that take too long."""

    def count() -> float:
        return REGISTRY.get_sample_value("loraplane_propagation_seconds_count") or 0.0

    before, mailbox = count(), Mailbox()
    state = newer(desired(1, "good-a", load="eager"), 1, updated_at="2999-01-01T00:00:00Z")
    mailbox.post(Snapshot(pool=THE_POOL, desired=state))
    async with running(Odd(), mailbox):
        await asyncio.sleep(5.0)
    assert count() - before == 1


BOTH = fleet("r1", "r2")


def placed_elsewhere() -> tuple[DesiredState, str]:
    """Adapters that are on one replica each, and one of them that r1 hands over when r2 comes."""
    names = [f"good-{letter}" for letter in "abcdef"]
    state = desired(1, *names, load="eager", placement=Placement(replicas=1))
    found = Assigner(POOL, "r1", {}).find(state, BOTH)
    return state, next(name for name in names if name not in {key for _, key in found.order})


@pytest.mark.parametrize(
    ("verdict", "is_kept", "is_loaded_again"),
    [(None, True, False), (Waiting(), True, True), (Stuck("r2 has no room"), True, True), (Taken(), False, False)],
    ids=["nothing is said", "waiting", "stuck", "taken"],
)
@virtual
async def test_what_others_are_to_serve_is_kept_and_loaded_again_until_they_do(verdict, is_kept, is_loaded_again):
    """R3, R20: by what those say who are to take it over; also where the engine loses it meanwhile."""
    state, name = placed_elsewhere()

    engine, mailbox = Odd(), Mailbox()
    mailbox.post(Snapshot(pool=THE_POOL, desired=state, members=fleet("r1")))
    reports: list[RoundReport] = []

    def verdicts() -> Mapping[Handoff, HandoffVerdict]:
        plan = reports[-1].situation.plan if reports else None
        return {} if verdict is None or plan is None else dict.fromkeys(plan.leaving, verdict)

    async with running(engine, mailbox, verdicts=verdicts) as told:
        reports = told
        await asyncio.sleep(5.0)
        assert len(engine.adapters) == 6
        mailbox.post(replace(mailbox.snapshot, members=BOTH))
        for _ in range(3):
            await asyncio.sleep(2.0)
            mailbox.wake()
        assert (name in engine.adapters) == is_kept
        assert bool(reports[-1].situation.plan.leaving) == is_kept
        engine.adapters.clear()
        engine.on_probed()
        for _ in range(3):
            await asyncio.sleep(2.0)
            mailbox.wake()
        assert (name in engine.adapters) == is_loaded_again


def test_changes_are_taken_in_at_once_and_a_flood_by_some_dozens_of_rounds_a_second():
    """R3, R16, in numbers: a burst, and twenty changes a second, wait for nothing; the flood's end ends that."""
    for between, count in ((0.001, 20), (0.05, 200)):
        rounds = RateLimiter()
        assert {rounds.rest_seconds(number * between) for number in range(count)} == {0.0}
    rounds, now, made = RateLimiter(), 0.0, 0
    while now < 10.0:
        now += 0.001 + rounds.rest_seconds(now)
        made += 1
    assert 200 <= made < min(700, FLOOD_ROUNDS + 10.0 / REST_SECONDS)
    assert rounds.rest_seconds(now + 5.0) == 0.0


@virtual
async def test_a_failure_of_what_nobody_wants_any_more_is_forgotten(monkeypatch):
    """R16 bounded, R8: and is none of what comes to be wanted under its name."""
    tracker, mailbox = RetryTracker(Clock()), wanting(1, "missing-a", "missing-b")
    monkeypatch.setattr("sidecar.loop.reconciler.RetryTracker", lambda *_: tracker)
    async with running(Odd(), mailbox):
        await asyncio.sleep(5.0)
        assert set(tracker.failures) == {"missing-a", "missing-b"}
        mailbox.post(replace(mailbox.snapshot, desired=desired(2, "missing-b", load="eager")))
        await asyncio.sleep(5.0)
        assert set(tracker.failures) == {"missing-b"}
