"""Whom a replica takes to be alive."""

from __future__ import annotations

from dataclasses import replace

from sidecar.desired.members import BELIEVE_SECONDS, Membership
from tests.support.worlds import fleet, without

ALL = fleet("a", "b", "c")


def called(*calls: tuple[float, dict], known: dict | None = None) -> Membership:
    roll = Membership("a")
    roll.restore(known or {})
    for now, listed in calls:
        roll.call(listed, now)
    return roll


def test_at_first_nobody_is_known_until_others_had_the_time_to_come():
    roll = called((0.0, fleet("a")))
    assert (roll.members, roll.due) == (None, BELIEVE_SECONDS)
    roll.call(ALL, 1.0)
    assert roll.members is None
    roll.look(BELIEVE_SECONDS)
    assert (roll.members, roll.due) == (ALL, None)


def test_who_was_away_itself_believes_in_nobodys_absence_at_once():
    """R13 static-stable: a lost way to etcd says nothing of the others."""
    roll = called((0.0, ALL), (10.0, {}))
    roll.look(11.0)
    assert (roll.members, roll.due) == (None, None)
    roll = called((0.0, ALL), (5.0, ALL), (10.0, {}), (12.0, fleet("a")))
    assert (roll.members, roll.due) == (ALL, 12.0 + BELIEVE_SECONDS)
    roll.call(fleet("a", "d"), 13.0)
    assert roll.members == {**ALL, **fleet("d")}
    roll.look(15.0)
    assert roll.members == fleet("a", "d")


def test_what_a_snapshot_knew_holds_until_the_replicas_had_the_time_to_come():
    """R13: a boot without etcd finds the same share; one with it takes others in at once, and lets go later."""
    assert called(known=ALL).members == ALL
    roll = called((0.0, fleet("a", "d")), known=ALL)
    assert (roll.members, roll.due) == ({**ALL, **fleet("d")}, BELIEVE_SECONDS)
    roll.look(BELIEVE_SECONDS - 0.1)
    assert roll.members == {**ALL, **fleet("d")}
    roll.look(BELIEVE_SECONDS)
    assert (roll.members, roll.due) == (fleet("a", "d"), None)


def test_a_store_in_doubt_says_nothing_of_who_lives():
    """R15: what runs is untouched, also what runs because somebody else is alive."""
    roll = called((0.0, ALL), (5.0, ALL))
    roll.call(fleet("a", "d"), 10.0, is_doubtful=True)
    roll.look(99.0, is_doubtful=True)
    assert (roll.members, roll.due) == (ALL, None)
    roll.look(100.0)
    assert roll.members == fleet("a", "d")


def drains(members: dict, *names: str) -> dict:
    return {name: replace(one, leaving=name in names) for name, one in members.items()}


def test_who_drains_is_no_member_at_once_also_for_itself():
    """R20 drain: nothing is placed on a replica that leaves, and it knows that of itself."""
    roll = called((0.0, ALL), (10.0, drains(ALL, "b")))
    assert roll.members == without(ALL, "b")
    roll.call(drains(ALL, "a"), 11.0)
    assert roll.members == without(ALL, "a")
    roll.call(ALL, 12.0)
    assert roll.members == ALL
    assert called((0.0, drains(ALL, "b")), known=ALL).members == without(ALL, "b"), "before others are believed gone"


def test_whose_presence_is_back_in_two_seconds_is_never_missed_and_who_left_is_missed_in_ten():
    """R13, R3, in numbers: all lose their leases together when etcd is away, and are back within 2 s as a rule."""
    roll = called((0.0, ALL), (20.0, ALL), (30.0, {}), (31.0, fleet("a")))
    roll.look(32.9)
    assert roll.members == ALL
    roll.look(41.0)
    assert roll.members == fleet("a")
