"""Where a rollback goes to while there are canaries, or were."""

from __future__ import annotations

import pytest

from registry.model.records import Canary, Strategy
from registry.transactions.changes import AbortRollout, HaltRollout, PromoteRollout, Remove, RollbackAdapter
from tests.support.changes import POOL, Author, applying, upsert
from tests.unit.transactions.conftest import etag, record

NAME = "acme/a"
QUARTER = Strategy(canary=Canary(replicas="25%"))
PROMOTE, ABORT = PromoteRollout(POOL, NAME), AbortRollout(POOL, NAME)


@pytest.fixture
def author(author: Author) -> Author:
    """An adapter at generation 1, which all serve."""
    author.change(applying(upsert(NAME, "v1", strategy=QUARTER)))
    return author


def put(author: Author, source: str, **spec) -> None:
    author.change(applying(upsert(NAME, source, **{"strategy": QUARTER, **spec})))


def test_a_rollback_goes_to_what_all_have_served(author):
    """W6: what canaries alone have seen, or refused, is not put on all replicas unless its number is given."""
    put(author, "v2")
    author.change(HaltRollout(POOL, NAME, 2, etag(author), "no"))
    put(author, "v3")
    author.change(RollbackAdapter(POOL, NAME))
    assert (record(author).spec.source.uri, record(author).generation, record(author).rollout) == (
        "file:///a/v1",
        4,
        None,
    )
    put(author, "v5")
    author.change(PROMOTE)
    put(author, "v6")
    author.change(ABORT)
    put(author, "v8", strategy=None)
    author.change(RollbackAdapter(POOL, NAME))
    assert record(author).spec.source.uri == "file:///a/v5"
    author.change(RollbackAdapter(POOL, NAME, 6))
    assert (record(author).spec.source.uri, record(author).rollout) == ("file:///a/v6", None)


def test_a_rollback_to_a_number_goes_there_although_there_are_canaries(author):
    """W6: not to what all others serve meanwhile."""
    put(author, "v2")
    author.change(PROMOTE)
    put(author, "v3")
    author.change(RollbackAdapter(POOL, NAME, 1))
    assert (record(author).spec.source.uri, record(author).rollout) == ("file:///a/v1", None)


def test_a_rollback_of_an_abortion_is_none(author):
    put(author, "v2")
    author.change(ABORT)
    assert author.change(RollbackAdapter(POOL, NAME)).reply.adapters[0].outcome == "unchanged"
    assert record(author).spec.source.uri == "file:///a/v1"


def test_a_rollback_of_canaries_whose_base_is_no_longer_in_history(author):
    for version in range(2, 16):
        put(author, f"v{version}")
    author.change(RollbackAdapter(POOL, NAME))
    assert record(author).spec.source.uri == "file:///a/v1"


def test_a_name_that_was_deleted_comes_back_as_all_have_served_it(author):
    put(author, "v2")
    author.change(applying(Remove(NAME)))
    author.change(RollbackAdapter(POOL, NAME))
    assert (record(author).spec.source.uri, record(author).generation, record(author).rollout) == (
        "file:///a/v1",
        3,
        None,
    )
