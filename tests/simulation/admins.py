"""Admin services as processes of the simulation: `registry.admin.server` assembles each, over played ports."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from unittest import mock

from registry.admin.server import running
from registry.admin.settings import AdminSettings
from registry.etcd3.options import TlsFiles
from registry.runtime.clock import Clock
from tests.simulation.loop import Process, State
from tests.simulation.serving import ServerCall, SimServer

API_PORT = 7600


class _HttpPort:
    """In place of the HTTP port, which nobody asks."""

    def __init__(self, *_: object) -> None:
        self._end = asyncio.Event()

    async def run(self) -> None:
        await self._end.wait()

    def stop(self) -> None:
        self._end.set()


class _Listener:
    """In place of a bound socket."""

    def __init__(self, *_: object) -> None:
        """Nothing is bound."""

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", API_PORT + 1)


@dataclass(eq=False)
class Admin:
    """One admin service; `start` it anew once it is gone.

    Attributes:
        on_server: is told of each server that it opens.
        on_end: is told of each end: the error, or None after a signal.
        restarts: how often it was started.
        server: that of the process that runs.
    """

    name: str
    endpoints: tuple[str, ...]
    prefix: str
    wall: Callable[[], datetime]
    rng: random.Random
    on_server: Callable[[Admin, SimServer], None]
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

    def opened(self, server: SimServer) -> None:
        """Its process has made a server."""
        self.server = server
        self.on_server(self, server)

    def take(self, call: ServerCall) -> None:
        """A call comes in; one at a process that is gone is heard of by nobody."""
        if self.server is not None and self.process.state is not State.DEAD:
            self.server.take(call)

    async def _run(self, stop: asyncio.Event) -> None:
        values = {"etcd": "127.0.0.1:1", "prefix": self.prefix, "listen": f"127.0.0.1:{API_PORT}"}
        files = self.tls or TlsFiles()
        told = {"etcd_tls_ca": files.ca, "etcd_tls_cert": files.certificate, "etcd_tls_key": files.key}
        settings = AdminSettings.model_validate(values).model_copy(update={"etcd": self.endpoints, **told})
        async with running(settings, clock=Clock(random.Random(self.rng.random()), self.wall)):
            await stop.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.on_end(self, task.exception())


@contextmanager
def ports_played(open_server: Callable[..., SimServer]) -> Iterator[None]:
    """Puts played ports in place of those of the admin service."""
    with (
        mock.patch("grpc.aio.server", open_server),
        mock.patch("registry.admin.server.listen_as_told", _Listener),
        mock.patch("registry.admin.server.HttpServer", _HttpPort),
    ):
        yield
