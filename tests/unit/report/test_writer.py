"""Whose a replica id is, after a store was set back; the rest is tested on a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from registry.etcd3.errors import EtcdUnavailable, LeaseExpired
from registry.etcd3.ops import Delete, Put, Range, RangeResult, Txn, TxnResult
from registry.model.status import MAX_CAPACITY, Failed, LeftReplica, Presence, ReplicaStatus, ReportedLimits
from registry.runtime.clock import Clock
from sidecar.ownership import ReplicaTaken
from sidecar.plan.types import Plan, RoundReport
from sidecar.report import writer as module
from sidecar.report.status import ReplicaIdentity, derive_status
from sidecar.report.writer import ShareGuard, StatusWriter
from sidecar.settings import SidecarSettings
from tests.simulation.loop import virtual
from tests.support.memory_etcd import MemoryEtcd
from tests.support.records import KEYS, POOL
from tests.support.waiting import eventually
from tests.support.worlds import observed
from tests.unit.report.test_status import situation

PRESENCE, STATUS, LEFT = KEYS.replica(POOL, "r"), KEYS.status(POOL, "r"), KEYS.left(POOL, "r")


class Client:
    """Speaks with the store that stands at the moment; `after` is called once, with the transaction just answered."""

    def __init__(self) -> None:
        self.store = MemoryEtcd()
        self.answered = self.looks = 0
        self.after: Callable[[Txn], object] | None = None
        self.is_away = False
        self.leases: dict[int, int] = {}
        self.expired: set[int] = set()

    async def lease_grant(self, ttl_seconds: int, *, timeout_seconds: float = 5.0) -> int:
        if self.is_away:
            raise EtcdUnavailable("away", maybe_applied=False)
        lease = 77 + len(self.leases)
        self.leases[lease] = ttl_seconds
        return lease

    async def lease_keepalive(self, lease: int) -> int:
        return self.leases[lease]

    async def lease_revoke(self, lease: int, *, timeout_seconds: float) -> None:
        self.expire(lease)

    def expire(self, lease: int) -> None:
        """Ends a lease, with the keys under it; who renews it has not heard of that."""
        self.expired.add(lease)
        for key in [key for key, kv in self.store.kvs.items() if kv.lease == lease]:
            self.store.txn(Txn((), (Delete(key),)))

    async def range(self, read: Range) -> RangeResult:
        assert read.keys_only, "what stands there is not asked for"
        self.looks += 1
        (found,) = self.store.txn(Txn((), (read,))).responses
        assert isinstance(found, RangeResult)
        return found

    async def txn(self, txn: Txn, *, timeout_seconds: float = 5.0) -> TxnResult:
        self.answered += 1
        if self.is_away:
            raise EtcdUnavailable("away", maybe_applied=False)
        before = dict(self.store.kvs)
        result = self.store.txn(txn)
        if result.succeeded and any(isinstance(op, Put) and op.lease in self.expired for op in txn.success):
            self.store.kvs = before
            raise LeaseExpired("it is gone")
        if self.after is not None and self.after(txn):
            self.after = None
        return result


def presence_of(host: str) -> Presence:
    return Presence(pool=POOL, replica="r", incarnation=host, owner=host, labels={}, capacity=None, started_at="")


ARGUMENTS: Any = (Clock(random.Random(0)), lambda: None)


def writer(client: Client, host: str, **fields: str) -> StatusWriter:
    """One that has something to say, as every sidecar has from its start."""
    made = StatusWriter(client, KEYS, presence_of(host).model_copy(update=fields), *ARGUMENTS)  # type: ignore[arg-type]
    made.announcement.offer(status)
    return made


def presence(client: Client) -> Presence:
    return Presence.parse(client.store.kvs[PRESENCE].value)


def read(client: Client) -> ReplicaStatus:
    return ReplicaStatus.parse(client.store.kvs[STATUS].value)


def holder(client: Client) -> str:
    return presence(client).owner


def status(revision: int = 1) -> ReplicaStatus:
    said = situation(revision=revision, observed=None, ready=False, last_request_id="")
    return derive_status(ReplicaIdentity("r", POOL, "vllm", "http://engine"), said, Clock(random.Random(0)).moment())


def begins() -> ReplicaStatus:
    """The status of a process that knows nothing yet."""
    return status(0).model_copy(update={"stale": True})


def restarted(**before: object) -> Client:
    """Presence and status of the process before stand, and its lease lasts."""
    client, stood = Client(), presence_of("a").model_copy(update={"incarnation": "before", **before})
    client.store.txn(Txn((), (Put(PRESENCE, stood.to_bytes(), 1), Put(STATUS, status(7).to_bytes(), 1))))
    return client


@contextlib.asynccontextmanager
async def publishing(one: StatusWriter, lease: int) -> AsyncIterator[None]:
    """Lets it have that lease within the body."""
    task = asyncio.create_task(one._publish(lease))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def alive(
    client: Client | None = None, lease: int = 1, says: Callable[[], ReplicaStatus] | None = None
) -> AsyncIterator[tuple[Client, StatusWriter]]:
    """A replica that has this lease within the body."""
    client = client or Client()
    one = writer(client, "a")
    one.announcement.offer(says or status)
    async with publishing(one, lease):
        yield client, one


async def claims(client: Client, one: StatusWriter, lease: int) -> None:
    """Lets it have that lease until it has asked for the id."""
    before = client.answered
    async with publishing(one, lease):
        await eventually(lambda: client.answered > before)


async def test_a_key_that_another_made_at_the_same_revision_of_a_store_that_was_set_back_is_not_ours():
    """R10 one-owner: simulated seed 81024."""
    client = Client()
    ours, twin = writer(client, "a"), writer(client, "b")
    await claims(client, ours, 1)
    revision = client.store.kvs[KEYS.replica(POOL, "r")].create_revision
    client.store = MemoryEtcd()
    await claims(client, twin, 2)
    assert client.store.kvs[KEYS.replica(POOL, "r")].create_revision == revision
    await claims(client, ours, 3)
    assert (holder(client), "held by another" in ours.claim.refusal) == ("b", True)


@virtual
async def test_what_a_store_that_was_set_back_says_of_the_replica_is_said_anew():
    """R9, R20: an old presence under the same lease would have a draining replica asked for; simulated seed 700854."""
    async with alive() as (client, one):
        await eventually(lambda: STATUS in client.store.kvs)
        before = dict(client.store.kvs)
        one.announcement.leave(leaving=True)
        await eventually(lambda: presence(client).leaving)
        client.store.kvs = dict(before)
        with capture_logs() as logs:
            await eventually(lambda: presence(client).leaving)
            assert "presence_overwritten" not in {log["event"] for log in logs}, "nobody else wrote it"
        client.store.kvs = dict(before)
        one.announcement.offer(lambda: status(2))
        await asyncio.sleep(2.0)
        assert (presence(client).leaving, read(client).observed_revision) == (True, 2), "with the next status"


def report(*, is_away: bool, has_plan: bool = True) -> RoundReport:
    plan = Plan(1, (), (), (), (), (), None) if has_plan and not is_away else None
    return RoundReport(situation(plan, observed=None if is_away else observed()), 0, 7)


def guard(seconds: float, refusal: str = "") -> tuple[ShareGuard, mock.Mock, list[int | None]]:
    """One, the clock that it looks at, and what room it tells of."""
    said, clock = list[int | None](), mock.Mock()
    held = mock.Mock(refusal=refusal, hold=said.append)
    return ShareGuard(held, held, clock, seconds), clock, said


def test_an_engine_that_is_away_for_long_has_no_room_until_it_is_back():
    """R3: others take its part over, and it gets it back at its first plan. A minute, as docs/placement.md says."""
    one, clock, said = guard(SidecarSettings.model_fields["give_up_share"].default)
    for at, is_away, has_plan, expected in [
        (0.0, True, False, []),
        (59.9, True, False, []),
        (59.9, False, False, []),
        (60.0, True, False, [0]),
        (75.0, True, False, [0]),
        (75.0, False, True, [0, 7]),
        (130.0, True, False, [0, 7]),  # it was there in between
        (190.0, True, False, [0, 7, 0]),
    ]:
        clock.monotonic.return_value = at
        one.take(report(is_away=is_away, has_plan=has_plan))
        assert said == expected


def test_an_engine_that_is_not_fit_for_the_pool_has_no_room_after_as_long():
    """R3, R23: it has another base model, or is of another kind, so that nothing is loaded."""
    one, clock, said = guard(60.0)
    for clock.monotonic.return_value in (0.0, 60.0):
        one.take(RoundReport(situation(Plan(1, (), (), (), (), (), None, blocked="another base")), 0, 7))
    assert said == [0]


@pytest.mark.parametrize(
    ("seconds", "refusal", "is_away"),
    [(math.inf, "", True), (60.0, "another has the id", True), (60.0, "", False)],
    ids=["it is not to give it up", "it is another's", "it loads, which takes as long as it takes"],
)
def test_who_keeps_its_part_whatever_its_engine_does(seconds, refusal, is_away):
    """R10, R3: nor does one speak for a replica that is another's."""
    one, clock, said = guard(seconds, refusal)
    for clock.monotonic.return_value in (0.0, 100.0, 1e9):
        one.take(report(is_away=is_away, has_plan=False))
    assert said == []


@pytest.mark.parametrize("has_twin", [True, False], ids=["a twin comes", "its lease ends"])
@virtual
async def test_between_the_look_and_the_claim_of_a_presence_of_our_own_anything_may_happen(has_twin):
    """R10 one-owner: it was of a process that ended; a twin that made the key since is not overwritten."""
    client = Client()
    client.store.txn(Txn((), (Put(PRESENCE, presence_of("ours").to_bytes(), 1),)))

    def come(_: Txn) -> bool:
        client.store.txn(Txn((), (Delete(PRESENCE),)))
        if has_twin:
            client.store.txn(Txn((), (Put(PRESENCE, presence_of("twin").to_bytes(), 2),)))
        return True

    client.after, ours = come, writer(client, "ours")
    async with publishing(ours, 3):
        await asyncio.sleep(module.TAKE_OVER_SECONDS + 3.0)
        assert client.after is None
        found = holder(client), client.store.kvs[PRESENCE].lease
        assert found == (("twin", 2) if has_twin else ("ours", 3))
    assert ("held by another" in ours.claim.refusal) is has_twin


async def test_room_that_changes_while_a_status_is_written_reaches_the_presence():
    """R3 converge: others place adapters by it."""
    client = Client()
    ours = writer(client, "ours")

    def change(txn: Txn) -> bool:
        """The status with the first number is in etcd, and the writer has not heard of it."""
        is_it = any(isinstance(op, Put) and op.key == STATUS for op in txn.success)
        if is_it:
            ours.announcement.hold(8)
        return is_it

    client.after = change
    ours.announcement.hold(16)
    ours.announcement.offer(status)
    async with publishing(ours, 1):
        await eventually(lambda: client.after is None)
        await eventually(lambda: presence(client).capacity == 8)


@virtual
async def test_what_comes_at_once_is_one_write_and_what_stays_so_is_none():
    """R9 status-truth, R16 bounded: soon; for as long as the lease stands, whoever reads it knows that it is so."""
    async with alive() as (client, one):
        await asyncio.sleep(1.0)
        for revision in range(2, 21):
            one.announcement.offer(lambda revision=revision: status(revision))
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.7)
        written = client.store.kvs[STATUS]
        assert (ReplicaStatus.parse(written.value).observed_revision, written.version) == (20, 2)
        await asyncio.sleep(10.0)
        one.announcement.offer(lambda: status(20))
        await asyncio.sleep(600.0)
        assert client.store.kvs[STATUS].version == 2, "it says the same"
        now = [status(21)]
        one.announcement.offer(lambda: now[0])
        await asyncio.sleep(0.7)
        assert client.store.kvs[STATUS].version == 3
        now[0] = now[0].model_copy(update={"stale": True})
        await asyncio.sleep(2 * module.LOOK_SECONDS)
        assert (read(client).stale, client.store.kvs[STATUS].version) == (True, 4), "though nobody offers it"


@pytest.mark.parametrize("good", [0, 1])
@virtual
async def test_a_fault_of_our_own_is_told_by_the_supervisor_and_not_taken_for_one_of_etcd(good, monkeypatch):
    """R12 crash-only: be it in the first status or in a later one, or at the end."""
    left = [True] * good

    def derive() -> ReplicaStatus:
        if not left:
            raise ValueError("ours")
        left.pop()
        return status()

    one = writer(Client(), "a")
    task = asyncio.create_task(one._publish(1))
    for _ in range(good + 1):
        one.announcement.offer(derive)
        await asyncio.sleep(2.0)
    assert isinstance(task.exception(), ValueError)
    async with alive() as (client, one):
        await asyncio.sleep(2.0)
        monkeypatch.setattr(client, "lease_grant", mock.AsyncMock(side_effect=ValueError("ours")))
        with pytest.raises(ValueError, match="ours"):
            await one.say_left()


@virtual
async def test_an_etcd_that_is_away_is_tried_again_about_once_a_second():
    """R12, R16 bounded: under the same lease, be it for the presence or for a status."""
    client = Client()
    client.is_away = True
    one = writer(client, "a")
    async with publishing(one, 1):
        await asyncio.sleep(10.0)
        assert 3 <= client.answered <= 30
        client.is_away = False
        await asyncio.sleep(3.0)
        assert {client.store.kvs[key].lease for key in (PRESENCE, STATUS)} == {1}
        client.is_away = True
        one.announcement.offer(lambda: status(2))
        await asyncio.sleep(10.0)
        client.is_away = False
        await asyncio.sleep(3.0)
        assert ReplicaStatus.parse(client.store.kvs[STATUS].value).observed_revision == 2


@virtual
async def test_an_etcd_that_grants_no_lease_is_told_of_and_asked_again():
    """R9, R12: one that is full refuses leases too; else nobody learns why a replica is in no list."""
    client = Client()
    client.is_away = True
    one = writer(client, "a")
    with capture_logs() as logs:
        running = asyncio.create_task(one.run())
        await asyncio.sleep(10.0)
        told = [(line["event"], line["error"]) for line in logs]
        assert told[:2] == [("status_not_written", "away")] * 2
        client.is_away = False
        await asyncio.sleep(5.0)
        assert holder(client) == "a"
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize(("theirs", "ours", "taken"), [("s", "s", True), ("", "", False), ("s", "t", False)])
async def test_who_has_the_seat_of_the_one_before_needs_not_wait_for_its_lease(theirs, ours, taken):
    """R10, R13: it came back without its store, and the kernel says that the other is dead; else it may live."""
    client = Client()
    await claims(client, writer(client, "a", seat=theirs), 1)
    one = writer(client, "b", seat=ours)
    await claims(client, one, 2)
    assert (holder(client), one.claim.refusal == "") == (("b", True) if taken else ("a", False))


async def test_an_id_that_is_held_is_no_error_before_its_holder_must_be_dead(monkeypatch):
    """R10: most often it is the process before, on another node or with another disk."""
    client = Client()
    await claims(client, writer(client, "a"), 1)
    one, now = writer(client, "b"), [0.0]
    monkeypatch.setattr(Clock, "monotonic", lambda _: now[0])
    with capture_logs() as logs:
        await claims(client, one, 2)
        assert "until 20" in one.claim.refusal
        now[0] = 12.0
        for _ in range(2):
            await claims(client, one, 2)
    assert [line["log_level"] for line in logs if line["event"] == "replica_id_taken"] == ["info", "error"]
    assert "which lives; give each its own" in one.claim.refusal
    assert one.claim._losses == 1


@virtual
async def test_who_loses_the_replica_id_twice_ends():
    """R10 one-owner: once may be a twin that ends just now; each change is told to the loop."""
    client, changes = Client(), []
    one = StatusWriter(
        client, KEYS, presence_of("a"), Clock(random.Random(0)), lambda: changes.append(one.claim.refusal)
    )  # type: ignore[arg-type]
    one.announcement.offer(status)

    def twin() -> None:
        client.store.txn(Txn((), (Delete(PRESENCE),)))
        client.store.txn(Txn((), (Put(PRESENCE, presence_of("twin").to_bytes(), 2),)))

    twin()
    task = asyncio.create_task(one._publish(1))
    await asyncio.sleep(20.0)
    assert (task.done(), holder(client), STATUS in client.store.kvs) == (False, "twin", False)
    client.store.txn(Txn((), (Delete(PRESENCE),)))
    await asyncio.sleep(2.0)
    assert (holder(client), STATUS in client.store.kvs) == ("a", True)
    assert [bool(refusal) for refusal in changes] == [True, True, False]
    one.announcement.leave(leaving=True)
    await asyncio.sleep(2.0)
    assert one.is_leave_known
    twin()
    await asyncio.sleep(10.0)
    assert not one.is_leave_known, "what stands there is not of this replica"
    assert isinstance(task.exception(), ReplicaTaken)
    assert holder(client) == "twin"


@virtual
async def test_a_presence_that_was_written_over_is_written_again_and_that_is_told():
    """R10: nobody has the id by it, and the log says who wrote there. With a new lease of our own nothing is amiss."""
    client = Client()
    one = writer(client, "a")
    with capture_logs() as logs:
        for lease in (1, 2):
            async with publishing(one, lease):
                await asyncio.sleep(10.0)
        assert "presence_overwritten" not in {log["event"] for log in logs}
        async with publishing(one, 3):
            await asyncio.sleep(1.0)
            for who, lease in (("script", 0), ("script with a lease", 9), ("unreadable", 0)):
                value = b"of no sidecar" if who == "unreadable" else presence_of(who).to_bytes()
                client.store.txn(Txn((), (Put(PRESENCE, value, lease),)))
                await asyncio.sleep(10.0)
                assert (holder(client), client.store.kvs[PRESENCE].lease, one.claim.refusal) == ("a", 3, "")
        for lease, value, of in ((4, presence_of("maker").to_bytes(), 0), (5, b"of no sidecar", 9)):
            client.store.txn(Txn((), (Delete(PRESENCE),)))
            client.store.txn(Txn((), (Put(PRESENCE, value, of),)))
            async with publishing(one, lease):
                await asyncio.sleep(3.0)
                assert (holder(client), client.store.kvs[PRESENCE].lease, one.claim.refusal) == ("a", lease, "")
    overwritten = [log["holder"] for log in logs if log["event"] == "presence_overwritten"]
    told = ["script", "script with a lease", "unreadable", "maker"]
    assert overwritten == told, "also who made the key: a sidecar does so under a lease"


@virtual
async def test_who_ends_in_order_says_so_and_takes_no_presence_but_its_own():
    """R20 drain, R10: nobody waits for it; a twin that has the id by now goes on."""
    client = Client()
    one = writer(client, "a")
    await one.say_left()
    assert client.answered == 0, "it never had the id"
    async with publishing(one, 1):
        await eventually(lambda: one._standing.presence is not None)
        client.is_away = True
        await one.say_left()
        assert holder(client) == "a", "it counts as lost"
        client.is_away, ours = False, dict(client.store.kvs)
        client.store.txn(Txn((), (Put(PRESENCE, presence_of("twin").to_bytes(), 2),)))
        await one.say_left()
        assert (holder(client), LEFT in client.store.kvs) == ("twin", False)
        client.store.kvs = ours
        await one.say_left()
    told = LeftReplica.parse(client.store.kvs[LEFT].value)
    assert PRESENCE not in client.store.kvs
    assert client.leases[client.store.kvs[LEFT].lease] == 3600, "an hour, as docs/etcd-layout.md says"
    assert (told.pool, told.replica, told.incarnation) == (POOL, "r", "a")
    async with alive(restarted(), 2, begins) as (client, one):
        await asyncio.sleep(module.TAKE_OVER_SECONDS / 2)
        await one.say_left()
    assert PRESENCE not in client.store.kvs, "before it could say anything, what stands is of the process before"
    assert LeftReplica.parse(client.store.kvs[LEFT].value).incarnation == "a"


@virtual
async def test_presence_is_never_written_without_a_status_and_says_no_more_than_that():
    """R9 status-truth, R24: nobody places anything by a presence alone; and who reads both finds one capacity."""
    client, written = Client(), list[tuple[Presence, bool]]()

    def note(txn: Txn) -> bool:
        values = {op.key: op.value for op in txn.success if isinstance(op, Put)}
        if PRESENCE in values:
            written.append((Presence.parse(values[PRESENCE]), STATUS in values))
        return False

    client.after = note
    one = StatusWriter(client, KEYS, presence_of("a"), *ARGUMENTS)  # type: ignore[arg-type]
    async with publishing(one, 1):
        await asyncio.sleep(1.0)
        one.announcement.hold(5)
        await asyncio.sleep(1.0)
        assert written == []
        one.announcement.offer(status)
        await asyncio.sleep(1.0)
        one.announcement.hold(5_000_000)
        await asyncio.sleep(1.0)
        small = status().engine.model_copy(update={"limits": ReportedLimits(max_cpu_loras=3)})
        one.announcement.offer(lambda: status().model_copy(update={"engine": small}))
        await asyncio.sleep(1.0)
    assert [(one.capacity, one.by_reports, both) for one, both in written] == [
        (5, True, True),
        (MAX_CAPACITY, True, True),
        (3, True, True),
    ]


@virtual
async def test_presence_and_status_go_with_a_lease_and_come_with_the_next():
    """R9, R10: nothing of a sidecar that is dead stands for long, and one that only stood still is soon there again."""
    client = Client()
    one = writer(client, "a")
    task = asyncio.create_task(one.run())
    await asyncio.sleep(2.0)
    assert {client.store.kvs[key].lease for key in (PRESENCE, STATUS)} == {77}
    client.expire(77)
    assert client.store.kvs == {}
    await asyncio.sleep(10.0)
    assert {client.store.kvs[key].lease for key in (PRESENCE, STATUS)} == {78}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert client.store.kvs == {}
    assert set(client.leases.values()) == {10}, "a pause of seconds costs nothing"


@pytest.mark.parametrize("looked", [False, True])
async def test_until_its_engine_was_looked_at_a_sidecar_says_what_the_process_before_it_said_of_its_room(looked):
    """R3, R12: others share adapters out by it, and nothing is to move at a restart."""
    client = restarted(capacity=40)
    one = writer(client, "a")
    if looked:
        one.announcement.hold(None)
    with capture_logs() as logs:
        async with publishing(one, 2):
            await eventually(lambda: leases(client) == [2, 2])
    assert "presence_overwritten" not in {log["event"] for log in logs}, "it was of this host's replica, and ended"
    assert (presence(client).incarnation, presence(client).capacity) == ("a", None if looked else 40)


@virtual
async def test_what_is_said_again_costs_nothing():
    """R16 bounded, R3: rounds say it each time; nothing is written for what stands already, and all that does not."""
    derived: list[int] = []

    def newest() -> ReplicaStatus:
        derived.append(1)
        return status()

    client = Client()
    one = writer(client, "a")
    one.announcement.hold(5)
    one.announcement.offer(newest)
    async with publishing(one, 1):
        await asyncio.sleep(2.0)
        assert (len(derived), client.answered, presence(client).capacity) == (1, 1, 5)
        for _ in range(5):
            one.announcement.hold(5)
            one.announcement.leave(leaving=False)
            await asyncio.sleep(0.5)
        assert (len(derived), client.answered, one.is_leave_known) == (1, 1, False)
        one.announcement.offer(newest)
        await asyncio.sleep(10.0)
        assert 1 <= client.looks <= 4, "that the presence still stands"
        assert len(derived) <= 2 + client.looks, "once for each time that it was offered, or looked at"
        assert client.store.kvs[STATUS].version == 1
        for take in (Delete(STATUS), Put(STATUS, client.store.kvs[STATUS].value, 9)):
            client.store.txn(Txn((), (take,)))  # without it the replica counts for nobody who starts
            await asyncio.sleep(module.LOOK_SECONDS + 2.0)
            assert client.store.kvs[STATUS].lease == client.store.kvs[PRESENCE].lease == 1


@virtual
async def test_no_status_is_written_beside_a_presence_of_another_at_the_revision_of_ours():
    """R10 one-owner: in a store that was set back a twin's presence may stand where ours stood."""
    async with alive() as (client, one):
        await asyncio.sleep(1.0)
        written = client.store.kvs[STATUS]
        client.store.kvs[PRESENCE] = replace(
            client.store.kvs[PRESENCE], value=presence_of("twin").to_bytes(), create_revision=1, lease=2
        )
        one.announcement.offer(lambda: status(2))
        await asyncio.sleep(3.0)
        assert (client.store.kvs[STATUS], holder(client)) == (written, "twin")
        assert "held by another" in one.claim.refusal


@virtual
async def test_the_tries_of_what_was_refused_before_are_told_now_and_then():
    """R16: hours of them are not written one by one, and not left out either."""
    client, tries = Client(), [3]
    one = writer(client, "a")

    def newest() -> ReplicaStatus:
        told = {"name": "a", "generation": 1, "reason": "r", "message": "", "retry_at": "t", "settled": True}
        said = Failed.model_validate({**told, "attempts": tries[0]})
        return status().model_copy(update={"failed": [said]})

    one.announcement.offer(newest)
    async with publishing(one, 1):
        await eventually(lambda: STATUS in client.store.kvs)
        written = client.store.revision
        for number in range(4, 40):
            tries[0] = number
            await asyncio.sleep(module.TRIES_SECONDS / 10)
            one.announcement.offer(newest)
        assert 2 <= client.store.revision - written <= 4
        assert read(client).failed[0].attempts > 30


def leases(client: Client) -> list[int]:
    return [client.store.kvs[key].lease if key in client.store.kvs else 0 for key in (PRESENCE, STATUS)]


@virtual
async def test_what_the_process_before_said_stands_until_it_is_known_what_is_served():
    """R24: else routers lose an engine that serves on; and no reader finds presence without a status that counts."""
    async with alive(restarted(), 2, begins) as (client, one):
        await asyncio.sleep(module.TAKE_OVER_SECONDS / 2)
        assert (leases(client), one.claim.refusal) == ([1, 1], "")
        one.announcement.offer(lambda: status(8))
        await asyncio.sleep(0.1)
        assert (leases(client), read(client).observed_revision) == ([2, 2], 8)
        assert len({client.store.kvs[key].mod_revision for key in (PRESENCE, STATUS)}) == 1


@pytest.mark.parametrize(
    ("before", "waits"), [({}, True), ({"labels": {"zone": "b"}}, False), ({"leaving": True}, False)]
)
@virtual
async def test_a_presence_is_not_waited_for_for_long_nor_where_it_says_something_else(before, waits):
    """R3: others place adapters by it."""
    async with alive(restarted(**before), 2, begins) as (client, _):
        await asyncio.sleep(module.TAKE_OVER_SECONDS / 2)
        assert leases(client) == ([1, 1] if waits else [2, 2])
        await asyncio.sleep(module.TAKE_OVER_SECONDS)
        assert leases(client) == [2, 2]


@virtual
async def test_who_waits_to_say_what_is_served_has_no_id_that_another_took():
    """R10: the lease of the process before ended meanwhile."""
    async with alive(restarted(), 2, begins) as (client, one):
        await asyncio.sleep(module.TAKE_OVER_SECONDS / 2)
        client.expire(1)
        client.store.txn(Txn((), (Put(PRESENCE, presence_of("twin").to_bytes(), 3),)))
        one.announcement.offer(lambda: status(8))
        await asyncio.sleep(3.0)
        assert (holder(client), leases(client), "held by another" in one.claim.refusal) == ("twin", [3, 0], True)
