"""Callers that hang up at each moment of a change, while others change things: nothing is lost, nothing done twice."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from registry.etcd3.ops import Txn, TxnResult
from registry.model.errors import Reason
from registry.model.records import PoolLimits
from registry.transactions.changes import Change, DeletePool, Remove, RollbackAdapter, SetTenant, UpdatePool
from tests.properties.transactions.test_unclear import carry_out, writer
from tests.support.cancelling import is_cancelled_at
from tests.support.changes import KEYS, POOL, applying, creating, upsert
from tests.support.flaky_etcd import Fault, FlakyEtcd
from tests.support.history_check import check_history

CHANGES: dict[str, Change] = {
    "make": applying(upsert("acme/new")),
    "change two": applying(upsert("acme/old", "v2"), upsert("acme/more")),
    "delete": applying(Remove("acme/old")),
    "swap": applying(Remove("acme/old"), upsert("acme/new")),
    "roll back": RollbackAdapter(POOL, "acme/old"),
    "quota": SetTenant("acme", 7),
    "limit": UpdatePool(POOL, ("base",), PoolLimits(max_rank=64)),
    "refused": DeletePool(POOL),
}
FAULTS = ([], [Fault.REPLY_LOST], [Fault.LATE], [Fault.LEASE_GONE])


class _Distant(FlakyEtcd):
    """It takes a turn of the loop until a call is there, and another until its answer is back."""

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        await asyncio.sleep(0)
        try:
            return await super().txn(txn, timeout_seconds=timeout_seconds)
        finally:
            await asyncio.sleep(0)

    async def lease_grant(self, ttl_seconds: int, *, timeout_seconds: float | None = None) -> int:
        await asyncio.sleep(0)
        return await super().lease_grant(ttl_seconds, timeout_seconds=timeout_seconds)


async def _turns(turns: int) -> None:
    """Lets what was started get so far that it has begun."""
    for _ in range(turns):
        await asyncio.sleep(0)


def _times_applied(etcd: FlakyEtcd, request_id: str) -> int:
    sought = f'"request_id":"{request_id}"'.encode()
    return sum(
        event.key.startswith(KEYS.audits()) and event.kv is not None and sought in event.kv.value
        for _, events in etcd.etcd.history
        for event in events
    )


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults[0].value if faults else "none")
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("turns", [0, 2], ids=["behind another", "before another"])
async def test_a_caller_that_leaves_at_any_wait_finds_its_change_made_once_or_not_at_all(turns, name, faults):
    """W3, W5, W8: the same request again settles it, and another change of the tenant beside it is not held up."""
    for wait in itertools.count(1):
        etcd = _Distant()
        by = writer(etcd)
        await carry_out(by, creating(), "start")
        await carry_out(by, applying(upsert("acme/old", "v0")), "one")
        await carry_out(by, applying(upsert("acme/old", "v1")), "two")
        by = writer(etcd)  # which has no lease yet
        etcd.fail(faults, all_strike=False)
        async with asyncio.timeout(60):
            left = asyncio.create_task(is_cancelled_at(wait, carry_out(by, CHANGES[name], "left")))
            await _turns(turns)
            beside = asyncio.create_task(carry_out(by, applying(upsert("acme/beside")), "beside"))
            was_left, _ = await left, await beside
            again = await carry_out(by, CHANGES[name], "left")
            assert await carry_out(by, CHANGES[name], "left") == again
        etcd.arrive()
        check_history(KEYS, etcd.etcd.history)
        assert _times_applied(etcd, "beside") == 1
        assert (name == "refused") == isinstance(again, Reason)
        assert _times_applied(etcd, "left") == (0 if name == "refused" else 1)
        if not was_left:
            break
    assert wait > 3


async def test_a_first_caller_that_leaves_takes_nobodys_lease_with_it():
    """Leases are shared: whoever waits for one that another began to fetch gets it all the same."""
    for wait in itertools.count(1):
        etcd = _Distant()
        await carry_out(writer(etcd), creating(), "start")
        by = writer(etcd)
        others = [applying(upsert(f"tenant{number}/a")) for number in range(3)]
        async with asyncio.timeout(60):
            left = asyncio.create_task(is_cancelled_at(wait, carry_out(by, applying(upsert("acme/a")), "left")))
            await _turns(2)
            settled = await asyncio.gather(*(carry_out(by, change, f"r{n}") for n, change in enumerate(others)))
        assert all(isinstance(revision, int) for revision in settled), settled
        if not await left:
            break
    assert wait > 3
