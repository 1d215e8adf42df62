"""R24 always-placed: until a replica hears of a change it is told for what it serves, whatever kind of change it is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from registry.model.names import name_key
from registry.model.placement import Assignment, Member
from registry.model.records import AdapterSpec, Canary, CanaryRollout, Placement, Strategy
from registry.model.status import Failed, Kept, Lazy, Leaving, Pending, Resident
from registry.residency.derive import residency
from tests.support.records import POOL, record
from tests.support.residency_world import PENDING, SERVING, UNKNOWN, World, among, assigned, members

LABELS = {"r1": {"zone": "a"}, "r2": {"zone": "a"}, "r3": {"zone": "b"}}
MEMBERS = [Member(name, labels) for name, labels in LABELS.items()]
STRATEGY = Strategy(canary=Canary(replicas=1), promote="manual")
# What a record may ask for; of a rollout the phase.
KINDS: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "all": ({}, None),
    "one": ({"placement": Placement(replicas=1)}, None),
    "two": ({"placement": Placement(replicas=2)}, None),
    "zone a": ({"placement": Placement(selector={"zone": "a"})}, None),
    "zone b": ({"placement": Placement(selector={"zone": "b"})}, None),
    "one of zone a": ({"placement": Placement(replicas=1, selector={"zone": "a"})}, None),
    "lazy": ({"load": "lazy"}, None),
    "canary": ({"strategy": STRATEGY}, ""),
    "halted canary of two": ({"strategy": STRATEGY, "placement": Placement(replicas=2)}, "they refuse it"),
}


class Fleet:
    """Replicas that serve what they are to serve by the record that they know, and etcd."""

    def __init__(self) -> None:
        self.world = World()
        self.generation = 0
        self.records: dict[int, tuple[AdapterSpec, CanaryRollout | None, int]] = {}
        for name, labels in LABELS.items():
            self.world.alive(name, labels=labels)

    def publish_anew(self) -> None:
        """Makes the adapter again, for all."""
        self.generation += 1
        revision = self.world.put("a", self.generation)
        self.records[revision] = record("a", self.generation).spec, None, self.generation

    def publish(self, kind: str) -> int:
        """Publishes the next generation."""
        fields, halted = KINDS[kind]
        spec = fields | {"source": f"v{self.generation}"}
        rollout = None
        if halted is not None and self.generation:
            stable = record("a", self.generation, source=f"v{self.generation - 1}").spec
            rollout = CanaryRollout(stable_generation=self.generation, stable_spec=stable, halted=halted)
        self.generation += 1
        put = self.world.put if self.generation == 1 else self.world.update
        revision = put("a", self.generation, rollout=rollout, **spec)
        self.records[revision] = record("a", self.generation, **spec).spec, rollout, self.generation
        return revision

    def served(self, name: str, revision: int) -> int | None:
        """The generation that a replica serves that knows the record of a revision; None: none."""
        spec, rollout, generation = self.records[revision]
        shares: Assignment = assigned(POOL, name_key("a"), spec, MEMBERS, self._everywhere(spec))
        if name not in shares.serving:
            return None
        return rollout.stable_generation if rollout and name not in shares.canaries else generation

    def hears(self, name: str, revision: int, **fields: Any) -> None:
        """Has a replica tell that it follows the record of a revision."""
        spec = self.records[revision][0]
        lazy = Lazy(count=1, servable=True)
        self.world.says(name, revision, **({"lazy": lazy} | among(MEMBERS, self._everywhere(spec)) | fields))

    @staticmethod
    def _everywhere(spec: AdapterSpec) -> dict[frozenset[tuple[str, str]], int]:
        takes_room = spec.load == "eager" and spec.placement.replicas == "all"
        return {frozenset(spec.placement.selector.items()): 1} if takes_room else {}

    def told(self) -> dict[str, int]:
        """The generation that each replica is said to serve."""
        self.world.look()
        found = residency(self.world.view, "a")
        assert found is not None
        return {one.replica: one.generation for one in found.replicas if one.state is SERVING}

    def expected(self, known: Mapping[str, int]) -> dict[str, int]:
        found = {name: self.served(name, revision) for name, revision in known.items()}
        return {name: generation for name, generation in found.items() if generation is not None}


@pytest.mark.no_cover  # what it executes, quicker tests do too
@pytest.mark.parametrize(("before", "after"), list(product(KINDS, KINDS)))
def test_each_replica_is_told_for_what_it_serves_as_it_hears_of_changes(before, after):
    """R24, R9: one replica after the other, and one of them only when another change is made already."""
    fleet = Fleet()
    known = dict.fromkeys(LABELS, fleet.publish(before))
    for name, revision in known.items():
        fleet.hears(name, revision)
    assert fleet.told() == fleet.expected(known)
    second = fleet.publish(after)
    assert fleet.told() == fleet.expected(known)
    for name in ("r3", "r1"):
        known[name] = second
        fleet.hears(name, second)
        assert fleet.told() == fleet.expected(known)
    third = fleet.publish(before)
    assert fleet.told() == fleet.expected(known), "r2 is two records behind"
    for name in ("r1", "r2", "r3"):
        known[name] = third
        fleet.hears(name, third)
        assert fleet.told() == fleet.expected(known)


@pytest.mark.parametrize(("before", "after"), list(product(KINDS, KINDS)))
def test_who_cannot_hear_of_a_change_is_told_though_not_believed(before, after):
    """R24, R9: seeds 1005 and 1050 found that who was stale, and is to serve it no more, was told of no more."""
    fleet = Fleet()
    known = dict.fromkeys(LABELS, fleet.publish(before))
    for name, revision in known.items():
        fleet.hears(name, revision)
    serving = fleet.told()
    fleet.publish(after)
    for name, revision in known.items():
        fleet.hears(name, revision, stale=True)
    assert fleet.told() == {}
    found = residency(fleet.world.view, "a")
    assert found is not None
    assert {one.replica for one in found.replicas if one.state is UNKNOWN} >= serving.keys()


def test_who_is_not_believed_is_told_only_where_nobody_else_serves_it():
    """R24, R9: and only if it said that it serves it."""
    world = World()
    world.alive("r1", labels={"zone": "a"})
    world.alive("r2", labels={"zone": "b"})
    old = world.put("a", 1, placement=Placement(selector={"zone": "a"}))
    world.says("r1", old)
    world.says("r2", old)
    world.look()
    world.update("a", 2, placement=Placement(selector={"zone": "b"}))
    for said, told in (
        ({}, {"r1": 1}),
        ({"kept": [Kept(name="a", generation=1)]}, {"r1": 1}),
        ({"pending": [Pending(name="a", generation=1, reason="staging")]}, {}),
        ({"failed": [Failed(name="a", generation=1, reason="source_io", message="", attempts=1, retry_at=None)]}, {}),
    ):
        world.says("r1", old, stale=True, **said)
        found = world.where("a")
        assert {one.replica: one.generation for one in found.replicas if one.state is UNKNOWN} == told
        assert found.note == ""
    world.says("r2")
    assert {one.replica: one.state for one in world.where("a").replicas} == {"r2": SERVING}


@pytest.mark.parametrize("is_changed", [False, True])
def test_whose_share_nobody_knows_is_told_only_where_nobody_else_serves_it(is_changed):
    """R24, R9: seed 1093202025386. Its record of another adapter is unreadable, so it counts other room than we do."""
    world = World()
    world.alive("r1", capacity=10)
    world.alive("r2", capacity=20)
    placement = Placement(replicas=2)
    replicas = [*members("r1", capacity=10), *members("r2", capacity=20)]
    known = world.put("a", 1, placement=placement)
    world.look()
    if is_changed:
        world.update("a", 2, placement=placement)
    share = among(replicas, {frozenset(): 7})
    for said, state in (
        ({}, UNKNOWN),
        ({"pending": [Pending(name="a", generation=1, reason="staging")]}, PENDING),
        ({"failed": [Failed(name="a", generation=1, reason="", message="", attempts=1, retry_at="t")]}, PENDING),
    ):
        world.says("r1", known, **share, **said)
        world.says("r2", known, **share, pending=[Pending(name="a", generation=1, reason="staging")])
        found = world.states("a")
        assert (found["r1"][0], found["r2"][0]) == (state, PENDING)
    world.says("r1", known, **share)
    world.says("r2", **among(replicas))
    assert {name: state for name, (state, _) in world.states("a").items()} == {"r1": PENDING, "r2": SERVING}


@pytest.mark.parametrize("kind", KINDS)
def test_a_former_life_of_an_adapter_is_served_until_its_end_is_heard_of(kind):
    """R24: whether its end and its beginning are seen each by itself, or at once."""
    for is_seen in (True, False):
        fleet = Fleet()
        known = dict.fromkeys(LABELS, fleet.publish(kind))
        for name, revision in known.items():
            fleet.hears(name, revision)
        fleet.told()
        fleet.world.drop("a")
        if is_seen:
            fleet.world.look()
        fleet.publish_anew()
        assert fleet.told() == fleet.expected(known)


def test_what_a_status_says_by_the_name_counts_whatever_record_it_follows():
    """R24, R9: a hub that has just started knows no earlier records; and the share of a replica may be unknown."""
    world = World()
    world.alive("r1", "r2")
    world.put("a", 3, placement=Placement(replicas=1))
    resident = Lazy(resident=[Resident(name="a", generation=2, last_used="")])
    for said in (
        {"kept": [Kept(name="A", generation=2)]},
        {"leaving": [Leaving(name="a", generation=2)]},
        {"omitted": 1, "serves": [("a", 2)]},
        {"lazy": resident},
    ):
        for name in ("r1", "r2"):
            world.says(name, 1, **said)
        found = world.where("a").replicas
        assert {(one.generation, one.state) for one in found} == {(2, SERVING)}
        world.says("r1", 1, **said, stale=True)
        world.says("r2", 1)
        assert {one.state for one in world.where("a").replicas} & {SERVING} == set()


@pytest.mark.parametrize("after", ["one", "two", "zone a", "one of zone a", "halted canary of two"])
def test_what_could_be_loaded_while_it_was_lazy_stands_in_for_nobody_who_has_it(after):
    """R24: once its replicas hear that it is lazy no more, they refuse it until it is loaded."""
    fleet = Fleet()
    lazy = fleet.publish("lazy")
    for name in LABELS:
        fleet.hears(name, lazy)
    fleet.told()
    newest = fleet.publish(after)
    owners = [name for name in LABELS if fleet.served(name, newest) is not None]
    for name in LABELS.keys() - {*owners}:
        fleet.hears(name, newest, kept=[Kept(name="a", generation=1)])
    assert fleet.told() == dict.fromkeys(LABELS, 1)
    resident = [Resident(name="a", generation=1, last_used="t")]
    fleet.hears(owners[0], lazy, lazy=Lazy(count=1, servable=True, resident=resident))
    assert fleet.told() == dict.fromkeys(owners, 1), "one of those that are to serve it has it"
