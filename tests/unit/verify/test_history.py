"""What is read of values that anybody may have written."""

from __future__ import annotations

import pytest

from registry.tools.verify.history import count_of


@pytest.mark.parametrize(
    ("value", "count"),
    [(0, 0), (7, 7), ((1 << 63) - 1, (1 << 63) - 1), (1 << 63, 0), (-1, 0), (True, 0), (1.0, 0), ("1", 0), (None, 0)],
)
def test_a_count_is_one_that_etcd_may_have_or_none(value, count):
    """X2 unbreakable: what is made of it later is a revision, or a number of adapters."""
    assert count_of({"n": value}, "n") == count
    assert count_of(None, "n") == 0
