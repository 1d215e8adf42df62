"""Where adapters are, derived from records, presences and statuses."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.records import Placement
from registry.model.status import Failed, Found, Lazy, Pending, Resident, Warned
from registry.store.pool_view import is_held_back
from registry.store.residency import residency
from tests.support.records import KEYS, POOL, kv
from tests.support.replicas import engine_status
from tests.support.residency_world import FAILED, PENDING, SERVING, UNKNOWN


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
