"""Who changes the desired state: by the admin service, many changes at once, and now and then by hand."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass
from itertools import count

from google.protobuf.message import Message

from registry.model.errors import Reason, RegistryError
from registry.model.names import tenant_of
from registry.model.records import (
    AdapterRecord,
    AdapterSpec,
    Canary,
    Placement,
    PoolLimits,
    RetiredRecord,
    SourceSpec,
    Strategy,
)
from registry.model.status import Presence, ReplicaStatus
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    ConfirmRemovals,
    CreatePool,
    DrainReplica,
    PromoteRollout,
    Remove,
    RepairTenant,
    RollbackAdapter,
    SetTenant,
    Upsert,
)
from registry.v1 import registry_pb2 as pb
from tests.simulation.artifacts import GOOD, HIGH_RANK, MAX_RANK, MISSING, NAMED_AS_BASE, PICKY, REFUSED, ROOT
from tests.simulation.clients import Answer, Clients, Impatience, settle
from tests.simulation.dry_runs import DryRuns
from tests.simulation.engines import BASE
from tests.simulation.history import POOL, read_wanted
from tests.simulation.requests import request_of
from tests.simulation.world import KEYS, ReplicaHost, World
from tests.simulation.writes import DRY, etags_of

ODD_NAME = "odd"


# In so many worlds somebody names adapters as the base model.
NAMESAKES = 0.3
# So many changes are made only after a look at what would become of them.
DRY_RUNS = 0.3


@dataclass(frozen=True)
class DryRun:
    """What it came to, and the revision and the store from which on."""

    told: Message | RegistryError
    since: int
    restores: int


class Operator:
    """Makes changes, several at once, and settles each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._draw_anew(-1)
        leaving = random.Random(f"callers that leave {world.seed}")
        self._impatience = Impatience(leaving, lambda: world.log("a caller left amid its call"))
        self._dry = random.Random(f"dry runs {world.seed}")
        self.dry_runs = DryRuns(world.checks.violated)
        world.store.on_commit.append(self.dry_runs.on_commit)
        self._clients = Clients("operator")
        self._made = 0
        self._sources = 0

    def _draw_anew(self, number: int) -> None:
        """Each step draws for itself, so that it stays the same where others are left out."""
        step = f"{number} {self._world.seed}"
        self._rng = random.Random(f"operator {step}")
        self._places = random.Random(f"places {step}")
        self._canaries = random.Random(f"canaries {step}")
        self._drains = random.Random(f"drains {step}")

    async def work(self, seconds: float) -> None:
        """Makes changes for so long, and waits until each is settled."""
        loop, pauses = asyncio.get_running_loop(), random.Random(f"pauses {self._world.seed}")
        end = loop.time() + seconds
        pause = pauses.choice((0.5, 2.0, 5.0)) * self._world.size.pause
        async with asyncio.TaskGroup() as tasks:
            for number in count():
                await asyncio.sleep(pauses.uniform(0.0, 2 * pause))
                if loop.time() >= end:
                    return
                self._draw_anew(number)
                if not self._world.plays(f"s{number}", "a step of the operator"):
                    continue
                if self._drains.random() < 0.15:
                    replica = self._drains.choice(self._world.replicas).name
                    tasks.create_task(self.change(DrainReplica(POOL, replica, drain=self._drains.random() < 0.7)))
                if self._rng.random() < 0.1:
                    self._write_by_hand()
                else:
                    tasks.create_task(self.change(self._next()))

    async def change(self, change: Change) -> Answer:
        """Settles one change; one that a restored store may have lost is made again."""
        self._made += 1
        request_id, restores = f"req-{self._made}", -1
        asked = request_of(change, request_id)
        dry = await self._dry_run(change) if self._dry.random() < DRY_RUNS else None
        while restores != self._world.restores:
            repeats, restores = restores >= 0, self._world.restores
            told, was_unsettled = await settle(
                self._clients, self._world.admins, asked, self._rng, self._impatience, repeats=repeats
            )
        answer = self._answer(request_id, told, change)
        self._world.log(f"{request_id} {type(change).__name__}: revision {answer.revision} {answer.reason}")
        self._world.answers.append(answer)
        if dry is not None and dry.restores == restores and not was_unsettled:
            until = answer.revision - 1 if answer.revision else self._world.store.revision
            self.dry_runs.check_alike(dry.told, told, dry.since, until)
        if answer.reason == Reason.ETCD_NO_SPACE and self._rng.random() < 0.5:
            self._delete_by_hand()
        return answer

    async def _dry_run(self, change: Change) -> DryRun:
        """Asks what would become of a change."""
        world, asked = self._world, request_of(change, f"{DRY}{self._made}", validate_only=True)
        since, restores = world.store.revision, world.restores
        try:
            told: Message | RegistryError = await self._clients.ask(self._dry.choice(world.admins), asked)
        except RegistryError as error:
            told = error
        return DryRun(told, since, restores)

    def _answer(self, request_id: str, told: Message | RegistryError, change: Change) -> Answer:
        """What its caller knows; a reply that tells no revision is of the one that has its request."""
        if isinstance(told, RegistryError):
            return Answer(request_id, 0, told.reason)
        if not isinstance(told, pb.Pool | pb.Tenant):
            return Answer(request_id, told.revision, etags=etags_of(change, told))  # type: ignore[attr-defined]
        kv = self._world.store.kvs.get(KEYS.request(request_id))
        return Answer(request_id, -1 if kv is None else kv.mod_revision)

    async def change_one(self, name: str) -> None:
        """Changes or removes the adapter of that name."""
        await self.change(ApplyAdapters(POOL, (self._one(name),)))

    async def prepare(self) -> None:
        """Makes the pool."""
        await self.change(CreatePool(POOL, (BASE,), PoolLimits(max_rank=MAX_RANK)))

    def _delete_by_hand(self) -> None:
        """Deletes an adapter as etcdctl does, one whose history tells of the generation."""
        names = [name for name in self._world.size.names if tenant_of(name) == "acme" and self._is_replaced(name)]
        if names:
            name = self._rng.choice(names)
            self._world.store.delete(KEYS.adapter(POOL, name))
            self._world.log(f"deleted {name} by hand")

    def _is_replaced(self, name: str) -> bool:
        kvs, kv = self._world.store.kvs, self._world.store.kvs.get(KEYS.adapter(POOL, name))
        if kv is None:
            return False
        before = kvs.get(KEYS.history(POOL, name, AdapterRecord.parse(kv.value).generation - 1))
        return before is not None and not RetiredRecord.parse(before.value).deleted

    async def repair(self) -> None:
        """Makes good what deletions by hand left behind, as the doctor does."""
        await self.change(RepairTenant("acme"))

    async def undrain(self) -> None:
        """Has all replicas serve again (R20): orders it anew while one of them lives and drains.

        An order goes with the lease of the presence that it was given to, be it that of a clone which is dead by now.
        """
        away = self._world.replicas
        for _ in range(60):
            for host in away:
                await self.change(DrainReplica(POOL, host.name, drain=False))
            await asyncio.sleep(1.0)
            away = [host for host in self._world.replicas if not self._is_back(host)]
            if not away:
                return

    def _is_back(self, host: ReplicaHost) -> bool:
        kv = self._world.store.kvs.get(KEYS.replica(POOL, host.name))
        presence = None if kv is None else Presence.parse(kv.value)
        return presence is not None and presence.owner == host.place.owner and not presence.leaving

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
            return RollbackAdapter(POOL, rng.choice(self._world.size.names))
        special = self._canaries.choices((_nothing, self._roll, self._end_rollout), (60, 28, 12))[0]
        if (change := special()) is not None:
            return change
        names = rng.sample(self._world.size.names, rng.randint(1, 3))
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
        source = SourceSpec(uri=f"{ROOT}{kind}{self._sources}")
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
        found = {name: self._world.store.kvs.get(KEYS.adapter(POOL, name)) for name in self._world.size.names}
        return {name: AdapterRecord.parse(kv.value) for name, kv in found.items() if kv is not None}

    def _write_by_hand(self) -> None:
        """A record that somebody writes past the admin service: readable or not, or the base model's name."""
        world = self._world
        if world.store.is_full or world.prunes:
            return
        key = KEYS.adapter(POOL, ODD_NAME)
        kv, record = world.store.kvs.get(key), self._record(ODD_NAME, GOOD)
        is_readable = kv is not None and read_wanted(kv.value) is not None
        value = self._rng.choice((b"{", b'{"schema":9}', record))
        if self._rng.random() < 0.7:  # what can be read, and what cannot, mostly follow one another
            value = b"{" if is_readable else record
        world.hand_written.add(world.store.put(key, value))
        world.log("written by hand")

    @property
    def names_as_base(self) -> bool:
        """Whether somebody does so."""
        is_played = random.Random(f"names of the base {self._world.seed}").random() < NAMESAKES
        return is_played and self._world.seed % 2 == 1 and not self._world.prunes

    async def name_as_base(self, seconds: float) -> None:
        """R5: the admin service refuses an adapter of the base model's name; and somebody writes one past it.

        Not where a backup is restored, since the service does not take it back; nor where the pool is missing, which
        could not be created beside it.
        """
        world, rng = self._world, random.Random(f"when names of the base {self._world.seed}")
        for number in range(3):
            await asyncio.sleep(rng.uniform(0.0, seconds / 3))
            if not world.plays(f"b{number}", "an adapter that is named as the base"):
                continue
            spec = AdapterSpec(source=SourceSpec(uri=f"{ROOT}{NAMED_AS_BASE}0"))
            await self.change(ApplyAdapters(POOL, (Upsert(BASE, spec),)))
            if not world.store.is_full and KEYS.pool(POOL) in world.store.kvs:
                key, record = KEYS.adapter(POOL, BASE), self._record(BASE, NAMED_AS_BASE)
                world.hand_written.add(world.store.put(key, record))
                world.log("the base is written by hand")

    def _record(self, name: str, kind: str) -> bytes:
        self._sources += 1
        source = f"{ROOT}{kind}{self._sources}"
        return (
            f'{{"schema":1,"name":"{name}","pool":"{POOL}","tenant":"default","generation":{self._sources},'
            f'"spec":{{"source":{{"uri":"{source}"}}}},"updated_at":"2026-01-01T00:00:00Z","updated_by":"hand"}}'
        ).encode()


def _nothing() -> None:
    return
