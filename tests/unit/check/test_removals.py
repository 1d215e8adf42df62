"""Removals by breaking the glass, and their settlements."""

from __future__ import annotations

from dataclasses import replace

from registry.check.steps import Base
from registry.model.records import (
    AdapterRecord,
    Removed,
)
from registry.transactions.changes import SettleRemoval
from tests.support.changes import KEYS, POOL, Desk, applying, upsert
from tests.unit.check.conftest import found, steps_of


def removed(desk: Desk) -> SettleRemoval:
    """acme/a is deleted alone, as under NOSPACE."""
    record = AdapterRecord.parse(desk.etcd.kvs[KEYS.adapter(POOL, "acme/a")].value)
    revision = desk.etcd.delete(KEYS.adapter(POOL, "acme/a"))
    return SettleRemoval(record, Removed(revision=revision, at="then", by="alice"))


def test_a_removal_alone_is_found_until_it_is_accounted_for(desk):
    """W5, W7: what followed under its too high counter is no finding by itself."""
    change = removed(desk)
    desk.change(applying(upsert("acme/c")))
    assert found(steps_of(desk)) == {("W7", 7), ("W5", 7)}
    desk.change(change)
    assert found(steps_of(desk)) == set()


def test_a_removal_before_the_history_begins_is_known_from_its_settlement(desk):
    """W5, W6, W7: compaction is what follows upon NOSPACE, and takes the removal itself out of the history."""
    change = removed(desk)
    base = Base(desk.etcd.revision, tuple(desk.etcd.kvs.values()))
    desk.change(applying(upsert("acme/a", "v9")))
    desk.change(change)
    assert found([base, *steps_of(desk)[7:]]) == set()


def test_a_settlement_of_nothing_is_found(desk):
    """W7: each removal is accounted for once."""
    change = removed(desk)
    desk.change(change)
    elsewhere = replace(change, removed=change.removed.model_copy(update={"revision": 3}))
    desk.etcd.delete(KEYS.history(POOL, "acme/a", 2))
    desk.change(elsewhere)
    assert ("W7", 9) in found(steps_of(desk)) or ("W7", 10) in found(steps_of(desk))
