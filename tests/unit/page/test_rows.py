"""Rows of the page, from the view that residency follows from."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import ref

import pytest

from registry.admin.page import rows
from registry.admin.page.cursor import PoolCursor, PoolSight
from registry.admin.page.rows import MAX_LABELS, MAX_TEXT, absent_rows, adapter_rows, replica_row
from registry.model.records import Canary, CanaryRollout, Strategy
from registry.model.status import Failed, LastKnown, Lazy, Pending, ReportedStore
from registry.residency.derive import DerivedResidency, residency, residency_of
from registry.residency.hub import _STEPS_REMEMBERED as STEPS
from registry.residency.hub import Subscription
from registry.residency.view import AdapterView, PoolView
from registry.rollout.status import DISABLED
from tests.support.records import KEYS, POOL, kv, record
from tests.support.residency_world import World, engine_status, presence


def named(world: World, *names: str, **how: Any) -> dict[str, dict[str, Any]]:
    """The rows of adapters by name, each with its groups as replicas by how they stand."""
    world.look()
    found = adapter_rows(world.view, names, **how)
    for row in found.rows:
        for group in row.get("groups", ()):
            group["in"] = list(found.sets[group["in"]])
    return {row["name"]: row for row in found.rows}


def fleet() -> World:
    world = World()
    world.alive("r1", "r2", "r3")
    world.put("a", labels={"team": "x"})
    world.put("b")
    for name in ("r1", "r2", "r3"):
        world.says(name)
    world.look()
    return world


# Of every row that a test tells whole.
ROW = {"of": 0, "reasons": {}, "halted": "", "stable": 0, "labels": {"team": "x"}}


def test_replicas_that_stand_alike_are_one_group_and_their_names_are_told_once():
    """R9: of a thousand adapters on a hundred replicas the list of those stands once."""
    found = adapter_rows(fleet().view, ["a", "b"])
    assert (found.sets, found.gone) == ([("r1", "r2", "r3")], [])
    assert [row["groups"] for row in found.rows] == [[{"state": "serving", "in": 0}]] * 2
    [row, _] = found.rows
    del row["groups"]
    counts = {"serving": 3, "replicas": 3}
    assert row == ROW | counts | {"name": "a", "generation": 1, "load": "eager", "state": "Healthy", "note": ""}


async def test_a_pool_as_a_whole_is_all_that_stands_in_it_and_who_is_missing():
    """R9: three of five replicas live, one of which is stale; what is served and then gone counts no more."""
    world, subscription = fleet(), Subscription(POOL, "e")
    cursor = PoolCursor(POOL, subscription, PoolSight(lambda _: True, shows_replicas=True, is_whole=True))

    async def told(change: Callable[[], object], steps: int) -> tuple[object, ...]:
        change()
        world.look()
        for _ in range(steps):
            subscription.post(world.view, frozenset(world.view.records))
        *_, last = [one async for one in cursor.news()]
        pool = json.loads(last.partition("data: ")[2])
        return tuple(pool[name] for name in ("name", "state", "ready", "replicas", "adapters", "served"))

    world.expect(({"zone": "x"}, 2))
    world.says("r3", stale=True)
    assert await told(lambda: world.put("new"), 1) == (POOL, "Degraded", 2, 5, 3, 2)
    assert await told(lambda: world.drop("b"), STEPS + 1) == (POOL, "Degraded", 2, 5, 2, 1), "to who comes back late"


def test_adapters_that_stand_alike_are_as_healthy_in_whatever_generation_each_is():
    world = fleet()
    world.update("b", 2)
    for name in ("r1", "r2", "r3"):
        world.says(name)
    rows = named(world, "a", "b")
    told = {name: (row["generation"], row["state"]) for name, row in rows.items()}
    assert told == {"a": (1, "Healthy"), "b": (2, "Healthy")}


def test_readers_of_a_view_share_its_rows_which_are_derived_once_for_all_that_stand_alike(monkeypatch):
    """R16 bounded: a thousand adapters cost what one costs, and the second reader nearly nothing."""
    derived = []

    def counting(view: PoolView, adapter: AdapterView) -> DerivedResidency:
        derived.append(adapter.name)
        return residency_of(view, adapter)

    monkeypatch.setattr(rows, "residency_of", counting)
    world = fleet()
    world.says("r2", failed=[Failed(name="c", generation=1, reason="BAD", message="m", attempts=1, retry_at=None)])
    world.put("c")
    world.look()
    first = adapter_rows(world.view, ["a", "b", "c"])
    second = adapter_rows(world.view, ["c", "b", "a"])
    assert sorted(derived) in (["a", "c"], ["b", "c"])
    assert {row["name"]: row["state"] for row in first.rows} == {row["name"]: row["state"] for row in second.rows}
    world.update("a", 2)
    world.look()
    assert adapter_rows(world.view, ["a"]).rows[0]["generation"] == 2


def test_rows_do_not_keep_a_view_that_nobody_looks_at_any_more():
    world = fleet()
    adapter_rows(world.view, ["a", "b"])
    before = ref(world.view)
    world.put("c")
    world.look()
    gc.collect()
    assert before() is None


def test_what_is_not_served_says_so_and_why():
    world = fleet()
    failed = Failed(name="a", generation=1, reason="BAD", message="m", attempts=1, retry_at=None)
    world.says("r2", failed=[failed])
    world.says("r3", pending=[Pending(name="a", generation=1, reason="staging")])
    row = named(world, "a")["a"]
    assert (row["state"], row["serving"], row["replicas"]) == ("Degraded", 1, 3)
    assert row["reasons"] == {"BAD": 1, "staging": 1}
    assert row["groups"] == [
        {"state": "serving", "in": ["r1"]},
        {"state": "failed", "reason": "BAD", "in": ["r2"]},
        {"state": "pending", "reason": "staging", "in": ["r3"]},
    ]


def test_who_still_serves_an_earlier_generation_and_who_would_load_it_at_once():
    world = fleet()
    revision = world.revision
    world.update("a", 2)
    world.says("r1")
    world.says("r2", revision)
    world.says("r3", revision)
    world.put("late", load="lazy")
    row = named(world, "a")["a"]
    assert row["groups"] == [
        {"state": "serving", "in": ["r1"]},
        {
            "state": "serving",
            "reason": "earlier_generation",
            "generation": 1,
            "wanted": [2, "pending", "not_seen"],
            "in": ["r2", "r3"],
        },
    ]
    assert row["state"] == "Progressing"
    for name in ("r1", "r2", "r3"):
        world.says(name, lazy=Lazy(servable=True))
    [lazily] = named(world, "late")["late"]["groups"]
    assert lazily == {"state": "serving", "reason": "lazy", "loaded": False, "in": ["r1", "r2", "r3"]}


def test_a_rollout_says_what_all_others_serve_and_why_it_stopped():
    world = fleet()
    rollout = CanaryRollout(stable_generation=1, stable_spec=record("a").spec, halted="r1: BAD")
    world.put("a", 2, rollout, strategy=Strategy(canary=Canary(replicas=1), promote="manual"))
    row = named(world, "a")["a"]
    assert (row["stable"], row["halted"], row["state"]) == (1, "r1: BAD", "Halted")


def test_what_is_disabled_is_a_row_that_says_so_as_long_as_it_is_there():
    """R9: no replica is to serve it, and none counts; it is not gone."""
    world = fleet()
    world.put("off", 2, enabled=False, load="lazy", labels={"team": "x"})
    counts = {"serving": 0, "replicas": 0, "groups": []}
    said = {"name": "off", "generation": 2, "load": "lazy", "state": "Disabled", "note": DISABLED}
    assert named(world, "off", "none") == {"off": ROW | counts | said}


def test_what_cannot_be_read_is_gone_and_without_groups_none_are_derived():
    world = fleet()
    world.records[KEYS.adapter(POOL, "b")] = kv("b", world.revision, b"?")
    world.look()
    found = adapter_rows(world.view, ["a", "b", "none"], with_groups=False)
    assert (found.gone, found.sets, "groups" in found.rows[0]) == (["b", "none"], [], False)


def test_a_text_of_a_megabyte_is_cut_and_markup_stays_text():
    """R16 bounded: what a sidecar says of itself is in whatever number and length."""
    world = fleet()
    labels = {f"k{number:02}": "<b>" for number in range(MAX_LABELS + 5)} | {"k00": "x" * 5000}
    world.alive("r1", labels=labels)
    world.look()
    told = replica_row(world.view, "r1", is_whole=True)["labels"]
    assert len(told) == MAX_LABELS
    assert (len(told["k00"]), told["k01"]) == (MAX_TEXT, "<b>")


def test_a_replica_tells_its_state_and_its_sentences_only_to_who_sees_all():
    """A2 deny-by-default: a sentence may name anybody's adapter."""
    world = fleet()
    store = ReportedStore(room_bytes=5, in_use_bytes=6, largest_bytes=1, bound="disk")
    engine = engine_status(limits={"max_cpu_loras": 8})
    world.says("r1", note="a is not served", held="all of them", store=store, engine=engine)
    world.look()
    whole, part = (replica_row(world.view, "r1", is_whole=is_whole) for is_whole in (True, False))
    assert (whole["note"], whole["held"], whole["degraded"]) == ("a is not served", "all of them", "")
    assert {key: value for key, value in whole.items() if key not in {"note", "held", "degraded"}} == part
    assert (part["ready"], part["room"], part["store"]["bound"], part["url"]) == (True, 8, "disk", "http://e")


@pytest.mark.parametrize("status", [b"?", b""])
def test_a_replica_that_says_nothing_that_can_be_read_is_not_ready(status):
    world = fleet()
    if status:
        world.raw("r1", status)
    else:
        world.statuses.clear()
    world.look()
    assert replica_row(world.view, "r1", is_whole=True)["ready"] is False


def test_a_url_that_the_pool_does_not_allow_is_told_to_nobody():
    world = fleet()
    world.allow("10.0.0.1")
    world.look()
    row = replica_row(world.view, "r1", is_whole=True)
    assert (row["url"], row["withheld"]) == ("", True)


def test_a_replica_has_the_name_of_its_key_whatever_its_presence_says():
    """A4 own-keys: nobody's row stands in the place of another's, or shows a URL that the pool does not allow."""
    world = fleet()
    world.allow("10.0.0.1")
    (kv,) = [one for one in world.presences.values() if one.key.endswith(b"/r1")]
    world.presences[kv.key] = replace(kv, value=presence("r2").to_bytes())
    world.look()
    row = replica_row(world.view, "r1", is_whole=True)
    assert (row["name"], row["url"], row["withheld"]) == ("r1", "", True)


@pytest.mark.parametrize(("hosts", "url"), [((), "http://10.0.0.9:8000"), (("10.0.0.1",), "")])
def test_a_replica_that_is_expected_and_does_not_live_is_told_with_what_it_told_last(hosts, url):
    """Not with a URL that its pool does not allow."""
    world = fleet()
    if hosts:
        world.allow(*hosts)
    known = {"engine_url": "http://10.0.0.9:8000", "host": "rack", "engine": "vllm 0.32", "observed_revision": 7}
    told = LastKnown(version="0.2.0", **known)
    world.remember("r1", "r9", labels={"zone": "z"}, last_seen="2026-01-01T00:00:00Z", last_known=told)
    world.look()
    said = {"url": url, "host": "rack", "engine": "vllm 0.32", "version": "0.2.0", "revision": 7}
    assert absent_rows(world.view) == [
        {"name": "r9", "labels": {"zone": "z"}, "last_seen": "2026-01-01T00:00:00Z"} | said,
    ]


def test_a_presence_that_cannot_be_read_still_shows_that_it_lives():
    world = fleet()
    world.alive("r1")
    key = next(iter(world.presences))
    world.presences[key] = world.presences[key].__class__(key, b"?", 1, 1, 1, 7)
    world.look()
    assert replica_row(world.view, "r1", is_whole=True)["name"] == "r1"


def test_rows_agree_with_residency():
    """R9: one derivation behind all views."""
    world = fleet()
    world.says("r2", pending=[Pending(name="a", generation=1, reason="staging")])
    world.look()
    view: PoolView = world.view
    told = residency(view, "a")
    assert told is not None
    by_group = {name: group["state"] for group in named(world, "a")["a"]["groups"] for name in group["in"]}
    assert by_group == {one.replica: one.state.name.lower() for one in told.replicas}
