"""The facts of one revision, though etcd forgets it between two reads; and what is found of them once."""

from __future__ import annotations

import pytest

from registry.etcd3.client import Listing
from registry.etcd3.errors import Compacted, EtcdError, EtcdUnavailable, FutureRevision
from registry.etcd3.ops import KeyValue
from registry.model.errors import RegistryError
from registry.model.placement import Assignment, Placement, assign
from registry.model.records import AdapterRecord, AdapterSpec, SourceSpec
from registry.rollout import pool
from registry.rollout.pool import Assignments, PoolRoom, PoolSnapshot, PoolValues
from registry.rollout.pool_reader import read_pool
from registry.rollout.status import DISABLED, Question, derive_rollout
from registry.runtime.clock import Deadline
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import members
from tests.unit.rollout.test_canary_rollout import NAME

COMPACTED, GONE_BACK = Compacted("compacted", compact_revision=9), FutureRevision("not reached")
AWAY = EtcdUnavailable("away", maybe_applied=False)


class Forgetful:
    """etcd, which answers the first reads of what is pinned to a revision with these errors."""

    def __init__(self, *errors: EtcdError, kvs: tuple[KeyValue, ...] = ()) -> None:
        self.errors = list(errors)
        self.kvs = kvs
        self.revision = 50

    async def list_range(
        self, key: bytes, range_end: bytes, *, page_size: int, revision: int, timeout_seconds: float
    ) -> Listing:
        if revision and self.errors:
            self.revision += 1
            raise self.errors.pop(0)
        assert (timeout_seconds > 0, page_size > 0) == (True, True)
        assert revision in {0, self.revision}
        end = range_end or key + b"\0"
        return Listing(self.revision, tuple(one for one in self.kvs if key <= one.key < end), 7, 3)


async def read(client: Forgetful):
    found, _ = await read_pool(client, KEYS, NAME, PoolSnapshot(POOL), Deadline.of(60.0))
    return found


@pytest.mark.parametrize(
    ("errors", "reads"),
    [([COMPACTED], None), ([GONE_BACK], None), ([COMPACTED] * 9, 3), ([AWAY] * 9, 1)],
    ids=["compacted", "set back", "again and again", "away"],
)
async def test_only_what_is_compacted_or_set_back_meanwhile_is_read_anew(errors, reads):
    """R18: an etcd that is away is told at once; of a compaction nobody who follows a rollout needs to know."""
    client = Forgetful(*errors, kvs=(kv(NAME, 50),))
    if reads is None:
        found = await read(client)
        assert found is not None
        assert found.mod_revision == 50
        return
    with pytest.raises(RegistryError):
        await read(client)
    assert 9 - len(client.errors) == reads


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
    assert assigned == [assign(POOL, "a", spec, inputs[0].candidates)] * 3
    for number in range(10):
        assert found.inputs(f"d{number}", live, None).members == f"d{number}"
        assert found.find(POOL, (name := f"b{number}", 1), spec, inputs[0]) == assign(
            POOL, name, spec, inputs[0].candidates
        )
        assert (len(found._inputs) <= 3, len(found._assigned) <= 3) == (True, True)


def test_all_inputs_that_replicas_may_know_are_kept_at_once():
    """R16 bounded: eight sets of replicas with eight rooms, and with none, are what one snapshot can be asked for."""
    found, live = Assignments(), members("r1", "r2")
    asked = [(f"d{number}", room) for number in range(8) for room in (None, *(PoolRoom(at, {}) for at in range(8)))]
    first = [found.inputs(digest, live, room) for digest, room in asked]
    assert all(found.inputs(digest, live, room) is one for (digest, room), one in zip(asked, first, strict=True))


def values(*records: KeyValue, changed: frozenset[bytes] | None = None) -> PoolValues:
    """A pool without replicas, in which these records stand."""
    return PoolValues({}, {}, {one.key: one for one in records}, changed, revision=50)


def test_a_record_as_nearly_all_have_it_is_not_parsed_to_know_its_room(monkeypatch):
    """R16 bounded: of 20,000 that would take seconds; they take room on all replicas."""

    def parse(*_told: object) -> AdapterRecord:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(pool, "read_adapter", parse)
    found = pool.renew(PoolSnapshot(POOL), values(kv("a", 11), kv("acme/B", 12)))
    assert found.rooms[-1].everywhere == {frozenset(): 2}


def test_only_records_that_changed_are_parsed_again(monkeypatch):
    """R16 bounded: all others take the room that they took."""
    read: list[bytes] = []
    parse = pool.read_adapter

    def noted(of: str, found: KeyValue) -> AdapterRecord:
        read.append(found.key)
        return parse(of, found)

    monkeypatch.setattr(pool, "read_adapter", noted)
    zone = Placement(selector={"zone": "a"})
    first, other, second = (kv(name, at, placement=zone) for name, at in (("a", 11), ("b", 12), ("a", 13)))
    before = pool.renew(PoolSnapshot(POOL), values(first, other))
    read.clear()
    after = pool.renew(before, values(second, other, changed=frozenset({second.key})))
    assert (read, after.rooms, after.revision) == ([second.key], before.rooms, 50)


@pytest.mark.parametrize("description", [None, '"enabled":false'])
def test_what_is_disabled_takes_no_room_and_is_served_by_nobody(description):
    """R9, R20: its rollout is over at once, and says why; a text that looks like it means nothing."""
    on, off = (kv(f"a{is_on}", 50, enabled=is_on, description=description) for is_on in (True, False))
    found = pool.renew(PoolSnapshot(POOL), values(on, off))
    assert dict(found.rooms[-1].everywhere) == {frozenset(): 1}
    rollout = derive_rollout(Question(POOL, "aFalse", 1), off, found)
    assert (rollout.done, rollout.failure, rollout.replicas, rollout.note) == (True, None, (), DISABLED)
    spec = AdapterSpec(source=SourceSpec(uri="file:///a"), placement=Placement(replicas=2), enabled=False)
    candidates = Assignments().inputs("d", members("r1", "r2"), None).candidates
    assert assign(POOL, "a", spec, candidates) == Assignment((), frozenset())
