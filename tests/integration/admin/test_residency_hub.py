"""Boards: what is kept for those who look at a pool's residency, and for how long."""

from __future__ import annotations

import random

import pytest

from registry.etcd3.informer import SharedInformerFactory
from registry.model.errors import Unavailable
from registry.model.keys import Keys
from registry.residency import hub
from registry.residency.hub import ResidencyHub
from tests.support.waiting import eventually


async def test_a_slow_router_gets_a_new_snapshot():
    """Nothing is kept for who does not listen: it hears the whole again, as it is then."""
    board = hub.Subscription("p", "e")
    followed = board.follow()
    view = board.view
    board.post(view, frozenset({"a"}))
    assert (await anext(followed)).snapshot
    board.post(view, frozenset({"a"}))
    board.post(view, frozenset({"b"}))
    told = await anext(followed)
    assert (told.snapshot, told.keys) == (False, ("a", "b"))
    for _ in range(100):
        board.post(view, frozenset({"c"}))
    told = await anext(followed)
    assert (told.snapshot, told.version) == (True, board.version)
    await followed.aclose()


async def test_boards_end(etcd_client, etcd, admin):
    """R16 bounded: what nobody looks at any more is not followed for ever."""
    keys = Keys(etcd.prefix)
    informers = SharedInformerFactory(etcd_client, rng=random.Random(1))
    boards = ResidencyHub(etcd_client, keys, informers, linger_seconds=0.05)
    async with boards.look("p") as board:
        assert (await board.look()).snapshot
        async with boards.look("p") as same:
            assert same is board
    await eventually(lambda: is_ended(board))
    assert not boards._followed
    async with boards.look("p") as other:
        assert other is not board
        await boards.aclose()
        with pytest.raises(Unavailable):
            await other.look()
    await informers.aclose()


async def is_ended(board: hub.Subscription) -> bool:
    try:
        await board.look()
    except Unavailable:
        return True
    return False
