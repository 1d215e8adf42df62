"""All races of a small world: every change against every two others, at every moment at which they can meet."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache

import pytest

from registry.model.errors import RegistryError
from registry.model.records import PoolLimits
from registry.transactions.builder import Commit, fence
from registry.transactions.changes import Change, CreatePool, DeletePool, Remove, RollbackAdapter, SetTenant, UpdatePool
from registry.transactions.context import Context
from registry.transactions.plan import plan_change
from tests.support.changes import KEYS, POOL, Author, applying, creating, upsert
from tests.support.history_check import check_history

pytestmark = pytest.mark.no_cover  # each line of a plan runs thousands of times here, and once elsewhere

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
    "other engines": UpdatePool(POOL, (), PoolLimits(), fields=frozenset({"engine"}), engine="sglang"),
    "drop": DeletePool(POOL),
    "open": CreatePool(POOL, ("base",), PoolLimits()),
}
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


@cache
def world(name: str) -> Author:
    """To be copied: many races begin in it."""
    author = Author()
    for change in WORLDS[name]:
        author.change(change)
    return author


def carry_out(author: Author, change: Change) -> None:
    with suppress(RegistryError):
        author.change(change)


@pytest.mark.parametrize("late", CHANGES)
@pytest.mark.parametrize("start", WORLDS)
def test_a_racer_with_an_old_view(start, late):
    """W2, W5, W6, W7 hold when somebody reads, two others change things, and only then it commits."""
    change = CHANGES[late]
    for first in CHANGES.values():
        before = world(start).copy()
        context = before.context(change)
        view = before.view(change, context)
        carry_out(before, first)
        for second in CHANGES.values():
            author = before.copy()
            carry_out(author, second)
            with suppress(RegistryError):
                author.settle(change, context, view)
            assert_consistent(author)


def commit_of(author: Author, context: Context, change: Change) -> Commit | None:
    """What would be sent; None where it is refused, or would change nothing."""
    with suppress(RegistryError):
        planned = plan_change(change, author.view(change, context), context)
        return planned if isinstance(planned, Commit) else None
    return None


def sent(start: str) -> list[str]:
    """The changes that send a transaction in a world."""
    return [
        late
        for late, change in CHANGES.items()
        if commit_of(author := world(start).copy(), author.context(change), change)
    ]


SENT = [(start, late) for start in WORLDS for late in sent(start)]


@pytest.mark.parametrize(("start", "late"), SENT)
def test_a_delayed_copy(start, late):
    """W3 idempotent, W8 no-false-fail: a copy of a transaction that was settled or fenced never succeeds."""
    change = CHANGES[late]
    for first, earlier in CHANGES.items():
        before = world(start).copy()
        context = before.context(change)
        planned = commit_of(before, context, change)
        assert planned is not None
        carry_out(before, earlier)
        if not before.etcd.txn(planned.txn).succeeded:
            assert before.etcd.txn(fence(context)).succeeded
        for second, meanwhile in CHANGES.items():
            author = before.copy()
            carry_out(author, meanwhile)
            assert not author.etcd.txn(planned.txn).succeeded, f"{first}, {late}, {second}, {late} again"


def assert_consistent(author: Author) -> None:
    """Every revision keeps its promises, and the end makes sense as a whole."""
    fold = check_history(KEYS, author.etcd.history)
    pool = KEYS.pool(POOL)
    adapters = [key for key in fold.stored if key.startswith(KEYS.adapters(POOL))]
    assert pool in fold.stored or not adapters, "adapters without a pool"
    if pool in fold.stored and b"acme/new" in fold.stored[pool].value:
        assert KEYS.adapter(POOL, "acme/new") not in adapters, "an adapter is named like the base model"
    assert_engines_stay(author)


def assert_engines_stay(author: Author) -> None:
    """The kind of engines of a pool is never another one while there are adapters in it."""
    kvs: dict[str, bytes] = {}
    for revision, events in author.etcd.history:
        before = kvs.get(KEYS.pool(POOL))
        for event in events:
            if event.kv is None:
                kvs.pop(event.key, None)
            else:
                kvs[event.key] = event.kv.value
        after = kvs.get(KEYS.pool(POOL))
        if before and after and json.loads(before)["engine"] != json.loads(after)["engine"]:
            assert not [key for key in kvs if key.startswith(KEYS.adapters(POOL))], f"other engines at {revision}"
