"""Where adapters are, derived from records, presences and statuses."""

from __future__ import annotations

from typing import Any

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.assignment import assign
from registry.model.names import name_key
from registry.model.placement import Member, members_digest
from registry.model.records import Canary, CanaryRollout, Placement, Strategy
from registry.model.status import Failed, Found, Lazy, Pending, Resident, Warned
from registry.store import assignments
from registry.store.judgement import ReplicaState
from registry.store.pool_view import Held, PoolView, is_held_back, renewed
from registry.store.residency import AdapterResidency, residency
from registry.store.residency_changes import changed
from tests.support.records import KEYS, POOL, kv, record
from tests.support.replicas import digest_of, engine_status, presence, replica_status

PENDING, SERVING, FAILED, UNKNOWN = (
    ReplicaState.PENDING,
    ReplicaState.SERVING,
    ReplicaState.FAILED,
    ReplicaState.UNKNOWN,
)


class World:
    """What stands in etcd, and a view that follows it."""

    def __init__(self) -> None:
        self.records: dict[bytes, KeyValue] = {}
        self.presences: dict[bytes, KeyValue] = {}
        self.statuses: dict[bytes, KeyValue] = {}
        self.revision = 10
        self.deleted = 0
        self.view = PoolView(POOL)

    def put(self, name: str, generation: int = 1, rollout: CanaryRollout | None = None, **spec: Any) -> int:
        self.revision += 1
        made = record(name, generation, **spec).model_copy(update={"rollout": rollout})
        written = kv(name, self.revision, made.to_bytes())
        self.records[written.key] = written
        return self.revision

    def drop(self, name: str) -> None:
        self.revision += 1
        self.deleted = self.revision
        del self.records[KEYS.adapter(POOL, name)]

    def alive(self, *names: str, **fields: Any) -> None:
        for name in names:
            key = KEYS.replica(POOL, name)
            self.presences[key] = KeyValue(key, presence(name, **fields).to_bytes(), 1, 1, 1)

    def dead(self, name: str) -> None:
        del self.presences[KEYS.replica(POOL, name)]

    def says(self, name: str, revision: int | None = None, **fields: Any) -> None:
        seen = self.revision if revision is None else revision
        self.raw(name, replica_status(name, seen, **fields).to_bytes())

    def raw(self, name: str, value: bytes) -> None:
        key = KEYS.status(POOL, name)
        self.statuses[key] = KeyValue(key, value, 1, 1, 1)

    @property
    def held(self) -> Held:
        return Held(self.revision, self.deleted, dict(self.records), dict(self.presences), dict(self.statuses))

    def look(self, revision: int | None = None) -> frozenset[str]:
        """Follows etcd; what `changed` says is checked against deriving everything."""
        old, held = self.view, self.held
        if revision is not None:
            held = Held(revision, 0, held.records, held.presences, held.statuses)
        self.view = renewed(old, held)
        found = changed(old, self.view)
        keys = {*old.records, *self.view.records}
        assert found == {key for key in keys if residency(old, key) != residency(self.view, key)}
        return found

    def where(self, name: str) -> AdapterResidency:
        self.look()
        found = residency(self.view, name_key(name))
        assert found is not None
        return found

    def states(self, name: str) -> dict[str, tuple[ReplicaState, str]]:
        return {one.replica: (one.state, one.reason) for one in self.where(name).replicas}


@pytest.fixture
def world() -> World:
    return World()


def failed(name: str, retry_at: str | None = None) -> list[Failed]:
    return [Failed(name=name, generation=1, reason="BAD", message="m", attempts=1, retry_at=retry_at)]


def test_everywhere(world):
    """R9 status-truth: serving where a status proves it, and not known where none does."""
    world.alive("r1", "r2", labels={"zone": "a"})
    world.put("acme/A")
    world.says("r1")
    where = world.where("acme/A")
    one, two = where.replicas
    assert (where.name, where.generation, where.lazy, where.note) == ("acme/A", 1, False, "")
    assert (one.replica, one.engine_url, one.labels) == ("r1", "http://r1", {"zone": "a"})
    assert (one.model, one.generation, one.state, one.loaded, one.last_used) == ("acme/A", 1, SERVING, True, "")
    assert (two.state, two.reason, two.engine_url, two.loaded) == (PENDING, "no_status", "", False)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stale": True}, (UNKNOWN, "stale")),
        ({"ready": False, "engine": engine_status(incarnation="")}, (UNKNOWN, "engine_unreachable")),
        ({"pending": [Pending(name="A", generation=1, reason="staging")]}, (PENDING, "staging")),
        ({"failed": failed("a")}, (FAILED, "BAD")),
        ({"failed": failed("a", "soon")}, (PENDING, "BAD")),
        ({"omitted": 2}, (UNKNOWN, "omitted")),
        ({"warnings": [Warned(name="", generation=0, reason="blocked", message="m")]}, (UNKNOWN, "blocked")),
        ({"warnings": [Warned(name="a", generation=1, reason="blocked", message="m")]}, (SERVING, "")),
        ({"failed": failed("b")}, (SERVING, "")),
    ],
)
def test_what_a_status_does_not_prove_is_not_said(world, fields, expected):
    """R9 status-truth."""
    world.alive("r1")
    world.put("a")
    world.says("r1", **fields)
    assert world.states("a") == {"r1": expected}


def test_a_status_of_an_earlier_revision(world):
    """R9: of a generation that the replica has not seen, nothing is proven."""
    world.alive("r1")
    world.put("a")
    world.says("r1")
    world.put("a", 2, source="v2")
    assert world.states("a") == {"r1": (PENDING, "not_seen")}


def test_a_status_of_a_later_revision(world):
    """R9: it speaks of a record that is not known here yet, so what it said before counts until that is."""
    world.alive("r1")
    world.put("a")
    world.says("r1", pending=[Pending(name="a", generation=1, reason="staging")])
    assert world.states("a") == {"r1": (PENDING, "staging")}
    world.says("r1", world.revision + 1)
    assert world.states("a") == {"r1": (PENDING, "staging")}
    assert is_held_back(world.view, world.held)
    world.revision += 1
    assert world.states("a") == {"r1": (SERVING, "")}
    assert not is_held_back(world.view, world.held)


def test_the_first_status_of_a_later_revision(world):
    world.alive("r1")
    world.put("a")
    world.says("r1", world.revision + 1)
    assert world.states("a") == {"r1": (PENDING, "no_status")}
    world.says("r1", world.revision + 1, stale=True)
    assert world.states("a") == {"r1": (UNKNOWN, "stale")}


def test_what_cannot_be_read(world):
    world.alive("r1")
    world.raw("r1", b"?")
    world.put("a")
    broken = kv("b", 11, b"?")
    world.records[broken.key] = broken
    world.presences[KEYS.replica(POOL, "r2")] = KeyValue(KEYS.replica(POOL, "r2"), b"?", 1, 1, 1)
    assert world.states("a") == {"r1": (UNKNOWN, "unreadable_status"), "r2": (PENDING, "no_status")}
    assert residency(world.view, "b") is None
    assert residency(world.view, "nothing") is None
    del world.records[broken.key]
    assert world.look() == frozenset()


def test_differing_digests(world):
    """W6 one-digest: replicas that found different files do not serve the adapter."""
    world.alive("r1", "r2", "r3")
    world.put("a", pinned=False)
    for name, char in (("r1", "1"), ("r2", "2")):
        world.says(name, found=[Found(name="a", generation=1, digest="sha256:" + char * 64)])
    world.says("r3")
    assert {name: state for name, (state, _) in world.states("a").items()} == {
        "r1": FAILED,
        "r2": FAILED,
        "r3": SERVING,
    }
    world.says("r2", found=[Found(name="a", generation=1, digest="sha256:" + "1" * 64)])
    assert world.look() == {"a"}
    assert {state for state, _ in world.states("a").values()} == {SERVING}


def test_lazy(world):
    """A lazy adapter is served where it can be loaded; the status says where it is, and since when it is idle."""
    world.alive("r1", "r2", "r3")
    world.put("a", 2, load="lazy")
    used = [Resident(name="A", generation=2, last_used="2026-01-01T00:00Z")]
    world.says("r1", lazy=Lazy(count=1, servable=True, resident=used))
    world.says("r2", lazy=Lazy(count=1, servable=True, resident=[used[0].model_copy(update={"generation": 1})]))
    world.says("r3", lazy=Lazy(count=1, servable=False, reason="needs_plugin"))
    where = world.where("a")
    assert where.lazy
    assert [(one.state, one.loaded, one.last_used) for one in where.replicas] == [
        (SERVING, True, "2026-01-01T00:00Z"),
        (SERVING, False, ""),
        (FAILED, False, ""),
    ]
    assert where.replicas[2].reason == "needs_plugin"


def test_versioned_names(world):
    world.alive("r1", "r2")
    world.put("a", 3)
    world.says("r1", engine=engine_status(names="versioned"))
    world.says("r2")
    assert [one.model for one in world.where("a").replicas] == ["a@3", "a"]


def test_a_selector_needs_no_agreement(world):
    world.alive("r1", labels={"gpu": "h100"})
    world.alive("r2", labels={"gpu": "l4"})
    world.put("a", placement=Placement(selector={"gpu": "h100"}))
    world.says("r1")
    world.says("r2")
    assert world.states("a") == {"r1": (SERVING, "")}
    world.alive("r2", labels={"gpu": "h100"})
    assert world.look() == {"a"}
    assert list(world.states("a")) == ["r1", "r2"]


NAMES = ("r1", "r2", "r3", "r4")


def owners(name: str, count: int, *replicas: str, taken: int = 0) -> set[str]:
    members = [Member(one, {}) for one in replicas]
    spec = record(name, placement=Placement(replicas=count)).spec
    return set(assign(POOL, name_key(name), spec, members, {frozenset(): taken}).serving)


def test_placed_by_number(world):
    """Those that serve it are those that every reader finds; others have no part in it."""
    world.alive(*NAMES)
    world.put("a", placement=Placement(replicas=2))
    for name in NAMES:
        world.says(name, members=digest_of(*NAMES))
    assert world.states("a") == dict.fromkeys(sorted(owners("a", 2, *NAMES)), (SERVING, ""))


def test_fewer_live_than_are_asked_for(world):
    world.alive("r1", "r2")
    world.put("a", placement=Placement(replicas=3))
    world.says("r1", members=digest_of("r1", "r2"))
    where = world.where("a")
    assert (where.note, len(where.replicas)) == ("placed on 3, 2 alive", 2)


def test_a_replica_that_looks_at_others_proves_nothing(world):
    """R9: a replica that found its share among other replicas may have found another share."""
    world.alive("r1", "r2")
    world.put("a", placement=Placement(replicas=2))
    world.says("r1", members=digest_of("r1", "r2", "r9"))
    world.says("r2")
    assert world.states("a") == dict.fromkeys(("r1", "r2"), (UNKNOWN, "other_members"))


def moved(names: tuple[str, ...]) -> str:
    """An adapter on one replica that moves to the last of the names when that comes."""
    before, newcomer = names[:-1], names[-1]
    tries = (f"n{i}" for i in range(1000))
    return next(one for one in tries if owners(one, 1, *names) == {newcomer} != owners(one, 1, *before))


def test_a_share_that_moves(world):
    """Until a replica has heard who lives now it serves what it did; who takes over is told as soon as it does."""
    name = moved(NAMES)
    (before,) = owners(name, 1, *NAMES[:-1])
    world.alive(*NAMES[:-1])
    world.put(name, placement=Placement(replicas=1))
    for one in NAMES[:-1]:
        world.says(one, members=digest_of(*NAMES[:-1]))
    assert world.states(name) == {before: (SERVING, "")}
    world.alive("r4")
    world.says("r4", members=digest_of(*NAMES[:-1]))
    assert world.states(name) == {before: (SERVING, ""), "r4": (PENDING, "not_placed")}
    world.says("r4", members=digest_of(*NAMES))
    assert world.states(name) == {before: (SERVING, ""), "r4": (SERVING, "")}
    world.says(before, members=digest_of(*NAMES))
    assert world.states(name) == {"r4": (SERVING, "")}
    world.says(before, members=digest_of(*NAMES), stale=True)
    assert world.look() == frozenset()


def test_a_stale_replica_is_not_known_of_first(world):
    world.alive("r1")
    world.put("a", placement=Placement(replicas=1))
    world.says("r1", stale=True)
    assert world.states("a") == {"r1": (UNKNOWN, "stale")}


def test_room_is_reckoned_as_each_replica_saw_it(world):
    """R9: adapters that are everywhere take room, and a replica that has not seen them reckons without them."""
    world.alive("r1", capacity=2)
    world.alive("r2", capacity=100)
    both = [Member("r1", {}, 2), Member("r2", {}, 100)]

    def owner(name: str, taken: int) -> str:
        spec = record(name, placement=Placement(replicas=1)).spec
        return assign(POOL, name, spec, both, {frozenset(): taken}).serving[0]

    name = next(one for one in (f"n{i}" for i in range(5000)) if (owner(one, 0), owner(one, 1)) == ("r1", "r2"))
    world.put(name, placement=Placement(replicas=1))
    for one in ("r1", "r2"):
        world.says(one, members=members_digest(both))
    assert world.states(name) == {"r1": (SERVING, "")}
    world.put("big")
    assert world.states(name) == {"r1": (SERVING, ""), "r2": (PENDING, "not_placed")}
    world.says("r2", members=members_digest(both))
    assert world.states(name) == {"r1": (SERVING, ""), "r2": (SERVING, "")}
    world.says("r1", members=members_digest(both))
    assert world.states(name) == {"r2": (SERVING, "")}
    world.drop("big")
    assert world.states(name) == {"r2": (SERVING, ""), "r1": (PENDING, "not_placed")}


def test_room_that_is_not_remembered(world):
    world.alive("r1")
    world.put("a", placement=Placement(replicas=1))
    world.says("r1", members=digest_of("r1"))
    for i in range(9):
        world.put(f"b{i}")
        world.look()
    assert world.states("a") == {"r1": (UNKNOWN, "other_members")}


def test_members_that_are_not_remembered(world):
    world.alive("r1")
    world.put("a", placement=Placement(replicas=9))
    world.says("r1", members=digest_of("r1"))
    assert world.states("a")["r1"] == (SERVING, "")
    for i in range(2, 10):
        world.alive(f"r{i}")
        world.look()
    assert world.states("a")["r1"] == (UNKNOWN, "other_members")


def test_canaries(world):
    """A generation that only canaries serve: all others serve the stable one, each by its own digest."""
    world.alive(*NAMES)
    strategy = Strategy(canary=Canary(replicas=1), promote="manual")
    stable = record("a", 4, pinned=False).spec
    rollout = CanaryRollout(stable_generation=4, stable_spec=stable)
    world.put("a", 5, rollout, source="v2", strategy=strategy)
    spec = record("a", 5, source="v2", strategy=strategy).spec
    (canary,) = assign(POOL, "a", spec, [Member(name, {}) for name in NAMES], {}).canaries
    for i, name in enumerate(NAMES):
        found = [Found(name="a", generation=4, digest=f"sha256:{i}")]
        world.says(name, members=digest_of(*NAMES), found=[] if name == canary else found)
    where = {one.replica: (one.generation, one.state) for one in world.where("a").replicas}
    others = set(NAMES) - {canary}
    assert where == {canary: (5, SERVING), **dict.fromkeys(others, (4, FAILED))}
    world.says(canary)
    assert world.states("a")[canary] == (UNKNOWN, "other_members")


def test_a_store_that_was_set_back(world):
    """What was remembered is of another history."""
    world.alive("r1")
    world.put("a", placement=Placement(replicas=1))
    world.put("b")
    world.says("r1", 5, members=digest_of("r1"))
    world.look()
    world.records = {one.key: one for one in [kv("a", 3, record("a", placement=Placement(replicas=1)).to_bytes())]}
    world.look(7)
    found = residency(world.view, "a")
    assert found is not None
    assert found.replicas[0].state is SERVING


def test_a_replica_that_dies(world):
    world.alive("r1", "r2")
    world.put("a")
    world.says("r1")
    world.says("r2")
    world.look()
    world.dead("r2")
    assert world.look() == {"a"}
    assert world.look() == frozenset()


def test_names_that_a_status_no_longer_lists(world):
    world.alive("r1")
    for name in ("a", "b", "c"):
        world.put(name)
    world.says("r1", failed=failed("a"), pending=[Pending(name="b", generation=1, reason="staging")])
    world.look()
    world.says("r1", failed=failed("c"))
    assert world.look() == {"a", "b", "c"}
    world.raw("r1", b"?")
    assert world.look() == {"a", "b", "c"}


def test_room_that_was_freed_unseen(world):
    """A deletion that a list shows: its revision is not known, and what was reckoned before is not mistaken for it."""
    world.alive("r1", capacity=2)
    world.alive("r2", capacity=100)
    both = members_digest([Member("r1", {}, 2), Member("r2", {}, 100)])
    names = [f"n{i}" for i in range(200)]
    for name in names:
        world.put(name, placement=Placement(replicas=1))
    world.put("big")
    for one in ("r1", "r2"):
        world.says(one, members=both)
    world.look()
    del world.records[KEYS.adapter(POOL, "big")]
    world.look()
    fresh = renewed(PoolView(POOL), world.held)
    assert [residency(world.view, name) for name in names] == [residency(fresh, name) for name in names]


def test_what_is_remembered_changes_no_answer(world, monkeypatch):
    """R16 bounded: what is forgotten is found again."""
    monkeypatch.setattr(assignments, "_REMEMBERED", 2)
    world.alive(*NAMES)
    for i in range(5):
        world.put(f"n{i}", placement=Placement(replicas=2))
    for name in NAMES:
        world.says(name, members=digest_of(*NAMES))
    for _ in range(2):
        for i in range(5):
            assert set(world.states(f"n{i}")) == owners(f"n{i}", 2, *NAMES)
    assert len(world.view.assignments._found) <= 2
