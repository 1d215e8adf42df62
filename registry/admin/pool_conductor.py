"""Conducts the rollouts of one pool: looks at all of them together, and carries out what is decided."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

import structlog

from registry.admin.metrics import Metrics
from registry.errors import Reason, RegistryError, Unavailable
from registry.etcd3.backoff import Backoff
from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue
from registry.keys import Keys
from registry.model.records import AdapterRecord
from registry.store.budget import Budget
from registry.store.conducting import (
    Decision,
    Halt,
    Leave,
    LookAgain,
    Promote,
    Soak,
    conductor_request_id,
    decide,
    soaking,
)
from registry.store.mirror import Mirrors
from registry.store.pool_facts import Facts
from registry.store.pool_sight import PoolSight, read_facts
from registry.store.rollout import Question, derive_rollout, needs_rooms
from registry.store.running import Running
from registry.store.writer import Writer
from registry.transactions.changes import HaltRollout, PromoteRollout
from registry.transactions.context import Caller
from registry.transactions.stored import read_adapter

PRINCIPAL, ROLE = "loraplane-admin", "conductor"
_ACT_SECONDS = 10.0
# Between two looks at a pool, however fast its replicas report, give or take a half.
_PAUSE_SECONDS = 0.2
_RETRY = Backoff(base_seconds=0.5, cap_seconds=15.0)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Shared:
    """What all parts of a conductor work with."""

    client: Client
    keys: Keys
    writer: Writer
    mirrors: Mirrors
    metrics: Metrics
    rng: random.Random


@dataclass(frozen=True, slots=True)
class Due:
    """A rollout with which something is to be done."""

    kv: KeyValue
    record: AdapterRecord


class PoolConductor:
    """The rollouts of one pool. `wake` is to be set when its records change."""

    def __init__(self, name: str, running: Running, shared: Shared) -> None:
        self.name = name
        self.wake = asyncio.Event()
        self._running = running
        self._shared = shared
        self._soaks: dict[bytes, Soak] = {}
        self._attempts: dict[bytes, int] = {}
        self._failures = 0

    async def run(self, sight: PoolSight) -> None:
        """Conducts until the pool has no rollout left."""
        while records := self._running.of(self.name):
            self.wake.clear()
            self._soaks = {key: soak for key, soak in self._soaks.items() if key in records}
            self._attempts = {key: count for key, count in self._attempts.items() if key in records}
            again_at = await self._look(sight, list(records.values()))
            await asyncio.sleep(self._shared.rng.uniform(0.5, 1.5) * _PAUSE_SECONDS)
            await self._until(again_at)

    async def _until(self, again_at: float | None) -> None:
        """Until something has changed, or it is that late."""
        try:
            async with asyncio.timeout_at(again_at):
                await self.wake.wait()
        except TimeoutError:
            return

    async def _look(self, sight: PoolSight, records: list[KeyValue]) -> float | None:
        """Looks at each rollout once and does what is due; returns when to look again though nothing changes."""
        again_at: list[float] = []
        due: list[Due] = []
        for kv in records:
            match await self._seen(kv, sight):
                case LookAgain(at=at):
                    again_at.append(at)
                case Due() as one:
                    due.append(one)
                case _:
                    pass
        if due and not await self._act(due, sight):
            again_at.append(_now() + _RETRY.delay(self._failures, self._shared.rng))
        return min(again_at, default=None)

    async def _seen(self, kv: KeyValue, sight: PoolSight) -> Due | LookAgain | Leave:
        """What is to be done with one rollout, as the mirrors have it."""
        facts, record = sight.facts(kv), self._record(kv)
        if facts is None or record is None:
            return Leave()
        if needs_rooms(_question(record), facts):
            await sight.look_at_rooms()
            return Leave()
        decision = self._decided(kv, record, facts, sight.losses)
        return Due(kv, record) if isinstance(decision, Promote | Halt) else decision

    def _decided(self, kv: KeyValue, record: AdapterRecord, facts: Facts, losses: int | None) -> Decision:
        rollout = derive_rollout(_question(record), facts)
        soak = soaking(self._soaks.pop(kv.key, None), rollout, kv.mod_revision, losses, _now())
        if soak is not None:
            self._soaks[kv.key] = soak
        return decide(record.spec.strategy, rollout, soak, _now()) if record.spec.strategy else Leave()

    def _record(self, kv: KeyValue) -> AdapterRecord | None:
        try:
            return read_adapter(self.name, kv)
        except RegistryError:
            return None

    async def _act(self, due: list[Due], sight: PoolSight) -> bool:
        """Does what is due, if that is still so at one revision of the store; False: not all of it could be done."""
        budget = Budget.of(_ACT_SECONDS)
        try:
            now = await read_facts(
                self._shared.client, self._shared.keys, self.name, due[0].record.name, sight.rooms, budget
            )
            done = [await self._carry_out(one, replace(now, record=one.kv), sight.losses) for one in due]
        except RegistryError as error:
            self._failures += 1
            _log.warning("rollout_not_conducted", pool=self.name, reason=error.reason, message=error.message)
            return False
        self._failures = 0 if all(done) else self._failures + 1
        return all(done)

    async def _carry_out(self, due: Due, facts: Facts, losses: int | None) -> bool:
        """Promotes or halts; False: it was refused. Raises Unavailable: nobody knows, or etcd does not answer."""
        record, etag = due.record, due.kv.mod_revision
        match self._decided(due.kv, record, facts, losses):
            case Promote():
                change = PromoteRollout(record.pool, record.name, record.generation, etag)
                return await self._change("promote", change, due)
            case Halt(why=why):
                halt = HaltRollout(record.pool, record.name, record.generation, etag, why)
                return await self._change("halt", halt, due)
            case _:
                return True

    async def _change(self, verb: str, change: PromoteRollout | HaltRollout, due: Due) -> bool:
        request_id = conductor_request_id(verb, due.record, self._attempts.get(due.kv.key, 0))
        caller = Caller(PRINCIPAL, ROLE, request_id, request_id_given=True)
        about = {"pool": change.pool, "name": change.name, "generation": change.generation, "request_id": request_id}
        try:
            settled = await self._shared.writer.change(change, caller, Budget.of(_ACT_SECONDS), validate_only=False)
        except Unavailable:
            raise
        except RegistryError as error:
            # Another admin service, or somebody by hand, was faster; its change is on the way here.
            self._attempts[due.kv.key] = self._attempts.get(due.kv.key, 0) + (error.reason is Reason.REQUEST_ID_REUSED)
            _log.info("rollout_change_refused", **about, reason=error.reason, message=error.message)
            return False
        self._shared.metrics.conducted.labels(verb).inc()
        _log.info("rollout_conducted", **about, verb=verb, revision=settled.revision)
        return True


def _question(record: AdapterRecord) -> Question:
    return Question(record.pool, record.name, record.generation)


def _now() -> float:
    return asyncio.get_running_loop().time()
