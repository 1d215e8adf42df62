"""Admin services as processes of the simulation: `registry.admin.app` assembles each, over ports that are played."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

import grpc
from grpc_health.v1 import health, health_pb2

from registry.admin.app import AdminPorts, AdminService, assemble
from registry.admin.rpc.service import SERVICE
from registry.etcd3.client import Client
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.model.keys import Keys
from registry.runtime.clock import Clock
from tests.simulation.loop import Process, State
from tests.simulation.serving import ServerCall, SimServer

API_PORT = 7600
SERVING = health_pb2.HealthCheckResponse.SERVING


class _Pages:
    """In place of the HTTP port, which nobody asks."""

    def __init__(self) -> None:
        self._end = asyncio.Event()

    async def run(self) -> None:
        await self._end.wait()

    def stop(self) -> None:
        self._end.set()


class NotedHealth(health.aio.HealthServicer):  # type: ignore[misc] # it has no types
    """What those who look at health are told; `since`: each state by service, and from when on."""

    def __init__(self) -> None:
        super().__init__()
        self.since = dict.fromkeys(("", SERVICE), (SERVING, _now()))

    async def _set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        await super()._set(service, status)
        if self.since[service][0] != status:
            self.since[service] = status, _now()


@dataclass(eq=False)
class Admin:
    """One admin service; `start` it anew once it is gone.

    Attributes:
        on_server: is told of each server that it opens, and of the parts that serve on it.
        on_end: is told of each end: the error, or None after a signal.
        restarts: how often it was started.
        server: that of the process that runs.
    """

    name: str
    endpoints: tuple[str, ...]
    keys: Keys
    wall: Callable[[], datetime]
    rng: random.Random
    on_server: Callable[[Admin, AdminService, SimServer], None]
    on_end: Callable[[Admin, BaseException | None], None]
    tls: TlsFiles | None = None
    process: Process = field(default_factory=lambda: Process("none", State.DEAD))
    restarts: int = 0
    server: SimServer | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def address(self) -> str:
        return f"{self.name}:{API_PORT}"

    @property
    def listens(self) -> bool:
        """Whether somebody who connects finds a server."""
        return self.process.state is not State.DEAD and self.server is not None and self.server.listens

    def start(self) -> None:
        """Starts a process with nothing in its memory."""
        self.restarts += 1
        self.server, self._stop = None, asyncio.Event()
        self.process = Process(f"{self.name}.{self.restarts}")
        task = asyncio.get_running_loop().create_task(self._run(self._stop), context=self.process.context())
        task.add_done_callback(self._ended)

    def stop(self) -> None:
        """Sends it a signal, as for an update."""
        self._stop.set()

    def kill(self) -> None:
        """Kills it wherever it is."""
        self.process.kill()

    def take(self, call: ServerCall) -> None:
        """A call comes in; one at a process that is gone is heard of by nobody."""
        if self.server is not None and self.process.state is not State.DEAD:
            self.server.take(call)

    async def _run(self, stop: asyncio.Event) -> None:
        clock = Clock(random.Random(self.rng.random()), self.wall)
        client = Client(ClientOptions(self.endpoints, tls=self.tls), rng=clock.rng)
        service = assemble(AdminPorts(client, self.keys, clock, health=NotedHealth()))
        self.server = SimServer()
        self.on_server(self, service, self.server)
        try:
            async with service.serving(cast("grpc.aio.Server", self.server), _Pages()):
                await stop.wait()
        finally:
            await client.aclose()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.on_end(self, task.exception())


def _now() -> float:
    return asyncio.get_running_loop().time()
