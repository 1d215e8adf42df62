"""When a number of replicas that follows requests takes a step, by what statuses tell."""

from __future__ import annotations

from typing import Any

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.placement import decline_id
from registry.model.records import AdapterRecord, Placement
from registry.model.status import AdapterLoad, ByLoad, ReportedDeclines, ReportedLoad, ScaledReplicas
from registry.rollout.pool import PoolSnapshot
from registry.rollout.scaling import (
    CALM_SECONDS,
    STEP_SECONDS,
    Demand,
    ScaledAdapters,
    ScaleRange,
    Watched,
    again_at,
    demand_of,
    look,
    number_of,
    range_of,
)
from tests.support.records import KEYS, POOL, deletion, put, record
from tests.support.residency_world import World

NAME = "acme/a"
WITHIN = ScaleRange(2, 8, 50)
SINCE = 1000.0


def placed(least: int | str = 2, most: int = 8, per_replica: int = 50, **more: Any) -> Placement:
    by_load = ByLoad(max=most, per_replica=per_replica)
    return Placement.model_validate({"replicas": least, "by_load": by_load, **more})


def scaled(number: int | None = None, name: str = NAME, **placement: Any) -> AdapterRecord:
    now = None if number is None else ScaledReplicas(replicas=number, reason="why", at="2026-01-01T00:00:00Z")
    return record(name, placement=placed(**placement)).model_copy(update={"scaled": now})


def load(omitted: int = 0, **in_flight: float) -> ReportedLoad:
    rows = [AdapterLoad(name=f"acme/{name}", in_flight=number) for name, number in in_flight.items()]
    return ReportedLoad(adapters=rows, omitted=omitted)


def pool(loads: dict[str, ReportedLoad | None], **presences: dict[str, Any]) -> PoolSnapshot:
    """A pool in which each replica says so; and what of presences is another than usual."""
    world = World()
    for name, told in loads.items():
        world.alive(name, by_reports=True, **presences.get(name, {}))
        world.says(name, load=told)
    world.look()
    return world.view.snapshot


LONG = SINCE + 1000
# The number, since when it could be lower, the demand, who lives, when it is looked at, and what it becomes.
LOOKS: dict[str, tuple[int, float | None, tuple[float, bool, int], float, int | None]] = {
    "as many as they are to have": (2, None, (100.0, True, 8), LONG, None),
    "more than that": (2, None, (100.1, True, 8), LONG, 3),
    "many more, one at a time": (7, None, (1e9, True, 8), LONG, 8),
    "more than the most": (8, None, (1e9, True, 8), LONG, None),
    "more, and not all tell: there is at least that": (2, None, (101, False, 8), LONG, 3),
    "as many as live": (3, None, (1000, True, 4), LONG, 4),
    "more than live": (3, None, (1000, True, 3), LONG, None),
    "nobody lives": (3, None, (1000, True, 0), LONG, None),
    "too soon for more": (2, None, (1000, True, 8), SINCE + STEP_SECONDS - 0.1, None),
    "just then": (2, None, (1000, True, 8), SINCE + STEP_SECONDS, 3),
    "hardly low": (4, SINCE, (105.0, True, 8), LONG, None),
    "low": (4, SINCE, (104.9, True, 8), LONG, 3),
    "nothing": (4, SINCE, (0.0, True, 8), LONG, 3),
    "low, and not all tell": (4, SINCE, (0.0, False, 8), LONG, None),
    "the least": (2, SINCE, (0.0, True, 8), LONG, None),
    "low since now": (4, None, (0.0, True, 8), LONG, None),
    "not calm for long": (4, SINCE + 500, (0.0, True, 8), SINCE + 500 + CALM_SECONDS - 0.1, None),
    "calm for long": (4, SINCE + 500, (0.0, True, 8), SINCE + 500 + CALM_SECONDS, 3),
    "too soon for fewer": (4, SINCE - 500, (0.0, True, 8), SINCE + STEP_SECONDS - 0.1, None),
    "fewer live, though not all tell": (5, SINCE, (300, False, 3), LONG, 4),
}


@pytest.mark.parametrize(("number", "low_since", "demand", "at", "becomes"), LOOKS.values(), ids=LOOKS)
def test_a_step_at_a_time(number, low_since, demand, at, becomes):
    """One more where they have more than they are to have; one fewer after a calm, if all tell, or so few live."""
    step = look(Watched(number, SINCE, low_since), WITHIN, Demand(*demand), at)[1]
    assert (step and step.replicas) == becomes
    if becomes:
        told = f"{demand[0]:.1f} requests at once on {number} replicas, 50 are to be on each"
        assert step.why == (told if demand[2] > 3 else "3 replicas live that could serve it, fewer than 5")


def test_a_calm_begins_with_a_look_and_is_broken_by_one():
    seen, _ = look(Watched(4, SINCE), WITHIN, Demand(0, is_whole=True, living=8), SINCE + 500)
    assert seen.low_since == SINCE + 500
    for busy in (120, 1000):
        assert look(seen, WITHIN, Demand(busy, is_whole=True, living=8), SINCE + 600)[0].low_since is None


def test_when_to_look_again():
    assert again_at(Watched(2, SINCE)) == SINCE + STEP_SECONDS
    assert again_at(Watched(2, SINCE, SINCE + 100)) == SINCE + 100 + CALM_SECONDS


def test_the_demand_is_what_all_tell_also_those_that_drain():
    told = pool({"r1": load(a=10.5), "r2": load(b=3), "r3": load(a=2)}, r3={"leaving": True})
    assert demand_of(scaled(), told) == Demand(12.5, is_whole=True, living=2)


@pytest.mark.parametrize(
    ("says", "is_whole"), [(None, False), (load(omitted=1, b=9), False), (load(omitted=1, a=9), True), (load(), True)]
)
def test_what_a_replica_does_not_tell_is_not_nothing(says: ReportedLoad | None, is_whole: bool):
    assert demand_of(scaled(), pool({"r1": load(a=1), "r2": says})).is_whole is is_whole


def test_a_replica_without_a_readable_status_tells_nothing():
    world = World()
    world.alive("r1", by_reports=True)
    world.raw("r1", b"no status")
    world.look()
    assert demand_of(scaled(), world.view.snapshot) == Demand(0, is_whole=False, living=1)


def test_those_that_could_not_serve_it_do_not_count_as_living():
    ours = scaled(selector={"gpu": "a"})
    declines = {"rank_too_high": ReportedDeclines(by="x", adapters=[decline_id("acme%2Fa", 1)])}
    told = pool(
        {name: load() for name in ("r1", "r2", "r3", "r4")},
        r1={"labels": {"gpu": "a"}},
        r2={"labels": {"gpu": "b"}},
        r3={"labels": {"gpu": "a"}, "capacity": 0},
        r4={"labels": {"gpu": "a"}, "declines": declines},
    )
    found = demand_of(ours, told)
    assert found.living == 1, told.known


def test_the_range_and_the_number_of_a_record():
    assert range_of(record(NAME, placement=Placement(replicas=3))) is None
    assert range_of(scaled(least="all")) is None
    assert range_of(record(NAME, placement=placed(), enabled=False)) is None
    assert range_of(scaled()) == WITHIN
    assert range_of(scaled(least=9)) == ScaleRange(9, 9, 50), "whoever wrote it"
    assert [number_of(scaled(number), WITHIN) for number in (None, 1, 5, 99)] == [2, 2, 5, 8]
    assert number_of(scaled(least="all"), WITHIN) == 2


class Book:
    """The list of such adapters, as a controller keeps it."""

    def __init__(self) -> None:
        self.adapters = ScaledAdapters(KEYS.all_adapters())
        self.revision = 1

    def put(self, at: float, value: bytes, name: str = NAME) -> frozenset[str]:
        self.revision += 1
        return self.adapters.changed([put(name, self.revision, value)], at)

    def seen(self) -> list[tuple[int, float]]:
        return [(one.seen.number, one.seen.since) for one in self.adapters.of(POOL).values()]


def test_a_number_stands_as_long_as_whatever_else_is_written():
    book = Book()
    assert book.put(1.0, scaled().to_bytes()) == {POOL}
    assert book.put(2.0, scaled(2).to_bytes()) == {POOL}
    assert book.seen() == [(2, 1.0)]
    assert book.put(3.0, scaled(3).to_bytes()) == {POOL}
    assert book.seen() == [(3, 3.0)]
    assert book.put(4.0, scaled(3, per_replica=9).to_bytes()) == {POOL}
    assert book.seen() == [(3, 3.0)]
    assert book.adapters.changed([deletion(NAME, 9)], 5.0) == {POOL}
    assert (book.seen(), book.adapters.pools) == ([], frozenset())
    assert book.adapters.changed([deletion(NAME, 10)], 6.0) == frozenset()


def test_what_has_no_such_number_or_cannot_be_read_is_left_out():
    book = Book()
    for value in (
        record(NAME).to_bytes(),
        scaled().to_bytes()[:-1],
        scaled(least="all").to_bytes(),
        scaled(name="acme/b").to_bytes(),
    ):
        assert book.put(1.0, value) == frozenset()
    assert book.put(1.0, scaled().to_bytes()) == {POOL}
    assert book.put(1.0, record(NAME).to_bytes()) == {POOL}
    assert book.adapters.pools == frozenset()


def test_after_a_list_only_what_is_the_same_has_stood_for_certain():
    book = Book()
    other = scaled(name="acme/b")
    book.put(1.0, scaled().to_bytes())
    book.put(1.0, other.to_bytes(), "acme/b")
    kvs = [one.kv for one in book.adapters.of(POOL).values()]
    again = KeyValue(kvs[1].key, kvs[1].value, kvs[1].create_revision, 50, kvs[1].version)
    assert book.adapters.listed([kvs[0], again], 9.0) == {POOL}
    assert sorted(book.seen()) == [(2, 1.0), (2, 9.0)]
    assert book.adapters.listed([], 10.0) == {POOL}
    assert book.adapters.pools == frozenset()
    assert book.adapters.listed(kvs[:1], 11.0) == {POOL}
    assert book.seen() == [(2, 11.0)], "what was not there before has stood since it was seen"


def test_what_a_look_found_is_kept_unless_the_number_is_another():
    book = Book()
    book.put(1.0, scaled(4).to_bytes())
    key = KEYS.adapter(POOL, NAME)
    book.adapters.saw(POOL, key, Watched(4, 1.0, 7.0))
    assert book.adapters.of(POOL)[key].seen == Watched(4, 1.0, 7.0)
    book.put(8.0, scaled(5).to_bytes())
    book.adapters.saw(POOL, key, Watched(4, 1.0, 9.0))
    assert book.adapters.of(POOL)[key].seen == Watched(5, 8.0)
    book.adapters.saw("q", key, Watched(4, 1.0))
