"""When the conductor of a pool does what, and with which words, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from registry.etcd3.ops import Event, KeyValue
from registry.model.errors import Conflict, Reason, RegistryError, Unavailable
from registry.model.records import AdapterRecord, Canary, ChangeReply, Placement, Strategy
from registry.model.status import Failed
from registry.rollout.controller import PoolController, Shared
from registry.rollout.policy import OpenRollouts
from registry.rollout.pool import PoolSnapshot
from registry.transactions.builder import Settled
from registry.transactions.changes import Change, HaltRollout, PromoteRollout
from registry.transactions.context import Caller
from tests.simulation.loop import VirtualLoop
from tests.support.records import KEYS, POOL, kv
from tests.support.residency_world import pool_snapshot
from tests.unit.rollout.test_canary_rollout import NAME, canaried, status
from tests.unit.rollout.test_controller import PRESENCES, SERVED, statuses
from tests.unit.rollout.test_pool import Forgetful


def rolled(soak_seconds: int, name: str = NAME, **spec: Any) -> KeyValue:
    """A rollout that comes to all after so long."""
    made = canaried(Strategy(canary=Canary(replicas=2), soak_seconds=soak_seconds), **spec)
    return kv(name, 50, made.model_copy(update={"name": name}).to_bytes())


def refusing(*names: str) -> bytes:
    """That a replica refuses these."""
    told = [Failed(name=name, generation=2, reason="BAD", message="m", attempts=1, retry_at=None) for name in names]
    return status(failed=told).to_bytes()


@dataclass
class Reader:
    """Informers in which every replica says the same; room is known once it is asked for."""

    records: Sequence[KeyValue]
    told: bytes = SERVED
    follows: int = 0
    losses: int | None = 0
    is_listed: bool = True
    wake: asyncio.Event | None = None

    def snapshot(self) -> PoolSnapshot | None:
        known = self.records if self.follows else None
        return pool_snapshot(PRESENCES, statuses(self.told), known) if self.is_listed else None

    async def follow_adapters(self) -> None:
        self.follows += 1
        if self.wake is not None and self.follows == 1:
            self.wake.set()  # as they do once they are listed


@dataclass
class World:
    """A pool with rollouts, and its conductor.

    Attributes:
        asked: when what was asked for, by whom.
        refusals: what is refused first.
        counted: the verbs that were counted.
    """

    records: Sequence[KeyValue]
    reader: Reader
    refusals: list[RegistryError] = field(default_factory=list)
    asked: list[tuple[float, Change, Caller]] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running = OpenRollouts(KEYS.all_adapters())
        self.running.listed(self.records)
        client = Forgetful(kvs=(*self.records, *PRESENCES, *statuses(self.reader.told)))
        made: Any = (client, KEYS, self, None, self.counted.append, random.Random(0))
        self.conductor = PoolController(POOL, self.running, Shared(*made))
        self.reader.wake = self.conductor.wake

    async def change(self, change: Any, caller: Caller, _deadline: object, *, validate_only: bool) -> Settled:
        assert not validate_only
        self.asked.append((asyncio.get_running_loop().time(), change, caller))
        if self.refusals:
            raise self.refusals.pop(0)
        self.running.changed([Event(KEYS.adapter(POOL, change.name), 51, None)])
        self.conductor.wake.set()
        return Settled(ChangeReply(), 51)

    def play(self, seconds: float = 3600.0) -> bool:
        """Whether it came to its end within so long."""
        loop, reader = VirtualLoop(), self.reader

        async def conduct() -> None:
            async with asyncio.timeout(seconds):
                await self.conductor.run(reader)  # type: ignore[arg-type] # which is played

        try:
            loop.run_until_complete(conduct())
        except TimeoutError:
            return False
        finally:
            loop.close()
        return True


def world(*records: KeyValue, told: bytes = SERVED, **fields: Any) -> World:
    return World(records, Reader(records, told), **fields)


def test_each_rollout_comes_to_all_when_its_own_time_is_over():
    """The earliest is not waited for with the latest, nor the latest hurried."""
    played = world(rolled(300, "b"), rolled(30, "acme/a"), rolled(100, "c"))
    assert played.play()
    assert [(change.name, round(at, -1)) for at, change, _ in played.asked] == [("acme/a", 30), ("c", 100), ("b", 300)]
    assert all(isinstance(change, PromoteRollout) for _, change, _ in played.asked)
    assert played.counted == ["promote"] * 3


def test_what_is_asked_for_names_the_generation_and_its_etag():
    """W4, W7: so that nothing else can be meant, by whoever reads of it later."""
    played = world(rolled(0))
    assert played.play()
    ((_, change, caller),) = played.asked
    assert change == PromoteRollout(POOL, NAME, 2, 50)
    assert (caller.principal, caller.role, caller.request_id_given) == ("loraplane-admin", "conductor", True)


def test_what_canaries_refuse_is_halted_with_their_reasons():
    played = world(rolled(0), told=refusing(NAME))
    assert played.play()
    ((_, change, _),) = played.asked
    assert change == HaltRollout(POOL, NAME, 2, 50, "2 of 2 canaries refuse it: r1 BAD - m; r2 BAD - m")
    assert played.counted == ["halt"]


def test_what_was_refused_does_not_keep_others():
    """R8 isolation: and it is tried again by itself, with the same id unless that is used up."""
    played = world(rolled(0, "acme/a"), rolled(0, "b"), refusals=[Conflict(Reason.ETAG_MISMATCH, "faster")])
    assert played.play()
    names = [change.name for _, change, _ in played.asked]
    assert (names, played.counted) == (["acme/a", "b", "acme/a"], ["promote", "promote"])
    assert played.asked[0][2].request_id == played.asked[2][2].request_id


def test_what_is_not_known_to_be_done_is_asked_for_with_the_same_id():
    """W3 idempotent, W8: whoever finds it done is told so."""
    played = world(rolled(0), refusals=[Unavailable(Reason.ETCD_UNAVAILABLE, "away")] * 3)
    assert played.play()
    assert len({caller.request_id for _, _, caller in played.asked}) == 1
    assert (len(played.asked), played.counted) == (4, ["promote"])


def test_pauses_after_refusals_grow_and_begin_anew():
    """R8: after one that succeeded the next is tried at once."""
    away = Unavailable(Reason.ETCD_UNAVAILABLE, "away")
    played = world(rolled(0), refusals=[away] * 12)
    assert played.play()
    times = [at for at, _, _ in played.asked]
    assert times[-1] - times[-2] < 15.0 + 1.0
    assert times[-1] > 12 * 0.1
    assert played.conductor._failures == 0


def test_who_is_placed_by_number_is_not_promoted_before_the_room_is_known():
    """R9: who its canaries are depends on that."""
    played = world(rolled(0, placement=Placement(replicas=4)))
    assert played.play()
    assert (len(played.asked), played.reader.follows) == (1, 1)


def test_nothing_is_done_while_replicas_are_out_of_sight():
    """R9: an interruption may have gone unseen."""
    lost, unlisted = world(rolled(0)), world(rolled(0))
    lost.reader.losses, unlisted.reader.is_listed = None, False
    for played in (lost, unlisted):
        assert not played.play(60.0)
        assert played.asked == []


def test_a_record_that_cannot_be_read_is_left_to_whoever_wrote_it():
    """R14 nack: and keeps nobody from the others."""
    broken = KeyValue(KEYS.adapter(POOL, "x"), b'{"stable_generation":', 1, 50, 1)
    assert AdapterRecord.parse(rolled(0).value).rollout
    played = world(broken, rolled(0))
    assert not played.play(60.0)
    assert [change.name for _, change, _ in played.asked] == [NAME]
