"""One sidecar as a process of the simulation: `sidecar.app` assembles it, over played ports."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from registry.etcd3.client import Client
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.model.keys import Keys
from registry.model.status import Presence
from registry.runtime.clock import Clock, rfc3339
from sidecar.app import Sidecar, assemble
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.plan.types import RoundReport
from sidecar.ports import Ports
from sidecar.resolver.resolver import Resolver
from sidecar.vllm_plugin.protocol import Answer
from tests.simulation.artifacts import SimStore
from tests.simulation.plugin import Socket

# So short that much is let go of while faults last; longer than a request is on its way into an engine.
GRACE_SECONDS = 6.0
KEEP_SECONDS = 2.0
# What is lazy goes so soon after its last use.
IDLE_SECONDS = 8.0
OnReport = Callable[[str, Mailbox, RoundReport], None]
OnAnswer = Callable[[Mailbox, str, Answer], None]


@dataclass(frozen=True)
class Place:
    """What stays when a sidecar restarts."""

    pool: str
    replica: str
    engine_url: str
    endpoints: tuple[str, ...]
    state: Path
    store: SimStore
    keys: Keys
    wall: Callable[[], datetime]
    on_report: OnReport
    on_answer: OnAnswer
    owner: str
    socket: Socket | None
    tls: TlsFiles | None


@dataclass(frozen=True)
class _Heard:
    """A resolver whose answers are looked at, each at the moment at which it is given."""

    resolver: Resolver
    place: Place
    mailbox: Mailbox

    async def ask(self, name: str) -> Answer:
        answer = await self.resolver.ask(name)
        self.place.on_answer(self.mailbox, name, answer)
        return answer


async def run_sidecar(place: Place, incarnation: int, rng: random.Random, journals: list[Journal]) -> None:
    """Runs a sidecar until it is cancelled, as `sidecar.daemon.run` does. Raises ReplicaTaken."""
    clock = Clock(rng, place.wall)
    client = Client(ClientOptions(place.endpoints, tls=place.tls), rng=rng)
    engine = VllmEngine(place.engine_url, is_intact=place.store.is_proven)
    presence = Presence(
        pool=place.pool,
        replica=place.replica,
        incarnation=f"{place.store.replica}-{incarnation}",
        owner=place.owner,
        started_at=rfc3339(clock.wall()),
    )
    ports = Ports(
        presence=presence,
        client=client,
        keys=place.keys,
        engine=engine,
        store=place.store,
        maintenance=place.store,
        place=place.store.replica,
        state=place.state,
        clock=clock,
        answer=None if place.socket is None else partial(_answer, place, place.socket, lambda: sidecar.mailbox),
        on_round=lambda report: place.on_report(place.replica, sidecar.mailbox, report),
        grace_seconds=GRACE_SECONDS,
        idle_seconds=IDLE_SECONDS,
        keep_seconds=KEEP_SECONDS,
    )
    sidecar: Sidecar = assemble(ports)
    journals.append(sidecar.cache.journal)
    try:
        async with asyncio.TaskGroup() as tasks:
            sidecar.start(tasks)
    finally:
        await engine.aclose()
        await client.aclose()


async def _answer(place: Place, socket: Socket, mailbox: Callable[[], Mailbox], resolver: Resolver) -> None:
    """In place of `sidecar.resolver.server.answer_questions`."""
    socket.listen(_Heard(resolver, place, mailbox()))
    await resolver.run()
