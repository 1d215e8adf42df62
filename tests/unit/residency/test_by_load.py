"""A number of replicas that follows requests is the same one for sidecars, residency and rollouts."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.records import AdapterRecord, Placement
from registry.model.status import ByLoad, Leaving, ScaledReplicas
from registry.rollout.status import Question, derive_rollout
from sidecar.desired.assignment import Assigner
from tests.support.records import KEYS, POOL, record
from tests.support.residency_world import SERVING, World, among, members
from tests.support.worlds import desired, fleet

NAMES = ("r1", "r2", "r3", "r4")
NAME = "acme/a"
BY_LOAD = Placement(replicas=1, by_load=ByLoad(max=3, per_replica=50))


def scaled(number: int | None) -> AdapterRecord:
    now = None if number is None else ScaledReplicas(replicas=number, reason="why", at="2026-01-01T00:00:00Z")
    return record(NAME, placement=BY_LOAD).model_copy(update={"scaled": now})


def written(world: World, number: int | None) -> KeyValue:
    world.revision += 1
    kv = KeyValue(KEYS.adapter(POOL, NAME), scaled(number).to_bytes(), 1, world.revision, 1)
    world.records[kv.key] = kv
    return kv


def owners(kv: KeyValue) -> set[str]:
    """The replicas that find it in their own share."""
    state = desired(kv)
    return {name for name in NAMES if Assigner(POOL, name, {}).find(state, fleet(*NAMES)).order}


@pytest.mark.parametrize(("number", "found"), [(None, 1), (1, 1), (2, 2), (3, 3), (99, 3)])
def test_all_find_the_same_replicas_and_never_beyond_the_range(number: int | None, found: int):
    """R24 always-placed: whoever wrote the number."""
    world = World()
    world.alive(*NAMES, by_reports=True)
    kv = written(world, number)
    for name in NAMES:
        world.says(name, **among(members(*NAMES)))
    ours = owners(kv)
    assert len(ours) == found
    assert {one.replica for one in world.where(NAME).replicas} == ours
    rollout = derive_rollout(Question(POOL, NAME, 1), kv, world.view.snapshot)
    assert {one.replica for one in rollout.replicas} == ours
    assert world.where(NAME).note == ""


def test_who_serves_it_no_more_has_its_place_until_it_let_go():
    """R24 always-placed, R20: a step down takes nothing from residency before the replica does."""
    world = World()
    world.alive(*NAMES, by_reports=True)
    three, two = owners(written(world, 3)), owners(written(world, 2))
    assert two < three
    for name in NAMES:
        leaves = [Leaving(name=NAME, generation=1)] if name in three - two else []
        world.says(name, leaving=leaves, **among(members(*NAMES)))
    assert world.states(NAME) == {
        **dict.fromkeys(two, (SERVING, "")),
        **dict.fromkeys(three - two, (SERVING, "leaving")),
    }
