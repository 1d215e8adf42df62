"""What becomes of a rollout: the decision, its clock, and which records are looked at."""

from __future__ import annotations

from registry.etcd3.ops import Event
from registry.model.keys import Keys
from registry.model.names import check_request_id
from registry.model.records import Canary, Strategy
from registry.model.replica_state import ReplicaState
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
from registry.rollout.status import ReplicaRollout, Rollout, RolloutStage
from tests.support.records import KEYS, POOL, kv, record
from tests.unit.rollout.test_canary_rollout import canaried

MINUTE = Strategy(canary=Canary(replicas=2), soak_seconds=60)


def rollout(stage: RolloutStage | None, *canaries: str, state: ReplicaState = ReplicaState.SERVING) -> Rollout:
    replicas = tuple(ReplicaRollout(name, state, "BAD", "m", canary=True, generation=2) for name in canaries or ("r0",))
    return Rollout("a", 2, replicas, stage=stage)


SERVED = rollout(RolloutStage.SERVED)


def test_it_is_promoted_once_it_was_served_long_enough():
    soak = soaking(None, SERVED, 7, 0, 100.0)
    assert decide(MINUTE, SERVED, soak, 100.0) == LookAgain(160.0)
    assert soaking(soak, SERVED, 7, 0, 159.0) == soak
    assert decide(MINUTE, SERVED, soak, 159.9) == LookAgain(160.0)
    assert decide(MINUTE, SERVED, soak, 160.0) == Promote()
    at_once = Strategy(canary=Canary(replicas=2), soak_seconds=0)
    assert decide(at_once, SERVED, soak, 100.0) == Promote()


def test_each_interruption_starts_the_clock_anew():
    soak = soaking(None, rollout(RolloutStage.SERVED, "r0", "r1"), 7, 0, 100.0)
    assert soaking(soak, rollout(RolloutStage.WAITING, "r0", "r1"), 7, 0, 110.0) is None
    assert soaking(soak, rollout(RolloutStage.SERVED, "r0", "r1"), 7, None, 110.0) is None, "nobody sees them"
    for other in (
        soaking(soak, rollout(RolloutStage.SERVED, "r0", "r1"), 8, 0, 110.0),
        soaking(soak, rollout(RolloutStage.SERVED, "r0", "r1"), 7, 1, 110.0),
        soaking(soak, rollout(RolloutStage.SERVED, "r0", "r2"), 7, 0, 110.0),
    ):
        assert isinstance(other, Soak)
        assert other.since == 110.0


def test_by_hand_is_never_promoted():
    manual = Strategy(canary=Canary(replicas=2), promote="manual", soak_seconds=0)
    assert decide(manual, SERVED, soaking(None, SERVED, 7, 0, 0.0), 1000.0) == Leave()


def test_what_is_refused_is_halted_and_says_why():
    refused = rollout(RolloutStage.REFUSED, "r0", "r1", state=ReplicaState.FAILED)
    halt = decide(MINUTE, refused, None, 0.0)
    assert halt == Halt("2 of 2 canaries refuse it: r0 BAD - m; r1 BAD - m")
    many = rollout(RolloutStage.REFUSED, *(f"r{n}" for n in range(500)), state=ReplicaState.FAILED)
    assert len(decide(MINUTE, many, None, 0.0).why) == 600


def test_nothing_is_done_otherwise():
    for stage in (RolloutStage.WAITING, RolloutStage.HALTED, None):
        assert decide(MINUTE, rollout(stage), None, 0.0) == Leave()
    assert decide(MINUTE, SERVED, None, 0.0) == Leave(), "they are out of sight"


def test_all_admin_services_ask_with_one_request_id():
    """W3 idempotent: whoever is first, it is done once."""
    one = canaried()
    assert conductor_request_id("promote", one, 0) == conductor_request_id("promote", one, 0)
    ids = {conductor_request_id(verb, one, attempt) for verb in ("promote", "halt") for attempt in (0, 1)}
    ids.add(conductor_request_id("promote", record("acme/a", 3), 0))
    ids.add(conductor_request_id("promote", record("acme/b", 2), 0))
    assert len(ids) == 6
    longest = one.model_copy(update={"pool": "p" * 96, "generation": 2**53 - 1})
    check_request_id(conductor_request_id("promote", longest, 99))


def test_only_records_with_a_rollout_are_kept():
    running = OpenRollouts(KEYS.all_adapters())
    rolled = kv("acme/a", 5, canaried().to_bytes())
    assert running.listed([rolled, kv("b", 4)]) == {POOL}
    assert (running.pools, dict(running.of(POOL))) == ({POOL}, {rolled.key: rolled})
    assert running.changed([Event(KEYS.adapter(POOL, "b"), 6, kv("b", 6))]) == set()
    elsewhere = Keys().adapter("q", "acme/a")
    assert running.changed([Event(elsewhere, 7, rolled)]) == {"q"}
    assert running.changed([Event(elsewhere, 8, None)]) == {"q"}
    assert running.pools == {POOL}
    over = kv("acme/a", 9, generation=2)
    assert running.changed([Event(over.key, 9, over)]) == {POOL}
    assert (running.pools, dict(running.of(POOL))) == (set(), {})
    twice = kv("acme/b", 10, canaried().to_bytes())
    running.listed([rolled, twice])
    assert running.changed([Event(twice.key, 11, None)]) == {POOL}
    assert dict(running.of(POOL)) == {rolled.key: rolled}
    assert running.listed([]) == {POOL}, "those who look at it are to know that it is over"
