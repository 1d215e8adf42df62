"""What is read of values that anybody may have written."""

from __future__ import annotations

import pytest

from registry.tools.verify.history import (
    Violation,
    count_of,
    document,
    objects_of,
    part_of,
    text_of,
)


@pytest.mark.parametrize(
    ("value", "count"),
    [(0, 0), (7, 7), ((1 << 63) - 1, (1 << 63) - 1), (1 << 63, 0), (-1, 0), (True, 0), (1.0, 0), ("1", 0), (None, 0)],
)
def test_a_count_is_one_that_etcd_may_have_or_none(value, count):
    """X2 unbreakable: what is made of it later is a revision, or a number of adapters."""
    assert count_of({"n": value}, "n") == count
    assert count_of(None, "n") == 0


@pytest.mark.parametrize("value", [None, 7, True, [], {}, 1.5])
def test_what_stands_in_the_place_of_something_else_is_nothing(value):
    """X2: whatever a value has under a name, its reader gets what it can work with."""
    assert (text_of({"n": value}, "n"), text_of({}, "n"), text_of(None, "n")) == ("", "", "")
    assert (objects_of({"n": value}, "n"), objects_of({}, "n")) == ([], [])
    assert part_of({"n": {"m": value}}, "n", "m", "k") == part_of({"n": value}, "n") == part_of(None, "n") == {}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (b'{"a": [1]}', {"a": [1]}),
        (b"{}", {}),
        (b"", {"unreadable": ""}),
        (b"[1]", {"unreadable": "[1]"}),
        (b"null", {"unreadable": "null"}),
        (b"\xff{", {"unreadable": "\\xff{"}),
        (b"?" * 4096, {"unreadable": "?" * 4096}),
        (b"?" * 4097, {"unreadable": "?" * 4096}),
    ],
)
def test_a_value_is_shown_as_its_audit_record_shows_it(value, shown):
    """W7 audit-complete: also one that is no object."""
    assert document(value) == shown


def test_a_violation_says_where_and_when():
    assert str(Violation("W1", 7, "here", "is gone")) == "W1 at revision 7, here: is gone"
    assert str(Violation("W1", 1, "here", "is gone")) == "W1 at revision 1, here: is gone"
    assert str(Violation("W3", 0, "q", "twice")) == "W3, q: twice"
