"""All races of a small world: every change against every two others, at every moment at which they can meet."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest

from registry.errors import RegistryError
from registry.model.records import PoolLimits
from registry.transactions.changes import Change, CreatePool, DeletePool, Remove, RollbackAdapter, SetTenant, UpdatePool
from registry.transactions.draft import Commit, fence
from registry.transactions.plan import plan_change
from tests.support.changes import KEYS, POOL, Desk, applying, creating, upsert
from tests.support.history_check import check_history

CHANGES: dict[str, Change] = {
    "make": applying(upsert("acme/new")),
    "make two": applying(upsert("acme/new", "v2"), upsert("acme/more")),
    "change": applying(upsert("acme/old", "v2")),
    "delete": applying(Remove("acme/old")),
    "delete new": applying(Remove("acme/new")),
    "delete everything": applying(Remove("acme/old"), Remove("other/old")),
    "swap": applying(Remove("acme/old"), upsert("acme/new")),
    "roll back": RollbackAdapter(POOL, "acme/old"),
    "quota 1": SetTenant("acme", 1),
    "quota 2": SetTenant("acme", 2),
    "rebase": UpdatePool(POOL, ("base", "acme/new"), PoolLimits()),
    "limit": UpdatePool(POOL, ("base",), PoolLimits(max_rank=8)),
    "drop": DeletePool(POOL),
    "open": CreatePool(POOL, ("base",), PoolLimits()),
}
PAIRS = list(product(CHANGES, repeat=2))
WORLDS = {
    "empty": [],
    "a pool": [creating()],
    "adapters": [creating(), applying(upsert("acme/old")), applying(upsert("other/old"))],
    "a full quota": [
        creating(),
        SetTenant("acme", 1),
        applying(upsert("acme/old")),
        applying(upsert("acme/old", "v3")),
    ],
}


def world(name: str) -> Desk:
    desk = Desk()
    for change in WORLDS[name]:
        desk.change(change)
    return desk


def carry_out(desk: Desk, change: Change) -> None:
    with suppress(RegistryError):
        desk.change(change)


@pytest.mark.parametrize("late", CHANGES)
@pytest.mark.parametrize("start", WORLDS)
def test_a_racer_with_an_old_view(start, late):
    """W2, W5, W6, W7 hold when somebody reads, two others change things, and only then it commits."""
    for first, second in PAIRS:
        desk, change = world(start), CHANGES[late]
        context = desk.context(change)
        view = desk.view(change, context)
        carry_out(desk, CHANGES[first])
        carry_out(desk, CHANGES[second])
        with suppress(RegistryError):
            desk.settle(change, context, view)
        assert_consistent(desk)


@pytest.mark.parametrize("late", CHANGES)
@pytest.mark.parametrize("start", WORLDS)
def test_a_delayed_copy(start, late):
    """W3 idempotent, W8 no-false-fail: a copy of a transaction that was settled or fenced never succeeds."""
    for first, second in PAIRS:
        desk, change = world(start), CHANGES[late]
        context = desk.context(change)
        try:
            planned = plan_change(change, desk.view(change, context), context)
        except RegistryError:
            return
        if not isinstance(planned, Commit):
            return
        carry_out(desk, CHANGES[first])
        if not desk.etcd.txn(planned.txn).succeeded:
            assert desk.etcd.txn(fence(context)).succeeded
        carry_out(desk, CHANGES[second])
        assert not desk.etcd.txn(planned.txn).succeeded, f"{first}, {late}, {second}, {late} again"


def assert_consistent(desk: Desk) -> None:
    """Every revision keeps its promises, and the end makes sense as a whole."""
    fold = check_history(KEYS, desk.etcd.history)
    pool = KEYS.pool(POOL)
    adapters = [key for key in fold.kvs if key.startswith(KEYS.adapters(POOL))]
    assert pool in fold.kvs or not adapters, "adapters without a pool"
    if pool in fold.kvs and b"acme/new" in fold.kvs[pool]:
        assert KEYS.adapter(POOL, "acme/new") not in adapters, "an adapter is named like the base model"
