"""The brake on removals: which lists are followed, and which are held."""

from __future__ import annotations

import pytest

from sidecar.desired.removal_guard import Follow, FollowedState, Held, ListCandidate, StoreId, check, free_removals
from tests.support.records import deletion, kv, put

STORE = StoreId(5, "e")


def followed(records: int, revision: int = 100, store: StoreId = STORE) -> FollowedState:
    return FollowedState(revision, store, records)


def candidate(keep: int, of: int, revision: int = 120, store: StoreId = STORE) -> ListCandidate:
    """A list with the first `keep` of `of` followed adapters."""
    return ListCandidate(revision, store, [kv(f"n{i}", 1) for i in range(keep)], [f"n{i}" for i in range(of)])


def verdict(known: FollowedState, shown: ListCandidate, confirmed: int = 0) -> Follow | str:
    match check(known, shown, confirmed_revision=confirmed, pool="p"):
        case Held(reason):
            return reason
        case follow:
            return follow


@pytest.mark.parametrize(
    ("records", "most"),
    [(0, 10), (5, 10), (10, 10), (11, 10), (33, 10), (34, 10), (36, 10), (37, 11), (100, 30), (20_000, 6000)],
)
def test_a_list_may_lack_ten_or_three_in_ten_and_no_more(records, most):
    """R15 brake: more than max(10, 30 %) is held, as an empty list of the wrong prefix or of an empty store."""
    assert free_removals(records) == most
    least_kept = max(0, records - most)
    assert verdict(followed(records), candidate(least_kept, records)) == Follow()
    if least_kept:
        assert verdict(followed(records), candidate(least_kept - 1, records)) == "mass_removal"


@pytest.mark.parametrize("now", [StoreId(6, "e"), StoreId(5, "f"), StoreId(5, "")])
def test_an_empty_list_of_another_store_is_held_whatever_it_lacks(now):
    """R15 brake: another cluster behind the address."""
    assert verdict(followed(1), candidate(0, 1, store=now)) == "other_store"
    assert verdict(followed(20), candidate(18, 20, store=now)) == Follow()
    assert verdict(followed(0), candidate(0, 0, store=now)) == Follow()


@pytest.mark.parametrize("before", [StoreId(0, ""), StoreId(0, "e"), StoreId(5, "")])
def test_what_was_not_known_of_a_store_does_not_make_it_another(before):
    assert not before.is_other(STORE)


def test_a_list_below_the_mark_is_held_until_the_store_has_passed_it():
    """R1 monotonic, R15 brake: a restored store."""
    shown = candidate(20, 20, revision=99)
    assert verdict(followed(20), shown) == "store_went_back"
    shown.advance(98)
    assert verdict(followed(20), shown) == "store_went_back"
    shown.apply(100, [put("new", 100)])
    assert verdict(followed(20), shown) == Follow()


def test_a_hold_says_what_is_missing_and_how_to_go_on():
    hold = check(followed(20), candidate(5, 20), confirmed_revision=0, pool="p")
    assert isinstance(hold, Held)
    assert "lacks 15 of 20" in hold.message
    assert "loraplane pool confirm-removals p --revision 120" in hold.message


def test_only_a_list_that_somebody_could_have_seen_is_confirmed():
    """A confirmation is for lists up to its revision, and for nothing that is lost later."""
    shown = candidate(5, 20)
    assert verdict(followed(20), shown, confirmed=119) == "mass_removal"
    assert verdict(followed(20), shown, confirmed=120) == Follow(confirmed=True)
    assert verdict(followed(20), candidate(20, 20), confirmed=120) == Follow()
    shown.advance(130)
    assert verdict(followed(20), shown, confirmed=120) == Follow(confirmed=True)


def test_what_is_written_again_is_no_longer_missing_and_what_is_deleted_meanwhile_does_not_count():
    """A deletion that arrives as an event is somebody's will."""
    shown = candidate(9, 20)
    assert verdict(followed(20), shown) == "mass_removal"
    shown.apply(121, [deletion("n0", 121), deletion("n1", 121)])
    assert verdict(followed(20), shown) == "mass_removal"
    shown.apply(122, [put("n19", 122)])
    assert verdict(followed(20), shown) == Follow()
    assert set(shown.kvs) == {f"n{i}" for i in range(2, 9)} | {"n19"}
    assert shown.revision == 122
