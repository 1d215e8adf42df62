"""The replay checker finds what is wrong: a good history, and one deliberate wrong in it."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import Event, KeyValue
from registry.model.records import Canary, Strategy
from registry.tools.verify.history import HistoryBase, Revision
from registry.transactions.changes import HaltRollout, PromoteRollout
from tests.support.changes import KEYS, POOL, Author, applying, creating, upsert
from tests.support.memory_etcd import MemoryEtcd
from tests.support.residency_world import presence, replica_status
from tests.unit.verify.conftest import found, steps_of


def canaried() -> Author:
    """Generation 1 for all at 2; 2 for canaries at 3, halted at 4, for all at 5; 3 and 4 for canaries."""
    made = Author(MemoryEtcd(revision=0))
    strategy = Strategy(canary=Canary(replicas=1))
    made.change(creating(), "q1")
    made.change(applying(upsert("acme/a")), "q2")
    made.change(applying(upsert("acme/a", "v2", strategy=strategy)), "q3")
    made.change(HaltRollout(POOL, "acme/a", 2, 3, "why"), "q4")
    made.change(PromoteRollout(POOL, "acme/a"), "q5")
    made.change(applying(upsert("acme/a", "v3", strategy=strategy)), "q6")
    made.change(applying(upsert("acme/a", "v4", strategy=strategy)), "q7")
    return made


def test_a_right_rollout_is_right():
    """W2, W6, W7: promoted and halted generations stay the same, and history keeps nothing of them."""
    assert found(steps_of(canaried())) == set()


PRESENCE, STATUS = KEYS.replica(POOL, "r1"), KEYS.status(POOL, "r1")


def alive(revision: int, owner: str = "ours", lease: int = 7) -> KeyValue:
    return KeyValue(PRESENCE, presence("r1", owner=owner).to_bytes(), revision, revision, 1, lease)


def says(revision: int, lease: int = 7) -> KeyValue:
    return KeyValue(STATUS, replica_status("r1", revision).to_bytes(), revision, revision, 1, lease)


def history(*written: KeyValue | bytes) -> list[Revision]:
    """Each put, or deletion of a key, at a revision of its own, from the second one on."""
    return [
        Revision(at, (Event(one, at, None) if isinstance(one, bytes) else Event(one.key, at, one),))
        for at, one in enumerate(written, start=2)
    ]


WRITERS: dict[str, tuple[tuple[KeyValue | bytes, ...], int | None]] = {
    "it lives": ((alive(2), says(3), says(4)), None),
    "it restarts": ((alive(2), says(3), alive(4, lease=8), says(5, lease=8)), None),
    "it dies and another takes the id": ((alive(2), says(3), STATUS, PRESENCE, alive(6, "twin", 9), says(7, 9)), None),
    "nobody": ((says(2),), 2),
    "another's lease": ((alive(2), says(3, lease=9)), 3),
    "the lease before": ((alive(2), alive(3, lease=8), says(4)), 4),
    "id taken from the living": ((alive(2), alive(3, "twin", 8)), 3),
    "after its death": ((alive(2), PRESENCE, says(4)), 4),
}


@pytest.mark.parametrize(("written", "at"), WRITERS.values(), ids=WRITERS)
def test_one_writer_after_another_is_right_and_two_at_a_time_are_found(written, at):
    """R10 one-owner."""
    assert found(history(*written)) == ({("R10", at)} if at else set())


def test_who_lived_before_the_history_begins_is_known():
    """R10: also after a compaction."""
    stood = HistoryBase(1, (alive(1),))
    assert found([stood, *history(says(2))]) == set()
    assert found([stood, *history(says(2, lease=9))]) == {("R10", 2)}
