"""Which lazy adapters stay loaded."""

from __future__ import annotations

from sidecar.plan.selection import stay
from sidecar.plan.types import LazyCandidates


def stays(used_at: dict[str, float], bound: set[str], *, room: int) -> frozenset[str]:
    return stay(LazyCandidates(used_at=used_at, bound=bound, idle_seconds=50.0), room=room, now=100.0)


def test_the_idle_go_then_the_least_recently_used():
    used_at = {"old": 0.0, "a": 50.0, "b": 60.0, "c": 70.0}
    assert stays(used_at, set(), room=9) == {"a", "b", "c"}
    assert stays(used_at, set(), room=2) == {"b", "c"}
    assert stays(used_at, set(), room=0) == frozenset()


def test_what_was_just_asked_for_stays_whatever_there_is_room_for():
    used_at = {"old": 0.0, "a": 50.0, "b": 60.0}
    assert stays(used_at, {"old", "a"}, room=1) == {"old", "a"}
    assert stays(used_at, {"old", "x"}, room=2) == {"old", "b"}
