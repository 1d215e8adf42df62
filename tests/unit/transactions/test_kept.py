"""Earlier generations in a record: which are kept by what, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from registry.model.errors import FailedPrecondition, InvalidArgument
from registry.model.records import Canary, PoolLimits, RetiredRecord, Strategy
from registry.transactions.changes import (
    AbortRollout,
    CreatePool,
    PromoteRollout,
    Remove,
    RollbackAdapter,
    UpdatePool,
)
from registry.transactions.validate import make_update
from tests.support.changes import KEYS, POOL, Author, applying, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import lives, record, refused

NAME = "acme/a"


@pytest.fixture
def author() -> Author:
    """One with a pool of versioned names."""
    made = Author()
    made.change(CreatePool(POOL, ("base",), PoolLimits(), engine_names="versioned"))
    return made


def put(source: str, keep: int | None = 3, **spec: Any):
    return applying(upsert(NAME, source, keep=keep, **spec))


def kept(author: Author) -> list[tuple[int, str]]:
    return [(one.generation, one.spec.source.uri.rpartition("/")[2]) for one in record(author).kept]


def test_a_publication_keeps_what_it_replaces_and_ends_what_is_too_far_behind(author: Author):
    """R25 ends-once, W2: by its own transaction, which the audit has with both records."""
    seen = []
    for number in range(1, 6):
        author.change(put(f"v{number}", labels={"step": str(number)}))
        seen.append(kept(author))
    assert seen == [[], [(1, "v1")], [(2, "v2"), (1, "v1")], [(3, "v3"), (2, "v2")], [(4, "v4"), (3, "v3")]]
    assert record(author).kept[0].spec.labels == {}, "of a kept one the weights count"
    retired = RetiredRecord.parse(author.etcd.kvs[KEYS.history(POOL, NAME, 4)].value)
    assert retired.kept == []
    check_history(KEYS, author.etcd.history)


def test_keep_alone_is_no_other_generation(author: Author):
    """W6: fewer end at once, and more bring none back."""
    for number in range(1, 4):
        author.change(put(f"v{number}"))
    for keep, left in ((2, [2]), (4, [2]), (None, []), (3, [])):
        author.change(put("v3", keep))
        assert (record(author).generation, record(author).spec.keep) == (3, keep)
        assert [number for number, _ in kept(author)] == left
    author.change(applying(make_update(NAME, {"keep": 5}, ["keep"], "", field="changes[0]")))
    author.change(put("v4", 5))
    assert kept(author) == [(3, "v3")]
    check_history(KEYS, author.etcd.history)


def test_going_back_switching_off_and_deleting_end_all_that_is_kept(author: Author):
    """R25 ends-once: nothing of them is to be served any more."""
    for number in range(1, 4):
        author.change(put(f"v{number}", 3))
    author.change(put("v3", 2))
    author.change(RollbackAdapter(POOL, NAME, 1, None))
    assert (kept(author), record(author).spec.keep) == ([], 2), "keep itself is none of a generation's"
    author.change(put("v5"))
    assert kept(author) == [(4, "v1")]
    author.change(put("v5", enabled=False))
    assert kept(author) == []
    author.change(put("v5"))
    assert kept(author) == [], "what was switched off was served nowhere"
    author.change(put("v6"))
    author.change(applying(Remove(NAME)))
    author.change(put("v7"))
    assert kept(author) == []
    check_history(KEYS, author.etcd.history)


def test_what_canaries_alone_had_is_not_kept(author: Author):
    strategy = Strategy(canary=Canary(replicas="50%"))
    author.change(put("v1"))
    author.change(put("v2", strategy=strategy))
    assert kept(author) == [(1, "v1")]
    author.change(put("v3", strategy=strategy))
    assert kept(author) == [(1, "v1")]
    author.change(PromoteRollout(POOL, NAME, 0, None))
    author.change(put("v4", 4))
    assert kept(author) == [(3, "v3"), (1, "v1")]
    author.change(put("v5", 4, strategy=strategy))
    author.change(AbortRollout(POOL, NAME, 0, None))
    assert kept(author) == []
    check_history(KEYS, author.etcd.history)


@pytest.mark.parametrize("pool", [PoolLimits(max_adapters=3), None])
def test_what_was_kept_once_holds_up_no_end_of_a_rollout(author: Author, pool: PoolLimits | None):
    """R25: how many are kept is none of a generation's, so that nobody asks whether there is room for what was."""
    strategy = Strategy(canary=Canary(replicas="50%"))
    author.change(put("v1", 5, strategy=strategy))
    author.change(put("v2", None, strategy=strategy))
    fields = frozenset({"engine_names"} if pool is None else {"max_adapters"})
    author.change(UpdatePool(POOL, (), pool or PoolLimits(), fields=fields))
    author.change(AbortRollout(POOL, NAME, 0, None))
    found = record(author)
    assert (found.generation, found.spec.keep, found.spec.source.uri) == (3, None, "file:///a/v1")


def test_a_pool_with_plain_names_keeps_none():
    author = Author()
    author.change(CreatePool(POOL, ("base",), PoolLimits()))
    told = refused(author, put("v1"))
    assert (type(told), told.field) == (InvalidArgument, "changes[0].upsert.spec.keep")
    assert told.message == (
        f"the engines of pool {POOL!r} have plain names, by which requests ask for the newest generation alone; leave "
        "it out, or give the pool --engine-names versioned"
    )


def test_keep_above_the_room_of_every_engine_is_refused_with_the_sum(author: Author):
    """An engine that does not say, or is away, does not count."""
    for name, capacity in (("r1", 2), ("r2", 4), ("r3", 0), ("r4", None)):
        lives(author, name, capacity=capacity)
    told = refused(author, put("v1", 4))
    assert (type(told), told.field) == (FailedPrecondition, "changes[0].upsert.spec.keep")
    assert told.message == (
        f"4 generations take room for 5 adapters, since the next one is loaded beside them, and no engine of pool "
        f"{POOL!r} holds more than 4: keep fewer, or raise --max-cpu-loras"
    )
    author.change(put("v1", 3))
    lives(author, "r2", capacity=2)
    author.change(put("v2", 3))
    assert refused(author, put("v2", 2)).field == told.field, "what is new is looked at, and nothing else"
    author.change(put("v3", None))


@pytest.mark.parametrize(
    ("most", "keep", "told"),
    [
        (None, 32, None),
        (5, None, None),
        (5, 4, None),
        (5, 5, "5 generations take room for 6 adapters, since the next one is loaded beside them, and pool 'p' has"),
        (2, 2, "pool 'p' has max_adapters 2, which is room for no second generation: leave it out"),
    ],
)
def test_keep_above_the_room_is_refused_with_the_sum(most: int | None, keep: int | None, told: str | None):
    author = Author()
    author.change(CreatePool(POOL, ("base",), PoolLimits(max_adapters=most), engine_names="versioned"))
    if told is None:
        author.change(put("v1", keep))
        return
    error = refused(author, put("v1", keep))
    assert (type(error), error.field) == (InvalidArgument, "changes[0].upsert.spec.keep")
    assert told in error.message
