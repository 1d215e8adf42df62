"""Replicas that a pool expects although they do not live."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.placement import Placement
from registry.model.records import PoolLimits, PoolSpec
from registry.model.status import RememberedReplica, RememberedReplicas
from registry.rollout import expected
from registry.rollout.expected import AbsentReplica, PoolExpectation, expectation_of, remember
from registry.rollout.pool import PoolSnapshot, PoolValues, renew
from registry.rollout.status import Question, Rollout, derive_rollout
from registry.runtime.clock import rfc3339
from tests.support.records import KEYS, POOL, kv, record
from tests.support.residency_world import LEASE, SERVING, UNKNOWN, presence, replica_status

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOBODY = RememberedReplicas()


def lives(name: str, value: bytes | None = None, **fields) -> KeyValue:
    return KeyValue(KEYS.replica(POOL, name), value or presence(name, **fields).to_bytes(), 1, 1, 1, LEASE)


def members(**seen: str) -> RememberedReplicas:
    return RememberedReplicas(members={name: RememberedReplica(last_seen=when) for name, when in seen.items()})


def ago(**span: float) -> str:
    return rfc3339(NOW - timedelta(**span))


def test_who_lives_is_remembered_with_its_labels_and_no_heartbeat_changes_that():
    now = remember(NOBODY, [lives("r1", labels={"zone": "a"}), lives("r2", b"?")], {}, NOW)
    assert now.members == {
        "r1": RememberedReplica(labels={"zone": "a"}, incarnation="i"),
        "r2": RememberedReplica(),
    }
    later = NOW + timedelta(hours=1)
    assert remember(now, [lives("r1", labels={"zone": "a"}), lives("r2", b"?")], {}, later) == now
    assert remember(now, [lives("r1", b"?"), lives("r2", b"?")], {}, later) == now


def test_who_is_gone_is_remembered_for_a_day_since_it_was_found():
    """One write when it goes, and one when it is forgotten."""
    gone = remember(members(r1=""), [], {}, NOW)
    assert gone == members(r1=ago(hours=0))
    assert remember(gone, [], {}, NOW + timedelta(hours=23)) == gone
    assert remember(gone, [], {}, NOW + timedelta(hours=24)) == NOBODY
    assert remember(gone, [lives("r1")], {}, NOW).members["r1"] == RememberedReplica(incarnation="i")
    assert remember(members(r1="?", r2="2026-01-01T23:00:00"), [], {}, NOW) == NOBODY


def test_who_leaves_is_not_waited_for():
    assert remember(members(r1=""), [lives("r1", leaving=True)], {}, NOW) == NOBODY


def test_who_ended_in_order_is_not_waited_for_and_who_dies_later_is():
    """The mark is of one process: whoever has the name after it is another, whichever is heard of first."""
    alive = remember(NOBODY, [lives("r1")], {}, NOW)
    assert remember(alive, [lives("r1")], {"r1": "i"}, NOW) == NOBODY, "the end of its presence comes to be known later"
    assert remember(alive, [], {"r1": "i"}, NOW) == NOBODY
    dead = remember(alive, [], {}, NOW)
    assert dead.members["r1"].last_seen
    assert remember(dead, [], {"r1": "i"}, NOW) == NOBODY, "also if its end was known first"
    assert remember(alive, [lives("r1")], {"r1": "h"}, NOW) == alive
    assert remember(alive, [], {"r1": "h"}, NOW) == dead
    assert remember(members(r1=""), [], {"r1": ""}, NOW).members["r1"].last_seen


def test_whose_release_says_nothing_of_its_end_is_not_waited_for():
    """Such a sidecar would be missed for a day whenever it is ended on purpose, as each is by the upgrade."""
    earlier = presence("r1").model_dump(by_alias=True, exclude={"leaving"})
    assert remember(members(r1=""), [lives("r1", json.dumps(earlier).encode())], {}, NOW) == NOBODY


def test_a_rollout_waits_for_nobody_who_leaves():
    """R20 drain: it lives, so it is neither absent nor one of those that are missing to the number."""
    leaving = lives("r2", leaving=True)
    assert rollout(members(r1="", r2=""), also=leaving).done
    assert rollout(members(r1="", r2=""), 2, also=leaving).done
    assert not rollout(members(r1="", r2=""), 3, also=leaving).done


def test_so_many_are_remembered_at_most_and_those_that_live_first(monkeypatch):
    """R16 bounded: of those that are gone those that were seen last, and as many as a value may hold."""
    monkeypatch.setattr(expected, "MAX_REMEMBERED", 3)
    before = members(a=ago(hours=2), b=ago(hours=1), c=ago(hours=3))
    assert sorted(remember(before, [lives("y"), lives("z")], {}, NOW).members) == ["b", "y", "z"]
    monkeypatch.setattr(RememberedReplicas, "max_bytes", 110)
    assert len(remember(before, [lives("y"), lives("z")], {}, NOW).members) == 1


def stored(value: RememberedReplicas | bytes) -> KeyValue:
    made = value if isinstance(value, bytes) else value.to_bytes()
    return KeyValue(KEYS.members(POOL), made, 1, 1, 1)


def pool_kv(count: int | None) -> KeyValue:
    limits = PoolLimits(expected_replicas=count)
    return KeyValue(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=["base"], limits=limits).to_bytes(), 1, 1, 1)


def names(expects: PoolExpectation, *live: str) -> list[str]:
    return [one.name for one in expects.absent(dict.fromkeys(live))]


def test_absent_is_who_is_remembered_and_does_not_live():
    expects = expectation_of(stored(members(r1="", r2=ago(hours=1), r3=ago(hours=2))), pool_kv(None))
    assert names(expects, "r4") == ["r1", "r2", "r3"], "also one that nobody has noted yet, the latest first"
    assert (names(expects, "r1", "r2", "r3"), expects.lacking({"r1": 0})) == ([], 2)
    assert expectation_of(expects.members, expects.pool, expects) is expects


def test_a_pool_that_says_how_many_it_has_misses_no_more_than_that():
    remembered = stored(members(r1=ago(hours=1), r2=ago(hours=2)))
    assert names(expectation_of(remembered, pool_kv(3)), "a", "b") == ["r1"]
    assert names(expectation_of(remembered, pool_kv(3)), "a", "b", "c", "d") == []
    assert (names(expectation_of(None, pool_kv(3)), "a"), expectation_of(None, pool_kv(3)).lacking({"a": 0})) == ([], 2)


@pytest.mark.parametrize("members_kv", [None, stored(b"?")])
def test_what_cannot_be_read_expects_nobody(members_kv):
    broken = KeyValue(KEYS.pool(POOL), b"?", 1, 1, 1)
    assert expectation_of(members_kv, broken).lacking({}) == 0
    assert expectation_of(members_kv, None).absent({}) == []


def test_what_an_absent_replica_is_told_with():
    assert expected.not_alive(AbsentReplica("r1", {}, "")).startswith("just gone; ")
    told = expected.not_alive(AbsentReplica("r1", {}, "2026-01-01T00:00:00Z"))
    assert told == "last seen at 2026-01-01T00:00:00Z; start its sidecar, or loraplane replica forget r1"


def rollout(remembered: RememberedReplicas, count: int | None = None, also: KeyValue | None = None, **spec) -> Rollout:
    status = KeyValue(KEYS.status(POOL, "r1"), replica_status("r1", 50).to_bytes(), 1, 1, 1, LEASE)
    presences = {kv.key: kv for kv in (lives("r1"), also) if kv is not None}
    values = PoolValues(presences, {status.key: status}, members=stored(remembered), spec=pool_kv(count))
    written = kv("a", 50, record("a", 2, **spec).to_bytes())
    return derive_rollout(Question(POOL, "a", 0), written, renew(PoolSnapshot(POOL), values))


def test_a_rollout_waits_for_who_is_expected():
    """With 3 of 20 dead it is not served everywhere, and who does not serve it is named."""
    now = rollout(members(r1="", r2=ago(hours=1)))
    assert [(one.replica, one.state, one.reason) for one in now.replicas] == [
        ("r1", SERVING, ""),
        ("r2", UNKNOWN, "not_alive"),
    ]
    assert (now.done, now.waiting) == (False, "1 of 2 replicas do not serve it yet")
    assert rollout(members(r1="")).done


def test_a_rollout_waits_for_as_many_as_the_pool_is_to_have():
    now = rollout(members(r1=""), 3)
    assert [(one.replica, one.reason) for one in now.replicas] == [("others", "not_alive"), ("r1", "")]
    assert "2 more of the 3 replicas" in now.replicas[0].message
    assert rollout(members(r1="", r2=ago(hours=1)), 1).done


def test_a_rollout_waits_for_nobody_who_would_not_serve_it():
    gone = RememberedReplicas(members={"r2": RememberedReplica(labels={"z": "1"}, last_seen=ago(hours=1))})
    assert rollout(gone, placement=Placement(replicas="all", selector={"z": "2"})).replicas == ()
    assert [one.replica for one in rollout(gone, placement=Placement(selector={"z": "1"})).replicas] == ["r2"]
    assert rollout(gone, 5, placement=Placement(selector={"z": "2"})).replicas == ()
