"""Confirming removals: a field of the pool's record, with its audit record, and nothing for revisions to come."""

from __future__ import annotations

import pytest

from registry.model.errors import Conflict, InvalidArgument, NotFound
from registry.model.records import PoolLimits, PoolSpec
from registry.transactions.changes import ConfirmRemovals, UpdatePool
from registry.transactions.validate import make_confirm_removals
from tests.support.changes import KEYS, POOL, Author, applying, upsert
from tests.support.history_check import check_history


@pytest.fixture
def author(author: Author) -> Author:
    author.change(applying(upsert("a")))
    return author


def confirmed(author: Author) -> int:
    return PoolSpec.parse(author.etcd.kvs[KEYS.pool(POOL)].value).removals_confirmed_revision


def test_a_confirmation_stands_in_the_pools_record_and_is_audited(author):
    """W2, W7: what a sidecar watches already, and who vouched."""
    settled = author.change(ConfirmRemovals(POOL, 1))
    assert settled.reply.pool is not None
    assert confirmed(author) == settled.reply.pool.removals_confirmed_revision == 1
    fold = check_history(KEYS, author.etcd.history)
    assert settled.revision in fold.changing


def test_a_lower_revision_than_before_changes_nothing(author):
    author.change(ConfirmRemovals(POOL, 2))
    revision = author.etcd.revision
    assert author.change(ConfirmRemovals(POOL, 1)).reply.pool == author.change(ConfirmRemovals(POOL, 2)).reply.pool
    assert (confirmed(author), author.etcd.revision) == (2, revision)


def test_an_update_of_the_pool_keeps_the_confirmation(author):
    author.change(ConfirmRemovals(POOL, 2))
    author.change(UpdatePool(POOL, ("base",), PoolLimits(max_rank=8)))
    assert confirmed(author) == 2


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (ConfirmRemovals(POOL, 99), InvalidArgument),
        (ConfirmRemovals("q", 1), NotFound),
        (ConfirmRemovals(POOL, 1, etag=77), Conflict),
    ],
)
def test_what_is_refused(author, change, kind):
    """Nobody vouches for what nobody has seen: a revision that is to come."""
    with pytest.raises(kind):
        author.change(change)


@pytest.mark.parametrize(("name", "revision", "etag"), [("a/b", 1, ""), ("p", 0, ""), ("p", 1, "0"), ("p", 1, "x")])
def test_what_is_not_even_asked(name, revision, etag):
    with pytest.raises(InvalidArgument):
        make_confirm_removals(name, revision, etag)


def test_what_is_asked_is_what_was_said():
    assert make_confirm_removals("p", 3, "5") == ConfirmRemovals("p", 3, 5)
