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
from tests.support.changes import KEYS, POOL, Desk, applying, upsert


@pytest.fixture
def desk() -> Desk:
    """With such a pool."""
    desk = Desk()
    desk.change(validate.make_create_pool(POOL, ["base"], {}, None, {"engine": "axolotl"}))
    return desk


def names(desk: Desk) -> set[str]:
    return {key.decode().rsplit("/", 1)[-1] for key in desk.etcd.kvs if key.startswith(KEYS.adapters(POOL))}


def full(desk: Desk, change: Change) -> FailedPrecondition:
    """The refusal of a change, by which nothing changes."""
    before = names(desk)
    with pytest.raises(FailedPrecondition) as refused:
        desk.change(change)
    assert refused.value.reason is Reason.POOL_FULL
    assert names(desk) == before
    return refused.value


def test_a_second_adapter_is_refused_and_the_first_is_named(desk):
    desk.change(applying(upsert("acme/a")))
    refusal = full(desk, applying(upsert("b")))
    assert (refusal.field, refusal.metadata) == ("changes[0].upsert.name", {"name": "acme/a"})
    assert "axolotl" in refusal.message
    desk.change(applying(upsert("acme/a", "v2")))
    desk.change(applying(Remove("acme/a"), upsert("b")))
    assert names(desk) == {"b"}


def test_two_of_one_change_set_are_refused(desk):
    refusal = full(desk, applying(upsert("a"), upsert("b")))
    assert (refusal.field, refusal.metadata) == ("changes[1].upsert.name", {"name": "a"})
    desk.change(applying(upsert("a")))
    assert full(desk, applying(upsert("b"), upsert("a", "v2"))).field == "changes[0].upsert.name"


def test_a_rollback_that_would_make_a_second_is_refused(desk):
    desk.change(applying(upsert("a")))
    desk.change(applying(Remove("a"), upsert("b")))
    assert full(desk, RollbackAdapter(POOL, "a", 1)).field == "name"
    desk.change(applying(Remove("b")))
    desk.change(RollbackAdapter(POOL, "a", 1))
    assert names(desk) == {"a"}


def written_past_us(desk: Desk, name: str, like: str) -> None:
    """A record that stands there without a transaction of ours."""
    value = desk.etcd.kvs[KEYS.adapter(POOL, like)].value
    desk.etcd.put(KEYS.adapter(POOL, name), value.replace(f'"name":"{like}"'.encode(), f'"name":"{name}"'.encode()))


@pytest.mark.parametrize("other", ["0", "g", "zz"])
def test_a_race_for_the_only_place_has_one_winner(desk, other):
    """The transaction itself compares every name that there could be, between those that it changes too."""
    desk.change(applying(upsert("d")))
    change = applying(Remove("d"), upsert("m"))
    context = desk.context(change)
    seen = desk.view(change, context)
    guess = ReadSet(0, reads_of(change, context), seen.found)
    written_past_us(desk, other, like="d")
    for view in (guess, seen):
        planned = plan_change(change, view, context)
        assert isinstance(planned, Commit)
        assert not desk.etcd.txn(planned.txn).succeeded
        with pytest.raises(FailedPrecondition):
            desk.settle(change, context, view)
    assert names(desk) == {"d", other}


def test_what_was_written_past_us_can_be_changed_and_deleted(desk):
    """Two that stand there are no reason to keep both."""
    desk.change(applying(upsert("a")))
    written_past_us(desk, "b", like="a")
    desk.change(applying(upsert("a", "v2")))
    full(desk, applying(upsert("c"), Remove("a")))
    desk.change(applying(Remove("b")))
    desk.change(applying(upsert("c"), Remove("a")))
    assert names(desk) == {"c"}


def test_other_pools_read_and_compare_nothing_for_it():
    """A pool may have 100,000 adapters, and counting them takes long."""
    desk = Desk()
    desk.change(validate.make_create_pool(POOL, ["base"], {}))
    desk.change(applying(upsert("a"), upsert("b")))
    change = applying(upsert("c"))
    context = desk.context(change)
    planned = plan_change(change, desk.view(change, context), context)
    assert isinstance(planned, Commit)
    assert planned.txn.failure == reads_of(change, context)
    assert not [one for one in planned.txn.compare if one.key == KEYS.adapters(POOL)]


@pytest.mark.parametrize("placement", [Placement(replicas=2), Placement(selector={"zone": "a"})], ids=str)
def test_a_placement_on_some_replicas_is_refused(desk, placement):
    """R5: the others would answer for it from the base model."""
    with pytest.raises(InvalidArgument) as refused:
        desk.change(applying(upsert("a", placement=placement)))
    assert (refused.value.reason, refused.value.field) == (Reason.UNSUPPORTED, "changes[0].upsert.spec.placement")


def test_canaries_are_not_refused(desk):
    """Each replica has a generation, the old or the new."""
    desk.change(applying(upsert("a")))
    settled = desk.change(applying(upsert("a", "v2", strategy=Strategy(canary=Canary(replicas="50%")))))
    (outcome,) = settled.reply.adapters
    assert outcome.record is not None
    assert outcome.record.rollout is not None


def test_versioned_names_are_refused_of_the_pool(desk):
    with pytest.raises(InvalidArgument) as refused:
        desk.change(validate.make_update_pool(POOL, ["base"], {}, "", None, None, {"engine_names": "versioned"}))
    assert (refused.value.reason, refused.value.field) == (Reason.UNSUPPORTED, "pool.engine_names")


def test_an_etag_still_decides_first(desk):
    desk.change(applying(upsert("a")))
    with pytest.raises(Conflict):
        desk.change(applying(upsert("b", etag=7)))
