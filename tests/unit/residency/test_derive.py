"""Where adapters are, derived from records, presences and statuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.records import Placement
from registry.model.status import Failed, Found, Lazy, Pending
from registry.residency import derive
from registry.residency.derive import DerivedResidency, counted, residency
from registry.residency.view import AdapterView, PoolView, is_held_back, is_understood, not_understood, renew_view
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import (
    FAILED,
    LEASE,
    PENDING,
    SERVING,
    UNKNOWN,
    World,
    among,
    engine_status,
    members,
)


def failed(name: str, retry_at: str | None = None, generation: int = 1) -> list[Failed]:
    return [Failed(name=name, generation=generation, reason="BAD", message="m", attempts=1, retry_at=retry_at)]


def test_whoever_watches_hears_that_another_number_is_expected(world):
    """Nothing else changes then: an adapter would stay Degraded until something does."""
    world.alive("r1", labels={"zone": "a"})
    world.put("a")
    world.put("there", placement=Placement(selector={"zone": "b"}))
    world.put("one", placement=Placement(replicas=1))
    world.says("r1", **among(members("r1", labels={"zone": "a"}), {}))
    world.look()
    before = world.view
    world.expect(({"zone": "a"}, 2))
    world.look()
    assert derive.changed(before, world.view) == {"a"}
    assert derive.changed(world.view, before) == {"a"}


def test_what_somebody_wrote_further_down_is_no_record_of_another_adapter(world):
    """R24, R14: a key with a name's slash ends as another's; neither that nor its end takes an engine from that one."""
    world.alive("r1")
    world.put("a")
    world.says("r1")
    assert world.states("a") == {"r1": (SERVING, "")}
    taken = world.view.snapshot.rooms[-1]
    copy = world.records[KEYS.adapter(POOL, "a")]
    nested = replace(copy, key=KEYS.adapters(POOL) + b"acme/a")
    for value in (b"?", copy.value):
        world.records[nested.key] = replace(nested, value=value)
        world.look()
        assert (world.view.records["a"].kv, world.view.snapshot.rooms[-1]) == (copy, taken)
    del world.records[nested.key]
    world.view = renew_view(world.view, replace(world.values, changed=frozenset({nested.key})))
    assert (world.view.records["a"].kv, world.view.deleted) == (copy, {})


def test_adapters_that_stand_alike_are_derived_once(world, monkeypatch):
    """5,000 adapters on 50 replicas are a quarter of a million verdicts, nearly all of them the same."""
    world.alive("r1", "r2")
    for number in range(20):
        world.put(f"A{number}", number + 1)
    world.put("lazy", load="lazy")
    world.put("loose", pinned=False)
    for name in ("r1", "r2"):
        found = [Found(name="loose", generation=1, digest=name)]
        world.says(name, failed=failed("a3"), found=found, lazy=Lazy(count=1, servable=True))
    for name in ("new", "new2"):
        world.put(name)
    world.look()
    assert derived_for_counts(world, monkeypatch) == ["a0", "a3", "lazy", "loose", "new"]


def derived_for_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The adapters that are derived while all are counted."""
    derived: list[str] = []

    def noted(view: PoolView, adapter: AdapterView) -> DerivedResidency:
        derived.append(adapter.key)
        return residency_of(view, adapter)

    residency_of, fresh = derive.residency_of, replace(world.view)  # of which nothing was asked yet
    with monkeypatch.context() as during:
        during.setattr(derive, "residency_of", noted)
        found = dict(counted(fresh, sorted(fresh.records)))
    for key, one in found.items():
        adapter = fresh.adapter(key)
        assert (one and (one.name, one.generation)) == (adapter and (adapter.name, adapter.generation))
    return derived


def test_adapters_that_were_changed_stand_alike_once_all_replicas_know_it(world, monkeypatch):
    """R16 bounded: only what some replica knows as it was before is derived for itself."""
    world.alive("r1", "r2")
    names = [f"a{number}" for number in range(5)]
    for name in names:
        world.put(name)
    for replica in ("r1", "r2"):
        world.says(replica)
    world.look()
    for name in names:
        world.update(name, 2, source="v2")
    world.look()
    assert derived_for_counts(world, monkeypatch) == names
    for replica in ("r1", "r2"):
        world.says(replica)
    world.look()
    assert derived_for_counts(world, monkeypatch) == ["a0"]


def test_a_status_of_a_later_revision(world):
    """R9: it speaks of a record that is not known here yet, so what it said before counts until that is."""
    world.alive("r1")
    world.put("a")
    world.says("r1", world.revision + 1)
    assert world.states("a") == {"r1": (PENDING, "no_status")}
    assert not is_understood(world.view, 0), "nothing is known of it yet"
    world.says("r1", world.revision + 1, stale=True)
    assert world.states("a") == {"r1": (UNKNOWN, "stale")}
    world.says("r1", pending=[Pending(name="a", generation=1, reason="staging")])
    assert world.states("a") == {"r1": (PENDING, "staging")}
    world.says("r1", world.revision + 1)
    assert world.states("a") == {"r1": (PENDING, "staging")}
    assert is_held_back(world.view, world.values)
    assert is_understood(world.view, 0)
    world.revision += 1
    assert world.states("a") == {"r1": (SERVING, "")}
    assert not is_held_back(world.view, world.values)
    world.alive("r2")
    world.says("r2", world.revision + 1)
    world.look()
    assert is_held_back(world.view, world.values), "or a router would not hear of it until something else happens"


def test_what_cannot_be_read(world):
    world.alive("r1")
    world.raw("r1", b"?")
    world.put("a")
    broken = kv("b", 11, b"?")
    world.records[broken.key] = broken
    world.presences[KEYS.replica(POOL, "r2")] = KeyValue(KEYS.replica(POOL, "r2"), b"?", 1, 1, 1, LEASE)
    assert world.states("a") == {"r1": (UNKNOWN, "unreadable_status"), "r2": (PENDING, "no_status")}
    assert residency(world.view, "b") is None
    assert residency(world.view, "nothing") is None
    del world.records[broken.key]
    assert world.look() == {"b"}


def test_a_status_of_another_lease_does_not_count(world):
    """R9 status-truth: nor does the one before it, which was written under a lease that is gone."""
    key = KEYS.replica(POOL, "r1")
    world.alive("r1")
    world.put("a")
    world.says("r1")
    assert world.states("a") == {"r1": (SERVING, "")}
    world.presences[key] = replace(world.presences[key], lease=LEASE + 1)
    assert world.states("a") == {"r1": (PENDING, "no_status")}
    assert not is_held_back(world.view, world.values), "nothing else is to come of it"
    ahead = KEYS.status(POOL, "r1")
    world.says("r1", world.revision + 5)
    world.statuses[ahead] = replace(world.statuses[ahead], lease=LEASE + 1)
    assert world.states("a") == {"r1": (PENDING, "no_status")}, "the one that was taken before is of another lease"


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
    world.dead("r3")
    world.says("r2", found=[Found(name="a", generation=1, digest="sha256:" + "2" * 64)])
    for leaving in (True, False):
        world.alive("r1", "r2", leaving=leaving)
        assert world.states("a") == dict.fromkeys(("r1", "r2"), (FAILED, "digests_differ"))
    world.update("a", 2, source="v2")
    assert world.states("a") == dict.fromkeys(("r1", "r2"), (PENDING, "not_seen")), "a change makes no files right"


def test_a_replica_that_drains_is_named_only_for_what_no_other_serves(world):
    """R20 drain, R24 always-placed: and comes back as it was."""
    world.alive("r1", "r2")
    world.put("a")
    for name in ("r1", "r2"):
        world.says(name)
    world.alive("r1", leaving=True)
    assert world.states("a") == {"r2": (SERVING, "")}
    world.alive("r2", leaving=True)
    assert world.states("a") == {"r1": (SERVING, "leaving"), "r2": (SERVING, "leaving")}
    assert world.where("a").note == "only replicas that drain or let go of it serve it"
    world.says("r1", failed=failed("a"))
    assert world.states("a") == {"r2": (SERVING, "leaving")}
    world.dead("r2")
    assert (world.where("a").replicas, world.where("a").note) == ((), "no replica is alive")
    world.alive("r1")
    assert world.states("a") == {"r1": (FAILED, "BAD")}
    world.alive("r3", leaving=True)
    world.says("r3")
    assert world.states("a") == {"r1": (FAILED, "BAD"), "r3": (SERVING, "leaving")}
    world.says("r1")
    assert world.states("a") == {"r1": (SERVING, "")}


@pytest.mark.parametrize("pinned", [True, False])
def test_who_drains_and_is_not_believed_counts_once_it_stays(world, pinned):
    """R9: whoever watches counts hears of it; of one that cannot be read nothing is told."""
    for name in ("r1", "r2", "r3"):
        world.alive(name, labels={"zone": name})
    old = world.put("a", pinned=pinned, placement=Placement(selector={"zone": "r1"}))
    world.look()
    world.update("a", 2, pinned=pinned, placement=Placement(selector={"zone": "r2"}))
    world.alive("r1", labels={"zone": "r1"}, leaving=True)
    world.says("r1", old, stale=True)
    world.says("r2", failed=failed("a", generation=2))
    assert world.states("a") == {"r1": (UNKNOWN, "stale"), "r2": (FAILED, "BAD")}
    world.alive("r1", labels={"zone": "r1"})
    world.alive("r3", labels={"zone": "r3"}, leaving=True)
    assert world.look() == {"a"}
    world.raw("r1", b"?")
    assert world.states("a") == {"r2": (FAILED, "BAD")}


def test_an_engine_that_the_pool_does_not_allow_is_handed_to_nobody(world):
    """X2, R20: who can write a presence and a status could else have the requests of others sent to a host of theirs.

    What counts is the address that routers are told: the sidecar's own way to its engine may be nobody else's.
    """
    world.alive("r1", "r2")
    world.put("a")
    world.alive("r3", engine_url="http://evil.test:8000")
    world.alive("r4", engine_url="http://10.0.0.4:8000")
    world.says("r1", engine=engine_status(url="http://10.0.0.1:8000"))
    world.says("r2", engine=engine_status(url="http://evil.test:8000"))
    world.says("r3", engine=engine_status(url="http://10.0.0.3:8000"))
    world.says("r4", engine=engine_status(url="http://127.0.0.1:8000"))
    world.look()
    world.allow("10.0.0.0/8")
    assert world.look() == {"a"}
    one, two, *others = world.where("a").replicas
    assert [(each.state, each.reason) for each in others] == [(FAILED, two.reason), (SERVING, "")], (
        "as routers are told"
    )
    assert (one.engine_url, one.state, one.reason, one.loaded) == ("http://10.0.0.1:8000", SERVING, "", True)
    assert (two.engine_url, two.state, two.reason, two.loaded) == ("", FAILED, "engine_url_not_allowed", False)
    world.says("r2", engine=engine_status(url="http://10.0.0.2:8000"))
    assert world.states("a")["r2"] == (SERVING, "")
    world.says("r2", engine=engine_status(url=""))
    assert world.states("a")["r2"] == (SERVING, "")


def test_of_a_pool_that_cannot_be_read_what_was_known_before_stays(world):
    """R14: also where the store was set back; before anything was known, nothing is allowed."""
    world.alive("r1")
    world.put("a")
    world.says("r1")
    world.spec = KeyValue(KEYS.pool(POOL), b"?", 1, 1, 1, 0)
    assert world.states("a") == {"r1": (FAILED, "engine_url_not_allowed")}
    world.allow("r1")
    assert world.states("a") == {"r1": (SERVING, "")}
    world.spec = KeyValue(KEYS.pool(POOL), b"?", 1, 1, 1, 0)
    assert world.states("a") == {"r1": (SERVING, "")}
    world.revision -= 1
    world.records = {key: replace(one, mod_revision=world.revision) for key, one in world.records.items()}
    world.says("r1")
    assert world.states("a") == {"r1": (SERVING, "")}
    world.spec = None
    assert world.states("a") == {"r1": (SERVING, "")}


def test_who_stands_behind_etcd_has_to_be_understood_by_what_was(world):
    """R24: so a view begins where statuses do; whom nobody can believe is not waited for."""
    world.look()
    assert not_understood(world.view) is None
    world.alive("r1", "r2", "r3", "r4")
    one, two = world.put("a"), world.put("b")
    world.says("r1", two, **among(members("r1", "r2", "r3", "r4")))
    world.says("r2", one - 5, stale=True)
    world.raw("r3", b"?")
    world.look()
    assert not_understood(world.view) is None
    world.says("r4", one)
    world.look()
    assert not_understood(world.view) == one
    assert not is_understood(world.view, two), "though that of another is"
    world.says("r4", two, **among(members("r1", "r9")))
    world.look()
    assert not_understood(world.view) == 1, "that of the status itself"
