"""What a reader makes of its informers: a snapshot once all are listed, and a new one only if something changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.records import PoolLimits, PoolSpec
from registry.model.status import RememberedReplica, RememberedReplicas
from registry.rollout.pool import PoolSnapshot
from registry.rollout.pool_reader import PoolReader
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import LEASE, presence


@dataclass
class Informer:
    """What a shared informer has, as a test says it; `asked`: since which versions changes were asked for."""

    kvs: Mapping[bytes, KeyValue] = field(default_factory=dict)
    is_listed: bool = True
    connected: bool = True
    losses: int = 0
    version: int = 0
    revision: int = 0
    changed: frozenset[bytes] | None = None
    asked: list[int] = field(default_factory=list)

    def changed_since(self, version: int) -> frozenset[bytes] | None:
        self.asked.append(version)
        return self.changed

    def put(self, *kvs: KeyValue, changed: frozenset[bytes] | None = None) -> None:
        self.kvs, self.version, self.changed = {one.key: one for one in kvs}, self.version + 1, changed
        self.revision = max((one.mod_revision for one in kvs), default=0)


class World:
    """A reader, and its informers."""

    def __init__(self) -> None:
        self.presences, self.statuses, self.members, self.record, self.adapters = (Informer() for _ in range(5))
        self.looks = 0
        made: Any = (self.presences, self.statuses, (self.members, self.record))
        self.reader = PoolReader(POOL, *made, self.look)

    def now(self) -> PoolSnapshot:
        """What is known now."""
        found = self.reader.snapshot()
        assert found is not None
        return found

    async def look(self) -> Any:
        self.looks += 1
        await asyncio.sleep(0)
        return self.adapters


def live(name: str) -> KeyValue:
    return KeyValue(KEYS.replica(POOL, name), presence(name).to_bytes(), 1, 1, 1, LEASE)


@pytest.mark.parametrize("unknown", ["presences", "statuses", "members", "record"])
def test_nothing_is_known_before_all_of_it_was_listed(unknown):
    """R9: a rollout that is derived from a part would be done too early."""
    world = World()
    getattr(world, unknown).is_listed = False
    assert world.reader.snapshot() is None
    getattr(world, unknown).is_listed = True
    assert world.reader.snapshot() is not None


def test_it_is_made_anew_only_where_something_changed():
    world = World()
    first = world.now()
    assert world.now() is first
    world.presences.put(live("r1"))
    second = world.now()
    assert list(second.replicas) == ["r1"]
    told = KeyValue(KEYS.status(POOL, "r1"), b"?", 1, 1, 1, LEASE)
    world.statuses.put(told)
    third = world.now()
    assert third.replicas["r1"].status == told
    remembered = RememberedReplicas(members={"r2": RememberedReplica()})
    world.members.put(KeyValue(KEYS.members(POOL), remembered.to_bytes(), 1, 1, 1))
    fourth = world.now()
    assert [one.name for one in fourth.lacking.named] == ["r2"]
    spec = PoolSpec(name=POOL, base_models=["b"], limits=PoolLimits(expected_replicas=5))
    world.record.put(KeyValue(KEYS.pool(POOL), spec.to_bytes(), 1, 1, 1))
    fifth = world.now()
    assert fifth.lacking.count == 4
    assert world.now() is fifth


async def test_adapters_are_followed_once_they_are_asked_for():
    """The room that they take counts from when they were listed; what changed since is all that is read."""
    world = World()
    a, b = kv("a", 5), kv("b", 6)
    world.adapters.put(a)
    world.adapters.is_listed = False
    before = world.now()
    assert (world.looks, before.revision, dict(before.rooms[-1].everywhere)) == (0, 0, {})
    for _ in range(2):
        await world.reader.follow_adapters()
    assert world.looks == 1
    assert world.now() is before
    world.adapters.is_listed = True
    first = world.now()
    assert (first.revision, dict(first.rooms[-1].everywhere)) == (5, {frozenset(): 1})
    world.adapters.put(a, b, changed=frozenset({b.key}))
    second = world.now()
    assert (second.revision, dict(second.rooms[-1].everywhere)) == (6, {frozenset(): 2})
    assert world.adapters.asked == [-1, 1]
    world.adapters.put(a, b, changed=frozenset())
    third = world.now()
    assert third.rooms is second.rooms
    assert world.adapters.asked == [-1, 1, 2]
    assert world.now() is third


@pytest.mark.parametrize(("presences", "statuses"), [(False, True), (True, False), (False, False)])
def test_while_a_connection_is_lost_changes_may_pass_unseen(presences, statuses):
    """A canary that failed meanwhile would count as one that serves."""
    world = World()
    world.presences.losses, world.statuses.losses, world.record.losses = 2, 3, 9
    assert world.reader.losses == 5
    world.presences.connected, world.statuses.connected = presences, statuses
    assert world.reader.losses is None
    world.presences.connected = world.statuses.connected = True
    world.record.connected = world.members.connected = False
    assert world.reader.losses == 5
