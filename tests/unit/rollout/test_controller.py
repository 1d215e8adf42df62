"""The conductor of one pool acts upon what stands in etcd at one revision, and survives whatever etcd answers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from registry.admin.health import AdminMetrics
from registry.etcd3.errors import Compacted, EtcdError, EtcdPermissionDenied
from registry.etcd3.ops import KeyValue
from registry.model.errors import Conflict, InvalidArgument, Reason, Unavailable
from registry.model.records import Canary, ChangeReply, Strategy
from registry.model.status import Pending, Presence
from registry.rollout.controller import PoolController, Shared
from registry.rollout.policy import OpenRollouts
from registry.transactions.builder import Settled
from registry.transactions.changes import Change, PromoteRollout
from registry.transactions.context import Caller
from tests.simulation.loop import VirtualLoop
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import LEASE, pool_snapshot
from tests.unit.rollout.test_canary_rollout import MEMBERS, NAME, canaried, status
from tests.unit.rollout.test_pool import Forgetful

SERVED = status().to_bytes()
BEHIND = status(pending=[Pending(name=NAME, generation=2, reason="staging")]).to_bytes()
DUE = kv(NAME, 50, canaried(Strategy(canary=Canary(replicas=2), soak_seconds=0)).to_bytes())


def presence(replica: str, labels: dict[str, str]) -> KeyValue:
    told = Presence(pool=POOL, replica=replica, incarnation="i", owner="o", labels=labels, started_at="t")
    return KeyValue(KEYS.replica(POOL, replica), told.to_bytes(), 1, 1, 1, LEASE)


PRESENCES = tuple(presence(one.replica, dict(one.labels)) for one in MEMBERS)


def statuses(value: bytes) -> tuple[KeyValue, ...]:
    return tuple(KeyValue(KEYS.status(POOL, one.replica), value, 1, 1, 1, LEASE) for one in MEMBERS)


class PlayedReader:
    """Informers in which every replica serves whatever is asked for."""

    losses = 0

    def snapshot(self):
        return pool_snapshot(PRESENCES, statuses(SERVED))


@dataclass
class PlayedWriter:
    """Refuses what it is asked for as it is told; then what is asked for is done, and no rollout is left."""

    running: OpenRollouts
    refusals: list[Exception] = field(default_factory=list)
    asked: list[tuple[type[Change], str]] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def change(self, change: Change, caller: Caller, _deadline: object, *, validate_only: bool) -> Settled:
        assert not validate_only
        self.asked.append((type(change), caller.request_id))
        if self.refusals:
            raise self.refusals.pop(0)
        self.running.listed([])
        self.woken.set()
        return Settled(ChangeReply(), 51)


def conducted(
    *errors: EtcdError,
    told: bytes = SERVED,
    refusals: tuple[Exception, ...] = (),
    due: tuple[KeyValue, ...] = (DUE,),
):
    """What a conductor asked for within ten minutes of a pool with rollouts; `told` is what etcd has as statuses."""
    loop, running = VirtualLoop(), OpenRollouts(KEYS.all_adapters())
    running.listed(due)
    writer = PlayedWriter(running, list(refusals))
    client = Forgetful(*errors, kvs=(DUE, *PRESENCES, *statuses(told)))
    conductor = PoolController(
        POOL, running, Shared(client, KEYS, writer, None, AdminMetrics().count_conducted, random.Random(0))
    )
    conductor.wake = writer.woken

    async def conduct() -> None:
        async with asyncio.timeout(600):
            await conductor.run(PlayedReader())

    try:
        loop.run_until_complete(conduct())
    except TimeoutError:
        return [*writer.asked, "and never came to an end"]
    finally:
        loop.close()
    return writer.asked


def test_what_canaries_serve_is_promoted():
    [(change, _)] = conducted()
    assert change is PromoteRollout


def test_it_survives_whatever_etcd_answers():
    """R12 crash-only: what was refused is tried again; the admin service, of which it is a part, does not end."""
    compacted = Compacted("compacted", compact_revision=9)
    [(change, _)] = conducted(EtcdPermissionDenied("not yours"), compacted, compacted, compacted)
    assert change is PromoteRollout


def test_nothing_is_done_upon_what_is_in_sight_alone():
    """R9 status-truth: informers may be old, and of different revisions."""
    assert conducted(told=BEHIND) == ["and never came to an end"]


def test_a_request_id_that_is_used_up_is_not_asked_with_again():
    """R3 converge: one that was refused after its outcome had been unknown can never be settled otherwise."""
    reused = InvalidArgument(Reason.REQUEST_ID_REUSED, "it was refused", field="request_id")
    [(_, first), (_, second)] = conducted(refusals=(reused,))
    assert first != second


def test_what_is_refused_again_and_again_is_asked_for_ever_more_rarely():
    """R8 isolation: within ten minutes a few dozen times, and not as fast as etcd answers."""
    always = tuple(Conflict(Reason.ETAG_MISMATCH, "somebody was faster") for _ in range(10_000))
    asked = conducted(refusals=always)
    assert asked.pop() == "and never came to an end"
    assert 20 < len(asked) < 200


def test_what_cannot_be_read_is_asked_for_ever_more_rarely():
    """R8: as long as etcd refuses us, not as often as the pool could be looked at."""
    assert conducted(*[EtcdPermissionDenied("not yours")] * 1000) == ["and never came to an end"]
    [(change, _)] = conducted(*[EtcdPermissionDenied("not yours")] * 20)
    assert change is PromoteRollout


class Defect(Exception):
    """A fault of our own."""


def test_a_fault_of_ours_is_no_refusal():
    """R8: whoever keeps the task hears of it, and begins anew."""
    with pytest.raises(Defect):
        conducted(refusals=(Defect(),))


def test_while_it_is_not_known_what_became_of_one_change_no_other_is_begun():
    """R13: a store that does not answer would be asked by all rollouts, each for its whole time."""
    made = canaried(Strategy(canary=Canary(replicas=2), soak_seconds=0)).model_copy(update={"name": "acme/z"})
    second = kv("acme/z", 50, made.to_bytes())
    due = (DUE, second)
    refused = Conflict(Reason.ETAG_MISMATCH, "somebody was faster")
    [(_, first), (_, last)] = conducted(refusals=(refused,), due=due)
    assert first != last, "one that is refused keeps nobody waiting"
    [first, again, other] = conducted(refusals=(Unavailable(Reason.ETCD_UNAVAILABLE, "no answer"),), due=due)
    assert first == again != other, "with the same request id, by which it is known"
