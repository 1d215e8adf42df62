"""The store's writer over a client whose calls fail in every way: what it says is true, then and for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from registry.access.principal import operator
from registry.model.errors import Reason, RegistryError
from registry.model.records import PoolLimits
from registry.runtime.clock import Deadline
from registry.store.writer import WriteGate, Writer
from registry.transactions.changes import Change, CreatePool, DeletePool, Remove, SetTenant, UpdatePool
from registry.transactions.context import Caller, TxnLimits
from tests.support.changes import KEYS, POOL, Author, applying, creating, upsert
from tests.support.examples import examples
from tests.support.flaky_etcd import Fault, FlakyEtcd, NoChance
from tests.support.history_check import check_history

CHANGES: list[Change] = [
    applying(upsert("acme/a")),
    applying(upsert("acme/a", "v2"), upsert("acme/b")),
    applying(Remove("acme/a")),
    applying(Remove("acme/b"), upsert("acme/c")),
    SetTenant("acme", 1),
    SetTenant("acme", None),
    DeletePool(POOL),
    CreatePool(POOL, ("base",), PoolLimits()),
    UpdatePool(POOL, ("base", "acme/c"), PoolLimits()),
]
some = st.sampled_from(CHANGES)
calls = st.tuples(some, st.lists(st.sampled_from(Fault), max_size=4), st.none() | some, st.booleans())


def writer(etcd: FlakyEtcd) -> Writer:
    gate = WriteGate()
    gate.open()
    return Writer(etcd.as_client(), KEYS, TxnLimits(), gate, rng=NoChance())


async def play(sequence) -> None:
    etcd = FlakyEtcd()
    writers = [writer(etcd), writer(etcd)]
    await carry_out(writers[0], creating(), "start")
    outcomes: dict[str, int | Reason] = {}
    for number, (change, faults, other, arrives) in enumerate(sequence):
        etcd.fail(faults, meanwhile=other and partial(by_somebody_else, etcd, other), all_strike=False)
        request_id = f"r{number}"
        outcomes[request_id] = await carry_out(writers[number % 2], change, request_id)
        if arrives:
            etcd.arrive()
    etcd.arrive()
    check_history(KEYS, etcd.etcd.history)
    assert_true(etcd, outcomes)


def by_somebody_else(etcd: FlakyEtcd, change: Change) -> None:
    author = Author(etcd.etcd, made=etcd.etcd.revision * 100)
    with suppress(RegistryError):
        author.change(change)


async def carry_out(by: Writer, change: Change, request_id: str) -> int | Reason:
    """The revision, or the reason of a refusal."""
    caller = Caller(operator("alice"), request_id, request_id_given=False)
    try:
        return (await by.change(change, caller, Deadline.of(30), validate_only=False)).revision
    except RegistryError as error:
        return error.reason


def assert_true(etcd: FlakyEtcd, outcomes: dict[str, int | Reason]) -> None:
    """Each reply is in history at its revision; what was refused is nowhere, whatever arrived late."""
    audited = {
        value.split(b'"request_id":"')[1].split(b'"')[0].decode(): revision
        for revision, events in etcd.etcd.history
        for event in events
        if event.key.startswith(KEYS.audits()) and event.kv and (value := event.kv.value)
    }
    for request_id, outcome in outcomes.items():
        if isinstance(outcome, Reason):
            assert request_id not in audited, f"W8: {request_id} was refused with {outcome}, and applied"
        else:
            assert audited.get(request_id, outcome) == outcome, f"W1: {request_id} was acknowledged at {outcome}"


@examples(300)
@given(st.lists(calls, min_size=1, max_size=10))
def test_what_is_said_stays_true(sequence):
    """W1, W3, W8: calls are lost before or after they arrive, or arrive much later; no reply is ever belied."""
    asyncio.run(play(sequence))
