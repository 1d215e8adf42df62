"""In which parts a large answer of a stream is sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from registry.admin.rpc import encode_residency, streams
from registry.etcd3.ops import Event
from registry.residency.hub import ResidencyUpdate
from registry.rollout.watching import WatchBatch
from registry.v1 import registry_pb2 as pb
from tests.support.records import POOL, kv
from tests.support.residency_world import World

AT_ONCE = 4
REQUEST = pb.WatchResidencyRequest
DETAILS = (REQUEST.COUNTS, REQUEST.REPLICAS_AND_COUNTS)
COUNTS = range(3 * AT_ONCE + 1)


@pytest.fixture(autouse=True)
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
    return (encode_residency.response(update, start, detail) for start in encode_residency.starts(update, detail))


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
