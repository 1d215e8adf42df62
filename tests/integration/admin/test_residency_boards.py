"""Boards: what is kept for those who look at a pool's residency, and for how long."""

from __future__ import annotations

import random

import pytest

from registry.errors import Unavailable
from registry.keys import Keys
from registry.store import residency_board
from registry.store.residency_boards import Boards
from tests.support.waiting import eventually


async def test_a_slow_router_gets_a_new_snapshot():
    """Nothing is kept for who does not listen: it hears the whole again, as it is then."""
    board = residency_board.Board("p", "e")
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
    boards = Boards(etcd_client, keys, rng=random.Random(1), linger_seconds=0.05)
    async with boards.look("p") as board:
        assert (await board.look()).snapshot
        async with boards.look("p") as same:
            assert same is board
    await eventually(lambda: is_ended(board))
    assert not boards._open
    async with boards.look("p") as other:
        assert other is not board
        await boards.aclose()
        with pytest.raises(Unavailable):
            await other.look()


async def is_ended(board: residency_board.Board) -> bool:
    try:
        await board.look()
    except Unavailable:
        return True
    return False
