"""What the writer sees to beside its transactions: the store's own record, names of changes, turns."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime

import pytest

from registry.access.principal import operator
from registry.etcd3.errors import NoSpace
from registry.etcd3.ops import Put, Range, RangeResult, Txn, TxnResult
from registry.model.audit import AuditRecord
from registry.model.errors import FailedPrecondition, Reason, Unavailable
from registry.model.keys import last_part
from registry.model.records import Meta
from registry.runtime.clock import Deadline
from registry.store.writer import WriteGate, Writer, ensure_meta
from registry.transactions.changes import Change
from registry.transactions.context import Caller, TxnLimits
from tests.simulation.loop import virtual
from tests.support.changes import KEYS, POOL, applying, creating, upsert
from tests.support.flaky_etcd import FlakyEtcd, NoChance


class Reading(FlakyEtcd):
    """Takes a record that somebody else makes between our look and our own, and may have no space."""

    others: bytes = b""
    is_full = False

    async def range(self, read: Range, *, timeout_seconds: float | None = None) -> RangeResult:
        (found,) = self.etcd.txn(Txn((), (read,))).responses
        assert isinstance(found, RangeResult)
        if self.others:
            self.etcd.put(read.key, self.others)
        return found

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        if self.is_full:
            raise NoSpace("no space")
        return await super().txn(txn, timeout_seconds=timeout_seconds)


async def test_the_store_has_one_record_of_its_own_that_is_made_once():
    """R15 brake: another epoch is another store, so it never changes, and no two stores share one."""
    etcd, other = Reading(), Reading()
    before = datetime.now(UTC).replace(microsecond=0)
    made = await ensure_meta(etcd.as_client(), KEYS)
    assert Meta.parse(etcd.etcd.kvs[KEYS.meta()].value) == made
    assert re.fullmatch(r"[0-9a-f]{32}", made.epoch)
    assert made.created_at.endswith("Z")
    assert before <= datetime.fromisoformat(made.created_at) <= datetime.now(UTC)
    assert await ensure_meta(etcd.as_client(), KEYS) == made
    assert (etcd.etcd.kvs[KEYS.meta()].version, etcd.sent) == (1, 1)
    assert (await ensure_meta(other.as_client(), KEYS)).epoch != made.epoch


async def test_a_full_etcd_still_tells_what_it_has():
    """R13 static-stable: a service that starts then is ready to read, and to say that there is no space."""
    etcd = Reading()
    made = await ensure_meta(etcd.as_client(), KEYS)
    etcd.is_full = True
    assert await ensure_meta(etcd.as_client(), KEYS) == made


@pytest.mark.parametrize("is_raced", [False, True])
async def test_a_record_of_a_later_release_forbids_writing(is_raced):
    """R14: its key is named, for whoever has to look."""
    etcd = Reading()
    value = b'{"schema":99,"epoch":"e","created_at":"x"}'
    if is_raced:
        etcd.others = value
    else:
        etcd.etcd.put(KEYS.meta(), value)
    with pytest.raises(FailedPrecondition, match="forbids writing") as told:
        await ensure_meta(etcd.as_client(), KEYS)
    assert (told.value.reason, told.value.metadata) == (Reason.FUTURE_SCHEMA, {"key": KEYS.meta().decode()})


async def test_a_fault_of_ours_in_reading_the_record_forbids_nothing(monkeypatch):
    """R12: it is told as it is; a gate that it shut would stay shut."""
    etcd = Reading()
    await ensure_meta(etcd.as_client(), KEYS)

    def breaks(_: bytes) -> Meta:
        raise KeyError("of ours")

    monkeypatch.setattr(Meta, "parse", breaks)
    with pytest.raises(KeyError, match="of ours"):
        await ensure_meta(etcd.as_client(), KEYS)


def writer(etcd: FlakyEtcd, gate: WriteGate | None = None) -> Writer:
    gate = gate or WriteGate()
    gate.open()
    now = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)
    return Writer(etcd.as_client(), KEYS, TxnLimits(), gate, rng=NoChance(), now=lambda: now)


async def test_an_audit_record_says_when_and_its_id_sorts_by_time():
    """W7 audit-complete: two services may make one in the same moment."""
    etcd = FlakyEtcd()
    by = writer(etcd)
    for number in range(2):
        caller = Caller(operator("alice"), f"r{number}", request_id_given=True)
        await by.change(creating(f"p{number}"), caller, Deadline.of(30), validate_only=False)
    audits = {key: kv.value for key, kv in etcd.etcd.kvs.items() if key.startswith(KEYS.audits())}
    assert [AuditRecord.parse(value).at for value in audits.values()] == ["2026-01-31T12:00:00.123Z"] * 2
    ids = {last_part(key) for key in audits}
    assert len(ids) == 2
    assert all(re.fullmatch(r"20260131T120000\.123456Z-[0-9a-f]{16}", one) for one in ids)


class Slow(FlakyEtcd):
    """Takes long for what is of one tenant."""

    seconds = 5.0

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        if any(isinstance(op, Put) and b"/acme" in op.key for op in txn.success):
            await asyncio.sleep(self.seconds)
        return await super().txn(txn, timeout_seconds=timeout_seconds)


@virtual
async def test_changes_of_one_tenant_come_one_after_another_and_who_waits_too_long_is_told_so():
    """W8 no-false-fail: nothing of it was sent, and other tenants do not wait."""
    slow, etcd = Slow.seconds, Slow()
    by, loop = writer(etcd), asyncio.get_running_loop()

    async def change(what: object, request_id: str, seconds: float = 30) -> float:
        caller = Caller(operator("alice"), request_id, request_id_given=True)
        await by.change(what, caller, Deadline.of(seconds), validate_only=False)  # type: ignore[arg-type]
        return loop.time()

    await change(creating(), "r0")
    first = asyncio.create_task(change(applying(upsert("acme/a")), "r1"))
    await asyncio.sleep(0)
    second = asyncio.create_task(change(applying(upsert("acme/b")), "r2"))
    assert await change(applying(upsert("other/c")), "r3") == 0.0
    with pytest.raises(Unavailable, match="same tenant") as told:
        await change(applying(upsert("acme/d")), "r4", seconds=2)
    assert (told.value.reason, loop.time()) == (Reason.DEADLINE_EXCEEDED, 2.0)
    assert KEYS.adapter(POOL, "acme/d") not in etcd.etcd.kvs
    assert await first == slow
    assert await second == 2 * slow


@virtual
async def test_who_waits_for_a_turn_changes_nothing_once_the_store_forbids_it():
    """R14: a later release came to it meanwhile."""
    etcd, gate = Slow(), WriteGate()
    by = writer(etcd, gate)

    async def change(what: Change, request_id: str) -> None:
        caller = Caller(operator("alice"), request_id, request_id_given=True)
        await by.change(what, caller, Deadline.of(30), validate_only=False)

    await change(creating(), "r0")
    first, second = (asyncio.create_task(change(applying(upsert(f"acme/{name}")), name)) for name in "ab")
    await asyncio.sleep(1)
    gate.shut(FailedPrecondition(Reason.FUTURE_SCHEMA, "of a later release"))
    await first
    with pytest.raises(FailedPrecondition, match="later release"):
        await second
    assert KEYS.adapter(POOL, "acme/b") not in etcd.etcd.kvs
