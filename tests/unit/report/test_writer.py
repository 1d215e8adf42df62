"""Whose a replica id is, after a store was set back; the rest is tested on a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable

import pytest

from registry.etcd3.ops import Delete, Put, Range, RangeResult, Txn, TxnResult
from registry.model.status import Presence, ReplicaStatus
from registry.runtime.clock import Clock
from sidecar.plan.types import LazySituation, Plan, RoundReport, StatusInputs
from sidecar.report import writer as module
from sidecar.report.status import ReplicaIdentity, derive_status
from sidecar.report.writer import ShareGuard, StatusWriter
from sidecar.settings import SidecarSettings
from tests.support.memory_etcd import MemoryEtcd
from tests.support.records import KEYS, POOL
from tests.support.waiting import eventually
from tests.support.worlds import observed

PRESENCE, STATUS = KEYS.replica(POOL, "r"), KEYS.status(POOL, "r")


class Client:
    """Speaks with the store that stands at the moment; `after` is called once, with the transaction just answered."""

    def __init__(self) -> None:
        self.store = MemoryEtcd()
        self.answered = 0
        self.after: Callable[[Txn], object] | None = None

    async def range(self, read: Range) -> RangeResult:
        (found,) = self.store.txn(Txn((), (read,))).responses
        assert isinstance(found, RangeResult)
        return found

    async def txn(self, txn: Txn) -> TxnResult:
        self.answered += 1
        result = self.store.txn(txn)
        if self.after is not None and self.after(txn):
            self.after = None
        return result


def presence_of(host: str) -> Presence:
    return Presence(pool=POOL, replica="r", incarnation=host, owner=host, labels={}, capacity=None, started_at="")


def writer(client: Client, host: str) -> StatusWriter:
    return StatusWriter(client, KEYS, presence_of(host), Clock(), lambda: None)  # type: ignore[arg-type]


def presence(client: Client) -> Presence:
    return Presence.parse(client.store.kvs[PRESENCE].value)


def holder(client: Client) -> str:
    return presence(client).owner


def status() -> ReplicaStatus:
    situation = StatusInputs(
        revision=1,
        observed=None,
        plan=None,
        ready=False,
        stale=False,
        lazy=LazySituation(),
        note="",
        held="",
        last_request_id="",
    )
    return derive_status(ReplicaIdentity("r", POOL, "vllm", "http://engine"), situation, Clock().moment())


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
    assert (holder(client), "held by another" in ours.refusal) == ("b", True)


async def test_what_a_store_that_was_set_back_says_of_the_replica_is_said_anew(monkeypatch):
    """R9, R20: an old presence under the same lease would have a draining replica asked for; simulated seed 700854."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.3)
    client = Client()
    one = writer(client, "a")
    one.offer(status)
    async with publishing(one, 1):
        await eventually(lambda: STATUS in client.store.kvs)
        before = dict(client.store.kvs)
        one.leave(leaving=True)
        await eventually(lambda: presence(client).leaving)
        client.store.kvs = before
        await eventually(lambda: presence(client).leaving)


class StandingClock:
    """Stands still until it is set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Held:
    """Notes what room it is told of."""

    refusal = ""

    def __init__(self) -> None:
        self.said: list[int | None] = []

    def hold(self, capacity: int | None) -> None:
        self.said.append(capacity)


def report(*, is_away: bool, has_plan: bool = True) -> RoundReport:
    plan = Plan(1, (), (), (), (), (), None) if has_plan and not is_away else None
    seen = None if is_away else observed()
    situation = StatusInputs(
        1, seen, plan, ready=False, stale=False, lazy=LazySituation(), note="", held="", last_request_id=""
    )
    return RoundReport(situation, 0, 7)


def test_an_engine_that_is_away_for_long_has_no_room_until_it_is_back():
    """R3: others take its part over, and it gets it back at its first plan."""
    held, clock = Held(), StandingClock()
    guard = ShareGuard(held, clock, 60.0)  # type: ignore[arg-type]
    for clock.now in (0.0, 59.9):
        guard.take(report(is_away=True))
    guard.take(report(is_away=False, has_plan=False))
    assert held.said == []
    for clock.now in (60.0, 75.0):
        guard.take(report(is_away=True))
    assert held.said == [0]
    guard.take(report(is_away=False))
    assert held.said == [0, 7]
    clock.now = 130.0
    guard.take(report(is_away=True))
    assert held.said == [0, 7], "it was there in between"


def test_a_minute_is_long_unless_somebody_says_otherwise():
    """docs/placement.md and docs/critiques.md say so."""
    assert SidecarSettings.model_fields["give_up_share"].default == 60.0


@pytest.mark.parametrize(("seconds", "refusal"), [(math.inf, ""), (60.0, "another has the id")])
def test_who_keeps_its_part_whatever_its_engine_does(seconds, refusal):
    """R10: nor does one speak for a replica that is another's."""
    held, clock = Held(), StandingClock()
    held.refusal = refusal
    guard = ShareGuard(held, clock, seconds)  # type: ignore[arg-type]
    for clock.now in (0.0, 1e9):
        guard.take(report(is_away=True))
    assert held.said == []


async def test_a_twin_that_comes_between_the_look_and_the_claim_is_not_overwritten():
    """R10 one-owner: what was found there was our own, of a process that ended; the twin made the key since."""
    client = Client()
    client.store.txn(Txn((), (Put(PRESENCE, presence_of("ours").to_bytes(), 1),)))

    def come(_: Txn) -> bool:
        client.store.txn(Txn((), (Delete(PRESENCE),)))
        client.store.txn(Txn((), (Put(PRESENCE, presence_of("twin").to_bytes(), 2),)))
        return True

    client.after, ours = come, writer(client, "ours")
    async with publishing(ours, 3):
        await eventually(lambda: bool(ours.refusal))
    assert client.after is None
    assert (holder(client), client.store.kvs[PRESENCE].lease) == ("twin", 2)
    assert "held by another" in ours.refusal


async def test_room_that_changes_while_a_status_is_written_reaches_the_presence():
    """R3 converge: others place adapters by it."""
    client = Client()
    ours = writer(client, "ours")

    def change(txn: Txn) -> bool:
        """The status with the first number is in etcd, and the writer has not heard of it."""
        is_it = any(isinstance(op, Put) and op.key == STATUS for op in txn.success)
        if is_it:
            ours.hold(8)
        return is_it

    client.after = change
    ours.hold(16)
    ours.offer(status)
    async with publishing(ours, 1):
        await eventually(lambda: client.after is None)
        await eventually(lambda: presence(client).capacity == 8)
