"""Who changes the desired state: by the admin service, many changes at once, and now and then by hand."""

from __future__ import annotations

import asyncio
import random
import re

from registry.errors import Reason, RegistryError
from registry.etcd3.ops import Event
from registry.model.records import (
    AdapterRecord,
    AdapterSpec,
    Canary,
    Placement,
    PoolLimits,
    Removed,
    RetiredRecord,
    Source,
    Strategy,
)
from registry.model.status import ReplicaStatus
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    ConfirmRemovals,
    CreatePool,
    PromoteRollout,
    Remove,
    RollbackAdapter,
    SetTenant,
    SettleRemoval,
    Upsert,
)
from registry.transactions.history import HISTORY_KEPT
from registry.transactions.stored import generation_of_key
from tests.support.sim.admins import Answer, settle
from tests.support.sim.artifacts import GOOD, HIGH_RANK, MAX_RANK, MISSING, PICKY, REFUSED, ROOT
from tests.support.sim.engines import BASE
from tests.support.sim.history import POOL
from tests.support.sim.world import KEYS, World

NAMES = ("a", "b", "acme/c", "acme/d", "e", "f")
ODD_NAME = "odd"


class Operator:
    """Makes changes, several at once, and settles each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"operator {world.seed}")
        self._places = random.Random(f"places {world.seed}")
        self._canaries = random.Random(f"canaries {world.seed}")
        self._made = 0
        self._sources = 0

    async def work(self, seconds: float) -> None:
        """Makes changes for so long, and waits until each is settled."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        pause = self._rng.choice((0.5, 2.0, 5.0))
        async with asyncio.TaskGroup() as tasks:
            while loop.time() < end:
                await asyncio.sleep(self._rng.uniform(0.0, 2 * pause))
                if self._rng.random() < 0.1:
                    self._write_by_hand()
                else:
                    tasks.create_task(self.change(self._next()))

    async def change(self, change: Change) -> Answer:
        """Settles one change; one that a restored store may have lost is made again."""
        self._made += 1
        request_id, restores = f"req-{self._made}", -1
        while restores != self._world.restores:
            restores = self._world.restores
            answer = await settle(self._world.admins, change, request_id, self._rng)
        self._world.log(f"{request_id} {type(change).__name__}: revision {answer.revision} {answer.reason}")
        self._world.answers.append(answer)
        if answer.reason == Reason.ETCD_NO_SPACE and self._rng.random() < 0.5:
            await self._break_glass(f"glass-{self._made}")
        return answer

    async def prepare(self) -> None:
        """Makes the pool."""
        await self.change(CreatePool(POOL, (BASE,), PoolLimits(max_rank=MAX_RANK)))

    async def _break_glass(self, request_id: str) -> None:
        """Deletes an adapter without space. One that was not changed since it was made leaves nothing in history."""
        world = self._world
        names = [name for name in NAMES if self._is_replaced(name)]
        if not names:
            return
        try:
            removal = await self._rng.choice(world.admins).break_glass(POOL, self._rng.choice(names), request_id)
        except (ConnectionResetError, RegistryError) as error:
            world.log(f"{request_id} not known to be removed: {error}")
        else:
            world.log(f"{request_id} removed {removal.record.name} at {removal.removed.revision}")

    def _is_replaced(self, name: str) -> bool:
        kvs, kv = self._world.store.kvs, self._world.store.kvs.get(KEYS.adapter(POOL, name))
        if kv is None:
            return False
        before = kvs.get(KEYS.history(POOL, name, AdapterRecord.parse(kv.value).generation - 1))
        return before is not None and not RetiredRecord.parse(before.value).deleted

    async def settle_removals(self) -> None:
        """Settles each removal that history shows, from what admins logged before they made it.

        Once a name had ten generations more, nobody can tell whether it is settled, and it is refused.
        """
        world = self._world
        logged = {told["record"] for told in world.broken_glass}
        stood: dict[bytes, bytes] = {}
        for revision, events in list(world.store.history):
            before = stood.get(events[0].key, b"")
            stood |= {event.key: event.kv.value for event in events if event.kv is not None}
            if is_alone(events) and before.decode() in logged:
                record, removed = AdapterRecord.parse(before), Removed(revision=revision, at="then", by="op")
                answer = await self.change(SettleRemoval(record, removed))
                if (
                    answer.reason == Reason.GENERATION_REUSED
                    and self._newest(record.name) >= record.generation + HISTORY_KEPT
                ):
                    world.unaccounted.add(revision)

    def _newest(self, name: str) -> int:
        """The highest generation that history has of a name; 0: none."""
        prefix, kvs = KEYS.history_of(POOL, name), self._world.store.kvs
        return max((generation_of_key(kv) for key, kv in kvs.items() if key.startswith(prefix)), default=0)

    async def confirm(self) -> None:
        """Confirms every list that a replica says it holds, in a pool that is there again."""
        if KEYS.pool(POOL) not in self._world.store.kvs:
            await self.prepare()
        for key, kv in list(self._world.store.kvs.items()):
            held = ReplicaStatus.parse(kv.value).held if key.startswith(KEYS.statuses(POOL)) else ""
            if found := re.search(r"--revision (\d+)", held):
                self._world.checks.removals_confirmed = True
                await self.change(ConfirmRemovals(POOL, int(found[1])))

    def _next(self) -> Change:
        rng = self._rng
        if rng.random() < 0.05:
            return SetTenant("acme", rng.choice((1, 2, None)))
        if rng.random() < 0.1:
            return RollbackAdapter(POOL, rng.choice(NAMES))
        special = self._canaries.choices((_nothing, self._roll, self._end_rollout), (60, 28, 12))[0]
        if (change := special()) is not None:
            return change
        names = rng.sample(NAMES, rng.randint(1, 3))
        return ApplyAdapters(POOL, tuple(self._one(name) for name in names))

    def _one(self, name: str) -> Upsert | Remove:
        rng = self._rng
        etag = rng.choice((None, None, None, 0, rng.randint(1, self._world.store.revision)))
        if rng.random() < 0.25:
            return Remove(name, etag or None)
        return Upsert(name, self._spec(), etag)

    def _spec(self) -> AdapterSpec:
        self._sources += 1
        kind = self._rng.choices((GOOD, MISSING, REFUSED, HIGH_RANK, PICKY), (12, 1, 1, 1, 1))[0]
        load = self._rng.choices(("eager", "lazy"), (3 if self._world.has_plugin else 8, 1))[0]
        source = Source(uri=f"{ROOT}{kind}{self._sources}")
        spec = AdapterSpec.model_validate({"source": source, "load": load, "priority": self._rng.randint(0, 2)})
        replicas, strategy = self._places.choices((None, 1, 2), (4, 1, 1))[0], self._strategy()
        if load == "lazy":
            return spec
        placement = Placement(replicas=replicas or "all")
        return spec.model_copy(update={"placement": placement, "strategy": strategy})

    def _strategy(self) -> Strategy | None:
        """How new weights come to the replicas, if not to all at once."""
        rng = self._canaries
        if rng.random() < 0.4:
            return None
        return self._canary_first()

    def _canary_first(self) -> Strategy:
        rng = self._canaries
        return Strategy(
            canary=Canary(replicas=rng.choice((1, 2, "34%", "50%"))),
            promote=rng.choices(("auto", "manual"), (4, 1))[0],
            max_failures=rng.choice((0, 0, 1)),
            soak_seconds=rng.choice((0, 1, 3, 8)),
        )

    def _roll(self) -> Change | None:
        """New weights, of which canaries come first; None: there is nothing that others could keep."""
        names = [name for name, record in self._records().items() if record.spec.load == "eager"]
        if not names:
            return None
        spec = self._spec().model_copy(update={"load": "eager", "strategy": self._canary_first()})
        return ApplyAdapters(POOL, (Upsert(self._canaries.choice(names), spec),))

    def _end_rollout(self) -> Change | None:
        """Somebody promotes or aborts a rollout as it is, or as they saw it once; None: there is none."""
        rng, records = self._canaries, self._records()
        names = [name for name, record in records.items() if record.rollout]
        if not names:
            return None
        name, seen = rng.choice(names), rng.randint(1, self._world.store.revision)
        etag = rng.choice((None, self._world.store.kvs[KEYS.adapter(POOL, name)].mod_revision, seen))
        return rng.choice((PromoteRollout, AbortRollout))(POOL, name, 0, etag)

    def _records(self) -> dict[str, AdapterRecord]:
        """What stands under the names of adapters."""
        found = {name: self._world.store.kvs.get(KEYS.adapter(POOL, name)) for name in NAMES}
        return {name: AdapterRecord.parse(kv.value) for name, kv in found.items() if kv is not None}

    def _write_by_hand(self) -> None:
        """A record that somebody writes past the admin service: readable or not, or the base model's name."""
        world = self._world
        if world.store.is_full:
            return
        key = KEYS.adapter(POOL, ODD_NAME)
        value = self._rng.choice((b"{", b'{"schema":9}', self._odd_record()))
        world.hand_written.add(world.store.put(key, value))
        world.log("written by hand")

    def _odd_record(self) -> bytes:
        self._sources += 1
        source = f"{ROOT}good{self._sources}"
        return (
            f'{{"schema":1,"name":"{ODD_NAME}","pool":"{POOL}","tenant":"default","generation":{self._sources},'
            f'"spec":{{"source":{{"uri":"{source}"}}}},"updated_at":"2026-01-01T00:00:00Z","updated_by":"hand"}}'
        ).encode()


def _nothing() -> None:
    return


def is_alone(events: tuple[Event, ...]) -> bool:
    """Whether a revision is nothing but the deletion of one adapter's record."""
    return len(events) == 1 and events[0].kv is None and events[0].key.startswith(KEYS.adapters(POOL))
