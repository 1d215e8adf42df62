"""The status that a replica derives of itself."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from registry.lora.coverage.findings import EngineEvidence
from registry.model.status import (
    MAX_EARLIER,
    MAX_FOUND,
    MAX_LEAVING,
    MAX_SERVES,
    ReplicaStatus,
    ReportedEvidence,
    ReportedStore,
)
from registry.model.stored import MAX_STATUS_BYTES
from registry.runtime.clock import Clock, Moment
from sidecar.desired.placement import MembershipDigest
from sidecar.engines.observed import EngineFacts, EngineLimits
from sidecar.plan.conditions import MAX_OVER_CAPACITY_LISTED, REPLICAS_UNKNOWN
from sidecar.plan.types import (
    FailedAdapter,
    KeptAdapter,
    LazySituation,
    PendingAdapter,
    Plan,
    RoundReport,
    Selection,
    ServedAdapter,
    StatusInputs,
    WarnedAdapter,
)
from sidecar.report.cache import SILENT_SECONDS, StatusCache
from sidecar.report.status import (
    MAX_RESIDENT,
    ReplicaIdentity,
    derive_status,
    says_the_same,
    served_hash,
    tells_what_is_served,
)
from tests.simulation.loop import virtual
from tests.support.worlds import observed, staged, wants

REPLICA = ReplicaIdentity("r1", "p", "vllm", "http://e")
MOMENT = Moment(1000.0, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


def situation(plan: Plan | None = None, **changes) -> StatusInputs:
    facts = {
        "revision": 7,
        "observed": observed(),
        "plan": plan,
        "ready": True,
        "stale": False,
        "lazy": LazySituation(),
        "note": "",
        "held": "",
        "last_request_id": "q",
    }
    return StatusInputs(**(facts | changes))


def plan(**changes) -> Plan:
    parts = {"revision": 7, "stage": (), "calls": (), "served": (), "pending": (), "failed": (), "wake_at": None}
    return Plan(**(parts | changes))


def test_an_engine_out_of_reach_has_no_incarnation_and_serves_nothing():
    status = derive_status(REPLICA, situation(observed=None, ready=False, note="gone"), MOMENT)
    assert (status.engine.incarnation, status.engine.url, status.served.count) == ("", "http://e", 0)
    assert (status.ready, status.note, status.observed_revision) == (False, "gone", 7)
    assert (status.omitted, status.pending_count, status.failed_count, status.found_omitted) == (0, 0, 0, 0)


def test_an_engine_is_told_as_it_was_seen():
    """R9: its kind, what it can hold, how it swaps, and what it can apply; what it does not say is not known.

    R22 applied-whole: `pool update --evidence-from` reads what it can apply.
    """
    applies = EngineEvidence("vllm 0.32.0", "A", ("l.{0-1}.q",), ("q",), parts=(("a", "b"),))
    limits = EngineLimits(4, 16, 64, ("q_proj",))
    facts = EngineFacts("sglang", "0.9", "http://there", "e7", limits, "refused", evidence=applies, max_model_len=512)
    state = wants({"a": "v1", "b": "v2"})
    holds = plan(chosen=Selection(staged={**staged(state, "v1", rank=8), **staged(state, "v2", rank=16)}))
    engine = derive_status(REPLICA, situation(holds, observed=replace(observed(), facts=facts)), MOMENT).engine
    assert (engine.kind, engine.version, engine.url, engine.incarnation) == ("sglang", "0.9", "http://there", "e7")
    assert (engine.base_models, engine.swap, engine.max_model_len, engine.highest_rank) == (
        ["base"],
        "refused",
        512,
        16,
    )
    assert engine.evidence == ReportedEvidence(
        engine="vllm 0.32.0", architecture="A", applied=["l.{0-1}.q"], taken=["q"], parts=[("a", "b")]
    )
    told = {"max_loras": 4, "max_cpu_loras": 16, "max_lora_rank": 64, "target_modules": ["q_proj"]}
    assert engine.limits.model_dump() == told
    unlimited = derive_status(REPLICA, situation(plan()), MOMENT).engine
    assert set(unlimited.limits.model_dump().values()) == {unlimited.evidence} == {unlimited.highest_rank} == {None}
    away = derive_status(REPLICA, situation(observed=None), MOMENT).engine
    assert (away.kind, away.version, away.base_models, away.swap) == ("vllm", "", [], "")
    assert away.highest_rank is None


def test_lists_say_who_when_and_why():
    failed = FailedAdapter("b", 2, "engine_refused", "m" * 900, 3, 1030.5, "rb", is_settled=False)
    lost = FailedAdapter("c", 2, "rank_too_high", "m", 1, None, "rc", is_settled=True, final_at=9e9)
    status = derive_status(
        REPLICA,
        situation(
            plan(pending=(PendingAdapter("a", 1, "staging", "ra"),), failed=(failed, lost)), lazy=LazySituation(count=4)
        ),
        MOMENT,
    )
    assert (status.pending[0].name, status.pending[0].reason, status.pending[0].request_id) == ("a", "staging", "ra")
    assert status.failed[0].retry_at == "2026-01-02T03:04:35.500Z"
    assert len(status.failed[0].message) == 500
    assert status.failed[1].retry_at is None
    assert [one.settled for one in status.failed] == [False, True], "what is not tried again lasts"
    assert (status.lazy.count, status.lazy.servable, status.lazy.reason) == (4, False, "needs_plugin")
    assert status.updated_at == "2026-01-02T03:04:05.000Z"


def test_what_a_plan_was_made_from_and_what_is_borne_is_told_as_it_is():
    """R9: others compare whom a share was found among, and read why a list is held; each text is bounded.

    X1: whoever looks at the fleet sees where secrets go unencrypted.
    """
    made = plan(
        among=MembershipDigest("m", "w"),
        kept=(KeptAdapter("k", 3, is_counted=True), KeptAdapter("l", 4, is_counted=False)),
        removing=3,
        warnings=(WarnedAdapter("a", 2, "no_digest", "m" * 900),),
    )
    bears = replace(REPLICA, http="10.0.0.1:7602", insecure=("--etcd-password-file: unencrypted", "m" * 900))
    status = derive_status(bears, situation(made, held="12 would go", degraded="d" * 900), MOMENT)
    assert (status.members, status.weights, status.http) == ("m", "w", "10.0.0.1:7602")
    assert status.insecure == ["--etcd-password-file: unencrypted", "m" * 500]
    assert (status.held, status.degraded, status.last_request_id) == ("12 would go", "d" * 500, "q")
    assert [(one.name, one.generation, one.counted) for one in status.kept] == [("k", 3, True), ("l", 4, False)]
    assert status.removing == 3
    warned = [(one.name, one.generation, one.reason, one.message) for one in status.warnings]
    assert warned == [("a", 2, "no_digest", "m" * 500)]
    nothing = derive_status(REPLICA, situation(), MOMENT)
    assert (nothing.members, nothing.weights, nothing.http, nothing.kept, nothing.warnings) == ("", "", "", [], [])
    assert (nothing.removing, nothing.insecure) == (0, [])


def test_the_served_hash_depends_on_the_set_alone():
    one, two = ServedAdapter("a", 1, "d1"), ServedAdapter("b", 1, "d1")
    assert served_hash((one, two)) == served_hash((two, one))
    assert served_hash((one,)) != served_hash((ServedAdapter("a", 2, "d1"),))
    assert served_hash((one,)) != served_hash((ServedAdapter("a", 1, "d2"),))


def test_a_status_that_is_too_large_counts_what_it_leaves_out():
    """R16 bounded: status at most 256 KiB; failures are kept longer than what is merely pending."""
    pending = tuple(PendingAdapter(f"n{i}", 1, "staging", "r") for i in range(3000))
    failed = tuple(FailedAdapter(f"f{i}", 1, "r", "m" * 500, 1, None, "r", is_settled=True) for i in range(3000))
    status = derive_status(REPLICA, situation(plan(pending=pending, failed=failed, omitted=5)), MOMENT)
    assert len(status.to_bytes()) <= MAX_STATUS_BYTES
    assert not status.pending
    assert len(status.failed) > 0
    assert len(status.failed) + status.omitted == 6005
    long = tuple(replace(one, request_id="r" * 100) for one in pending)
    few = derive_status(REPLICA, situation(plan(pending=long, failed=failed[:3])), MOMENT)
    assert 0 < len(few.pending) < 3000
    assert (len(few.pending) + few.omitted, len(few.failed), few.pending_count) == (3000, 3, 3000)


async def test_how_full_a_store_is_is_offered_to_nobody():
    """It is told with the next write of something else, or at the next look where it is another much."""
    room = ReportedStore(room_bytes=5, in_use_bytes=3, largest_bytes=2, bound="disk")
    said: list[Callable[[], ReplicaStatus]] = []
    cache = StatusCache(REPLICA, Clock(random.Random(0)), said.append)
    before = cache.status
    cache.note_room(room)
    assert (said, before.store, cache.status.store) == ([], None, room)
    assert not says_the_same(before, cache.status), "it was not known at all"
    cache.look_again()
    assert said[0]().store == room
    cache.note_room(None)
    assert cache.status.store is None


@pytest.mark.parametrize(
    ("told", "is_known"),
    [
        (situation(plan()), True),
        (situation(plan(), stale=True), False),
        (situation(revision=0), False),
        (situation(observed=None), True),
        (situation(observed=None, revision=0, stale=True), False),
        (situation(plan(pending=(PendingAdapter("a", 1, "loading", ""),))), True),
        (situation(plan(pending=(PendingAdapter("a", 1, REPLICAS_UNKNOWN, ""),))), False),
    ],
)
def test_a_process_that_has_just_begun_tells_what_is_served_once_it_knows(told, is_known):
    """R24: what the one before it said stands until then; an engine that is away serves nothing."""
    assert tells_what_is_served(derive_status(REPLICA, told, MOMENT)) is is_known


def test_one_more_try_of_what_was_refused_before_is_no_news():
    """R16 bounded: it is told with the next write; while nobody knows yet whether it lasts, each try is told."""
    early = derive_status(REPLICA, situation(plan()), MOMENT)
    late = derive_status(REPLICA, situation(plan()), Moment(1001.0, datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)))
    assert early != late
    assert says_the_same(early, late), "they differ in time alone"
    assert not says_the_same(early, derive_status(REPLICA, situation(plan(), stale=True), MOMENT))

    def failing(attempts: int, *, final_at: float) -> ReplicaStatus:
        retry_at, terms = MOMENT.monotonic + attempts, {"is_settled": False, "final_at": final_at}
        one = FailedAdapter("a", 1, "engine_refused", "m", attempts, retry_at, "q", **terms)
        return derive_status(REPLICA, situation(plan(failed=(one,))), MOMENT)

    settled = failing(1, final_at=MOMENT.monotonic)
    assert says_the_same(settled, failing(2, final_at=MOMENT.monotonic))
    assert says_the_same(failing(5, final_at=math.inf), failing(6, final_at=math.inf)), "so often is long enough"
    passing = failing(1, final_at=MOMENT.monotonic + 60.0)
    assert not says_the_same(passing, failing(2, final_at=MOMENT.monotonic + 60.0))
    assert not says_the_same(passing, failing(1, final_at=MOMENT.monotonic)), "it has become final"
    assert not says_the_same(settled, derive_status(REPLICA, situation(plan()), MOMENT))


def test_what_was_found_without_a_digest_is_reported():
    """W6 one-digest, R16: so that a disagreement is seen; the same names first on every replica, and not too many."""
    served = [ServedAdapter("pinned", 1, "d0"), ServedAdapter("b", 2, "d2", is_pinned=False)]
    status = derive_status(REPLICA, situation(plan(served=tuple(served))), MOMENT)
    assert [(one.name, one.generation, one.digest) for one in status.found] == [("b", 2, "d2")]
    many = tuple(ServedAdapter(f"n{i:04}", 1, "d", is_pinned=False) for i in reversed(range(MAX_FOUND + 5)))
    status = derive_status(REPLICA, situation(plan(served=many)), MOMENT)
    assert [one.name for one in status.found] == [f"n{i:04}" for i in range(MAX_FOUND)]
    assert status.found_omitted == 5


def test_a_replica_says_why_it_serves_no_lazy_adapter():
    """R9: at its first request, that is."""
    asks = ReplicaIdentity("r1", "p", "vllm", "http://e", answers=True)
    resolving = replace(observed(), facts=replace(observed().facts, resolves=True))
    some = LazySituation(count=3, room=1)

    def reason(replica: ReplicaIdentity, **changes) -> str:
        facts = {"observed": resolving, "plan": plan(), "lazy": some} | changes
        lazy = derive_status(replica, situation(**facts), MOMENT).lazy
        assert lazy.servable == (lazy.reason == "")
        return lazy.reason

    assert reason(asks) == ""
    assert reason(asks, observed=observed()) == "needs_plugin"
    assert reason(REPLICA) == "needs_socket"
    assert reason(asks, lazy=LazySituation(count=3)) == "no_room"
    assert reason(asks, names="versioned") == "names_versioned"
    for changes in ({"observed": None}, {"plan": None}, {"plan": plan(blocked="another base")}):
        assert reason(asks, **changes) == "not_ready"
    assert derive_status(REPLICA, situation(plan()), MOMENT).lazy.reason == "", "there is none"


def test_lazy_adapters_that_are_loaded_are_told_to_the_minute():
    names = [f"n{number:03}" for number in range(MAX_RESIDENT + 1)]
    residents = tuple(ServedAdapter(name, 2, "d") for name in reversed(names))
    used_at = dict.fromkeys(names, 1000.0 - 70.0)
    lazy = LazySituation(count=999, room=4, used_at=used_at)
    status = derive_status(REPLICA, situation(plan(residents=residents), lazy=lazy), MOMENT)
    assert [one.name for one in status.lazy.resident] == names[:MAX_RESIDENT]
    first = status.lazy.resident[0]
    assert (first.generation, first.last_used) == (2, "2026-01-02T03:02:00.000Z")
    assert status.served.count == 0


def test_what_is_kept_for_others_is_told():
    """R16 bounded: of the first names, with what was found of them."""
    kept = tuple(ServedAdapter(f"n{i:03}", 3, f"d{i}", is_pinned=bool(i)) for i in reversed(range(MAX_LEAVING + 1)))
    status = derive_status(REPLICA, situation(plan(still_served=kept)), MOMENT)
    assert [one.name for one in status.leaving] == [f"n{i:03}" for i in range(MAX_LEAVING)]
    assert {one.generation for one in status.leaving} == {3}
    assert [(one.name, one.generation, one.digest) for one in status.found] == [("n000", 3, "d0")]
    assert status.served.count == 0


def test_what_is_served_is_told_before_what_is_not():
    """R9, R16: a name that a status leaves out is not served, and what is served is never left out."""
    served = tuple(ServedAdapter(f"s{i}", 2, "d") for i in range(16))
    pending = tuple(PendingAdapter(f"n{i}", 1, "over_capacity", "r", is_settled=True) for i in range(200))
    status = derive_status(REPLICA, situation(plan(served=served, pending=pending, omitted=184)), MOMENT)
    assert (status.served.count, status.pending_count, status.failed_count) == (16, 384, 0)
    assert status.serves == sorted((one.name, 2) for one in served)
    assert derive_status(REPLICA, situation(plan(served=served, pending=pending)), MOMENT).serves is None
    many = tuple(FailedAdapter(f"f{i}", 1, "r", "m" * 500, 1, None, "r", is_settled=True) for i in range(3000))
    status = derive_status(REPLICA, situation(plan(served=served, failed=many)), MOMENT)
    assert len(status.to_bytes()) <= MAX_STATUS_BYTES
    assert (len(status.serves or ()), status.failed_count, bool(status.omitted)) == (16, 3000, True)


def test_what_is_served_is_told_as_long_as_there_is_room():
    """R16 bounded."""
    many = tuple(ServedAdapter(f"s{i}", 2, "d") for i in range(MAX_SERVES + 1))
    assert derive_status(REPLICA, situation(plan(served=many, omitted=1)), MOMENT).serves is None
    lazy = LazySituation(used_at={"lazy": 1.0})
    for named, residents in ((many[:-1], ()), (many[:-2], (ServedAdapter("lazy", 3, "d"),))):
        made = plan(served=named, residents=residents, omitted=1)
        told = derive_status(REPLICA, situation(made, lazy=lazy), MOMENT).serves
        assert told == sorted((one.name, one.generation) for one in (*named, *residents))
    made = plan(served=many[:-1], residents=(ServedAdapter("lazy", 3, "d"),), omitted=1)
    assert derive_status(REPLICA, situation(made, lazy=lazy), MOMENT).serves is None
    kept = tuple(KeptAdapter(f"k{i:04}", 3) for i in range(100))
    full = situation(plan(served=many[:-1], kept=kept, omitted=1), note="n" * (MAX_STATUS_BYTES - 4_000))
    status = derive_status(REPLICA, full, MOMENT)
    assert len(status.to_bytes()) <= MAX_STATUS_BYTES
    assert status.serves is None
    alone = situation(plan(served=many[:-1], omitted=1), note="n" * (MAX_STATUS_BYTES - 4_000))
    status = derive_status(REPLICA, alone, MOMENT)
    assert (len(status.to_bytes()) <= MAX_STATUS_BYTES, status.serves) == (True, None)
    few = derive_status(REPLICA, situation(plan(kept=kept[:1])), MOMENT)
    assert [(one.name, one.generation) for one in few.kept] == [("k0000", 3)]


def test_earlier_generations_are_told_and_left_out_first():
    """R16 bounded: nothing that is said of the newest goes for them."""
    beside = tuple(ServedAdapter(f"n{i % 100:03}", 9 - i // 100, "d") for i in range(300))
    status = derive_status(REPLICA, situation(plan(beside=beside)), MOMENT)
    assert (len(status.earlier), status.earlier[:4]) == (300, [("n000", 9), ("n000", 8), ("n000", 7), ("n001", 9)])
    many = tuple(ServedAdapter(f"n{i}", 1, "d") for i in range(MAX_EARLIER + 1))
    assert len(derive_status(REPLICA, situation(plan(beside=many)), MOMENT).earlier) == MAX_EARLIER
    kept = tuple(KeptAdapter(f"k{i}", 3) for i in range(100))
    full = situation(plan(beside=beside, kept=kept), note="n" * (MAX_STATUS_BYTES - 8_000))
    status = derive_status(REPLICA, full, MOMENT)
    assert (len(status.to_bytes()) <= MAX_STATUS_BYTES, len(status.kept), status.omitted) == (True, 100, 0)
    assert 0 < len(status.earlier) < 300


def test_the_reason_of_what_is_left_out_is_told_if_there_is_one():
    """R9: who waits for one of these names is told that there is no room, and not that nobody knows."""

    def reason(
        over: int, undecided: int = 0, failures: int = 0, pending: str = "over_capacity", long: int = 2000
    ) -> str:
        ranks = tuple((0, f"n{i}") for i in range(over))
        names = tuple(PendingAdapter(f"n{i}", 1, pending, "r" * long) for i in range(150))
        failed = tuple(
            FailedAdapter(f"f{i}", 1, "r", "m" * 500, 1, None, "r", is_settled=True) for i in range(failures)
        )
        chosen = Selection(over=ranks, undecided=tuple((0, f"u{i}") for i in range(undecided)))
        made = plan(chosen=chosen, pending=names, failed=failed, omitted=max(0, over - 200) + max(0, undecided - 200))
        return derive_status(REPLICA, situation(made), MOMENT).omitted_reason

    assert reason(300) == "over_capacity"
    assert reason(100) == "over_capacity", "some of these do not fit"
    assert reason(MAX_OVER_CAPACITY_LISTED, long=1) == "", "all of them are listed"
    assert reason(MAX_OVER_CAPACITY_LISTED + 1, long=1) == "over_capacity"
    assert reason(300, undecided=MAX_OVER_CAPACITY_LISTED, long=1) == "over_capacity", "these are all listed, too"
    assert reason(300, undecided=300) == ""
    assert reason(300, failures=3000) == ""
    assert reason(300, pending="staging") == ""


@pytest.mark.parametrize("kind", ["pending", "failed", "resident", "leaving", "kept"])
def test_no_more_than_half_is_left_out_where_the_other_half_fits(kind):
    """R16 bounded: of what is left out only the number is known."""
    names = [f"n{i:03}" for i in range(100)]
    served = tuple(ServedAdapter(name, 2, "d") for name in names)
    made = {
        "pending": plan(pending=tuple(PendingAdapter(name, 1, "staging", "r") for name in names)),
        "failed": plan(failed=tuple(FailedAdapter(name, 1, "r", "m", 1, None, "r", is_settled=True) for name in names)),
        "resident": plan(residents=served),
        "leaving": plan(still_served=served),
        "kept": plan(kept=tuple(KeptAdapter(name, 3) for name in names)),
    }[kind]
    lazy = LazySituation(count=999, room=4, used_at=dict.fromkeys(names, 1.0))

    def told(size: int) -> ReplicaStatus:
        return derive_status(REPLICA, situation(made, lazy=lazy, note="n" * size), MOMENT)

    def listed(status: ReplicaStatus) -> list[str]:
        return [one.name for one in (status.lazy.resident if kind == "resident" else getattr(status, kind))]

    room = MAX_STATUS_BYTES - len(told(0).to_bytes())
    assert listed(told(room)) == names
    less = told(room + 1)
    assert (listed(less), len(less.to_bytes()) <= MAX_STATUS_BYTES) == (names[:50], True)
    assert listed(told(MAX_STATUS_BYTES)) == [], "one that is too large all the same ends the search, too"
    assert less.omitted == (50 if kind in {"pending", "failed"} else 0)


def test_what_room_a_store_has_is_told_where_it_is_another_by_a_quarter():
    """R16: a disk is written to all the time. What it damages is told at once."""
    room = ReportedStore(room_bytes=100, in_use_bytes=100, largest_bytes=5, bound="disk")
    said = ReplicaStatus.model_construct(failed=[], updated_at="", store=room)
    for field, number, is_same in [
        ("room_bytes", 125, True),
        ("room_bytes", 126, False),
        ("room_bytes", 79, False),
        ("in_use_bytes", 126, False),
        ("largest_bytes", 9, True),
        ("bound", "budget", False),
        ("damaged", 1, False),
    ]:
        other = said.model_copy(update={"store": room.model_copy(update={field: number})})
        assert says_the_same(said, other) is is_same, (field, number)
        assert says_the_same(other, said) is is_same, (field, number)
    assert not says_the_same(said, said.model_copy(update={"store": None}))
    assert says_the_same(*[said.model_copy(update={"store": None}) for _ in range(2)])


@virtual
async def test_a_status_is_old_once_no_round_has_ended_for_long():
    """R9: a loop that hangs keeps nobody from renewing the lease under which it stands."""
    said = situation(observed=None, ready=False)
    cache = StatusCache(REPLICA, Clock(random.Random(0)), lambda _: None)
    cache.take(RoundReport(said, 0))
    await asyncio.sleep(SILENT_SECONDS - 1)
    assert not cache.status.stale
    cache.take_drain("it drains")  # what else there is to say says nothing of rounds
    await asyncio.sleep(1)
    assert cache.status.stale
    cache.take(RoundReport(said, 0))
    assert not cache.status.stale
