"""Who changes the desired state: by the admin service, many changes at once, and now and then by hand."""

from __future__ import annotations

import asyncio
import random

from registry.model.records import AdapterSpec, Source
from registry.transactions.changes import ApplyAdapters, Change, Remove, RollbackAdapter, Upsert
from tests.support.sim.admins import settle
from tests.support.sim.artifacts import HIGH_RANK, MISSING, REFUSED, ROOT
from tests.support.sim.world import KEYS, POOL, World

NAMES = ("a", "b", "acme/c", "acme/d", "e", "f")
ODD_NAME = "odd"


class Operator:
    """Makes changes, several at once, and settles each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"operator {world.seed}")
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

    async def change(self, change: Change) -> None:
        """Settles one change."""
        self._made += 1
        request_id = f"req-{self._made}"
        answer = await settle(self._world.admins, change, request_id, self._rng)
        self._world.log(f"{request_id} {type(change).__name__}: revision {answer.revision} {answer.reason}")
        self._world.answers.append(answer)

    def _next(self) -> Change:
        rng = self._rng
        if rng.random() < 0.1:
            return RollbackAdapter(POOL, rng.choice(NAMES))
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
        kind = self._rng.choices(("good", MISSING, REFUSED, HIGH_RANK), (12, 1, 1, 1))[0]
        load = self._rng.choices(("eager", "lazy"), (8, 1))[0]
        source = Source(uri=f"{ROOT}{kind}{self._sources}")
        return AdapterSpec.model_validate({"source": source, "load": load, "priority": self._rng.randint(0, 2)})

    def _write_by_hand(self) -> None:
        """A record that somebody writes past the admin service: readable or not, or the base model's name."""
        world = self._world
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
