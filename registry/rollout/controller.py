"""Controller of rollouts: promotes what canaries serve, halts what they refuse.

Each admin service has one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from registry.access.principal import Credential, Principal
from registry.etcd3.backoff import Backoff
from registry.etcd3.client import Client
from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.ops import Event, KeyValue, prefix_end
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Listed
from registry.model.errors import Reason, RegistryError, Unavailable
from registry.model.keys import Keys
from registry.model.records import AdapterRecord
from registry.rollout.policy import (
    Decision,
    Halt,
    Leave,
    LookAgain,
    OpenRollout,
    OpenRollouts,
    Promote,
    Soak,
    conductor_request_id,
    decide,
    soaking,
)
from registry.rollout.pool import PoolSnapshot
from registry.rollout.pool_reader import PoolReader, follow_pool, read_pool
from registry.rollout.status import Question, derive_rollout, needs_room
from registry.runtime.clock import Deadline
from registry.runtime.process import Keep, keep_once
from registry.store.writer import Writer
from registry.transactions.builder import Settled
from registry.transactions.changes import Change, HaltRollout, PromoteRollout
from registry.transactions.context import Caller

PRINCIPAL = Principal("loraplane-admin", Credential.SERVICE)
ACT_SECONDS = 10.0
# Between two looks at a pool, however fast its replicas report, give or take a half.
_PAUSE_SECONDS = 0.2
RETRY = Backoff(base_seconds=0.5, cap_seconds=15.0)
_log = structlog.get_logger()


# The name of an adapter, and what is to be done with it; False: it was refused. Raises Unavailable: outcome unknown.
Doing = tuple[str, Callable[[], Awaitable[bool]]]


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that all pool controllers share.

    `count` gets the verb of each change; `keep` keeps the task of each pool.
    """

    client: Client
    keys: Keys
    writer: Writer
    informers: SharedInformerFactory
    count: Callable[[str], None]
    rng: random.Random
    keep: Keep = keep_once

    async def change(
        self, change: Change, request_id: str, about: Mapping[str, object], *, refused: str
    ) -> Settled | Reason:
        """Makes a change; a reason: it was refused, and is logged as `refused`, with what it is `about`.

        Another admin service, or somebody by hand, was faster then; that change is on the way here.

        Raises:
            Unavailable: nobody knows what became of it.
        """
        caller = Caller(PRINCIPAL, request_id, request_id_given=True)
        try:
            return await self.writer.change(change, caller, Deadline.of(ACT_SECONDS), validate_only=False)
        except Unavailable:
            raise
        except RegistryError as error:
            _log.info(refused, **about, reason=error.reason, message=error.message)
            return error.reason

    async def do_each(self, due: Iterable[Doing], *, failed: str) -> bool:
        """Does what is due; False: not all of it could be done. An unknown outcome is logged as `failed`."""
        done = True
        for name, do in due:
            try:
                done = await do() and done
            except Unavailable as error:
                # Of no other is anything known either, before it is known what became of this one.
                _log.warning(failed, name=name, reason=error.reason, message=error.message)
                return False
        return done


class PoolController:
    """The rollouts of one pool. `wake` is to be set when its records change."""

    def __init__(self, name: str, running: OpenRollouts, shared: Shared) -> None:
        self.name = name
        self.wake = asyncio.Event()
        self._running = running
        self._shared = shared
        self._soaks: dict[bytes, Soak] = {}
        self._attempts: dict[bytes, int] = {}
        self._failures = 0

    async def run(self, reader: PoolReader) -> None:
        """Conducts until the pool has no rollout left."""
        while records := self._running.of(self.name):
            self.wake.clear()
            self._soaks = {key: soak for key, soak in self._soaks.items() if key in records}
            self._attempts = {key: count for key, count in self._attempts.items() if key in records}
            again_at = await self._look(reader, list(records.values()))
            await asyncio.sleep(self._shared.rng.uniform(0.5, 1.5) * _PAUSE_SECONDS)
            await woken(self.wake, again_at)

    async def _look(self, reader: PoolReader, records: list[OpenRollout]) -> float | None:
        """Looks at each rollout once and does what is due; returns when to look again."""
        pool = reader.snapshot()
        if pool is None:
            return None
        again_at: list[float] = []
        due: list[OpenRollout] = []
        for one in records:
            match await self._decision(one, pool, reader):
                case LookAgain(at=at):
                    again_at.append(at)
                case Promote() | Halt():
                    due.append(one)
                case Leave():
                    pass
        if due and not await self._act(due, pool, reader):
            again_at.append(now() + RETRY.delay(self._failures, self._shared.rng.uniform))
        return min(again_at, default=None)

    async def _decision(self, one: OpenRollout, pool: PoolSnapshot, reader: PoolReader) -> Decision:
        """The next step of one rollout, as the informers have it."""
        if needs_room(_question(one.record), one.kv, pool):
            await reader.follow_adapters()
            return Leave()
        return self._decided(one, pool, reader.losses)

    def _decided(self, one: OpenRollout, pool: PoolSnapshot, losses: int | None) -> Decision:
        kv, strategy = one.kv, one.record.spec.strategy
        rollout = derive_rollout(_question(one.record), kv, pool)
        soak = soaking(self._soaks.pop(kv.key, None), rollout, kv.mod_revision, losses, now())
        if soak is not None:
            self._soaks[kv.key] = soak
        return decide(strategy, rollout, soak, now()) if strategy else Leave()

    async def _act(self, due: list[OpenRollout], pool: PoolSnapshot, reader: PoolReader) -> bool:
        """Does what is due, if it still is at one revision; False: not all could be done."""
        deadline = Deadline.of(ACT_SECONDS)
        try:
            _, pool = await read_pool(self._shared.client, self._shared.keys, due[0].record.name, pool, deadline)
            done = [await self._carry_out(one, pool, reader.losses) for one in due]
        except RegistryError as error:
            # Also what is no outage, e.g. a token that expired: a service that dies of it conducts nothing at all.
            self._failures += 1
            _log.warning("rollout_not_conducted", pool=self.name, reason=error.reason, message=error.message)
            return False
        is_done = all(done)
        self._failures = 0 if is_done else self._failures + 1
        return is_done

    async def _carry_out(self, due: OpenRollout, pool: PoolSnapshot, losses: int | None) -> bool:
        """Promotes or halts; False: it was refused. Raises Unavailable: outcome unknown."""
        record, etag = due.record, due.kv.mod_revision
        match self._decided(due, pool, losses):
            case Promote():
                change = PromoteRollout(record.pool, record.name, record.generation, etag)
                return await self._change("promote", change, due)
            case Halt(why=why):
                halt = HaltRollout(record.pool, record.name, record.generation, etag, why)
                return await self._change("halt", halt, due)
            case _:
                return True

    async def _change(self, verb: str, change: PromoteRollout | HaltRollout, due: OpenRollout) -> bool:
        attempt = self._attempts.get(due.kv.key, 0)
        request_id = conductor_request_id(verb, due.record, attempt)
        about = {"pool": change.pool, "name": change.name, "generation": change.generation, "request_id": request_id}
        settled = await self._shared.change(change, request_id, about, refused="rollout_change_refused")
        if isinstance(settled, Reason):
            self._attempts[due.kv.key] = attempt + (settled is Reason.REQUEST_ID_REUSED)
            return False
        self._shared.count(verb)
        _log.info("rollout_conducted", **about, verb=verb, revision=settled.revision)
        return True


def _question(record: AdapterRecord) -> Question:
    return Question(record.pool, record.name, record.generation)


async def woken(wake: asyncio.Event, again_at: float | None) -> None:
    """Returns once something has changed, or it is that late on the clock of the loop."""
    try:
        async with asyncio.timeout_at(again_at):
            await wake.wait()
    except TimeoutError:
        return


def now() -> float:
    """Time on the clock of the loop, in seconds."""
    return asyncio.get_running_loop().time()


class AdapterFollower(Protocol):
    """Somebody else who is to hear of the adapters of all pools, without a watch of its own."""

    def listed(self, kvs: Iterable[KeyValue]) -> None:
        """Takes a whole list."""

    def changed(self, events: Iterable[Event]) -> None:
        """Takes all changes of one revision."""


class RolloutController:
    """Watches the adapters of all pools, and controls the pools that have rollouts; all `beside` hear the same."""

    def __init__(self, shared: Shared, *beside: AdapterFollower) -> None:
        self._shared = shared
        self._beside = beside
        self._prefix = shared.keys.all_adapters()
        self._running = OpenRollouts(self._prefix)
        self._pools: dict[str, PoolController] = {}

    async def run(self) -> None:
        """Conducts until it is cancelled."""
        self._pools.clear()  # of a run that failed
        reflector = Reflector(self._shared.client, self._prefix, prefix_end(self._prefix), rng=self._shared.rng)
        async with asyncio.TaskGroup() as tasks, aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed():
                        self._listed(reflection.kvs, tasks)
                    case Changed():
                        self._changed(reflection.events, tasks)
                    case _:
                        pass

    def _listed(self, kvs: Sequence[KeyValue], tasks: asyncio.TaskGroup) -> None:
        for one in self._beside:
            one.listed(kvs)
        self._wake(self._running.listed(kvs, now()), tasks)

    def _changed(self, events: Sequence[Event], tasks: asyncio.TaskGroup) -> None:
        for one in self._beside:
            one.changed(events)
        self._wake(self._running.changed(events, now()), tasks)

    def _wake(self, pools: Iterable[str], tasks: asyncio.TaskGroup) -> None:
        for pool in pools:
            if pool in self._pools:
                self._pools[pool].wake.set()
            elif pool in self._running.pools:
                self._pools[pool] = PoolController(pool, self._running, self._shared)
                conduct = partial(self._conduct, self._pools[pool])
                tasks.create_task(self._shared.keep(f"rollouts of {pool}", conduct), name=f"conduct {pool}")

    async def _conduct(self, pool: PoolController) -> None:
        async with follow_pool(self._shared.informers, self._shared.keys, pool.name, pool.wake) as reader:
            await pool.run(reader)
            # From here on a new rollout gets a new task, so nothing may be awaited in between.
            del self._pools[pool.name]
