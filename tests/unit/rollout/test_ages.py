"""Ages of records, told by a clock in etcd that never runs ahead, whoever moves it on, whenever processes restart."""

from __future__ import annotations

import random

import pytest

from registry.etcd3.ops import KeyValue
from registry.rollout import index
from registry.rollout.ages import (
    ClockMark,
    ClockReading,
    EndingAdapters,
    EndingRecord,
    ExpiryClock,
    advanced,
    age_seconds,
    read_clock,
    tick_seconds,
)
from tests.support.records import KEYS, POOL, deletion, kv, put

CLOCK = KEYS.expiry_clock()
DAY = 86_400


def clock_kv(clock: ExpiryClock, revision: int) -> KeyValue:
    return KeyValue(CLOCK, clock.to_bytes(), 1, revision, 1)


def reading(now_ms: int, revision: int, *marks: tuple[int, int], seen_at: float = 0.0) -> ClockReading:
    clock = ExpiryClock(now_ms=now_ms, marks=[ClockMark(revision=number, at_ms=at) for number, at in marks])
    return ClockReading(clock_kv(clock, revision), clock, seen_at)


def ending(revision: int, seen_at: float = 0.0, ttl_seconds: int = 600, *, from_use: bool = False) -> EndingRecord:
    stands = kv("acme/a", revision, ttl_seconds=ttl_seconds)
    return EndingRecord(stands, POOL, "acme/a", 1, ttl_seconds, seen_at, from_use)


def test_only_records_that_end_are_kept():
    """R16 bounded: and what cannot be read never ends."""
    found = EndingAdapters(KEYS.all_adapters())
    found.listed([kv("a", 5, ttl_seconds=60), kv("b", 6), kv("c", 7, b'{"ttl_seconds":60}')], 10.0)
    assert [(one.name, one.pool, one.ttl_seconds, one.seen_at) for one in found.all.values()] == [("a", POOL, 60, 10)]
    described = kv("d", 8, description='"ttl_seconds":60')
    assert not found.changed([put("b", 9), put("d", 9, described.value)], 11.0)
    elsewhere = found.all[KEYS.adapter(POOL, "a")].kv
    assert not found.changed([put("x", 9, elsewhere.value)], 11.0), "a record of another name"
    assert found.changed([put("e", 10, ttl_seconds=70)], 12.0)
    assert found.changed([put("a", 11)], 13.0), "which never ends from now on"
    assert found.changed([deletion("e", 12)], 14.0)
    assert not found.all
    # A key and its value that hold the mark, and no time to live.
    marked = kv("f", 13).value.replace(b'"description":null', b'"description":null,"more":{"ttl_seconds":5}')
    found.listed([kv("f", 13, marked)], 15.0)
    assert not found.all


def test_of_what_never_ends_nothing_is_read(monkeypatch):
    """R16 bounded: of 20,000 records that would take seconds."""
    monkeypatch.delattr(index, "read_adapter")
    found = EndingAdapters(KEYS.all_adapters())
    found.listed([kv("a", 5)], 1.0)
    assert not found.changed([put("b", 6)], 2.0)


def test_what_stands_as_it_stood_is_known_as_long_as_before():
    """R25: a list again tells nothing new; the same revision with another value is of another store."""
    found, key = EndingAdapters(KEYS.all_adapters()), KEYS.adapter(POOL, "a")
    found.listed([kv("a", 5, ttl_seconds=60)], 1.0)
    found.listed([kv("a", 5, ttl_seconds=60)], 9.0)
    assert found.all[key].seen_at == 1.0
    found.listed([kv("a", 5, ttl_seconds=60, source="restored")], 12.0)
    assert found.all[key].seen_at == 12.0
    found.forget(key)
    found.forget(key)
    assert not found.all


@pytest.mark.parametrize(
    ("revision", "seen_at", "age"),
    [(5, 40.0, 90.0), (6, 40.0, 60.0), (9, 40.0, 60.0), (10, 40.0, 60.0), (20, 40.0, 60.0), (21, 40.0, 60.0)],
)
def test_an_age_is_the_larger_of_what_is_known_here_and_what_the_clock_tells(revision: int, seen_at: float, age: float):
    """R25: readings at 10, 50 and 80 s, the last seen at 80 s on our clock; all that is asked at 100 s on it."""
    told = reading(80_000, 20, (5, 10_000), (10, 50_000), seen_at=80.0)
    assert told.now_ms(100.0) == 100_000
    assert age_seconds(ending(revision, seen_at), told, 100.0) == pytest.approx(age)
    expected = {5: 90.0, 6: 50.0, 9: 50.0, 10: 50.0, 20: 20.0, 21: 0.0}[revision]
    assert age_seconds(ending(revision, 100.0), told, 100.0) == pytest.approx(expected)


def test_readings():
    """R14 nack: what a later release wrote is left alone, what is damaged is replaced, and neither tells anything."""
    none = read_clock(None, None, 1.0)
    assert (none.kv, none.clock, none.known_ms(1)) == (None, ExpiryClock(), None)
    assert read_clock(none, None, 9.0) is none
    first = clock_kv(advanced(none, DAY, 5.0), 7)
    seen = read_clock(none, first, 6.0)
    assert (seen.clock, seen.seen_at, read_clock(seen, first, 99.0)) == (ExpiryClock(), 6.0, seen)
    assert advanced(seen, DAY, 36.0) == ExpiryClock(now_ms=30_000, marks=[ClockMark(revision=7, at_ms=0)])
    later = read_clock(seen, KeyValue(CLOCK, b'{"schema":99}', 1, 8, 1), 40.0)
    assert (later.clock, later.known_ms(1), later.now_ms(41.0)) == (None, None, 1000)
    assert advanced(later, DAY, 50.0) == ExpiryClock()
    damaged = read_clock(later, KeyValue(CLOCK, b"?", 1, 9, 1), 50.0)
    assert (damaged.clock, damaged.known_ms(9), damaged.known_ms(10)) == (ExpiryClock(), 0, None)


@pytest.mark.parametrize(
    ("ttl", "seconds", "from_use"), [(10, 30.0, 5.0), (480, 30.0, 30.0), (1600, 100.0, 100.0), (7 * DAY, 300.0, 300.0)]
)
def test_the_clock_is_moved_on_as_often_as_a_life_needs_or_as_uses_are_told(ttl: int, seconds: float, from_use: float):
    """R25: short ones are late by less than a minute, and long ones cost nothing more."""
    assert tick_seconds(ending(1, ttl_seconds=ttl)) == seconds
    assert tick_seconds(ending(1, ttl_seconds=ttl, from_use=True)) == from_use


def test_the_clock_stays_small_and_is_late_by_a_share_of_an_age():
    """R16 bounded: moved on for 20 days, of which 7 are needed."""
    told, revision = reading(0, 1), 1
    for _ in range(20 * DAY // 300):
        revision += 1
        clock = advanced(told, 7 * DAY, told.seen_at + 300)
        told = ClockReading(clock_kv(clock, revision), clock, told.seen_at + 300)
    assert told.clock is not None
    assert told.kv is not None
    assert (len(told.clock.marks) < 300, len(told.kv.value) < 14_000) == (True, True)
    assert told.clock.marks == sorted(told.clock.marks, key=lambda one: one.revision)
    assert told.clock.now_ms - told.clock.marks[0].at_ms > 7 * DAY * 1000
    for true in (600, 6 * 3600, DAY, 7 * DAY):
        written = revision - true // 300
        age = age_seconds(ending(written, told.seen_at), told, told.seen_at)
        assert 0.93 * true - 300 <= age <= true


class Witness:
    """An admin service that follows the clock, sees it late, and may begin anew with another monotonic clock."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.restart(0.0)

    def restart(self, now: float) -> None:
        self.skew = self.rng.uniform(-1e6, 1e6)
        self.told: ClockReading | None = None
        self.known: dict[int, float] = {}

    def look(self, kv: KeyValue | None, now: float) -> ClockReading:
        self.told = read_clock(self.told, kv, now + self.skew)
        return self.told


@pytest.mark.no_cover  # what it executes, quicker tests do too
@pytest.mark.parametrize("seed", range(20))
def test_nobody_ever_takes_a_record_for_older_than_it_is(seed: int):
    """R25: several move the clock on, see it late, begin anew, and the store goes back to what it was before."""
    rng = random.Random(seed)
    witnesses = [Witness(rng) for _ in range(3)]
    stored: KeyValue | None = None
    written: dict[int, float] = {}
    backups: list[tuple[KeyValue | None, dict[int, float], int]] = []
    now, revision, aged = 0.0, 1, 0
    for _ in range(600):
        now += rng.expovariate(1 / 20)
        one = rng.choice(witnesses)
        match rng.randrange(8):
            case 0 | 1:
                revision += 1
                written[revision] = now
            case 2:
                one.restart(now)
            case 3 if rng.random() < 0.1:
                backups.append((stored, dict(written), revision))
            case 4 if backups and rng.random() < 0.05:
                stored, written, revision = backups[-1][0], dict(backups[-1][1]), backups[-1][2]
            case 5 | 6 if one.told is not None and one.told.kv == stored:
                # It was read a while ago, and still stands.
                revision += 1
                stored = clock_kv(advanced(one.told, 600, now + one.skew), revision)
                now += rng.uniform(0, 2)
            case _:
                told = one.look(stored, now)
                for at, true in written.items():
                    age = age_seconds(ending(at, now + one.skew), told, now + one.skew)
                    assert age <= now - true + 1e-3, (at, age, now - true)
                    aged += age > 0
    assert aged > 100, "it is of use"
