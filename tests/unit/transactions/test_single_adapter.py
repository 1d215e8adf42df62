"""Pools whose engines have one adapter at a time never get two, however they are asked for."""

from __future__ import annotations

import pytest

from registry.model.errors import Conflict, FailedPrecondition, InvalidArgument, Reason
from registry.model.records import Canary, Placement, Strategy
from registry.transactions import validate
from registry.transactions.builder import Commit
from registry.transactions.changes import Change, Remove, RollbackAdapter
from registry.transactions.decode import ReadSet
from registry.transactions.plan import plan_change, reads_of
from tests.support.changes import KEYS, POOL, Author, applying, upsert


@pytest.fixture
def author() -> Author:
    """With such a pool."""
    author = Author()
    author.change(validate.make_create_pool(POOL, ["base"], {}, None, {"engine": "axolotl"}))
    return author


def names(author: Author) -> set[str]:
    return {key.decode().rsplit("/", 1)[-1] for key in author.etcd.kvs if key.startswith(KEYS.adapters(POOL))}


def full(author: Author, change: Change) -> FailedPrecondition:
    """The refusal of a change, by which nothing changes."""
    before = names(author)
    with pytest.raises(FailedPrecondition) as refused:
        author.change(change)
    assert refused.value.reason is Reason.POOL_FULL
    assert names(author) == before
    return refused.value


def test_a_second_adapter_is_refused_and_the_first_is_named(author):
    author.change(applying(upsert("acme/a")))
    refusal = full(author, applying(upsert("b")))
    assert (refusal.field, refusal.metadata) == ("changes[0].upsert.name", {"name": "acme/a"})
    assert "axolotl" in refusal.message
    author.change(applying(upsert("acme/a", "v2")))
    author.change(applying(Remove("acme/a"), upsert("b")))
    assert names(author) == {"b"}
    refusal = full(author, applying(Remove("b"), upsert("a"), upsert("c")))
    assert (refusal.field, refusal.metadata) == ("changes[2].upsert.name", {"name": "a"})
    assert full(author, applying(upsert("c"), upsert("b", "v2"))).field == "changes[0].upsert.name"
    with pytest.raises(Conflict):
        author.change(applying(upsert("c", etag=7)))


def test_a_rollback_that_would_make_a_second_is_refused(author):
    author.change(applying(upsert("a")))
    author.change(applying(Remove("a"), upsert("b")))
    assert full(author, RollbackAdapter(POOL, "a", 1)).field == "name"
    author.change(applying(Remove("b")))
    author.change(RollbackAdapter(POOL, "a", 1))
    assert names(author) == {"a"}


def written_past_us(author: Author, name: str, like: str) -> None:
    """A record that stands there without a transaction of ours."""
    value = author.etcd.kvs[KEYS.adapter(POOL, like)].value
    author.etcd.put(KEYS.adapter(POOL, name), value.replace(f'"name":"{like}"'.encode(), f'"name":"{name}"'.encode()))


@pytest.mark.parametrize("other", ["0", "g", "zz"])
def test_a_race_for_the_only_place_has_one_winner(author, other):
    """The transaction itself compares every name that there could be, between those that it changes too."""
    author.change(applying(upsert("d")))
    change = applying(Remove("d"), upsert("m"))
    context = author.context(change)
    seen = author.view(change, context)
    guess = ReadSet(0, reads_of(change, context), seen.found)
    written_past_us(author, other, like="d")
    for view in (guess, seen):
        planned = plan_change(change, view, context)
        assert isinstance(planned, Commit)
        assert not author.etcd.txn(planned.txn).succeeded
        with pytest.raises(FailedPrecondition):
            author.settle(change, context, view)
    assert names(author) == {"d", other}


def test_what_was_written_past_us_can_be_changed_and_deleted(author):
    """Two that stand there are no reason to keep both."""
    author.change(applying(upsert("a")))
    written_past_us(author, "b", like="a")
    author.change(applying(upsert("a", "v2")))
    full(author, applying(upsert("c"), Remove("a")))
    author.change(applying(Remove("b")))
    author.change(applying(upsert("c"), Remove("a")))
    assert names(author) == {"c"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (applying(upsert("a", placement=Placement(replicas=2))), "changes[0].upsert.spec.placement"),
        (applying(upsert("a", placement=Placement(selector={"zone": "a"}))), "changes[0].upsert.spec.placement"),
        (
            validate.make_update_pool(POOL, ["base"], {}, "", None, None, {"engine_names": "versioned"}),
            "pool.engine_names",
        ),
        (applying(upsert("a", strategy=Strategy(canary=Canary(replicas="50%")))), None),
    ],
)
def test_what_such_engines_cannot_do(author, change, field):
    """R5: who does not have it would answer for it from the base; with canaries each has a generation."""
    if field is None:
        author.change(applying(upsert("a", "v0")))
        (outcome,) = author.change(change).reply.adapters
        assert outcome.record is not None
        assert outcome.record.rollout is not None
        return
    with pytest.raises(InvalidArgument) as refused:
        author.change(change)
    assert (refused.value.reason, refused.value.field) == (Reason.UNSUPPORTED, field)
