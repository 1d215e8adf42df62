"""The facts of one revision, though etcd forgets it between two reads; and what is found of them once."""

from __future__ import annotations

import pytest

from registry.etcd3.errors import Compacted, EtcdError, FutureRevision
from registry.etcd3.ops import KeyValue, Range, RangeResult
from registry.model.errors import FailedPrecondition
from registry.model.placement import Placement
from registry.model.records import AdapterSpec, SourceSpec
from registry.rollout import pool
from registry.rollout.pool import Assignments, PoolRoom, PoolSnapshot
from registry.rollout.pool_reader import read_pool
from registry.runtime.clock import Deadline
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import members
from tests.unit.rollout.test_canary_rollout import NAME

COMPACTED, GONE_BACK = Compacted("compacted", compact_revision=9), FutureRevision("not reached")


class Forgetful:
    """etcd, which answers the first reads of what is pinned to a revision with these errors."""

    def __init__(self, *errors: EtcdError, kvs: tuple[KeyValue, ...] = ()) -> None:
        self.errors = list(errors)
        self.kvs = kvs
        self.revision = 50

    async def range(self, op: Range, *, timeout_seconds: float = 60.0) -> RangeResult:
        if op.revision and self.errors:
            self.revision += 1
            raise self.errors.pop(0)
        assert timeout_seconds > 0
        assert op.revision in {0, self.revision}
        end = op.range_end or op.key + b"\0"
        found = tuple(one for one in self.kvs if op.key <= one.key < end)
        return RangeResult(self.revision, found, more=False, count=len(found))


async def read(client: Forgetful):
    found, _ = await read_pool(client, KEYS, NAME, PoolSnapshot(POOL), Deadline.of(60.0))
    return found


@pytest.mark.parametrize("error", [COMPACTED, GONE_BACK])
async def test_what_is_compacted_or_set_back_meanwhile_is_read_anew(error):
    """A compaction comes when it comes: nobody who follows a rollout needs to know."""
    found = await read(Forgetful(error, kvs=(kv(NAME, 50),)))
    assert found is not None
    assert found.mod_revision == 50


async def test_it_is_not_read_for_ever():
    with pytest.raises(FailedPrecondition):
        await read(Forgetful(*[COMPACTED] * 9))


def test_who_serves_what_is_found_once_for_the_same_replicas_and_kept_for_some_of_them(monkeypatch):
    """R16 bounded: ranking a hundred replicas for each of thousands of adapters at each look would take seconds."""
    monkeypatch.setattr(pool, "_MAX_INPUTS", 3)
    monkeypatch.setattr(pool, "_MAX_ASSIGNMENTS", 3)
    found, live = Assignments(), members("r1", "r2", "r3")
    spec = AdapterSpec(source=SourceSpec(uri="file:///a"), placement=Placement(replicas=2))
    rooms = [None, PoolRoom(0, {}), PoolRoom(1, {frozenset(): 3})]
    inputs = [found.inputs("d", live, room) for room in rooms]
    assert all(found.inputs("d", live, room) is one for room, one in zip(rooms, inputs, strict=True))
    assert [one.weights is None for one in inputs] == [True, False, False]
    assigned = [found.find(POOL, ("a", revision), spec, inputs[0]) for revision in range(3)]
    assert all(found.find(POOL, ("a", revision), spec, inputs[0]) is one for revision, one in enumerate(assigned))
    assert {len(one.serving) for one in assigned} == {2}
    for number in range(10):
        assert found.inputs(f"d{number}", live, None).members == f"d{number}"
        assert len(found.find(POOL, ("b", number), spec, inputs[0]).serving) == 2
        assert (len(found._inputs) <= 3, len(found._assigned) <= 3) == (True, True)
