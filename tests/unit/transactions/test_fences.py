"""A request that was refused for good, told from one of which nothing is known."""

from __future__ import annotations

from registry.transactions.builder import fence, is_fenced
from tests.support.changes import Desk, applying, creating, upsert


def test_only_a_fence_of_this_very_request_says_that_nothing_of_it_took_effect():
    """W3, W8: no record says nothing, and a fence of another payload is another request's."""
    desk, change, other = Desk(), applying(upsert("a", "v1")), applying(upsert("a", "v2"))
    desk.change(creating())
    context = desk.context(change, "r")
    assert not is_fenced(desk.view(change, context), context)
    desk.etcd.txn(fence(context))
    assert is_fenced(desk.view(change, context), context)
    another = desk.context(other, "r")
    assert not is_fenced(desk.view(other, another), another)
    done = desk.context(change, "s")
    desk.change(change, "s")
    assert not is_fenced(desk.view(change, done), done)
