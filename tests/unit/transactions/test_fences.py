"""A request that was refused for good, told from one of which nothing is known."""

from __future__ import annotations

from registry.transactions.builder import fence, is_fenced
from tests.support.changes import Author, applying, creating, upsert


def test_only_a_fence_of_this_very_request_says_that_nothing_of_it_took_effect():
    """W3, W8: no record says nothing, and a fence of another payload is another request's."""
    author, change, other = Author(), applying(upsert("a", "v1")), applying(upsert("a", "v2"))
    author.change(creating())
    context = author.context(change, "r")
    assert not is_fenced(author.view(change, context), context)
    author.etcd.txn(fence(context))
    assert is_fenced(author.view(change, context), context)
    another = author.context(other, "r")
    assert not is_fenced(author.view(other, another), another)
    done = author.context(change, "s")
    author.change(change, "s")
    assert not is_fenced(author.view(change, done), done)
