"""Replicas that a pool expects although they do not live."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from registry.etcd3.ops import KeyValue
from registry.model.keys import last_part
from registry.model.placement import Placement
from registry.model.records import PoolLimits, PoolSpec, ReplicaGroup
from registry.model.status import LastKnown, RememberedReplica, RememberedReplicas
from registry.rollout import expected
from registry.rollout.expected import (
    AbsentReplica,
    GroupPresence,
    NamelessReplicas,
    PoolExpectation,
    expectation_of,
    labels_of,
    remember,
)
from registry.rollout.pool import PoolSnapshot, PoolValues, renew
from registry.rollout.status import Question, Rollout, derive_rollout
from registry.runtime.clock import rfc3339
from tests.support.records import KEYS, POOL, kv, record
from tests.support.residency_world import LEASE, SERVING, UNKNOWN, engine_status, presence, replica_status

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOBODY = RememberedReplicas()


def lives(name: str, value: bytes | None = None, **fields) -> KeyValue:
    return KeyValue(KEYS.replica(POOL, name), value or presence(name, **fields).to_bytes(), 1, 1, 1, LEASE)


def remembering(
    before: RememberedReplicas, here: list[KeyValue], left: dict[str, str], now: datetime
) -> RememberedReplicas:
    """Who is remembered, where all that live are ready."""
    return remember(before, here, [says(last_part(kv.key)) for kv in here], left, now)


def says(name: str, **fields) -> KeyValue:
    return KeyValue(KEYS.status(POOL, name), replica_status(name, 50, **fields).to_bytes(), 1, 1, 1, LEASE)


def members(**seen: str) -> RememberedReplicas:
    return RememberedReplicas(members={name: RememberedReplica(last_seen=when) for name, when in seen.items()})


def ago(**span: float) -> str:
    return rfc3339(NOW - timedelta(**span))


def test_who_lives_is_remembered_with_its_labels_and_no_heartbeat_changes_that():
    now = remembering(NOBODY, [lives("r1", labels={"zone": "a"}), lives("r2", b"?")], {}, NOW)
    assert now.members == {
        "r1": RememberedReplica(labels={"zone": "a"}, incarnation="i"),
        "r2": RememberedReplica(),
    }
    later = NOW + timedelta(hours=1)
    assert remembering(now, [lives("r1", labels={"zone": "a"}), lives("r2", b"?")], {}, later) == now
    assert remembering(now, [lives("r1", b"?"), lives("r2", b"?")], {}, later) == now


def test_who_was_never_ready_is_not_remembered_and_who_was_once_is_whatever_it_says_now():
    """X3 given-back: a presence that anybody wrote was expected for a day after it was deleted."""
    here = [lives("alone"), lives("other"), lives("starts"), lives("stale"), lives("broken"), lives("ready")]
    other = replace(says("other"), lease=LEASE + 1)
    broken = replace(says("broken"), value=b"?")
    said = [other, says("starts", ready=False), says("stale", stale=True), broken, says("ready")]
    now = remember(NOBODY, here, said, {}, NOW)
    assert {*now.members} == {"ready"}
    assert remember(now, here, [], {}, NOW) == now
    assert {*labels_of(here, said, now.members)} == {"starts", "stale", "broken", "ready"}
    labeled = [lives("ready", labels={"zone": "a"}), lives("broken", b"?")]
    assert labels_of(labeled, [broken], now.members) == {"ready": {"zone": "a"}, "broken": {}}
    gone = remember(now, [], [], {}, NOW)
    assert {*gone.members} == {"ready"}
    assert {*labels_of([lives("ready")], [], gone.members)} == {"ready"}, "what it says is on its way"


def test_a_presence_alone_takes_no_lost_pods_place():
    """R3 converge: else nobody would hear of the one that is lost."""
    lost = remembering(remembering(NOBODY, pods("a", "b"), {}, NOW), pods("a"), {}, seconds(600))
    ghost = remember(lost, pods("a", "ghost"), [says("a")], {}, seconds(700))
    assert told(ghost) == {"a": True, "b": False}
    assert told(remembering(ghost, pods("a", "ghost"), {}, seconds(900))) == {"a": True, "ghost": True}


def test_who_is_gone_is_remembered_for_a_day_since_it_was_found():
    gone = remembering(members(r1=""), [], {}, NOW)
    assert gone == members(r1=ago(hours=0))
    assert remembering(gone, [], {}, NOW + timedelta(hours=23)) == gone
    assert remembering(gone, [], {}, NOW + timedelta(hours=24)) == NOBODY
    assert remembering(gone, [lives("r1")], {}, NOW).members["r1"] == RememberedReplica(incarnation="i")
    assert remembering(members(r1="?", r2="2026-01-01T23:00:00"), [], {}, NOW) == NOBODY


def test_who_ended_in_order_is_not_waited_for_and_who_dies_later_is():
    """The mark is of one process: whoever has the name after it is another, whichever is heard of first."""
    alive = remembering(NOBODY, [lives("r1")], {}, NOW)
    assert remembering(alive, [lives("r1")], {"r1": "i"}, NOW) == NOBODY, "the end of its presence is heard of later"
    assert remembering(alive, [], {"r1": "i"}, NOW) == NOBODY
    dead = remembering(alive, [], {}, NOW)
    assert dead.members["r1"].last_seen
    assert remembering(dead, [], {"r1": "i"}, NOW) == NOBODY, "also if its end was known first"
    assert remembering(alive, [lives("r1")], {"r1": "h"}, NOW) == alive
    assert remembering(alive, [], {"r1": "h"}, NOW) == dead
    assert remembering(members(r1=""), [], {"r1": ""}, NOW).members["r1"].last_seen


def test_who_leaves_and_whose_release_says_nothing_of_its_end_is_not_waited_for():
    """Such a sidecar would be missed for a day whenever it is ended on purpose, as each is by the upgrade."""
    earlier = json.dumps(presence("r1").model_dump(by_alias=True, exclude={"leaving"})).encode()
    for here in (lives("r1", leaving=True), lives("r1", earlier)):
        assert remembering(members(r1=""), [here], {}, NOW) == NOBODY


def test_so_many_are_remembered_at_most_and_those_that_live_first(monkeypatch):
    """R16 bounded: of those that are gone those that were seen last, and as many as a value may hold."""
    monkeypatch.setattr(expected, "MAX_REMEMBERED", 3)
    before = members(a=ago(hours=2), b=ago(hours=1), c=ago(hours=3))
    assert sorted(remembering(before, [lives("y"), lives("z")], {}, NOW).members) == ["b", "y", "z"]
    monkeypatch.setattr(RememberedReplicas, "max_bytes", 130)
    assert len(remembering(before, [lives("y"), lives("z")], {}, NOW).members) == 1


def test_what_a_replica_told_last_is_what_it_told_routers():
    here = lives("r1", owner="boot-1:store", engine_url="http://shown:1", version="0.2.0")
    engine = engine_status(url="http://own:2", kind="vllm", version="0.32.0")
    told = expected.last_known(here, says("r1", engine=engine))
    assert told == LastKnown(
        engine_url="http://shown:1", host="boot-1", observed_revision=50, engine="vllm 0.32.0", version="0.2.0"
    )
    assert expected.last_known(lives("r1"), says("r1", engine=engine)).engine_url == "http://own:2"
    assert expected.last_known(lives("r1", b"?"), says("r1", engine=engine)).host == ""
    strangers = replace(says("r1", engine=engine), lease=LEASE + 1)
    of_before = expected.last_known(lives("r1"), strangers)
    assert (of_before.engine_url, of_before.engine, of_before.observed_revision) == ("", "", 0), "of an earlier process"
    long = engine_status(url="http://" + 300 * "h")
    assert expected.last_known(lives("r1"), says("r1", engine=long)).engine_url == "", "half of an address is another"


def test_what_is_last_known_goes_before_anybody_is_forgotten(monkeypatch):
    """R16 bounded: it stays within what a value of etcd may hold."""
    facts = {name: LastKnown(host="h" * 200) for name in ("a", "b", "c")}
    gone = remembering(members(a="", b="", c=""), [], {}, NOW)
    whole = expected.with_last_known(gone, facts)
    assert {name: one.last_known for name, one in whole.members.items()} == facts
    assert [expected.newly_gone(members(a="", b="", c=""), gone), expected.newly_gone(gone, gone)] == [
        ["a", "b", "c"],
        [],
    ]
    monkeypatch.setattr(RememberedReplicas, "max_bytes", len(whole.to_bytes()) - 1)
    some = expected.with_last_known(gone, facts)
    assert [name for name, one in some.members.items() if one.last_known] == ["a"]
    monkeypatch.setattr(RememberedReplicas, "max_bytes", len(gone.to_bytes()))
    assert expected.with_last_known(gone, facts) == gone
    assert remembering(whole, [], {}, NOW) == gone
    back = remembering(whole, [lives("a"), lives("b", b"?")], {}, NOW)
    assert [back.members[name].last_known for name in ("a", "b")] == [None, None], "it tells what is so now"


def test_what_an_earlier_release_does_not_know_of_a_replica_survives_it():
    later = json.loads(members(r1=ago(hours=1)).to_bytes())
    later["members"]["r1"] |= {"last_known": {"host": "h", "later": 1}, "later": 2}
    before = RememberedReplicas.parse(json.dumps(later).encode())
    kept = json.loads(remembering(before, [lives("r2")], {}, NOW).to_bytes())["members"]["r1"]
    assert (kept["later"], kept["last_known"]["later"], kept["last_known"]["host"]) == (2, 1, "h")


def stored(value: RememberedReplicas | bytes) -> KeyValue:
    made = value if isinstance(value, bytes) else value.to_bytes()
    return KeyValue(KEYS.members(POOL), made, 1, 1, 1)


ZONES = ({"zone": "a"}, 2), ({"zone": "b"}, 3)


def pool_kv(count: int | None, *groups: tuple[dict[str, str], int]) -> KeyValue:
    by_labels = [ReplicaGroup(labels=labels, replicas=number) for labels, number in groups]
    limits = PoolLimits(expected_replicas=count, expected_groups=by_labels)
    return KeyValue(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=["base"], limits=limits).to_bytes(), 1, 1, 1)


def names(expects: PoolExpectation, *live: str) -> list[str]:
    return [one.name for one in expects.lacking({name: {} for name in live}).named]


def test_absent_is_who_is_remembered_and_does_not_live():
    expects = expectation_of(stored(members(r1="", r2=ago(hours=1), r3=ago(hours=2))), pool_kv(None))
    assert names(expects, "r4") == ["r1", "r2", "r3"], "also one that nobody has noted yet, the latest first"
    assert (names(expects, "r1", "r2", "r3"), expects.lacking({"r1": {}}).count) == ([], 2)
    assert expectation_of(expects.members, expects.pool, expects) is expects


def test_a_pool_that_says_how_many_it_has_misses_no_more_than_that():
    remembered = stored(members(r1=ago(hours=1), r2=ago(hours=2)))
    assert names(expectation_of(remembered, pool_kv(3)), "a", "b") == ["r1"]
    assert names(expectation_of(remembered, pool_kv(3)), "a", "b", "c", "d") == []
    nobody = expectation_of(None, pool_kv(3)).lacking({"a": {}})
    assert (nobody.named, nobody.count, nobody.nameless) == ([], 2, [NamelessReplicas(2, {}, 3)])


def in_zones(**zones: str) -> dict[str, dict[str, str]]:
    return {name: {"zone": zone} if zone else {} for name, zone in zones.items()}


def gone_in(**zones: str) -> KeyValue:
    """Remembered and gone: the first the longest ago."""
    return stored(
        RememberedReplicas(
            members={
                name: RememberedReplica(labels=labels, last_seen=ago(hours=20 - number))
                for number, (name, labels) in enumerate(in_zones(**zones).items())
            }
        )
    )


def test_a_group_lacks_whom_another_group_has_too_many_of():
    """Two too many in zone a do not stand in for the two that zone b lacks."""
    live = in_zones(a1="a", a2="a", a3="a", a4="a", b1="b")
    lacking = expectation_of(None, pool_kv(None, *ZONES)).lacking(live)
    assert (lacking.count, lacking.nameless) == (2, [NamelessReplicas(2, {"zone": "b"}, 3)])
    assert lacking.groups == [GroupPresence({"zone": "a"}, 2, 4), GroupPresence({"zone": "b"}, 3, 1)]
    assert expectation_of(None, pool_kv(5, *ZONES)).lacking(live).count == 2


def test_whoever_is_gone_is_named_in_its_group_and_no_more_than_lack():
    """By memory alone who is of no group: the group says how many it has."""
    expects = expectation_of(gone_in(b7="b", b8="b", b9="b", a9="a", x="", y="c"), pool_kv(None, *ZONES))
    lacking = expects.lacking(in_zones(a1="a", a2="a", b1="b"))
    assert [one.name for one in lacking.named] == ["y", "x", "b9", "b8"]
    assert (lacking.count, lacking.nameless) == (4, [])


@pytest.mark.parametrize(
    ("count", "named", "nameless"),
    [
        (4, ["b9"], [NamelessReplicas(1, {"zone": "b"}, 3)]),  # groups of five
        (5, ["b9"], [NamelessReplicas(1, {"zone": "b"}, 3)]),
        (6, ["y", "b9"], [NamelessReplicas(1, {"zone": "b"}, 3)]),
        (8, ["y", "x", "b9"], [NamelessReplicas(1, {"zone": "b"}, 3), NamelessReplicas(1, {}, 8)]),
    ],
)
def test_of_a_total_and_groups_the_larger_counts(count, named, nameless):
    expects = expectation_of(gone_in(b9="b", x="", y="c"), pool_kv(count, *ZONES))
    lacking = expects.lacking(in_zones(a1="a", a2="a", b1="b"))
    assert ([one.name for one in lacking.named], lacking.nameless) == (named, nameless)
    assert lacking.count == max(count - 3, 2)


A, NUMBERED = ({"zone": "a"}, 1), [({"rack": str(number)}, 1) for number in range(33)]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([A, ({"zone": "a"}, 2)], "a replica can have both zone=a and "),
        ([A, ({"gpu": "h100"}, 2)], "a replica can have both zone=a and "),
        ([A, ({"gpu": "h100", "zone": "a"}, 2)], "a replica can have both zone=a and "),
        (NUMBERED, None),
        ([({}, 1)], None),
        ([({"a": "b"}, 0)], None),
        ([({"a": "b"}, 1_000_001)], None),
    ],
)
def test_groups_are_bounded_and_have_labels_of_which_a_replica_has_those_of_one(groups, words):
    """R16 bounded."""
    with pytest.raises(ValidationError, match=words):
        pool_kv(None, *groups)
    assert len(expectation_of(None, pool_kv(None, *NUMBERED[:32])).numbers) == 32


@pytest.mark.parametrize("members_kv", [None, stored(b"?")])
def test_what_cannot_be_read_expects_nobody(members_kv):
    broken = KeyValue(KEYS.pool(POOL), b"?", 1, 1, 1)
    assert expectation_of(members_kv, broken).lacking({}).count == 0
    assert expectation_of(members_kv, None).lacking({}).named == []


def test_what_an_absent_replica_is_told_with():
    """Where names change with each start, the way out is another one: it is told as well."""
    seen = "2026-01-01T00:00:00Z"
    assert expected.not_alive(AbsentReplica("r1", {}, ""), "p").startswith("just gone; ")
    assert expected.not_alive(AbsentReplica("r1", {}, seen), "p") == (
        "last seen at 2026-01-01T00:00:00Z; start its sidecar, or loraplane replica forget r1; if names change with "
        "each start: sidecar --ephemeral, or loraplane pool update p --expect N"
    )
    assert expected.not_alive(AbsentReplica("r1", {}, seen, ephemeral=True), "p") == (
        "last seen at 2026-01-01T00:00:00Z; the next new replica with its labels, or of its Deployment, takes its "
        "place; if none is to come: loraplane replica forget r1, or loraplane pool update p --expect N"
    )


def pods(*names: str, **fields) -> list[KeyValue]:
    return [lives(name, ephemeral=True, **fields) for name in names]


def seconds(count: float) -> datetime:
    return NOW + timedelta(seconds=count)


def told(now: RememberedReplicas) -> dict[str, bool]:
    """Who is remembered, and whether it lives."""
    return {name: not one.last_seen for name, one in now.members.items()}


def test_a_new_pod_takes_the_place_of_one_that_is_gone():
    """Pods of a Deployment never come back under their names: as many as before is all that is waited for."""
    before = remembering(NOBODY, pods("a", "b", "c"), {}, NOW)
    lost = remembering(before, pods("a", "b"), {}, seconds(600))
    assert told(lost) == {"a": True, "b": True, "c": False}
    assert expectation_of(stored(lost), None).lacking({"a": {}, "b": {}}).named[0].ephemeral
    again = remembering(lost, pods("a", "b", "d"), {}, seconds(900))
    assert told(again) == {"a": True, "b": True, "d": True}
    assert told(remembering(again, pods("a", "b", "d", "e"), {}, seconds(1200))) == dict.fromkeys("abde", True)


def test_a_new_pod_may_come_before_the_lease_of_the_old_one_ends():
    """It takes one place, and only of one that went about when it came."""
    before = remembering(NOBODY, pods("a", "b", "c"), {}, NOW)
    both = remembering(before, pods("a", "b", "c", "d"), {}, seconds(600))
    gone = remembering(both, pods("a", "b", "d"), {}, seconds(610))
    assert told(gone) == dict.fromkeys("abd", True)
    assert told(remembering(gone, pods("a", "d"), {}, seconds(615))) == {"a": True, "b": False, "d": True}
    assert told(remembering(both, pods("a", "b", "d"), {}, seconds(700))) == dict.fromkeys("abd", True) | {"c": False}


def test_a_pod_takes_the_place_of_none_but_its_own_kind():
    """One with other labels serves other adapters; a StatefulSet's comes back under its name."""
    zone = remembering(NOBODY, pods("a", labels={"zone": "a"}), {}, NOW)
    gone = remembering(zone, [], {}, seconds(600))
    assert told(remembering(gone, pods("b", labels={"zone": "b"}), {}, seconds(700))) == {"a": False, "b": True}
    stays = remembering(remembering(NOBODY, [lives("r1")], {}, NOW), [], {}, seconds(600))
    assert told(remembering(stays, pods("b"), {}, seconds(700))) == {"r1": False, "b": True}
    assert told(remembering(gone, [lives("r2", labels={"zone": "a"})], {}, seconds(700))) == {"a": False, "r2": True}
    earlier = json.dumps(presence("a").model_dump(by_alias=True, exclude={"ephemeral"})).encode()
    gone = remembering(remembering(NOBODY, [lives("a", earlier)], {}, NOW), [], {}, seconds(600))
    assert told(remembering(gone, pods("b"), {}, seconds(700))) == {"a": False, "b": True}, "of an earlier release"


def test_a_pod_takes_the_place_of_one_of_its_deployment_in_another_zone():
    """S7: its zone is that of the node on which it is made anew; the lost one was waited for in its own for a day."""
    lost, other, new = "vllm-68b4f9c9d7-8lw9b", "vllm-68b4f9c9d7-x2x7k", "vllm-7d9c5b6f4c-bbbbb"
    zone = {name: pods(name, labels={"zone": where}) for name, where in ((lost, "a"), (other, "b"), (new, "b"))}
    before = remembering(NOBODY, [*zone[lost], *zone[other]], {}, NOW)
    both = remembering(before, [], {}, seconds(600))
    assert told(remembering(both, zone[new], {}, seconds(700))) == {lost: False, new: True}, "of its labels first"
    gone = remembering(before, zone[other], {}, seconds(600))
    assert told(remembering(gone, [*zone[other], *zone[new]], {}, seconds(700))) == {other: True, new: True}
    decode = pods("decode-68b4f9c9d7-x2x7k", labels={"zone": "b"})
    assert told(remembering(gone, [*zone[other], *decode], {}, seconds(700)))[lost] is False


def test_a_rollout_is_served_once_as_many_pods_as_before_serve():
    """S7: it waited for a day for the name of a pod that was killed."""
    lost = remembering(remembering(NOBODY, pods("r0"), {}, NOW), [], {}, seconds(600))
    assert not rollout(lost).done
    assert rollout(remembering(lost, pods("r1"), {}, seconds(700))).done


def rollout(
    remembered: RememberedReplicas,
    count: int | None = None,
    *groups: tuple[dict[str, str], int],
    also: KeyValue | None = None,
    **spec,
) -> Rollout:
    presences = {kv.key: kv for kv in (lives("r1"), also) if kv is not None}
    statuses = {kv.key: kv for kv in (says(last_part(key), ready=key.endswith(b"r1")) for key in presences)}
    values = PoolValues(presences, statuses, members=stored(remembered), spec=pool_kv(count, *groups))
    written = kv("a", 50, record("a", 2, **spec).to_bytes())
    return derive_rollout(Question(POOL, "a", 0), written, renew(PoolSnapshot(POOL), values))


def test_a_rollout_waits_for_who_is_expected_and_for_as_many_as_the_pool_is_to_have():
    """With 3 of 20 dead it is not served everywhere, and who does not serve it is named."""
    now = rollout(members(r1="", r2=ago(hours=1)))
    told = [(one.replica, one.state, one.reason) for one in now.replicas]
    assert told == [("r1", SERVING, ""), ("r2", UNKNOWN, "not_alive")]
    assert (now.done, now.waiting) == (False, "1 of 2 replicas do not serve it yet")
    assert rollout(members(r1="")).done
    now = rollout(members(r1=""), 3)
    assert [(one.replica, one.reason) for one in now.replicas] == [("others", "not_alive"), ("r1", "")]
    assert rollout(members(r1="", r2=ago(hours=1)), 1).done


def test_a_rollout_waits_for_nobody_who_leaves():
    """R20 drain: it lives, so it is neither absent nor one of those that are missing to the number, or to a group."""
    leaving = lives("r2", labels={"zone": "b"}, leaving=True)
    assert rollout(members(r1="", r2=""), also=leaving).done
    assert rollout(members(r1="", r2=""), 2, also=leaving).done
    assert not rollout(members(r1="", r2=""), 3, also=leaving).done
    assert rollout(members(r1=""), None, ({"zone": "b"}, 1), also=leaving).done


def test_a_rollout_waits_for_as_many_of_a_group_as_there_are_to_be():
    """Also where it is placed by labels, if a group has these; of whom no labels are known it does not."""
    there = lives("r2", labels={"zone": "b"})
    for placement in (Placement(), Placement(selector={"zone": "b"})):
        now = rollout(NOBODY, None, *ZONES[1:], also=there, placement=placement)
        waited = [one for one in now.replicas if one.reason == "not_alive"]
        assert [(one.replica, one.message) for one in waited] == [
            ("others of zone=b", "2 more of the 3 replicas of zone=b that its pool expects do not live")
        ]
    away = rollout(NOBODY, 9, *ZONES, also=there, placement=Placement(selector={"zone": "c"}))
    assert away.replicas == ()


def test_a_rollout_waits_for_nobody_who_would_not_serve_it():
    gone = RememberedReplicas(members={"r2": RememberedReplica(labels={"z": "1"}, last_seen=ago(hours=1))})
    assert rollout(gone, placement=Placement(replicas="all", selector={"z": "2"})).replicas == ()
    assert [one.replica for one in rollout(gone, placement=Placement(selector={"z": "1"})).replicas] == ["r2"]
    assert rollout(gone, 5, placement=Placement(selector={"z": "2"})).replicas == ()
