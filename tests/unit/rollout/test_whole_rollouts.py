"""Each word of a rollout: the whole of what is derived, compared with what it should be."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from registry.etcd3.ops import Event, KeyValue
from registry.model.names import check_request_id, label_text
from registry.model.placement import Placement
from registry.model.records import Canary, CanaryRollout, KeptGeneration, Strategy
from registry.model.status import Failed, Found, Kept, Pending
from registry.rollout.expected import GroupPresence, LackingReplicas, NamelessReplicas, PoolExpectation
from registry.rollout.policy import (
    Halt,
    Leave,
    LookAgain,
    OpenRollouts,
    Promote,
    Soak,
    conductor_request_id,
    decide,
    soaking,
)
from registry.rollout.pool import REMEMBERED, LiveReplica, PoolSnapshot, PoolValues, read_presence, renew
from registry.rollout.status import (
    Question,
    ReplicaFailure,
    ReplicaRollout,
    Rollout,
    RolloutStage,
    derive_rollout,
    needs_room,
    refusals,
)
from tests.support.records import KEYS, POOL, deletion, kv, put, record
from tests.support.residency_world import (
    FAILED,
    LEASE,
    PENDING,
    SERVING,
    UNKNOWN,
    engine_status,
    pool_snapshot,
    presence,
    replica_status,
)
from tests.unit.rollout.test_canary_rollout import (
    CANARIES,
    FIRST,
    NAME,
    REPLICAS,
    SECOND,
    TWO,
    canaried,
    derive,
    failed,
    status,
)

WHEN = "2026-01-01T00:00:00Z"
MISSING = {"name": NAME, "generation": 2, "reason": "source_missing", "message": "", "attempts": 1, "retry_at": WHEN}
SOON = [Pending(name=NAME, generation=2, reason="staging")]


def test_of_each_replica_all_is_told():
    """R9 status-truth: state, reason, what it says, and what it answers with meanwhile."""
    kept = [Kept(name=NAME, generation=1)]
    found = derive(record(NAME, 2), r1=failed(), r2=status(pending=SOON, kept=kept), r3=status(observed_revision=49))
    behind = "it has not received this change yet (at revision 49, needs 50)"
    assert found == Rollout(
        NAME,
        2,
        (
            ReplicaRollout("r0", SERVING, generation=2),
            ReplicaRollout("r1", FAILED, "BAD", "m", generation=2),
            ReplicaRollout("r2", PENDING, "staging", generation=2, kept=1),
            ReplicaRollout("r3", PENDING, "not_seen", behind, generation=2),
        ),
        waiting="2 of 4 replicas do not serve it yet, and 1 failed",
    )


NOWHERE = "; none of them has its files, and neither has its source: put them back, or go to another generation"


def test_files_that_nobody_has_are_told_once_all_say_so():
    """A roll-back to what a trainer rotated away: R13, all go on with what they served."""
    gone = status(failed=[Failed(**MISSING)], kept=[Kept(name=NAME, generation=1)])
    everywhere = derive(record(NAME, 2), **dict.fromkeys(("r0", "r1", "r2", "r3"), gone))
    assert (everywhere.done, everywhere.waiting) == (False, f"4 of 4 replicas do not serve it yet{NOWHERE}")
    assert {one.kept for one in everywhere.replicas} == {1}
    but_one = derive(record(NAME, 2), **dict.fromkeys(("r0", "r1", "r2"), gone))
    assert (but_one.done, but_one.waiting) == (False, "3 of 4 replicas do not serve it yet")
    canaries = derive(canaried(), **dict.fromkeys(CANARIES, gone))
    assert canaries.waiting == f"2 of 2 canaries do not serve it yet{NOWHERE}"


@pytest.mark.parametrize(
    ("generation", "told"),
    [
        (1, Rollout(NAME, 1, done=True, failure=ReplicaFailure.SUPERSEDED)),
        (3, Rollout(NAME, 3, waiting="generation 2 is the present one, 3 does not exist yet")),
        (2, Rollout(NAME, 2, waiting="no replica of the pool is alive")),
        (0, Rollout(NAME, 2, waiting="no replica of the pool is alive")),
    ],
)
def test_which_generation_is_asked_for(generation, told):
    question = Question(POOL, "ACME/A", generation)
    assert derive_rollout(question, kv(NAME, 50, generation=2), PoolSnapshot(POOL)) == told


def test_of_what_is_gone_or_damaged():
    """R14: a damaged record is waited for, and replicas keep what they have."""
    question = Question(POOL, "ACME/A", 7)
    assert derive_rollout(question, None, PoolSnapshot(POOL)) == Rollout(
        "ACME/A", 7, done=True, failure=ReplicaFailure.DELETED
    )
    damaged = derive_rollout(question, kv(NAME, 50, b"?"), PoolSnapshot(POOL))
    assert (damaged.name, damaged.generation, damaged.done, damaged.failure) == ("ACME/A", 7, False, None)
    assert damaged.waiting.startswith("the record cannot be read, so replicas keep the generation before: ")
    other = derive_rollout(Question("q", NAME, 0), kv(NAME, 50), PoolSnapshot("q"))
    assert "cannot be read" in other.waiting


@pytest.mark.parametrize(("known", "is_needed"), [(0, True), (49, True), (50, False), (51, False)])
def test_the_room_is_needed_up_to_the_record(known, is_needed):
    """R9: what is placed by number depends on what else takes room."""
    numbered = kv(NAME, 50, record(NAME, 2, placement=Placement(replicas=2)).to_bytes())
    pool, question = pool_snapshot([], [], [kv("b", known)] if known else None), Question(POOL, NAME, 0)
    assert needs_room(question, numbered, pool) is is_needed
    assert not any(needs_room(question, of, pool) for of in (None, kv(NAME, 50), kv(NAME, 50, b"?")))


def test_of_each_canary_and_each_other_all_is_told():
    """W6: canaries serve one generation, the others the one before."""
    one = derive(canaried(), r0=failed(), **{FIRST: status(pending=SOON)})
    others = [name for name in ("r0", "r1", "r2", "r3") if name not in CANARIES]
    assert others[0] == "r0"
    expected = {
        FIRST: ReplicaRollout(FIRST, PENDING, "staging", canary=True, generation=2),
        SECOND: ReplicaRollout(SECOND, SERVING, canary=True, generation=2),
        "r0": ReplicaRollout("r0", FAILED, "BAD", "m", generation=1),
        others[1]: ReplicaRollout(others[1], SERVING, generation=1),
    }
    assert one == Rollout(
        NAME,
        2,
        tuple(expected[name] for name in sorted(expected)),
        waiting="1 of 2 canaries do not serve it yet",
        canary=canaried().rollout,
        stage=RolloutStage.WAITING,
    )


@pytest.mark.parametrize(
    ("allowed", "refuse", "pending", "stage"),
    [
        (0, 0, 0, RolloutStage.SERVED),
        (0, 0, 1, RolloutStage.WAITING),
        (0, 1, 0, RolloutStage.REFUSED),
        (0, 1, 1, RolloutStage.REFUSED),
        (1, 1, 0, RolloutStage.SERVED),
        (1, 1, 1, RolloutStage.WAITING),
        (1, 2, 0, RolloutStage.REFUSED),
        (2, 2, 0, RolloutStage.REFUSED),
        (0, 2, 0, RolloutStage.REFUSED),
    ],
)
def test_the_stage_of_a_rollout_follows_from_its_canaries(allowed, refuse, pending, stage):
    """So many may refuse it, but not all of them."""
    strategy = Strategy(canary=Canary(replicas=2), max_failures=allowed)
    told = [failed()] * refuse + [status(pending=SOON)] * pending
    found = derive(canaried(strategy), **dict(zip((FIRST, SECOND), told, strict=False)))
    assert found.stage is stage
    assert (found.done, found.failure) == (False, None)
    halted = derive(canaried(strategy, halted="why"), **dict(zip((FIRST, SECOND), told, strict=False)))
    end = RolloutStage.HALTED, True, ReplicaFailure.HALTED, ""
    assert (halted.stage, halted.done, halted.failure, halted.waiting) == end


def test_only_canaries_are_waited_for_also_those_that_are_out_of_sight():
    """R9: unknown is not served. All others are told too."""
    assert derive(canaried(), **{FIRST: status(stale=True)}).stage is RolloutStage.WAITING
    assert derive(canaried(), **{FIRST: failed("soon")}).stage is RolloutStage.WAITING
    others = derive(canaried(), **{name: status(stale=True) for name in REPLICAS if name not in CANARIES})
    assert (others.stage, others.done) == (RolloutStage.SERVED, False)
    both = derive(canaried(), **dict.fromkeys((FIRST, SECOND), status(pending=SOON)))
    assert both.waiting == "2 of 2 canaries do not serve it yet"
    assert others.waiting == "its canaries serve it; it comes to all once they have for 60 seconds"
    assert {one.state for one in others.replicas if not one.canary} == {UNKNOWN}


def test_what_is_said_of_refusals():
    told = derive(canaried(), **{FIRST: failed(), SECOND: failed()})
    assert refusals(told) == "2 of 2 canaries refuse it: r1 BAD - m; r2 BAD - m"
    assert told.waiting == f"{refusals(told)}; it is about to be halted"
    quiet = Rollout(NAME, 2, (ReplicaRollout("r1", FAILED, "BAD", canary=True), ReplicaRollout("r2", FAILED, "X", "n")))
    assert refusals(quiet) == "1 of 1 canaries refuse it: r1 BAD"


def test_notes_of_a_rollout_by_hand_follow_each_other():
    """R9: only canaries that serve it are counted; one may refuse it."""
    by_hand = Strategy(canary=Canary(replicas=1), promote="manual")
    numbered = canaried(by_hand, placement=Placement(replicas=5))
    found = derive(numbered, records=[kv(NAME, 50, numbered.to_bytes())])
    assert found.note == (
        "placed on 5 replicas, 4 are alive: served by all of them; 1 of 4 replicas, its canaries, serve it, the others "
        "generation 1, until it is promoted by hand"
    )
    assert (found.done, found.failure) == (True, None)
    by_hand = Strategy(canary=Canary(replicas=2), promote="manual", max_failures=1)
    found = derive(canaried(by_hand), **{FIRST: failed()})
    assert (found.done, found.note.partition(",")[0]) == (True, "1 of 4 replicas")


def test_who_is_expected_and_does_not_live_is_waited_for_by_what_is_for_all():
    """Not by canaries, nor by what is placed by number, which goes to others."""
    snapshot = pool_snapshot([KeyValue(KEYS.replica(POOL, "r0"), presence("r0").to_bytes(), 1, 1, 1, LEASE)], [])
    group = {"zone": "a"}
    lacking = LackingReplicas(
        nameless=[NamelessReplicas(2, {}, 3), NamelessReplicas(1, group, 1)], groups=[GroupPresence(group, 1, 0)]
    )
    snapshot = replace(snapshot, lacking=lacking)
    told = derive_rollout(Question(POOL, NAME, 0), kv(NAME, 50, generation=2), snapshot)
    that = "that its pool expects do not live"
    assert [(one.replica, one.state, one.reason, one.message, one.generation) for one in told.replicas] == [
        ("others", UNKNOWN, "not_alive", f"2 more of the 3 replicas {that}", 2),
        ("others of zone=a", UNKNOWN, "not_alive", f"1 more of the 1 replicas of {label_text(group)} {that}", 2),
        ("r0", PENDING, "no_status", "it has not reported yet", 2),
    ]
    for of in (canaried(), record(NAME, 2, placement=Placement(replicas=1))):
        found = derive_rollout(Question(POOL, NAME, 0), kv(NAME, 50, of.to_bytes()), snapshot)
        assert found.replicas == (), "nor is anything asked of a presence alone"


def test_a_rollout_waits_for_a_replica_of_each_role_that_the_pool_asks_for():
    """Whoever waits is told which role lacks. Canaries come first, and of which role they are is nobody's choice."""
    live = [presence(name, labels={"llm-d.ai/role": role}) for name, role in (("r0", "decode"), ("r1", "prefill"))]
    snapshot = pool_snapshot(
        [KeyValue(KEYS.replica(POOL, one.replica), one.to_bytes(), 1, 1, 1, LEASE) for one in live], []
    )
    snapshot = replace(snapshot, expected=PoolExpectation(roles=("prefill", "decode")))
    everywhere = derive_rollout(Question(POOL, NAME, 0), kv(NAME, 50, generation=2), snapshot)
    assert {one.replica for one in everywhere.replicas} == {"r0", "r1"}
    decode = record(NAME, 2, placement=Placement(selector={"llm-d.ai/role": "decode"}))
    told = derive_rollout(Question(POOL, NAME, 0), kv(NAME, 50, decode.to_bytes()), snapshot)
    assert [(one.replica, one.state, one.reason) for one in told.replicas] == [
        ("others of role prefill", UNKNOWN, "role_not_served"),
        ("r0", PENDING, "no_status"),
    ]
    assert "start one with --labels llm-d.ai/role=prefill" in told.replicas[0].message
    assert (told.done, told.waiting) == (False, "2 of 2 replicas do not serve it yet")
    nobody = record(NAME, 2, placement=Placement(selector={"llm-d.ai/role": "other"}))
    found = derive_rollout(Question(POOL, NAME, 0), kv(NAME, 50, nobody.to_bytes()), snapshot)
    assert (found.replicas, found.waiting) == ((), "no live replica of the pool matches its selector")
    canary = derive_rollout(Question(POOL, NAME, 0), kv(NAME, 50, canaried().to_bytes()), snapshot)
    assert all(one.reason != "role_not_served" for one in canary.replicas)


SERVED = Rollout(
    "a", 2, (ReplicaRollout("r0", SERVING, canary=True), ReplicaRollout("r1", SERVING)), stage=RolloutStage.SERVED
)


def test_a_clock_runs_while_the_same_canaries_serve_the_same_record():
    """Those alone count: others may come and go. Each interruption starts it anew."""
    soak = soaking(None, SERVED, 7, 0, 5.0)
    assert soak == Soak((7, 0, frozenset({"r0"})), 5.0)
    fewer = replace(SERVED, replicas=SERVED.replicas[:1])
    assert soaking(soak, fewer, 7, 0, 9.0) is soak
    other = replace(SERVED, replicas=(replace(SERVED.replicas[0], replica="r2"),))
    assert soaking(soak, SERVED, 7, 1, 9.0) == Soak((7, 1, frozenset({"r0"})), 9.0)
    assert soaking(soak, SERVED, 8, 0, 9.0) == Soak((8, 0, frozenset({"r0"})), 9.0)
    assert soaking(soak, other, 7, 0, 9.0) == Soak((7, 0, frozenset({"r2"})), 9.0)
    for stage in (RolloutStage.WAITING, RolloutStage.REFUSED, RolloutStage.HALTED, None):
        assert soaking(soak, replace(SERVED, stage=stage), 7, 0, 9.0) is None
    assert soaking(soak, SERVED, 7, None, 9.0) is None, "nobody sees them"


@pytest.mark.parametrize(
    ("promote", "seconds", "now", "decision"),
    [
        ("auto", 10, 14.9, LookAgain(15.0)),
        ("auto", 10, 15.0, Promote()),
        ("auto", 10, 15.1, Promote()),
        ("auto", 0, 5.0, Promote()),
        ("manual", 10, 99.0, Leave()),
        ("manual", 0, 99.0, Leave()),
    ],
)
def test_it_comes_to_all_once_it_was_served_for_long_enough(promote, seconds, now, decision):
    strategy = Strategy(canary=Canary(replicas=1), soak_seconds=seconds, promote=promote)
    assert decide(strategy, SERVED, soaking(None, SERVED, 7, 0, 5.0), now) == decision
    assert decide(strategy, SERVED, None, now) == Leave(), "they are out of sight"
    for stage in (RolloutStage.WAITING, RolloutStage.HALTED, None):
        assert decide(strategy, replace(SERVED, stage=stage), None, now) == Leave()
    refused = Rollout("a", 2, (ReplicaRollout("r0", FAILED, "x" * 700, canary=True),), stage=RolloutStage.REFUSED)
    halt = decide(strategy, refused, None, now)
    assert isinstance(halt, Halt)
    assert halt.why == ("1 of 1 canaries refuse it: r0 " + "x" * 700)[:600]


NAMED = hashlib.sha256(b"p\0acme%2Fa").hexdigest()[:16]


def test_the_request_id_of_the_admin_service_is_the_same_in_all_of_them():
    """W3 idempotent: also in those of other releases, so it is written down here."""
    one = record("acme/A", 3)
    assert conductor_request_id("halt", one, 0) == conductor_request_id("halt", record("acme/a", 3), 0)
    assert conductor_request_id("halt", one, 0) == f"halt-p-{NAMED}-3"
    assert conductor_request_id("promote", one, 2) == f"promote-p-{NAMED}-3-2"
    long = one.model_copy(update={"pool": "q" * 90})
    assert conductor_request_id("halt", long, 1).split("-")[1] == "q" * 64
    check_request_id(conductor_request_id("promote", long.model_copy(update={"generation": 2**53 - 1}), 99))


def test_a_pool_with_a_rollout_is_one_until_its_last_is_over():
    running, (a, b) = OpenRollouts(KEYS.all_adapters()), (f"acme/{name}" for name in "ab")
    values = {name: canaried().model_copy(update={"name": name}).to_bytes() for name in (a, b)}
    theirs = canaried().model_copy(update={"pool": "q"}).to_bytes()
    elsewhere = KeyValue(KEYS.adapter("q", a), theirs, 1, 6, 1)
    both = [put(a, 5, values[a]), put(b, 6, values[b])]

    def of_pool() -> list[KeyValue]:
        return [one.kv for one in running.of(POOL).values()]

    assert of_pool() == []
    assert running.changed([*both, Event(elsewhere.key, 6, elsewhere)], 0.0) == {POOL, "q"}
    assert of_pool() == [one.kv for one in both]
    assert (
        running.changed([put("c", 7, labels={"stable_generation": "1"}), deletion("d", 7), put("e", 7, values[a])], 0.0)
        == set()
    )
    assert running.changed([deletion(a, 8)], 0.0) == {POOL}
    assert (of_pool(), running.pools) == ([both[1].kv], {POOL, "q"})
    assert running.changed([deletion(a, 9)], 0.0) == set(), "it was none any more"
    assert running.changed([put(b, 10)], 0.0) == {POOL}
    assert running.pools == {"q"}
    assert running.listed([kv(a, 5, values[a])], 0.0) == {POOL, "q"}
    assert (running.pools, of_pool()) == ({POOL}, [both[0].kv])


def live(name: str, **fields: object) -> KeyValue:
    return KeyValue(KEYS.replica(POOL, name), presence(name, **fields).to_bytes(), 1, 1, 1, LEASE)


def says(name: str, revision: int, lease: int = LEASE, **fields: object) -> KeyValue:
    told = replica_status(name, revision, **fields).to_bytes()
    return KeyValue(KEYS.status(POOL, name), told, 1, revision, 1, lease)


def by_key(*kvs: KeyValue) -> dict[bytes, KeyValue]:
    return {one.key: one for one in kvs}


def test_what_did_not_change_is_not_read_again():
    first = renew(PoolSnapshot(POOL), PoolValues(by_key(live("r2"), live("r1")), by_key(says("r1", 5))))
    assert list(first.replicas) == ["r1", "r2"]
    same = renew(first, PoolValues(by_key(live("r1"), live("r2")), by_key(says("r1", 5))))
    assert (same.replicas is first.replicas, same.known is first.known) == (True, True)
    other = renew(same, PoolValues(by_key(live("r1"), live("r2")), by_key(says("r1", 6))))
    assert (other.replicas["r1"] is first.replicas["r1"], other.replicas["r2"] is first.replicas["r2"]) == (False, True)
    fewer = renew(other, PoolValues(by_key(live("r1")), by_key(says("r1", 6))))
    assert (list(fewer.replicas), fewer.replicas["r1"] is other.replicas["r1"]) == (["r1"], True)
    named = renew(fewer, PoolValues(by_key(live("r3")), {}))
    assert list(named.replicas) == ["r3"]


def test_the_last_sets_of_replicas_are_known():
    """R9: a replica that has not seen the newest one is understood, and of those before only so many."""
    pool, digests = PoolSnapshot(POOL), []
    digests.append(next(reversed(pool.known)))
    for number in range(REMEMBERED + 2):
        pool = renew(pool, PoolValues(by_key(live(f"r{number}")), by_key(says(f"r{number}", 5))))
        digests.append(next(reversed(pool.known)))
        assert [one.replica for one in pool.known[digests[-1]]] == [f"r{number}"]
    assert list(pool.known) == digests[-REMEMBERED:]
    back = renew(pool, PoolValues(by_key(live(f"r{REMEMBERED}")), by_key(says(f"r{REMEMBERED}", 5))))
    assert list(back.known) == [*digests[-REMEMBERED:-2], digests[-1], digests[-2]], "the present one is the last"


def test_a_status_that_is_ahead_waits_where_it_should():
    """R9, R24: it speaks of records that are not known here; the one before it counts, if its engine is the same."""
    ahead = by_key(says("r1", 6))
    known = renew(PoolSnapshot(POOL), PoolValues(by_key(live("r1")), by_key(says("r1", 5)), {}, revision=5))

    def observed(base: PoolSnapshot, presence_kv: KeyValue, holds_back: bool, revision: int = 5) -> int | None:
        values = PoolValues(by_key(presence_kv), ahead, {}, revision=revision, holds_back=holds_back)
        status_kv = renew(base, values).replicas["r1"].status
        return status_kv.mod_revision if status_kv else None

    assert observed(known, live("r1"), holds_back=False) == 6
    assert observed(known, live("r1"), holds_back=True) == 5
    assert observed(known, live("r1"), holds_back=True, revision=6) == 6
    assert observed(PoolSnapshot(POOL), live("r1"), holds_back=True) is None
    again = KeyValue(KEYS.replica(POOL, "r1"), presence("r1").to_bytes(), 1, 9, 1, LEASE + 1)
    assert observed(known, again, holds_back=True) is None

    def next_one(base: PoolSnapshot, **fields: object) -> LiveReplica:
        """The next process, as it is known once its first status is ahead."""
        theirs = by_key(says("r1", 6, LEASE + 1, **fields))
        return renew(base, PoolValues(by_key(again), theirs, {}, revision=5, holds_back=True)).replicas["r1"]

    assert next_one(known).status == says("r1", 5), "what the sidecar before it said of that engine still is so"
    past = PoolValues(by_key(again), by_key(says("r1", 5)), {}, revision=5, holds_back=True, alone=frozenset())
    both = next_one(renew(known, past))
    assert both.status == says("r1", 5), "also where its presence is taken over a step before its status"
    engine = replica_status("r1", 6).engine
    for incarnation in ("another", ""):
        both = next_one(known, engine=engine.model_copy(update={"incarnation": incarnation}))
        assert (both.status, both.reading) == (None, None), "what was said of another engine is over"
    damaged = by_key(KeyValue(KEYS.status(POOL, "r1"), b"{", 1, 4, 1, LEASE))
    both = next_one(renew(PoolSnapshot(POOL), PoolValues(by_key(live("r1")), damaged, {}, revision=5)))
    assert (both.status, both.reading) == (None, None), "what cannot be read is of no engine"
    stale = by_key(says("r1", 6, stale=True))
    values = PoolValues(by_key(live("r1")), stale, {}, revision=5, holds_back=True)
    assert renew(known, values).replicas["r1"].status == stale[KEYS.status(POOL, "r1")]


@pytest.mark.parametrize("lease", [0, LEASE + 1])
def test_a_status_counts_only_under_the_lease_of_its_presence(lease):
    """R9 status-truth: what a process before wrote, or somebody who is no sidecar, proves nothing."""
    for here, counts in ((live("r1"), False), (replace(live("r1"), lease=lease), bool(lease))):
        (told,) = derive_rollout(
            Question(POOL, NAME, 0), kv(NAME, 4), pool_snapshot([here], [says("r1", 5, lease)])
        ).replicas
        assert (told.state, told.reason) == ((SERVING, "") if counts else (PENDING, "no_status"))
    dead = pool_snapshot([], [says("r1", 5, lease)])
    assert derive_rollout(Question(POOL, NAME, 0), kv(NAME, 4), dead).replicas == ()


def test_room_has_a_number_of_its_own_for_each_that_is_known():
    """R9: a replica that reckons with the room of a moment ago is understood."""
    pool, records = PoolSnapshot(POOL), dict[bytes, KeyValue]()
    assert [(one.number, dict(one.everywhere)) for one in pool.rooms] == [(0, {})]
    last = REMEMBERED + 2
    for number in range(1, last + 1):
        records |= by_key(kv(f"a{number}", number))
        changed = frozenset({KEYS.adapter(POOL, f"a{number}")})
        pool = renew(pool, PoolValues({}, {}, records, changed, revision=number))
        assert pool.revision == number
    assert [(one.number, dict(one.everywhere)) for one in pool.rooms] == [
        (number, {frozenset(): number}) for number in range(3, last + 1)
    ]
    same = renew(pool, PoolValues({}, {}, records, frozenset(), revision=last + 1))
    assert (same.rooms is pool.rooms, same.revision) == (True, last + 1)
    without = renew(pool, PoolValues({}, {}, revision=last + 2))
    assert (without.rooms is pool.rooms, without.revision) == (True, last)
    whole = renew(pool, PoolValues({}, {}, by_key(kv("a1", 1)), None, revision=last + 3))
    assert [(one.number, dict(one.everywhere)) for one in whole.rooms[-1:]] == [(last + 1, {frozenset(): 1})]
    assert set(whole.taken) == {KEYS.adapter(POOL, "a1")}


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({}, {frozenset(): 1}),
        ({"load": "lazy"}, {}),
        ({"placement": Placement(selector={"zone": "a"})}, {frozenset({("zone", "a")}): 1}),
        ({"placement": Placement(replicas=2)}, {}),
        ({"placement": Placement(replicas=2, selector={"zone": "a"})}, {}),
        ({"description": '"placement":{"replicas":1'}, {frozenset(): 1}),
        ({"description": '"stable_spec"'}, {frozenset(): 1}),
        ({"labels": {"k": '"load":"lazy"'}}, {frozenset(): 1}),
        ({"labels": {"load": "eager"}, "load": "lazy"}, {}),
        ({"labels": {"placement": "a"}}, {frozenset(): 1}),
    ],
)
def test_what_takes_room_everywhere(fields, taken):
    """R9: whatever its texts look like."""
    pool = renew(PoolSnapshot(POOL), PoolValues({}, {}, by_key(kv("a", 5, record("a", **fields).to_bytes()))))
    assert dict(pool.rooms[-1].everywhere) == taken


@pytest.mark.parametrize("stable", [{}, {"placement": Placement(replicas=2)}, {"load": "lazy"}])
def test_of_a_rollout_what_takes_room_is_what_takes_it_for_all(stable):
    """R9: its record has two specs, and the text of either may be the usual one."""
    rolled = CanaryRollout(stable_generation=1, stable_spec=record("a", **stable).spec)
    for fields in ({}, {"placement": Placement(replicas=2)}):
        made = record("a", 2, source="v2", strategy=TWO, **fields).model_copy(update={"rollout": rolled})
        pool = renew(PoolSnapshot(POOL), PoolValues({}, {}, by_key(kv("a", 5, made.to_bytes()))))
        assert dict(pool.rooms[-1].everywhere) == ({} if fields else {frozenset(): 1})


def test_generations_that_are_kept_say_nothing_of_the_room_that_their_adapter_takes():
    """R9, R24: a record has the spec of each of them, whose text is the usual one, whatever its own asks for."""
    kept = [KeptGeneration(generation=1, spec=record("a").spec)]
    placements = {"a": Placement(replicas=2), "b": Placement(selector={"zone": "a"}), "c": Placement()}
    made = {name: record(name, 2, placement=one, keep=2) for name, one in placements.items()}
    kvs = [kv(name, 5, one.model_copy(update={"kept": kept}).to_bytes()) for name, one in made.items()]
    pool = renew(PoolSnapshot(POOL), PoolValues({}, {}, by_key(*kvs)))
    assert dict(pool.rooms[-1].everywhere) == {frozenset({("zone", "a")}): 1, frozenset(): 1}


def test_a_record_under_another_key_takes_no_room():
    """X2: nor one of another pool."""
    other = record("a").model_copy(update={"pool": "q"})
    kvs = by_key(kv("b", 5, record("a").to_bytes()), kv("a", 5, other.to_bytes()), kv("c", 5, b"?"))
    assert dict(renew(PoolSnapshot(POOL), PoolValues({}, {}, kvs)).rooms[-1].everywhere) == {}
    cased = by_key(kv("a", 5, record("A").to_bytes()))
    assert dict(renew(PoolSnapshot(POOL), PoolValues({}, {}, cased)).rooms[-1].everywhere) == {frozenset(): 1}


def test_where_routers_find_an_engine():
    urls = {}
    for name, url in (("r1", "http://told"), ("r2", "")):
        told = says(name, 5, engine=engine_status(url="http://status"))
        pool = renew(PoolSnapshot(POOL), PoolValues(by_key(live(name, engine_url=url)), by_key(told)))
        urls[name] = pool.replicas[name].router_url
    assert urls == {"r1": "http://told", "r2": "http://status"}
    pool = renew(PoolSnapshot(POOL), PoolValues(by_key(live("r1")), {}))
    assert pool.replicas["r1"].router_url == ""
    member, url = read_presence(live("r1", labels={"a": "b"}, capacity=3, leaving=True, engine_url="u"))
    assert (member.replica, member.labels, member.capacity, member.leaving, url) == ("r1", {"a": "b"}, 3, True, "u")


ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@pytest.mark.parametrize("is_pinned", [True, False], ids=["stable is pinned", "stable is not"])
def test_files_of_others_are_compared_by_the_record_that_they_follow(is_pinned):
    """W6 one-digest: the canaries' record may have a digest, or none, whatever the one before it had."""
    made = canaried(pinned=not is_pinned)
    assert made.rollout is not None
    stable = made.rollout.model_copy(update={"stable_spec": record(NAME, 1, pinned=is_pinned).spec})
    told = {}
    for number, name in enumerate(("r0", "r1", "r2", "r3")):
        generation = 2 if name in CANARIES else 1
        told[name] = status(found=[Found(name=NAME, generation=generation, digest=(ONE, OTHER)[number // 2])])
    found = derive(made.model_copy(update={"rollout": stable}), **told)
    differ = {one.replica for one in found.replicas if one.reason == "digests_differ"}
    assert differ == (set(CANARIES) if is_pinned else {"r0", "r3"})
