"""How far a rollout is that canaries began, who is one, and where what is placed by number is served."""

from __future__ import annotations

from registry.etcd3.ops import KeyValue
from registry.model.names import name_key
from registry.model.placement import Member, decline_id, members_digest, rate, weights_digest
from registry.model.records import AdapterRecord, Canary, CanaryRollout, Placement, Strategy
from registry.model.replica_state import ReplicaState
from registry.model.status import EngineStatus, Failed, Found, Lazy, ReplicaStatus, ReportedDeclines, Served
from registry.rollout.pool import PoolSnapshot
from registry.rollout.status import Question, RolloutStage, derive_rollout
from tests.support.records import KEYS, POOL, kv, record
from tests.support.residency_world import LEASE, pool_snapshot, presence

NAME = "acme/a"
REPLICAS = ("r0", "r1", "r2", "r3")
MEMBERS = [Member(name, {"zone": name[-1]}) for name in REPLICAS]
DIGEST = members_digest(MEMBERS)
WEIGHTS = weights_digest(rate(MEMBERS, {}))
TWO = Strategy(canary=Canary(replicas=2))


def canaried(strategy: Strategy | None = TWO, halted: str = "", pinned: bool = True, **spec) -> AdapterRecord:
    """Generation 2 with its canaries, generation 1 for all others."""
    stable = record(NAME, 1, source="v1", pinned=pinned).spec
    made = record(NAME, 2, source="v2", pinned=pinned, strategy=strategy, **spec)
    rollout = CanaryRollout(stable_generation=1, stable_spec=stable, halted=halted)
    return made.model_copy(update={"rollout": rollout})


# By the hash of the name with each of theirs; in every release and on every side the same.
FIRST, SECOND = "r1", "r2"
CANARIES = frozenset({FIRST, SECOND})
DECLINES = {"rank_too_high": ReportedDeclines(by="8", adapters=[decline_id(name_key(NAME), 2)])}


def status(members: str = DIGEST, **fields) -> ReplicaStatus:
    told = {"observed_revision": 50, "ready": True, "stale": False, "pending": [], "failed": [], "weights": WEIGHTS}
    engine = EngineStatus(kind="k", version="v", url="u", base_models=[], incarnation="e")
    return ReplicaStatus(
        replica="r",
        pool=POOL,
        engine=engine,
        served=Served(count=0, hash=""),
        updated_at="t",
        members=members,
        **(told | fields),
    )


def derive(of: AdapterRecord, others=None, records=None, strangers=(), decliners=(), **statuses: ReplicaStatus | None):
    """The rollout where the named replicas say what is given, and all others serve."""
    told = {name: statuses.get(name, others or status()) for name in REPLICAS}
    live = {one.replica: presence(one.replica, labels=dict(one.labels)).to_bytes() for one in MEMBERS}
    live |= {name: presence(name, declines=DECLINES).to_bytes() for name in decliners}
    live |= dict.fromkeys(strangers, b"?")
    pool = pool_snapshot(
        [KeyValue(KEYS.replica(POOL, name), value, 1, 1, 1, LEASE) for name, value in live.items()],
        [
            KeyValue(KEYS.status(POOL, name), one.to_bytes(), 1, 1, 1, LEASE)
            for name, one in told.items()
            if one is not None
        ],
        records,
    )
    return derive_rollout(Question(POOL, NAME, 2), kv(NAME, 50, of.to_bytes()), pool)


def failed(retry_at: str | None = None) -> ReplicaStatus:
    return status(failed=[Failed(name=NAME, generation=2, reason="BAD", message="m", attempts=1, retry_at=retry_at)])


def test_a_status_counts_once_the_replica_has_seen_who_lives():
    """R9 status-truth: who is a canary depends on it."""
    rollout = derive(canaried(), others=status(members="other"))
    assert {(one.state, one.reason) for one in rollout.replicas} == {(ReplicaState.PENDING, "membership_not_seen")}
    promoted = canaried().model_copy(update={"rollout": None})
    assert derive(promoted, others=status(members="")).done


def test_a_presence_that_cannot_be_read_holds_up_nothing_that_depends_on_who_lives():
    """R14 nack: sidecars leave it out, so who waits for them to have seen it waits for ever.

    R9: what all serve may be missing on one that nobody knows, which is perhaps only of a later release.
    """
    for_all = derive(record(NAME, 2), strangers=["ghost"])
    assert (for_all.done, for_all.waiting) == (False, "1 of 5 replicas do not serve it yet")
    rollout = derive(canaried(), strangers=["ghost"])
    assert (rollout.stage, {one.replica for one in rollout.replicas}) == (RolloutStage.SERVED, {*REPLICAS})
    numbered = record(NAME, 2, placement=Placement(replicas=2))
    assert derive(numbered, records=[kv(NAME, 50, numbered.to_bytes())], strangers=["ghost"]).done


def test_nobody_lives_or_nobody_is_a_canary():
    """A record without a strategy is written past the admin service: nobody serves it, nor is said to."""
    rollout = derive(canaried(strategy=None))
    assert (rollout.done, rollout.stage, {one.generation for one in rollout.replicas}) == (False, None, {1})
    assert "no strategy" in rollout.waiting
    lazily = derive(canaried(load="lazy"), others=status(lazy=Lazy(count=1, servable=True)))
    assert (lazily.stage, {one.reason for one in lazily.replicas}) == (RolloutStage.SERVED, {"lazy"})
    empty = derive_rollout(Question(POOL, NAME, 2), kv(NAME, 50, canaried().to_bytes()), PoolSnapshot(POOL))
    assert (empty.stage, empty.waiting) == (RolloutStage.WAITING, "no replica of the pool is alive")
    nowhere = canaried(placement=Placement(selector={"zone": "x"}))
    assert derive(nowhere).waiting == "no live replica of the pool matches its selector"


def test_what_canaries_found_is_not_compared_with_what_others_found():
    """W6 one-digest: within each generation, they must have found the same."""
    one, other = "sha256:" + "1" * 64, "sha256:" + "2" * 64

    def found(digest: str, generation: int) -> ReplicaStatus:
        return status(found=[Found(name=NAME, generation=generation, digest=digest)])

    others = {name: found(other, 1) for name in REPLICAS if name not in CANARIES}
    unpinned = canaried(pinned=False)
    assert derive(unpinned, **{FIRST: found(one, 2), SECOND: found(one, 2)}, **others).stage is RolloutStage.SERVED
    differing = derive(unpinned, **{FIRST: found(one, 2), SECOND: found(other, 2)}, **others)
    assert differing.stage is RolloutStage.REFUSED
    assert {one.replica for one in differing.replicas if one.reason == "digests_differ"} == CANARIES
    promoted = unpinned.model_copy(update={"rollout": None})
    everybody = derive(promoted, **{FIRST: found(one, 2)}, others=found(other, 2))
    assert {one.reason for one in everybody.replicas} == {"digests_differ"}


def by_number(count: int, **spec) -> AdapterRecord:
    return record(NAME, 2, placement=Placement(replicas=count, **spec))


def test_what_is_placed_by_number_is_asked_of_those_who_are_to_serve_it():
    records = [kv(NAME, 50)]
    rollout = derive(by_number(2), records=records)
    assert [one.replica for one in rollout.replicas] == ["r1", "r2"], "by the hash of the name with each of theirs"
    assert (rollout.done, rollout.note) == (True, "")
    seven = derive(by_number(7), records=records)
    assert seven.note == "placed on 7 replicas, 4 are alive: served by all of them"
    selected = derive(by_number(2, selector={"zone": "1"}), records=records)
    assert selected.note == "placed on 2 replicas, 1 that match are alive: served by all of them"


def test_the_room_must_have_been_seen_by_the_replicas_too():
    """R9 status-truth: a replica that reckons with other room than we may mean other replicas."""
    records = [kv(NAME, 50), *(kv(f"n{n}", 60, placement=Placement(selector={"zone": "1"})) for n in range(90))]
    everywhere = {frozenset(): 1, frozenset({("zone", "1")}): 90}
    assert {one.reason for one in derive(by_number(2), records=records).replicas} == {"room_not_seen"}
    same = status(weights=weights_digest(rate(MEMBERS, everywhere)))
    assert derive(by_number(2), records=records, others=same).done
    assert derive(record(NAME, 2), records=records).done, "whoever is everywhere does not care"


def test_whoever_declines_it_is_not_asked_and_the_note_says_why():
    """R9: a decline is part of whom replicas have to know of before they prove anything."""
    why = f"{FIRST} does not take it: rank_too_high (its engine's --max-lora-rank is lower)"
    records = [kv(NAME, 50)]
    found = derive(by_number(1), records=records, decliners=[FIRST])
    assert [(one.replica, one.state, one.reason) for one in found.replicas] == [
        (SECOND, ReplicaState.PENDING, "membership_not_seen")
    ]
    assert found.note == why
    four = derive(by_number(4), records=records, decliners=[FIRST])
    assert four.note == f"placed on 4 replicas, 3 take it: served by all of them; {why}"
    assert {one.replica for one in four.replicas} == {*REPLICAS} - {FIRST}
    canary = derive(canaried(placement=Placement(replicas=4)), records=records, decliners=[FIRST])
    assert {one.replica for one in canary.replicas if one.canary} == CANARIES, "what the others serve is not declined"
