"""What is read of values that anybody may have written."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import KeyValue
from registry.tools.verify.history import (
    Violation,
    count_of,
    document,
    objects_of,
    part_of,
    presence_faults,
    status_faults,
    tenant_of_key,
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


def test_what_stands_where_it_should_is_read():
    assert text_of({"n": "text"}, "n") == "text"
    assert objects_of({"n": [{"a": 1}, 7, None, {"b": 2}, []]}, "n") == [{"a": 1}, {"b": 2}]
    assert objects_of({"n": {"a": 1}}, "n") == []
    assert part_of({"n": {"m": {"k": 1}}}, "n", "m") == {"k": 1}
    assert part_of({"n": 1}) == {"n": 1}


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


def test_the_tenant_of_a_key():
    """W5: a name without a tenant is of the default one."""
    assert [tenant_of_key(key) for key in ("acme%2Fa", "acme%2F", "a", "acme%2Fa%2Fb")] == [
        "acme",
        "acme",
        "default",
        "acme",
    ]


def test_a_violation_says_where_and_when():
    assert str(Violation("W1", 7, "here", "is gone")) == "W1 at revision 7, here: is gone"
    assert str(Violation("W1", 1, "here", "is gone")) == "W1 at revision 1, here: is gone"
    assert str(Violation("W3", 0, "q", "twice")) == "W3, q: twice"


@pytest.mark.parametrize(
    ("old", "new", "faults"),
    [
        (None, b'{"owner": "a"}', []),
        (b'{"owner": "a"}', b'{"owner": "a"}', []),
        (b'{"owner": "a"}', b'{"owner": "b"}', ["'b' took the id while 'a' had it"]),
        (b'{"owner": "a"}', b"{}", ["None took the id while 'a' had it"]),
        (b"{}", b'{"owner": "b"}', []),
        (b"?", b'{"owner": "b"}', []),
        (b'{"owner": "a"}', b"?", ["None took the id while 'a' had it"]),
    ],
)
def test_an_id_is_taken_from_nobody_who_lives(old, new, faults):
    """R10 one-owner: of what tells no owner nothing is known."""
    assert list(presence_faults(old, new)) == faults


def test_a_status_and_its_presence_have_one_lease():
    """R10."""
    status, same, other = (KeyValue(b"k", b"{}", 1, 1, 1, lease) for lease in (26, 26, 27))
    alone = "it was written by one who does not have the id: "
    assert list(status_faults(status, None)) == [alone + "there is no presence"]
    assert list(status_faults(status, same)) == []
    assert list(status_faults(status, other)) == [alone + "lease 1a, presence 1b"]
