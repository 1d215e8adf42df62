"""Calls of one caller: so many in a second, and so many at once."""

from __future__ import annotations

import pytest

from registry.access import quota
from registry.access.quota import CallerRate, RequestQuota
from registry.model.errors import RETRY_AFTER, Reason, ResourceExhausted


class Time:
    """Time as a test wants it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def refused(held: RequestQuota, caller: str, per_second: int | None, at_once: int | None = None) -> float | None:
    """Seconds after which one more call may be tried; None: it may be made now."""
    try:
        with held.held(caller, per_second, at_once):
            return None
    except ResourceExhausted as error:
        return float(error.metadata[RETRY_AFTER]) if error.reason is Reason.TOO_MANY_CALLS else -1.0


def test_a_caller_has_so_many_calls_in_a_second():
    """R16 bounded: who waits as long as is told finds a place, and what is refused costs nothing."""
    time = Time()
    held = RequestQuota(time)
    assert [refused(held, "ann", 4) for _ in range(4)] == [None] * 4
    assert [refused(held, "ann", 4) for _ in range(9)] == [0.25] * 9
    assert refused(held, "bob", 4) is None
    time.now += 0.25
    assert [refused(held, "ann", 4), refused(held, "ann", 4)] == [None, 0.25]
    time.now += 3600
    assert [refused(held, "ann", 4) for _ in range(5)] == [None] * 4 + [0.25]
    assert refused(held, "ann", None) is None


def test_a_caller_has_so_many_calls_under_way():
    held = RequestQuota(Time())
    with held.held("ann", None, 2), held.held("ann", None, 2):
        assert refused(held, "ann", None, 2) == 1
        assert refused(held, "bob", None, 2) is None
        assert refused(held, "ann", None, 3) is None
        assert refused(held, "ann", None, 2) == 1, "whose call ends has those under way still"
    assert refused(held, "ann", None, 1) is None
    with pytest.raises(KeyError), held.held("ann", None, 1):
        raise KeyError
    assert refused(held, "ann", None, 1) is None
    assert not held._under_way, "R16 bounded: nothing is kept of who has none"


def test_callers_without_end_cost_no_memory_without_end(monkeypatch):
    monkeypatch.setattr(quota, "MAX_CALLERS", 3)
    rate = CallerRate(Time())
    for caller in "abcd":
        rate.note(caller, 1)
    assert [rate.wait_seconds(caller, 1, 1) for caller in "abcd"] == [0, 1, 1, 1]
