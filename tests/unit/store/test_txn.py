"""How many round trips a change takes, and what it does when one fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import pytest

from registry.access.principal import operator
from registry.etcd3.errors import EtcdUnavailable, NoSpace
from registry.etcd3.ops import Put, Range, RangeResult, Txn, TxnResult
from registry.model.errors import Conflict, FailedPrecondition, InvalidArgument, Reason, RegistryError, Unavailable
from registry.model.records import PoolLimits
from registry.runtime.clock import Deadline
from registry.store.txn import USUAL_RETENTION, Retention, audit_lease, request_lease
from registry.store.writer import WriteGate, Writer
from registry.transactions.builder import Commit, Settled
from registry.transactions.changes import Change, DeletePool, Remove, SetTenant, UpdatePool
from registry.transactions.context import Caller, TxnLimits
from tests.simulation.loop import virtual
from tests.support.changes import ALICE, KEYS, POOL, Author, applying, creating, upsert
from tests.support.flaky_etcd import Fault, FlakyEtcd, Longest, NoChance
from tests.support.history_check import check_history
from tests.support.memory_etcd import MemoryEtcd
from tests.support.played_etcd import now

_numbers = count()


class Counting(FlakyEtcd):
    """Counts what is sent, reads too, and notes when something was that would be written; `before` is called then."""

    def __init__(self, etcd: MemoryEtcd | None = None) -> None:
        super().__init__(etcd or MemoryEtcd())
        self.trips, self.at = 0, list[float]()
        self.before: Callable[[Txn], object] = lambda _: None

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        self.trips += 1
        if any(isinstance(op, Put) for op in txn.success):
            self.at.append(now())
            self.before(txn)
        return await super().txn(txn, timeout_seconds=timeout_seconds)

    @property
    def pauses(self) -> list[float]:
        return [round(after - before, 6) for before, after in pairwise(self.at)]

    def raced(self) -> None:
        """Somebody else changes acme/a each time before ours arrives."""
        somebody, versions = Author(self.etcd, made=1000), count()
        self.before = lambda _: somebody.change(applying(upsert("acme/a", f"v{next(versions)}")))


@pytest.fixture
async def etcd() -> Counting:
    etcd = Counting()
    await change(writer(etcd), creating())
    etcd.trips = etcd.sent = etcd.granted = 0
    etcd.at.clear()
    return etcd


def writer(etcd: FlakyEtcd, *, rng: random.Random | None = None, max_ops: int = 128) -> Writer:
    gate = WriteGate()
    gate.open()
    return Writer(etcd.as_client(), KEYS, TxnLimits(max_ops=max_ops), gate, rng=rng or NoChance())


async def change(
    by: Writer,
    what: Change,
    request_id: str = "",
    *,
    dry: bool = False,
    repeats: bool = False,
    seconds: float = 30,
) -> Settled:
    made = request_id or f"auto-{next(_numbers)}"
    caller = Caller(operator("alice"), made, request_id_given=bool(request_id), repeats=repeats)
    return await by.change(what, caller, Deadline.of(seconds), validate_only=dry)


async def refused(by: Writer, what: Change, request_id: str = "", **more: Any) -> RegistryError:
    with pytest.raises(RegistryError) as told:
        await change(by, what, request_id, **more)
    return told.value


async def trips_of(etcd: Counting, by: Writer, *changes: Change) -> list[int]:
    """How many round trips each takes."""
    found = list[int]()
    for what in changes:
        etcd.trips = 0
        await change(by, what)
        found.append(etcd.trips)
    return found


async def test_one_round_trip_while_nobody_else_writes(etcd):
    """The first change of a process reads. A guess that is wrong costs nothing: the else-branch is the reading."""
    by, other = writer(etcd), writer(etcd)
    same = applying(upsert("acme/a", "v2")), applying(upsert("acme/b")), applying(Remove("acme/b"))
    assert await trips_of(etcd, by, applying(upsert("acme/a")), *same) == [2, 1, 1, 1]
    await change(other, applying(upsert("acme/a", "v3"), upsert("acme/b")))
    assert await trips_of(etcd, by, applying(upsert("acme/a", "v4")), applying(Remove("acme/a"))) == [2, 1]
    assert await trips_of(etcd, by, applying(upsert("acme/a"))) == [2]
    await change(other, UpdatePool(POOL, ("base",), PoolLimits(max_rank=8)))
    assert await trips_of(etcd, by, applying(upsert("acme/c")), applying(upsert("acme/d"))) == [2, 1]
    check_history(KEYS, etcd.etcd.history)


async def test_neither_a_refusal_nor_that_nothing_changes_is_ever_a_guess(etcd):
    """W8 no-false-fail: an old memory may say that a quota is full, or all is so already; then it is read again."""
    by, other = writer(etcd), writer(etcd)
    await change(by, SetTenant("acme", 1))
    await change(by, applying(upsert("acme/a")))
    await change(other, applying(Remove("acme/a")))
    assert (await change(by, applying(upsert("acme/b")))).reply.adapters[0].outcome == "created"
    await change(other, applying(upsert("acme/b", "v2")))
    assert (await change(by, applying(upsert("acme/b")))).reply.adapters[0].outcome == "updated"
    sent = etcd.sent
    assert (await change(writer(etcd), applying(upsert("acme/b")))).reply.adapters[0].outcome == "unchanged"
    assert etcd.sent == sent, "and what changes nothing is not sent"


async def test_a_pool_of_one_adapter_costs_a_reading_where_it_is_not_alone(etcd):
    """The first is made by a guess that the transaction verifies; a refusal, a trial too, names the other one."""
    by, other = writer(etcd), writer(etcd)
    await change(by, UpdatePool(POOL, (), PoolLimits(), fields=frozenset({"engine"}), engine="axolotl"))
    etcd.trips = 0
    await change(by, applying(upsert("acme/a")))
    assert etcd.trips == 1
    for dry in (False, True):
        for who in (by, other):
            with pytest.raises(FailedPrecondition) as told:
                await change(who, applying(upsert("b")), dry=dry)
            assert (told.value.reason, told.value.metadata) == (Reason.POOL_FULL, {"name": "acme/a"})
    await change(other, applying(Remove("acme/a"), upsert("b")))
    await change(by, applying(upsert("b", "v2")))
    check_history(KEYS, etcd.etcd.history)


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.LOST, Fault.LATE])
async def test_an_unclear_outcome_is_settled(etcd, fault):
    """W3 idempotent, W8 no-false-fail: it is sent again, and made once."""
    by = writer(etcd)
    etcd.fail([fault, fault])
    settled = await change(by, applying(upsert("acme/a")))
    revision = etcd.etcd.revision
    etcd.arrive()
    assert settled.revision == revision == etcd.etcd.revision
    check_history(KEYS, etcd.etcd.history)


# What becomes of the first copy, of its repetition, and of the fence.
FENCES = {
    "sent once": [Fault.LATE],
    "the fence's reply is lost": [Fault.LATE, Fault.NONE, Fault.REPLY_LOST],
    "the fence is late": [Fault.LATE, Fault.NONE, Fault.LATE],
}


@pytest.mark.parametrize("faults", FENCES.values(), ids=FENCES)
async def test_a_refusal_after_an_unclear_outcome_is_fenced(etcd, faults):
    """W8 no-false-fail: what was sent first cannot arrive after the refusal; the same id then stays refused."""
    by, somebody = writer(etcd), Author(etcd.etcd, made=1000)
    etcd.fail(faults, meanwhile=lambda: somebody.change(applying(upsert("acme/x"))))
    assert (await refused(by, DeletePool(POOL), "late")).reason is Reason.POOL_NOT_EMPTY
    somebody.change(applying(Remove("acme/x")))
    etcd.arrive()
    assert KEYS.pool(POOL) in etcd.etcd.kvs
    assert (await refused(by, DeletePool(POOL), "late")).reason is Reason.REQUEST_ID_REUSED


async def test_a_fence_that_cannot_be_put(etcd):
    """W8 no-false-fail: without the fence the refusal would be a guess, so the outcome is told as unknown."""
    by, somebody = writer(etcd), Author(etcd.etcd, made=1000)
    etcd.fail([Fault.LATE, Fault.NONE, Fault.REFUSED], meanwhile=lambda: somebody.change(applying(upsert("acme/x"))))
    told = await refused(by, DeletePool(POOL), "late")
    assert (type(told), told.reason, told.metadata) == (Unavailable, Reason.OUTCOME_UNKNOWN, {"request_id": "late"})


async def test_a_copy_of_an_earlier_try_is_fenced_too(etcd):
    """W8 no-false-fail: the try after it was sent once, and was answered; the first one may arrive all the same."""
    somebody = Author(etcd.etcd, made=1000)
    others = iter([[], [UpdatePool(POOL, ("other",), PoolLimits())], [applying(upsert("acme/x"))]])
    etcd.before = lambda _: [somebody.change(what) for what in next(others, [])]
    etcd.fail([Fault.LATE])
    by = writer(etcd)
    assert (await refused(by, DeletePool(POOL), "late")).reason is Reason.POOL_NOT_EMPTY
    assert etcd.sent == 4, "a copy that is late, its repetition, a try that was sent once, the fence"
    somebody.change(applying(Remove("acme/x")))
    assert (await refused(by, DeletePool(POOL), "late")).reason is Reason.REQUEST_ID_REUSED


async def test_a_fence_that_comes_too_late(etcd):
    """W8 no-false-fail: if the first copy took effect just before the fence, the reply is its reply, no refusal."""
    somebody = Author(etcd.etcd, made=1000)

    def arrives(_: Txn) -> None:
        if etcd.sent == 2 and etcd.late:  # the fence is next
            somebody.change(applying(Remove("acme/x")))
            etcd.arrive()

    etcd.before = arrives
    etcd.fail([Fault.LATE], meanwhile=lambda: somebody.change(applying(upsert("acme/x"))))
    settled = await change(writer(etcd), DeletePool(POOL), "late")
    assert KEYS.pool(POOL) not in etcd.etcd.kvs
    assert etcd.etcd.kvs[KEYS.request("late", ALICE)].mod_revision == settled.revision
    check_history(KEYS, etcd.etcd.history)


@pytest.mark.parametrize("fails_at", [2, 3, 4])
async def test_a_fault_of_ours_after_an_unclear_outcome_is_no_refusal(etcd, fails_at):
    """W8 no-false-fail: at its repetition, at the try that follows, and at the fence."""
    somebody = Author(etcd.etcd, made=1000)

    def breaks(_: Txn) -> None:
        if etcd.sent + 1 == fails_at:
            raise Defect
        if etcd.sent == 2:
            somebody.change(applying(upsert("acme/x")))

    etcd.before = breaks
    etcd.fail([Fault.LATE], meanwhile=lambda: somebody.change(UpdatePool(POOL, ("other",), PoolLimits())))
    with pytest.raises(Defect):
        await change(writer(etcd), DeletePool(POOL), "late")


@virtual
async def test_an_outcome_that_stays_unclear_after_a_copy_is_not_fenced_off(etcd):
    """W8 no-false-fail: who repeats it with its request id learns it, as it is told to."""
    somebody = Author(etcd.etcd, made=1000)

    def loses(txn: Txn) -> None:
        """All changes from the third transaction on, until the time of the call is up; a fence would pass."""
        is_change = any(isinstance(op, Put) and op.key == KEYS.adapter(POOL, "acme/a") for op in txn.success)
        if is_change and etcd.sent == 2 and now() < 5.0:
            raise EtcdUnavailable("cut", maybe_applied=True)

    etcd.before = loses
    etcd.fail([Fault.LOST], meanwhile=lambda: somebody.change(applying(upsert("acme/a"))))
    by = writer(etcd, rng=Longest())
    told = await refused(by, applying(upsert("acme/a", "v2")), "r", seconds=5)
    assert told.reason is Reason.OUTCOME_UNKNOWN
    await asyncio.sleep(10)
    settled = await change(by, applying(upsert("acme/a", "v2")), "r")
    assert [one.outcome for one in settled.reply.adapters] == ["updated"]


async def test_what_etcd_never_saw_is_told_so_and_a_lease_that_is_gone_is_taken_anew(etcd):
    """W8 no-false-fail: such a failure is no unknown outcome."""
    by = writer(etcd)
    etcd.fail([Fault.REFUSED])
    told = await refused(by, applying(upsert("acme/a")))
    assert (type(told), told.reason) == (Unavailable, Reason.ETCD_UNAVAILABLE)
    granted = etcd.granted
    etcd.fail([Fault.LEASE_GONE])
    assert (await change(by, applying(upsert("acme/a")), "r")).reply.adapters[0].outcome == "created"
    assert etcd.granted == granted + 2


async def test_many_reads_take_several_trips(etcd):
    by = writer(etcd, max_ops=16)
    assert len((await change(by, applying(*(upsert(f"acme/n{i}") for i in range(6))))).reply.adapters) == 6
    with pytest.raises(InvalidArgument):
        await change(by, applying(*(upsert(f"acme/m{i}") for i in range(7))))


class Defect(Exception):
    """A fault of ours, which no error of etcd or of a change is."""


@virtual
async def test_what_is_unclear_is_sent_again_ever_more_slowly_up_to_once_a_second(etcd):
    """R16 bounded: an etcd that is ill is not asked as fast as it fails, and one that is well again is not kept."""
    etcd.fail([Fault.LOST] * 8)
    await change(writer(etcd, rng=Longest()), applying(upsert("acme/a")))
    assert etcd.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    etcd.fail([Fault.LOST])
    sent, begun = etcd.sent, now()
    told = await refused(writer(etcd, rng=Longest()), applying(upsert("acme/b")), "r", seconds=0.05)
    assert told.reason is Reason.OUTCOME_UNKNOWN
    assert (now(), etcd.sent) == (begun, sent + 1), "the pause before another try would take all there is"


@virtual
async def test_a_race_that_is_lost_is_run_again_at_once_and_then_ever_later(etcd):
    """R16: who loses says how often it tried; half a second is the longest pause, and none is beyond the time."""
    etcd.raced()
    told = await refused(writer(etcd, rng=Longest()), applying(upsert("acme/a", "mine")), "r", seconds=60)
    assert (type(told), told.reason) == (Conflict, Reason.LOST_RACE)
    assert KEYS.request("r", ALICE) not in etcd.etcd.kvs
    assert len(etcd.at) == 20
    assert " 20 times in a row" in told.message
    assert etcd.pauses[:5] == [0.0, 0.005, 0.01, 0.02, 0.04]
    assert etcd.pauses[-10:] == [0.5] * 10
    begun = now()
    told = await refused(writer(etcd, rng=Longest()), applying(upsert("acme/a", "mine")), "r", seconds=1)
    assert (told.reason, now() - begun) == (Reason.DEADLINE_EXCEEDED, pytest.approx(1.0))


async def test_a_repeated_call_is_refused_behind_a_fence(etcd):
    """W8 no-false-fail: what its first call sent elsewhere cannot arrive then. W3, W9: it is refused as before."""
    by, somebody = writer(etcd), Author(etcd.etcd, made=1000)
    under_way = somebody.plan(DeletePool(POOL), "late")
    assert isinstance(under_way, Commit)
    somebody.change(applying(upsert("acme/x")))
    for dry in (True, False, False, True):
        told = await refused(by, DeletePool(POOL), "late", dry=dry, repeats=True)
        assert told.reason is Reason.POOL_NOT_EMPTY
    somebody.change(applying(Remove("acme/x")))
    assert not etcd.etcd.txn(under_way.txn).succeeded
    for dry in (True, False):
        told = await refused(by, DeletePool(POOL), "late", dry=dry, repeats=True)
        assert told.reason is Reason.REQUEST_ID_REUSED


@pytest.mark.parametrize("why", ["etcd is away", "etcd is full", "the gate is shut", "no time"])
async def test_a_repeated_call_that_cannot_be_fenced_is_of_unknown_outcome(etcd, why):
    """W8 no-false-fail: its first call may be carried out elsewhere yet, and the same request id settles it."""
    gate = WriteGate()
    if why != "the gate is shut":
        gate.open()
    flaky = Full(etcd.etcd) if why == "etcd is full" else etcd
    by = Writer(flaky.as_client(), KEYS, TxnLimits(), gate, rng=NoChance())
    if why == "etcd is away":
        etcd.fail([Fault.REFUSED])
    told = await refused(by, applying(upsert("acme/a")), "r", repeats=True, seconds=0.0 if why == "no time" else 30)
    assert (type(told), told.reason, told.metadata) == (Unavailable, Reason.OUTCOME_UNKNOWN, {"request_id": "r"})
    assert "nothing was changed" not in told.message
    settled = await change(writer(etcd), applying(upsert("acme/a")), "r", repeats=True)
    assert settled.reply.adapters[0].outcome == "created"


async def test_a_dry_run_sends_nothing(etcd):
    """W9 dry-run: it reads, and neither writes nor takes leases."""
    by = writer(etcd)
    foretold = await change(by, applying(upsert("acme/a")), dry=True)
    assert foretold.reply.adapters[0].outcome == "created"
    assert (etcd.sent, etcd.granted) == (0, 0)
    made = await change(by, applying(upsert("acme/a")), "r")
    assert await change(by, applying(upsert("acme/a")), "r", dry=True) == made


class Full(FlakyEtcd):
    """An etcd without space: it gives no lease and takes no write. What it has is read."""

    away: Exception | None = None

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        if any(isinstance(op, Put) for op in txn.success):
            raise NoSpace("no space")
        return await super().txn(txn, timeout_seconds=timeout_seconds)

    async def lease_grant(self, ttl_seconds: int, *, timeout_seconds: float | None = None) -> int:
        raise NoSpace("no space")

    async def range(self, read: Range, *, timeout_seconds: float | None = None) -> RangeResult:
        if self.away is not None:
            raise self.away
        (found,) = self.etcd.txn(Txn((), (read,))).responses
        assert isinstance(found, RangeResult)
        return found


async def test_what_was_done_before_the_space_ended_is_told(etcd):
    """W3 idempotent: who repeats it hears how it was settled; what is new is refused, and nothing is written."""
    made = await change(writer(etcd), applying(upsert("acme/a")), "r")
    full = Full(etcd.etcd)
    assert await change(writer(full), applying(upsert("acme/a")), "r") == made
    before = etcd.etcd.revision
    told = await refused(writer(full), applying(upsert("acme/b")), "s")
    assert (told.reason, etcd.etcd.revision) == (Reason.ETCD_NO_SPACE, before)
    full.away = EtcdUnavailable("no connection", maybe_applied=False)
    told = await refused(writer(full), applying(upsert("acme/a")), "r")
    assert (type(told), told.reason) == (Unavailable, Reason.ETCD_UNAVAILABLE)
    full.away = Defect()
    with pytest.raises(Defect):
        await change(writer(full), applying(upsert("acme/a")), "r")


async def test_a_shut_gate(etcd):
    """W9 dry-run: nothing is judged before the store is known to be ours, nor where it is not."""
    gate = WriteGate()
    by = Writer(etcd.as_client(), KEYS, TxnLimits(), gate, rng=NoChance())
    for reason in (Reason.ETCD_UNAVAILABLE, Reason.FUTURE_SCHEMA):
        for dry in (False, True):
            assert (await refused(by, applying(upsert("acme/a")), dry=dry)).reason is reason
        gate.shut(FailedPrecondition(Reason.FUTURE_SCHEMA, "later"))
    assert etcd.sent == 0
    gate.open()
    await change(by, applying(upsert("acme/a")))
    await change(by, UpdatePool(POOL, ("base",), PoolLimits(max_rank=8)))


@pytest.mark.parametrize("call", ["txn", "lease_grant"])
@pytest.mark.parametrize("dry", [False, True])
async def test_a_fault_of_ours_is_not_told_as_one_of_etcd(etcd, monkeypatch, call, dry):
    """R12 crash-only: whoever supervises the call hears of it as it is."""

    async def fails(*_: object, **__: object) -> None:
        raise Defect

    monkeypatch.setattr(etcd, call, fails)
    by = writer(etcd)
    if dry and call == "lease_grant":
        await change(by, applying(upsert("acme/a")), dry=True)
        return
    with pytest.raises(Defect):
        await change(by, applying(upsert("acme/a")), dry=dry)


async def test_a_guess_that_cannot_be_planned_for_a_fault_of_ours_is_told(etcd, monkeypatch):
    """A change that is refused by a guess is read for; a fault of ours is none."""

    def fails(*_: object) -> None:
        raise Defect

    by = writer(etcd)
    await change(by, applying(upsert("acme/a")))
    etcd.trips = 0
    monkeypatch.setattr("registry.store.txn.plan_change", fails)
    with pytest.raises(Defect):
        await change(by, applying(upsert("acme/b")))
    assert etcd.trips == 0


HALF_A_DAY = Retention(request_seconds=12 * 3600, audit_seconds=45 * 3600)


@pytest.mark.parametrize(
    ("make", "kept", "most_hours", "least_hours", "renewed_hours"),
    [
        (request_lease, USUAL_RETENTION, 25, 24, 1),
        (audit_lease, USUAL_RETENTION, 31 * 24, 30 * 24, 24),
        (request_lease, HALF_A_DAY, 12.5, 12, 0.5),
        (audit_lease, HALF_A_DAY, 46.5, 45, 1.5),
    ],
)
@virtual
async def test_a_request_is_remembered_for_a_day_and_an_audit_record_for_thirty(
    make, kept, most_hours, least_hours, renewed_hours
):
    """W3, W7: or as long as they are to, however many share a lease; the first of them lives a part longer."""
    ends, loop = dict[int, float](), asyncio.get_running_loop()

    class Granting(FlakyEtcd):
        async def lease_grant(self, ttl_seconds: int, *, timeout_seconds: float | None = None) -> int:
            lease = await super().lease_grant(ttl_seconds, timeout_seconds=timeout_seconds)
            ends[lease] = loop.time() + ttl_seconds
            return lease

    lease, left = make(Granting().as_client(), kept), list[float]()
    for _ in range(12):
        left.append((ends[await lease.current(1)] - loop.time()) / 3600)
        await asyncio.sleep(renewed_hours * 900)
    assert (min(left), max(left), len(ends)) == (least_hours + renewed_hours / 4, most_hours, 3)
