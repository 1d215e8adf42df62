"""Time without a use: what replicas tell, held against the clock of expiry."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.status import ReportedUses
from registry.rollout.ages import ClockMark, ClockReading, EndingRecord, ExpiryClock
from registry.rollout.pool import PoolSnapshot, PoolValues, renew
from registry.rollout.uses import Unused, is_over, needed_seconds, unused, unused_seconds
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import World

TTL = 160
ONE = EndingRecord(kv("Acme/A", 11, ttl_seconds=TTL, ttl_from="use"), POOL, "Acme/A", 1, TTL, 0.0, from_use=True)


def uses(since: int, until: int, *names: tuple[str, int]) -> ReportedUses:
    return ReportedUses(since=since, until=until, names=list(names))


def world(**told: ReportedUses | None) -> World:
    """Replicas that say so, all of whom are remembered."""
    made = World()
    made.alive(*told)
    made.remember(*told)
    for name, said in told.items():
        made.says(name, 30, uses=said)
    return made


def snapshot(made: World) -> PoolSnapshot:
    return renew(PoolSnapshot(POOL), PoolValues(made.presences, made.statuses, members=made.members))


def stretch(made: World) -> Unused | None:
    return unused(ONE, snapshot(made), made.members)


def test_the_stretch_begins_with_the_last_use_by_any_and_ends_with_the_first_that_tells_no_more():
    """R25: by the record, by a use of whatever spelling, by what is not known before, and by who came or went."""
    assert stretch(world(a=uses(5, 60), b=uses(7, 50))) == Unused(11, 50)
    assert stretch(world(a=uses(5, 60, ("acme/a", 40), ("other", 55)), b=uses(20, 70))) == Unused(40, 60)
    assert stretch(world(a=uses(25, 60), b=uses(20, 70))) == Unused(25, 60)
    made = world(a=uses(5, 60))
    made.members = made.members and KeyValue(made.members.key, made.members.value, 1, 33, 2, 0)
    assert stretch(made) == Unused(33, 60)


def test_nothing_is_known_while_any_replica_does_not_tell():
    """R25: an engine without the plugin, a sidecar that has not heard of it, one that is gone, and nobody at all."""
    assert stretch(world(a=uses(5, 60), b=None)) is None
    made = world(a=uses(5, 60))
    made.says("a", 10, uses=uses(5, 60))
    assert stretch(made) is None
    made = world(a=uses(5, 60))
    made.raw("a", b"?")
    assert stretch(made) is None
    made = world(a=uses(5, 60), b=uses(5, 60))
    made.dead("b")
    assert stretch(made) is None
    made.remember("a")
    assert stretch(made) == Unused(11, 60)
    known = made.members
    for value in (b'{"schema": 2}', b"?"):
        made.members = known and KeyValue(known.key, value, 1, 33, 2, 0)
        assert stretch(made) == (Unused(33, 60) if value == b"?" else None), "nobody here knows who lived"
    made.members = None
    assert stretch(made) is None
    assert stretch(world()) is None


def test_one_that_leaves_counts_and_one_that_is_known_to_be_gone_does_not():
    made = world(a=uses(5, 60))
    made.alive("b", leaving=True)
    made.says("b", 30, uses=uses(5, 55))
    assert stretch(made) == Unused(11, 55)
    made = world(a=uses(5, 60))
    made.remember("a", "b", last_seen="2026-01-01T00:00:00.000Z")
    assert stretch(made) == Unused(11, 60)


def reading(now_ms: int, revision: int, *marks: tuple[int, int]) -> ClockReading:
    clock = ExpiryClock(now_ms=now_ms, marks=[ClockMark(revision=number, at_ms=at) for number, at in marks])
    return ClockReading(KeyValue(KEYS.expiry_clock(), clock.to_bytes(), 1, revision, 1), clock, 0.0)


@pytest.mark.parametrize(
    ("begin", "end", "seconds"),
    [(11, 100, 400), (20, 100, 400), (21, 100, 300), (11, 99, 100), (11, 29, 0), (11, 19, 0), (101, 200, 0), (5, 8, 0)],
)
def test_a_stretch_took_what_passed_between_the_readings_within_it(begin: int, end: int, seconds: int):
    """R25: never more."""
    assert unused_seconds(Unused(begin, end), reading(500_000, 100, (20, 100_000), (30, 200_000))) == seconds


def test_it_is_over_once_it_was_unused_for_its_ttl_and_what_a_look_may_miss():
    made, needed = world(a=uses(5, 60)), needed_seconds(TTL)
    assert needed == TTL + 30
    for seconds, over in ((needed - 0.001, False), (needed, True)):
        assert is_over(ONE, snapshot(made), made.members, reading(int(seconds * 1000), 60, (12, 0))) is over
    assert not is_over(ONE, snapshot(world(a=None)), made.members, reading(10**9, 60, (12, 0)))
