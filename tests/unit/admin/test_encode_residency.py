"""What a message says of an adapter's replicas: each of them, how many of them stand how, or both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from registry.admin.rpc import encode_residency, streams
from registry.admin.rpc.encode_residency import documents, response, starts
from registry.etcd3.ops import Event
from registry.model.status import Failed, Kept
from registry.residency.derive import DerivedResidency, residency_of
from registry.residency.hub import ResidencyUpdate
from registry.residency.view import AdapterView, PoolView
from registry.rollout.watching import WatchBatch
from registry.v1 import registry_pb2 as pb
from tests.support.records import POOL, kv
from tests.support.residency_world import World, engine_status

REQUEST, STATE = pb.WatchResidencyRequest, pb.RolloutReplica
FAILS = [Failed(name="a", generation=2, reason="BAD", message="m", attempts=1, retry_at=None)]


@pytest.fixture
def world() -> World:
    """Of an adapter's second generation one replica serves it, one the first, and one has nothing of it."""
    world = World()
    world.alive("r1", "r2", "r3", labels={"zone": "a"})
    world.put("a", 2)
    world.says("r1")
    world.says("r2", kept=[Kept(name="a", generation=1)], failed=FAILS)
    world.look()
    return world


def told(world: World, detail: int, *keys: str, snapshot: bool = True) -> pb.WatchResidencyResponse:
    return response(ResidencyUpdate(1, world.view, keys, snapshot), 0, detail)


def by_replica(one: pb.AdapterResidency) -> list[tuple[object, ...]]:
    return [
        (
            *(part.replica, part.generation, part.state, part.reason, part.loaded),
            *(part.wanted_generation, part.wanted_state, part.wanted_reason),
        )
        for part in one.replicas
    ]


def by_count(one: pb.AdapterResidency) -> list[tuple[object, ...]]:
    return sorted(
        (part.replicas, part.state, part.reason, part.wanted_state, part.wanted_reason) for part in one.counts
    )


EACH = [
    ("r1", 2, STATE.SERVING, "", True, 0, STATE.STATE_UNSPECIFIED, ""),
    ("r2", 1, STATE.SERVING, "earlier_generation", True, 2, STATE.FAILED, "BAD"),
    ("r3", 2, STATE.PENDING, "no_status", False, 0, STATE.STATE_UNSPECIFIED, ""),
]
COUNTED = sorted(
    [
        (1, STATE.SERVING, "", STATE.STATE_UNSPECIFIED, ""),
        (1, STATE.SERVING, "earlier_generation", STATE.FAILED, "BAD"),
        (1, STATE.PENDING, "no_status", STATE.STATE_UNSPECIFIED, ""),
    ]
)


@pytest.mark.parametrize(
    ("detail", "each", "counts"),
    [
        (REQUEST.REPLICAS, EACH, []),
        (REQUEST.COUNTS, [], COUNTED),
        (REQUEST.REPLICAS_AND_COUNTS, EACH, COUNTED),
    ],
)
def test_what_was_asked_for_is_told_and_nothing_else(world, detail, each, counts):
    """R9 status-truth; of thousands of replicas a list of each is megabytes that nobody asked for."""
    said = told(world, detail, "a")
    [one] = said.adapters
    assert (by_replica(one), by_count(one)) == (each, counts)
    assert (one.name, one.generation, one.load, said.revision) == ("a", 2, "eager", world.revision)


def test_replicas_are_counted_in_one_message_and_no_adapter_is_told_of(world):
    """R9 status-truth; after a change, too, all of them."""
    world.put("b")
    world.look()
    update = streams._all_of(ResidencyUpdate(2, world.view, ("a",), snapshot=False))
    assert streams._all_of(update) is update
    assert list(starts(update, REQUEST.COUNTS_BY_REPLICA)) == [0]
    said = response(update, 0, REQUEST.COUNTS_BY_REPLICA)
    assert (list(said.adapters), list(said.gone), said.snapshot, said.more) == ([], [], True, False)
    found = {one.replica: (one.loaded, sum(count.adapters for count in one.counts)) for one in said.replicas}
    assert found == {"r1": (1, 2), "r2": (1, 2), "r3": (0, 2)}
    [kept] = [one for one in said.replicas[1].counts if one.wanted_state]
    assert (kept.adapters, kept.state, kept.reason) == (1, STATE.SERVING, "earlier_generation")
    assert (kept.wanted_state, kept.wanted_reason) == (STATE.FAILED, "BAD")


@pytest.mark.parametrize(
    ("detail", "sizes"),
    [(REQUEST.REPLICAS, [2, 2, 1]), (REQUEST.REPLICAS_AND_COUNTS, [2, 2, 1]), (REQUEST.COUNTS, [5])],
)
def test_a_message_has_so_many_parts_of_replicas_as_are_small_together(world, detail, sizes, monkeypatch):
    """X2: an adapter that is counted is one of them, however many replicas there are."""
    monkeypatch.setattr(encode_residency, "_PARTS_AT_ONCE", 6)
    names = [f"b{number}" for number in range(5)]
    for name in names:
        world.put(name)
    world.look()
    update = ResidencyUpdate(1, world.view, tuple(names), snapshot=True)
    assert [len(response(update, start, detail).adapters) for start in starts(update, detail)] == sizes


def test_the_same_is_said_as_json(world):
    world.put("b", load="lazy")
    world.raw("r3", b"?")
    world.look()
    [[first, second]] = documents(world.view, ("a", "gone", "b"))
    one, two, three = first["replicas"]
    assert (first["name"], first["generation"], first["load"], second["load"]) == ("a", 2, "eager", "lazy")
    assert (one["replica"], one["state"], one["loaded"], one["wanted"]) == ("r1", "serving", True, None)
    assert (two["generation"], two["reason"]) == (1, "earlier_generation")
    assert two["wanted"] == {"generation": 2, "state": "failed", "reason": "BAD"}
    assert (three["state"], three["engine_url"], three["labels"]) == ("unknown", "", {"zone": "a"})


@pytest.mark.parametrize("names", ["plain", "versioned"])
def test_adapters_that_stand_alike_are_derived_once_for_all_messages_and_once_for_the_page(names, monkeypatch):
    """R16 bounded: 5,000 adapters on 20 replicas have 100,000 places, nearly all of them the same."""
    world = World()
    world.alive("r1", "r2", labels={"zone": "a"})
    alike = [f"b{number}" for number in range(20)]
    for name, generation in {"a": 2, "B": 3, **dict.fromkeys(alike, 1)}.items():
        world.put(name, generation)
    world.says("r1", engine=engine_status(names=names))
    world.says("r2", failed=FAILS)
    world.look()
    derived: list[str] = []

    def noted(view: PoolView, adapter: AdapterView) -> DerivedResidency:
        derived.append(adapter.key)
        return residency_of(view, adapter)

    monkeypatch.setattr(encode_residency, "residency_of", noted)
    monkeypatch.setattr(encode_residency, "_PARTS_AT_ONCE", 6)
    update = ResidencyUpdate(1, replace(world.view), tuple(sorted(world.view.records)), snapshot=True)
    said = [
        one for start in starts(update, REQUEST.REPLICAS) for one in response(update, start, REQUEST.REPLICAS).adapters
    ]
    written = [one for part in documents(update.view, update.keys) for one in part]
    assert derived == ["a", "b"] * 2
    whole = [residency_of(world.view, adapter) for key in update.keys if (adapter := world.view.adapter(key))]
    assert said == [encode_residency._derived_adapter(one) for one in whole]
    assert written == [encode_residency._derived_document(one) for one in whole]
    called = [[part.model for part in one.replicas] for one in said[:3]]
    first = ["a@2", "B@3", "b0@1"] if names == "versioned" else ["a", "B", "b0"]
    assert called == [[one, other] for one, other in zip(first, ["a", "B", "b0"], strict=True)]


@pytest.mark.parametrize(("count", "parts"), [(2000, 1), (2001, 2)])
def test_two_thousand_counted_adapters_are_one_message(count, parts):
    """R16 bounded: a few hundred kilobytes."""
    names = tuple(f"a{number}" for number in range(count))
    assert len(starts(ResidencyUpdate(1, World().view, names, snapshot=True), REQUEST.COUNTS)) == parts


AT_ONCE = 4
REQUEST = pb.WatchResidencyRequest
DETAILS = (REQUEST.COUNTS, REQUEST.REPLICAS_AND_COUNTS)
COUNTS = range(3 * AT_ONCE + 1)


@pytest.fixture
def _small_parts(monkeypatch) -> None:
    monkeypatch.setattr(streams, "_EVENTS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(encode_residency, "_PARTS_AT_ONCE", AT_ONCE)


def names_of(count: int) -> list[str]:
    return [f"a{number:02}" for number in range(count)]


def adapters(names: list[str]) -> Iterator[pb.WatchAdaptersResponse]:
    events = tuple(Event(one.key, one.mod_revision, one) for one in (kv(name, 5) for name in names))
    return streams._responses(POOL, WatchBatch(5, snapshot=True, events=events))


def residency(names: list[str], detail: int = REQUEST.REPLICAS) -> Iterator[pb.WatchResidencyResponse]:
    world = World()
    for name in names:
        world.put(name)
    world.look()
    update = ResidencyUpdate(1, world.view, tuple(names), snapshot=True)
    return (response(update, start, detail) for start in starts(update, detail))


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("stream", [adapters, residency, *(partial(residency, detail=one) for one in DETAILS)])
def test_the_last_part_of_a_snapshot_and_no_other_says_that_it_is(stream, count):
    """Clients wait for it before they believe in any of it; also where the last part is a full one."""
    parts = list(stream(names_of(count)))
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    assert all(part.snapshot for part in parts)
    told = [event.put.name for part in parts for event in getattr(part, "events", ())]
    told += [one.name for part in parts for one in getattr(part, "adapters", ())]
    assert told == names_of(count)
    assert len(parts) == max(1, -(-count // AT_ONCE))
