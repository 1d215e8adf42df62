"""When the conductor of a pool does what, with which words, and whatever etcd answers, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from registry.etcd3.errors import Compacted, EtcdError, EtcdPermissionDenied
from registry.etcd3.ops import Event, KeyValue
from registry.model.errors import Conflict, InvalidArgument, Reason, Unavailable
from registry.model.placement import Member
from registry.model.records import Canary, ChangeReply, Placement, Strategy
from registry.model.status import Failed, Pending
from registry.rollout.controller import PoolController, Shared
from registry.rollout.policy import OpenRollouts
from registry.rollout.pool import PoolSnapshot
from registry.transactions.builder import Settled
from registry.transactions.changes import Change, HaltRollout, PromoteRollout
from registry.transactions.context import Caller
from tests.simulation.loop import play
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import LEASE, pool_snapshot, presence
from tests.unit.rollout.test_canary_rollout import MEMBERS, NAME, canaried, status
from tests.unit.rollout.test_pool import Forgetful


def live(member: Member) -> KeyValue:
    told = presence(member.replica, labels=dict(member.labels)).to_bytes()
    return KeyValue(KEYS.replica(POOL, member.replica), told, 1, 1, 1, LEASE)


PRESENCES = tuple(map(live, MEMBERS))
SERVED = status().to_bytes()
BEHIND = status(pending=[Pending(name=NAME, generation=2, reason="staging")]).to_bytes()


def statuses(value: bytes) -> tuple[KeyValue, ...]:
    return tuple(KeyValue(KEYS.status(POOL, one.replica), value, 1, 1, 1, LEASE) for one in MEMBERS)


def rolled(soak_seconds: int, name: str = NAME, **spec: Any) -> KeyValue:
    """A rollout that comes to all after so long."""
    made = canaried(Strategy(canary=Canary(replicas=2), soak_seconds=soak_seconds), **spec)
    return kv(name, 50, made.model_copy(update={"name": name}).to_bytes())


DUE = rolled(0)


def refusing(*names: str) -> bytes:
    """That a replica refuses these."""
    told = [Failed(name=name, generation=2, reason="BAD", message="m", attempts=1, retry_at=None) for name in names]
    return status(failed=told).to_bytes()


class World:
    """A pool with rollouts, and its conductor; it is also its informers, where room is known once it is asked for.

    Attributes:
        told: what every replica says, in informers; in etcd it is `stands`.
        asked: when what was asked for, by whom.
        refusals: what is refused first.
        counted: the verbs that were counted.
    """

    def __init__(
        self,
        *records: KeyValue,
        told: bytes = SERVED,
        stands: bytes | None = None,
        errors: Sequence[EtcdError] = (),
        refusals: Iterable[Exception] = (),
    ) -> None:
        self.records, self.told, self.refusals = records or (DUE,), told, list(refusals)
        self.follows, self.is_listed = 0, True
        self.losses: int | None = 0
        self.asked: list[tuple[float, Change, Caller]] = []
        self.counted: list[str] = []
        self.running = OpenRollouts(KEYS.all_adapters())
        self.running.listed(self.records, 0.0)
        client = Forgetful(*errors, kvs=(*self.records, *PRESENCES, *statuses(stands or told)))
        made: Any = (client, KEYS, self, None, self.counted.append, random.Random(0))
        self.conductor = PoolController(POOL, self.running, Shared(*made))

    def snapshot(self) -> PoolSnapshot | None:
        known = self.records if self.follows else None
        return pool_snapshot(PRESENCES, statuses(self.told), known) if self.is_listed else None

    async def follow_adapters(self) -> None:
        self.follows += 1
        if self.follows == 1:
            self.conductor.wake.set()  # as they do once they are listed

    async def change(self, change: Any, caller: Caller, _deadline: object, *, validate_only: bool) -> Settled:
        assert not validate_only
        self.asked.append((asyncio.get_running_loop().time(), change, caller))
        if self.refusals:
            raise self.refusals.pop(0)
        self.running.changed([Event(KEYS.adapter(POOL, change.name), 51, None)], 0.0)
        self.conductor.wake.set()
        return Settled(ChangeReply(), 51)

    def say(self, told: bytes) -> None:
        self.told = told
        self.conductor.wake.set()

    def play(self, seconds: float = 3600.0, says: Iterable[tuple[float, bytes]] = ()) -> bool:
        """Whether it came to its end within so long, if every replica says something else at these times."""

        async def conduct() -> bool:
            for at, told in says:
                asyncio.get_running_loop().call_later(at, self.say, told)
            try:
                async with asyncio.timeout(seconds):
                    await self.conductor.run(self)  # type: ignore[arg-type] # which plays the informers, too
            except TimeoutError:
                return False
            return True

        return play(conduct())

    @property
    def ids(self) -> list[str]:
        return [caller.request_id for _, _, caller in self.asked]


AWAY = Unavailable(Reason.ETCD_UNAVAILABLE, "away")
FASTER = Conflict(Reason.ETAG_MISMATCH, "somebody was faster")
DENIED = EtcdPermissionDenied("not yours")


def test_each_rollout_comes_to_all_when_its_own_time_is_over():
    played = World(rolled(300, "b"), rolled(30, "acme/a"), rolled(100, "c"))
    assert played.play()
    assert [(change.name, round(at, -1)) for at, change, _ in played.asked] == [("acme/a", 30), ("c", 100), ("b", 300)]
    assert all(isinstance(change, PromoteRollout) for _, change, _ in played.asked)
    assert played.counted == ["promote"] * 3


def test_a_soak_begins_anew_where_a_canary_did_not_serve_it_for_a_moment():
    """R3: what was seen to come back has not been served for so long."""
    played = World(rolled(300))
    assert played.play(says=[(100, BEHIND), (110, SERVED)])
    assert [round(at, -1) for at, _, _ in played.asked] == [410]


@pytest.mark.parametrize("told", [SERVED, refusing(NAME)], ids=["served", "refused"])
def test_what_is_asked_for_names_the_generation_and_its_etag(told):
    """W4, W7: so that nothing else can be meant, by whoever reads of it later. What is refused is halted, with why."""
    played = World(told=told)
    assert played.play()
    ((_, change, caller),) = played.asked
    why = "2 of 2 canaries refuse it: r1 BAD - m; r2 BAD - m"
    wanted = PromoteRollout(POOL, NAME, 2, 50) if told == SERVED else HaltRollout(POOL, NAME, 2, 50, why)
    assert (change, played.counted) == (wanted, ["promote" if told == SERVED else "halt"])
    principal = caller.principal
    assert (principal.name, principal.usual_role, caller.request_id_given) == ("loraplane-admin", "conductor", True)
    assert principal.space == "conductor:loraplane-admin", "where all admin services look for it, of any release"


def test_a_request_id_that_is_used_up_is_not_asked_with_again_and_remembered_no_longer_than_its_rollout():
    """R3 converge, X3: one that was refused after its outcome had been unknown can never be settled otherwise."""
    used_up = InvalidArgument(Reason.REQUEST_ID_REUSED, "it was refused", field="request_id")
    played = World(rolled(0, "acme/a"), rolled(300, "b"), refusals=[used_up])
    assert played.play()
    assert ([change.name for _, change, _ in played.asked], played.conductor._attempts) == (["acme/a"] * 2 + ["b"], {})
    assert len({*played.ids}) == 3


def test_while_it_is_not_known_what_became_of_one_change_no_other_is_begun():
    """W3 idempotent, W8, R13: a store that does not answer would be asked by all rollouts, each for its whole time."""
    played = World(DUE, rolled(0, "acme/z"), refusals=[AWAY] * 3)
    assert played.play()
    first, *again, other = played.ids
    assert ({*again}, len(again), first != other) == ({first}, 3, True), "with the same id, by which it is known"
    assert played.counted == ["promote", "promote"]


@pytest.mark.parametrize(
    ("outcomes", "asked"), [([True, True], 2), ([True, False, True], 3), ([True, AWAY, True], 2)], ids=repr
)
async def test_what_is_due_is_done_one_after_another_until_an_outcome_is_not_known(outcomes, asked):
    """W3, R13: by the controllers of expiry and of scaling; what is refused keeps none of the others."""
    ids = list[int]()

    async def do(number: int) -> bool:
        ids.append(number)
        if isinstance(outcome := outcomes[number], Exception):
            raise outcome
        return outcome

    shared: Any = Shared(*[None] * 6)  # type: ignore[arg-type] # of which it needs none
    done = await shared.do_each([(f"n{one}", partial(do, one)) for one in range(len(outcomes))], failed="not_done")
    assert (done, ids) == (outcomes == [True, True], [*range(asked)])


def test_pauses_after_refusals_grow_and_begin_anew():
    """R8 isolation: not as fast as etcd answers; after one that succeeded the next is tried at once."""
    played = World(refusals=[AWAY] * 12)
    assert played.play()
    times = [at for at, _, _ in played.asked]
    assert times[-1] - times[-2] < 15.0 + 1.0
    assert times[-1] > 12 * 0.1
    assert played.conductor._failures == 0
    always = World(refusals=[FASTER] * 10_000)
    assert not always.play(600.0)
    assert 20 < len(always.asked) < 200


def test_it_survives_whatever_etcd_answers():
    """R12 crash-only, R8: what was refused is tried again, ever more rarely; the admin service does not end."""
    compacted = Compacted("compacted", compact_revision=9)
    for errors in ([DENIED, compacted, compacted, compacted], [DENIED] * 20):
        played = World(errors=errors)
        assert (played.play(600.0), played.counted) == (True, ["promote"])
    assert not World(errors=[DENIED] * 1000).play(600.0)


def test_who_is_placed_by_number_is_not_promoted_before_the_room_is_known():
    """R9: who its canaries are depends on that."""
    played = World(rolled(0, placement=Placement(replicas=4)))
    assert played.play()
    assert (len(played.asked), played.follows) == (1, 1)


def test_nothing_is_done_while_replicas_are_out_of_sight():
    """R9 status-truth: an interruption may have gone unseen; informers may be old, and of different revisions."""
    lost, unlisted, behind = World(), World(), World(stands=BEHIND)
    lost.losses, unlisted.is_listed = None, False
    for played in (lost, unlisted, behind):
        assert not played.play(600.0)
        assert played.asked == []


def test_a_fault_of_ours_is_no_refusal():
    """R8: whoever keeps the task hears of it, and begins anew."""
    with pytest.raises(ZeroDivisionError):
        World(refusals=[ZeroDivisionError()]).play()
