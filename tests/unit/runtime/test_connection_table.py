"""Who has a place at a port, and who gives way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.runtime.connection_table import ConnectionTable, NoPlace


def test_the_one_that_is_silent_longest_gives_way_and_who_is_answered_is_let_be():
    """X3 given-back: of the same peer where that has all that it may have, else of the peer that has most. X3: a new
    one is refused then, and told whose the places are.
    """
    table = ConnectionTable[str](most=5, most_of_peer=3)
    for one in ("a1", "a2", "a3", "b1", "b2"):
        assert table.enter(one, one[0]) is None
    table.answer("a1")
    assert table.enter("a4", "a") == "a2"
    table.answer("a4")
    table.await_peer("a4")
    table.await_peer("a1")
    table.await_peer("a3")  # as it does already
    assert [table.enter(f"{peer}9", peer) for peer in "bcd"] == ["a3", "b1", "b2"]
    for one in ("a2", "never here"):
        table.leave(one)
        table.await_peer(one)
        table.answer(one)
    assert table.enter("e9", "e") == "a4"
    table = ConnectionTable[str](most=3, most_of_peer=2)
    for one in ("a1", "a2", "b1"):
        table.enter(one, one[0])
        table.answer(one)
    refusals = []
    for peer in "abc":
        with pytest.raises(NoPlace) as refused:
            table.enter("new", peer)
        refusals.append(refused.value.of)
    assert refusals == ["peer", "port", "port"]
    table.leave("a1")
    assert table.enter("a3", "a") is None
    for one in ("a2", "a3", "b1"):
        table.leave(one)
    assert [*table._counts] == []


@given(st.lists(st.tuples(st.sampled_from("eawl"), st.integers(0, 9), st.sampled_from("pqr"))))
def test_no_more_have_places_than_there_are_and_only_for_the_answered_is_anybody_refused(steps):
    """X3, R16: whatever comes in whatever order."""
    table, peers, silent = ConnectionTable[int](most=4, most_of_peer=2), dict[int, str](), set[int]()
    for what, one, peer in steps:
        if what == "e" and one not in peers:
            rivals = [other for other in peers if peers[other] == peer]
            could_give_way = silent & set(rivals if len(rivals) == 2 else peers)
            if (len(rivals) == 2 or len(peers) == 4) and not could_give_way:
                with pytest.raises(NoPlace):
                    table.enter(one, peer)
                continue
            replaced = table.enter(one, peer)
            assert replaced is None or replaced in could_give_way
            silent.discard(replaced)
            peers.pop(replaced, None)
            peers[one] = peer
            silent.add(one)
        elif what == "a":
            table.answer(one)
            silent.discard(one)
        elif what == "w":
            table.await_peer(one)
            silent |= {one} & peers.keys()
        elif what == "l":
            table.leave(one)
            peers.pop(one, None)
            silent.discard(one)
        assert len(peers) <= 4
        assert all([*peers.values()].count(name) <= 2 for name in "pqr")
