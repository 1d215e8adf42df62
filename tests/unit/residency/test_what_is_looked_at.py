"""Which adapters are derived again after a change: those that it may be about, and of 20,000 no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from registry.model.errors import Unavailable
from registry.model.records import Canary, CanaryRollout, Placement, Strategy
from registry.model.replica_state import Expectation, ReplicaState, StatusReading, Verdict
from registry.model.status import Failed, Found, Kept, Lazy, Leaving, Pending, Resident, Warned
from registry.residency import derive, shares
from registry.residency.derive import residency
from registry.residency.hub import Subscription
from tests.support.records import KEYS, POOL, kv, record
from tests.support.residency_world import World, among, engine_status, members

EVERY = {"a", "b", "lazy", "placed", "tried"}
CHOSEN = {"placed", "tried"}
HERE = members("r1", "r2")


@pytest.fixture
def world() -> World:
    """Two replicas that know all adapters: two on all, a lazy one, one placed by number, and one with canaries."""
    world = World()
    world.alive("r1", "r2")
    world.put("a")
    world.put("b")
    world.put("lazy", load="lazy")
    world.put("placed", placement=Placement(replicas=1))
    rollout = CanaryRollout(stable_generation=1, stable_spec=record("tried").spec)
    world.put("tried", 2, rollout, source="v2", strategy=Strategy(canary=Canary(replicas=1)))
    for name in ("r1", "r2"):
        says(world, name)
    world.look()
    return world


def says(world: World, name: str = "r1", revision: int | None = None, **fields: object) -> None:
    told = among(HERE, {frozenset(): 2}) | {"lazy": Lazy(count=1, servable=True)} | fields
    world.says(name, revision, **told)


def resident(generation: int = 1) -> Lazy:
    return Lazy(count=1, servable=True, resident=[Resident(name="lazy", generation=generation, last_used="t")])


def failed(name: str) -> list[Failed]:
    return [Failed(name=name, generation=1, reason="BAD", message="m", attempts=1, retry_at=None)]


def broken(world: World) -> None:
    """A record that cannot be read."""
    written = kv("broken", world.revision, b"?")
    world.records[written.key] = written
    world.look()


DIGEST = "sha256:" + "1" * 64
# What r1 says otherwise than before, and the adapters that are derived again for it.
SAYS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({}, set()),
    "waits": ({"pending": [Pending(name="A", generation=1, reason="staging")]}, {"a"}),
    "fails": ({"failed": failed("b")}, {"b"}),
    "fails twice": ({"failed": [*failed("b"), *failed("a")]}, {"a", "b"}),
    "found": ({"found": [Found(name="a", generation=1, digest=DIGEST)]}, {"a"}),
    "resident": ({"lazy": resident()}, {"lazy"}),
    "leaves": ({"leaving": [Leaving(name="placed", generation=1)]}, {"placed"}),
    "kept": ({"kept": [Kept(name="b", generation=1)]}, {"b"}),
    "other replicas": ({"members": "other"}, CHOSEN),
    "other room": ({"weights": "other"}, CHOSEN),
    "stale": ({"stale": True}, EVERY),
    "no engine": ({"engine": engine_status(incarnation="")}, EVERY),
    "another engine": ({"engine": engine_status(url="http://r1", incarnation="other")}, set()),
    "another URL": ({"engine": engine_status(url="http://other")}, EVERY),
    "versions": ({"engine": engine_status(url="http://r1", names="versioned")}, EVERY),
    "nothing lazy": ({"lazy": Lazy(count=1, servable=False)}, EVERY),
    "nothing lazy, and why": ({"lazy": Lazy(count=1, servable=True, reason="x")}, EVERY),
    "leaves out": ({"omitted": 1}, EVERY),
    "leaves nothing out": ({"serves": []}, EVERY),
    "blocked": ({"warnings": [Warned(name="", generation=0, reason="blocked", message="m")]}, EVERY),
    "warned": ({"warnings": [Warned(name="", generation=0, reason="other", message="m")]}, set()),
}
CHANGES: dict[str, tuple[Callable[[World], object], set[str]]] = {
    **{name: (partial(says, **fields), keys) for name, (fields, keys) in SAYS.items()},
    "knows less": (lambda world: says(world, revision=world.revision - 1), {"tried"}),
    "knows much less": (lambda world: says(world, revision=world.revision - 3), {"lazy", "placed", "tried"}),
    "unreadable": (lambda world: world.raw("r1", b"?"), EVERY),
    "dies": (lambda world: world.dead("r1"), EVERY),
    "comes": (lambda world: world.alive("r3"), EVERY),
    "labelled": (lambda world: world.alive("r1", labels={"a": "b"}), EVERY),
    "found elsewhere": (lambda world: world.alive("r1", engine_url="http://elsewhere"), EVERY),
    "starts anew": (lambda world: world.alive("r1", incarnation="other"), set()),
    "a record": (lambda world: world.put("b", 2, source="v2"), {"b"}),
    "a new record": (lambda world: world.put("c"), {"c", *CHOSEN}),
    "a new lazy record": (lambda world: world.put("c", load="lazy"), {"c"}),
    "a deletion": (lambda world: world.drop("a"), {"a", *CHOSEN}),
    "hosts": (lambda world: world.allow("h"), EVERY),
    "is expected": (lambda world: world.remember("r9"), EVERY),
    "is expected, and more": (lambda world: (world.remember("r9"), world.drop("a"), world.put("c")), {*EVERY, "c"}),
    "a record beside one that is unreadable": (lambda world: (broken(world), world.put("c")), {"broken", "c", *CHOSEN}),
    "comes, beside such a one": (lambda world: (broken(world), world.alive("r3")), {*EVERY, "broken"}),
}


@pytest.mark.parametrize(("change", "keys"), CHANGES.values(), ids=CHANGES)
def test_only_what_a_change_may_be_about_is_derived_again(world, monkeypatch, change, keys):
    """R16 bounded: a quarter of a million verdicts for each status would take seconds. All others stand as before."""
    before = world.view
    change(world)
    world.look()  # which checks that all that differs is told
    looked: set[str] = set()
    differs = derive._differs

    def noted(old: object, new: object, key: str, causes: object) -> bool:
        looked.add(key)
        return differs(old, new, key, causes)  # type: ignore[arg-type]

    monkeypatch.setattr(derive, "_differs", noted)
    told = derive.changed(before, world.view)
    assert (looked | told, told <= keys) == (keys, True)


def test_what_was_said_of_serving_is_compared_name_by_name(world):
    """R9: of a status that leaves out names, too."""
    says(world, omitted=1, serves=[("a", 1), ("b", 1)])
    world.look()
    says(world, omitted=1, serves=[("a", 1), ("b", 2)])
    assert world.look() == {"b"}
    says(world, omitted=1, serves=[("b", 2)])
    assert world.look() == {"a"}
    says(world, omitted=2, serves=[("b", 2)])
    assert world.look() == set(), "that there are some is what counts"
    says(world, omitted=2, serves=[("a", 1), ("b", 2)])
    assert world.look() == {"a"}


def test_that_all_names_which_a_status_leaves_out_have_one_reason_is_told(world):
    """R9: once no more of them can be loaded, each of them lacks room; until then a part of them was on the way."""
    says(world, omitted=1, serves=[("b", 1)])
    world.look()
    says(world, omitted=1, serves=[("b", 1)], omitted_reason="over_capacity")
    assert world.look() == {"a", *CHOSEN}
    found = residency(world.view, "a")
    assert found is not None
    assert [one.reason for one in found.replicas] == ["over_capacity", ""]


def test_a_view_keeps_what_did_not_change(world):
    """The records, what is known of each, and in which order they were written."""
    before = world.view
    says(world, pending=[Pending(name="a", generation=1, reason="staging")])
    world.look()
    same = world.view
    assert (same.records is before.records, same.order is before.order) == (True, True)
    at = world.update("a", 2, source="v2")
    world.look()
    other = world.view
    assert [key for key in other.records if other.records[key] is not before.records[key]] == ["a"]
    assert [entry for entry in other.order.steps if entry[1] == "a"] == [(11, "a"), (at, "a")]
    assert other.revision == world.revision
    assert [other.adapter(key) is None for key in ("a", "nothing")] == [False, True]


def stood(world: World) -> list[tuple[int, int, int]]:
    """(first, last, generation) of what is known to have stood before."""
    world.look()
    return [(one.first, one.last, one.adapter.generation) for one in world.view.records["a"].earlier]


def test_what_stood_before_is_known_from_when_to_when():
    """R24: of what was seen, nothing more: another record may have stood in between, or none at all."""
    world = World()
    one = world.put("a")
    assert stood(world) == []
    two = world.update("a", 2, source="v2")
    assert stood(world) == [(one, two - 1, 1)]
    world.put("b")
    seen = world.revision
    world.look()
    world.update("a", 3, source="v3")
    four = world.update("a", 4, source="v4")
    assert stood(world) == [(one, two - 1, 1), (two, seen, 2)]
    world.drop("a")
    world.look()
    world.put("a", 5, source="v5")
    assert stood(world) == [(one, two - 1, 1), (two, seen, 2), (four, four, 4)]
    assert world.view.deleted == {}


def test_what_no_replica_can_follow_any_more_is_forgotten(world):
    """R16 bounded: also of names that are gone; what cannot be read is followed by nobody."""
    for number in range(40):
        world.update("a", number + 2, source=f"v{number}")
        world.look()
    assert len(stood(world)) == 16
    for name in ("r1", "r2"):
        says(world, name)
    world.look()
    at = world.update("a", 50, source="v50")
    assert [last for _, last, _ in stood(world)] == [at - 1]
    broken = replace(world.records[KEYS.adapter(POOL, "a")], value=b"?", mod_revision=at + 1, version=99)
    world.records[broken.key], world.revision = broken, at + 1
    assert [last for _, last, _ in stood(world)] == [at - 1, at]
    world.put("a", 60)
    assert [last for _, last, _ in stood(world)] == [at - 1, at]
    world.drop("a")
    world.look()
    assert {*world.view.deleted} == {"a"}
    for name in ("r1", "r2"):
        says(world, name)
    world.look()
    world.drop("b")
    world.look()
    assert {*world.view.deleted} == {"b"}


def test_who_knows_what_and_who_names_whom(world):
    """R9: what no status names stands alike on all."""
    assert list(world.view.observed) == [world.revision, world.revision]
    assert world.view.named == frozenset()
    says(world, "r1", 12, failed=failed("A"), pending=[Pending(name="b", generation=1, reason="x")])
    says(world, "r2", 11, kept=[Kept(name="k", generation=1)], omitted=1, serves=[("s", 1)])
    world.look()
    assert (list(world.view.observed), world.view.named) == ([11, 12], {"a", "b", "k", "s"})
    for generation, other, named in ((1, DIGEST, set()), (2, DIGEST, {"f"}), (1, "sha256:" + "2" * 64, {"f"})):
        says(world, "r1", found=[Found(name="f", generation=1, digest=DIGEST)])
        says(world, "r2", found=[Found(name="f", generation=generation, digest=other)])
        world.look()
        assert world.view.named == named
    world.raw("r1", b"?")
    world.look()
    assert len(world.view.observed) == 1
    says(world, "r2", leaving=[Leaving(name="P", generation=1)])
    world.look()
    assert world.view.answering == {"p": {"r2"}}


@pytest.mark.parametrize(
    ("name", "placement", "note"),
    [
        ("placed", Placement(replicas=1), ""),
        ("placed", Placement(replicas=2), ""),
        ("placed", Placement(replicas=3), "placed on 3, 2 alive"),
        ("placed", Placement(replicas=1, selector={"zone": "a"}), "placed on 1, 0 alive"),
        ("a", Placement(selector={"zone": "a"}), "no live replica matches its selector"),
        ("a", Placement(), ""),
        ("tried", Placement(), ""),
        ("tried", Placement(selector={"zone": "a"}), "no live replica matches its selector"),
    ],
)
def test_a_note_says_that_too_few_serve_it(world, name, placement, note):
    rollout = CanaryRollout(stable_generation=1, stable_spec=record("tried").spec) if name == "tried" else None
    strategy = Strategy(canary=Canary(replicas=1)) if name == "tried" else None
    world.put(name, 3, rollout, placement=placement, strategy=strategy)
    assert world.where(name).note == note


async def test_whoever_waits_for_a_subscription_that_ends_is_told():
    """R20: before anything is known, and after something was."""
    one = Subscription("p", "e")
    waiting = asyncio.create_task(one.look())
    await asyncio.sleep(0)
    one.end()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waiting, 60)
    other = Subscription("p", "e")
    other.post(World().view, frozenset({"a"}))
    updates = other.follow()
    assert (await anext(updates)).snapshot
    following = asyncio.ensure_future(anext(updates))
    await asyncio.sleep(0)
    other.end()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(following, 60)


async def test_an_update_has_all_that_changed_since_the_last_one():
    """Once for each reader, and a new snapshot for one that comes too late."""
    one, view = Subscription("p", "e"), World().view
    one.post(view, frozenset())
    assert (one.version, (await one.look()).keys) == (1, ()), "that there is nothing is known, too"
    one.post(view, frozenset())
    assert one.version == 1, "nothing has changed"
    updates = one.follow()
    await anext(updates)
    one.post(view, frozenset({"b", "c"}))
    one.post(view, frozenset({"a", "b"}))
    update = await anext(updates)
    assert (update.version, update.keys, update.snapshot) == (3, ("a", "b", "c"), False)
    snapshots = set()
    for count in range(50, 80):
        for number in range(count):
            one.post(view, frozenset({f"k{number}"}))
        late = await anext(updates)
        assert late.snapshot or len(late.keys) == count
        snapshots.add(late.snapshot)
    assert snapshots == {False, True}


def test_of_one_replicas_news_no_other_replica_is_looked_at(world, monkeypatch):
    """R16 bounded: of an adapter that is pinned and on all replicas, whose parts do not depend on each other."""
    before = world.view
    says(world, pending=[Pending(name="a", generation=1, reason="staging")])
    world.look()
    read: list[object] = []
    evaluate = shares.evaluate

    def noted(reading: StatusReading, expected: Expectation) -> Verdict:
        read.append(reading)
        return evaluate(reading, expected)

    monkeypatch.setattr(shares, "evaluate", noted)
    assert derive.changed(before, world.view) == {"a"}
    assert read == [view.replicas["r1"].reading for view in (before, world.view)]


@pytest.mark.parametrize(
    ("stable", "tried", "state"),
    [(True, False, ReplicaState.FAILED), (False, True, ReplicaState.SERVING)],
    ids=["canaries that are not pinned", "canaries that are pinned"],
)
def test_what_canaries_found_is_compared_where_their_own_generation_is_not_pinned(stable, tried, state):
    """W6 one-digest: whatever is known of the files that all others serve."""
    world = World()
    world.alive("r1", "r2", "r3")
    rollout = CanaryRollout(stable_generation=1, stable_spec=record("a", pinned=stable).spec)
    world.put("a", 2, rollout, source="v2", pinned=tried, strategy=Strategy(canary=Canary(replicas=2)))
    for number, name in enumerate(("r1", "r2", "r3")):
        found = [Found(name="a", generation=2, digest=f"sha256:{number}" + "0" * 63)]
        world.says(name, found=found, **among(members("r1", "r2", "r3")))
    canaries = [one for one in world.where("a").replicas if one.generation == 2]
    assert [one.state for one in canaries] == [state] * 2


def test_what_is_disabled_is_nowhere_to_be_asked_for(world):
    """R24: as if it were deleted; enabled again, it is where it is served."""
    world.put("a", 2, enabled=False)
    world.look()
    assert residency(world.view, "a") is None
    world.put("off", enabled=False)
    assert world.look() == {"off"}, "whoever shows records, too, hears of it"
    world.drop("off")
    assert world.look() == {"off"}
    revision = world.put("a", 3)
    says(world, "r1", revision)
    assert world.states("a")["r1"] == (ReplicaState.SERVING, "")
