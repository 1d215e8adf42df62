"""Readers of WatchResidency, by the SDK: some stay, some hang up and come again, some read nothing for long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from registry.admin.rpc import encode_residency
from registry.client.asynchronous import AsyncRegistry
from registry.client.residency import AdapterResidency, Follower
from registry.etcd3.ops import Event
from registry.model.errors import NotFound
from registry.residency.hub import ResidencyUpdate
from registry.residency.view import PoolView
from registry.v1 import registry_pb2 as pb
from tests.simulation.history import POOL
from tests.simulation.places import Places
from tests.simulation.world import KEYS, World

# A reader that is connected knows after so long what happened last, if nothing else happens.
NEWS_SECONDS = 4.0
AGAIN_SECONDS = 0.3
_FOLLOWED = tuple(prefix(POOL) for prefix in (KEYS.adapters, KEYS.replicas, KEYS.statuses, KEYS.pool, KEYS.members))
Adapters = Mapping[str, AdapterResidency]


@dataclass
class Reader:
    """One reader; `stays` and `rests` are the most seconds between hanging up, and between two looks."""

    world: World
    registry: AsyncRegistry
    rng: random.Random
    stays: float | None = None
    rests: float = 0.0
    adapters: Adapters | None = None
    answers: int = 0

    async def read(self) -> None:
        """Reads without end."""
        while True:
            try:
                stays = None if self.stays is None else self.rng.uniform(0.0, self.stays)
                async with asyncio.timeout(stays), aclosing(self.registry.residency(POOL)) as states:
                    async for state in states:
                        self.adapters, self.answers = state.adapters, self.answers + 1
                        await asyncio.sleep(self.rng.choice((0.0, self.rests)))
            except TimeoutError:
                self.world.log("a reader hung up")
            except NotFound:
                pass  # the pool is not there yet, or not there any more
            self.adapters = None
            await asyncio.sleep(AGAIN_SECONDS)


@dataclass
class Readers:
    """All readers, and the rule that they are held against."""

    world: World
    places: Places
    readers: list[Reader] = field(default_factory=list)
    compared: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _changed_at: float = 0.0
    _calm_at: float | None = None
    _wanted: tuple[PoolView | None, Adapters] = (None, {})

    def start(self) -> None:
        """In half of all worlds: connects one of each kind to admin services."""
        rng = random.Random(f"readers {self.world.seed}")
        if rng.random() < 0.5:
            return
        kinds: tuple[tuple[float | None, float], ...] = ((None, 0.0), (4.0, 0.0), (None, 12.0))
        for number, (stays, rests) in enumerate(kinds):
            admin = rng.choice(self.world.admins)
            registry = AsyncRegistry(f"reader{number}.{admin.address}")
            reader = Reader(self.world, registry, random.Random(rng.random()), stays, rests)
            self.readers.append(reader)
            self._tasks.append(asyncio.get_running_loop().create_task(reader.read()))

    def on_commit(self, _revision: int, events: tuple[Event, ...]) -> None:
        """Each revision of etcd."""
        if any(event.key.startswith(_FOLLOWED) for event in events):
            self._changed_at = asyncio.get_running_loop().time()

    def calm(self) -> None:
        """From now on nothing fails, and nobody hangs up or rests."""
        for reader in self.readers:
            reader.stays, reader.rests = None, 0.0
        self._calm_at = asyncio.get_running_loop().time()

    def need(self, seconds: float) -> float:
        """How long it takes at least until they are held against etcd, where there are any."""
        return max(seconds, CALM_SECONDS + 1.0) if self.readers else seconds

    def check_equal(self) -> None:
        """R24 always-placed: who stays connected ends equal to etcd, without any further change."""
        now = asyncio.get_running_loop().time()
        if (
            not self.readers
            or self._calm_at is None
            or now < max(self._calm_at + CALM_SECONDS, self._changed_at + NEWS_SECONDS)
        ):
            return
        wanted = self._wanted_now()
        for number, reader in enumerate(self.readers):
            self.compared += 1
            if reader.adapters != wanted:
                difference = _difference(reader.adapters, wanted)
                self.world.checks.violated(f"R24 reader{number} is not told what is in etcd: {difference}")

    def _wanted_now(self) -> Adapters:
        """What a reader is to know by what stands in etcd."""
        if self._wanted[0] is not self.places.view:
            self._wanted = self.places.view, whole(self.places.view)
        return self._wanted[1]


# Who read nothing for long reads on, and connections stand again, so soon after everything has healed.
CALM_SECONDS = 15.0


def whole(view: PoolView) -> Adapters:
    """All that a reader is told of a view."""
    update = ResidencyUpdate(1, view, tuple(sorted(view.records)), snapshot=True)
    detail = pb.WatchResidencyRequest.REPLICAS
    follower = Follower()
    for start in encode_residency.starts(update, detail):
        state = follower.take(encode_residency.response.__wrapped__(update, start, detail))
    assert state is not None
    return state.adapters


def _difference(told: Adapters | None, wanted: Adapters) -> str:
    if told is None:
        return "it is told nothing"
    keys = [key for key in sorted({*told, *wanted}) if told.get(key) != wanted.get(key)]
    return "; ".join(f"{key} is {told.get(key)}, and should be {wanted.get(key)}" for key in keys[:2])
