"""Which lazy adapters stay loaded."""

from __future__ import annotations

from sidecar.lazy.residents import stay


def test_the_idle_go_then_the_least_recently_used():
    used_at = {"old": 0.0, "a": 50.0, "b": 60.0, "c": 70.0}
    assert stay(used_at, frozenset(), room=9, now=100.0, idle_seconds=50.0) == {"a", "b", "c"}
    assert stay(used_at, frozenset(), room=2, now=100.0, idle_seconds=50.0) == {"b", "c"}
    assert stay(used_at, frozenset(), room=0, now=100.0, idle_seconds=50.0) == frozenset()


def test_what_was_just_asked_for_stays_whatever_there_is_room_for():
    used_at = {"old": 0.0, "a": 50.0, "b": 60.0}
    assert stay(used_at, frozenset({"old", "a"}), room=1, now=100.0, idle_seconds=50.0) == {"old", "a"}
    assert stay(used_at, frozenset({"old", "x"}), room=2, now=100.0, idle_seconds=50.0) == {"old", "b"}
