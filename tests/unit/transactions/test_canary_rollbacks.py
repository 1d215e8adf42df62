"""Where a rollback goes to while there are canaries, or were."""

from __future__ import annotations

import pytest

from registry.model.records import Canary, Strategy
from registry.transactions.changes import AbortRollout, HaltRollout, PromoteRollout, Remove, RollbackAdapter
from tests.support.changes import POOL, Desk, applying, upsert
from tests.unit.transactions.conftest import etag, record

NAME = "acme/a"
QUARTER = Strategy(canary=Canary(replicas="25%"))
PROMOTE, ABORT = PromoteRollout(POOL, NAME), AbortRollout(POOL, NAME)


@pytest.fixture
def desk(desk: Desk) -> Desk:
    """An adapter at generation 1, which all serve."""
    desk.change(applying(upsert(NAME, "v1", strategy=QUARTER)))
    return desk


def put(desk: Desk, source: str, **spec) -> None:
    desk.change(applying(upsert(NAME, source, **{"strategy": QUARTER, **spec})))


def test_a_rollback_goes_to_what_all_have_served(desk):
    """W6: what canaries alone have seen, or refused, is not put on all replicas unless its number is given."""
    put(desk, "v2")
    desk.change(HaltRollout(POOL, NAME, 2, etag(desk), "no"))
    put(desk, "v3")
    desk.change(RollbackAdapter(POOL, NAME))
    assert (record(desk).spec.source.uri, record(desk).generation, record(desk).rollout) == ("file:///a/v1", 4, None)
    put(desk, "v5")
    desk.change(PROMOTE)
    put(desk, "v6")
    desk.change(ABORT)
    put(desk, "v8", strategy=None)
    desk.change(RollbackAdapter(POOL, NAME))
    assert record(desk).spec.source.uri == "file:///a/v5"
    desk.change(RollbackAdapter(POOL, NAME, 6))
    assert (record(desk).spec.source.uri, record(desk).rollout) == ("file:///a/v6", None)


def test_a_rollback_to_a_number_goes_there_although_there_are_canaries(desk):
    """W6: not to what all others serve meanwhile."""
    put(desk, "v2")
    desk.change(PROMOTE)
    put(desk, "v3")
    desk.change(RollbackAdapter(POOL, NAME, 1))
    assert (record(desk).spec.source.uri, record(desk).rollout) == ("file:///a/v1", None)


def test_a_rollback_of_an_abortion_is_none(desk):
    put(desk, "v2")
    desk.change(ABORT)
    assert desk.change(RollbackAdapter(POOL, NAME)).reply.adapters[0].outcome == "unchanged"
    assert record(desk).spec.source.uri == "file:///a/v1"


def test_a_rollback_of_canaries_whose_base_is_no_longer_in_history(desk):
    for version in range(2, 16):
        put(desk, f"v{version}")
    desk.change(RollbackAdapter(POOL, NAME))
    assert record(desk).spec.source.uri == "file:///a/v1"


def test_a_name_that_was_deleted_comes_back_as_all_have_served_it(desk):
    put(desk, "v2")
    desk.change(applying(Remove(NAME)))
    desk.change(RollbackAdapter(POOL, NAME))
    assert (record(desk).spec.source.uri, record(desk).generation, record(desk).rollout) == ("file:///a/v1", 3, None)
