"""What the adapters of a pool ask of its replicas, in numbers."""

from __future__ import annotations

from sidecar.desired.placement import NO_TALLY

EVERYWHERE = frozenset[tuple[str, str]]()


def test_who_comes_is_counted_and_who_goes_leaves_nothing():
    two = NO_TALLY.after([], [None, None])
    assert dict(two.everywhere) == {EVERYWHERE: 2}
    assert dict(two.after([None], []).everywhere) == {EVERYWHERE: 1}
    assert two.after([None, None], []) == NO_TALLY


def test_one_for_another_changes_nothing():
    one = NO_TALLY.after([], [None])
    assert one.after([None], [None]).everywhere is one.everywhere
